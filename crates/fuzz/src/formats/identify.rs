//! Pages in which an NVMe drive describes itself and a namespace.

use copyhold_device::nvme::{Identity, MOST_BLOCKS, PAGE_BYTES, Pages, has_wide_guards};

/// The bytes of each page that are looked at: of the controller, the namespace, and the page of the
/// command set.
const USED: [usize; 3] = [522, 384, 268];

pub(crate) fn identify(data: &[u8]) {
    let mut pages = [[0; PAGE_BYTES]; 3];
    let mut rest = data;
    for (page, used) in pages.iter_mut().zip(USED) {
        let (bytes, behind) = rest.split_at(used.min(rest.len()));
        page[..bytes.len()].copy_from_slice(bytes);
        rest = behind;
    }
    let [controller, namespace, extended] = &pages;
    let extended = has_wide_guards(controller).then_some(extended);
    match Identity::parse(&Pages { controller, namespace, extended }) {
        Ok(identity) => {
            assert_ne!(identity.unique, Some([0; 16]));
            assert!(identity.blocks > 0);
            assert!((1..=MOST_BLOCKS).contains(&identity.most_blocks));
            assert!(identity.most_blocks as usize * identity.format.entry_bytes() <= 4096);
            let parts = identity.format.parts() as u64;
            assert_eq!(identity.blocks, identity.drive_blocks / parts);
            assert_eq!(identity.format.to_string().parse(), Ok(identity.format));
        }
        Err(problem) => assert!(!problem.to_string().is_empty()),
    }
}

/// Namespaces of 4096+64:64b and 512+8:16b.
pub(crate) fn identities() -> Vec<Vec<u8>> {
    [(64, 12, 2_u32 << 7, 2), (8, 9, 0, 1)]
        .map(|(metadata, data_bits, guard, kind)| {
            let [mut controller, mut namespace, mut extended] = USED.map(|used| vec![0; used]);
            (controller[77], controller[97], controller[520]) = (7, 1 << 7, 1 << 2);
            for at in [0, 8, 16] {
                namespace[at..at + 8].copy_from_slice(&8000_u64.to_le_bytes());
            }
            namespace[25..30].copy_from_slice(&[3, 1, 0b11, 0b1_1111, kind]);
            (namespace[132], namespace[134]) = (metadata, data_bits);
            extended[16..20].copy_from_slice(&guard.to_le_bytes());
            [controller, namespace, extended].concat()
        })
        .into()
}
