//! Pages as a drive should fill them, each lie alone, and any bytes.

use proptest::prelude::*;

use super::*;
use crate::pi::formats;

const INDEX: usize = 3;

/// The pages of a drive, to be changed.
#[derive(Clone)]
pub(crate) struct Drawn {
    pub(crate) controller: [u8; PAGE_BYTES],
    pub(crate) namespace: [u8; PAGE_BYTES],
    pub(crate) extended: [u8; PAGE_BYTES],
}

impl Drawn {
    /// A drive whose namespace has `blocks` of its blocks in this format.
    pub(crate) fn new(format: &Format, blocks: u64) -> Drawn {
        let zeros = [0; PAGE_BYTES];
        let mut drawn = Drawn { controller: zeros, namespace: zeros, extended: zeros };
        drawn.controller[97] = 1 << 7; // Bit 15 of the attributes.
        drawn.controller[77] = 7;
        drawn.controller[520] = 1 << 2;
        for at in [0, 8, 16] {
            drawn.namespace[at..at + 8].copy_from_slice(&blocks.to_le_bytes());
        }
        drawn.namespace[25] = 7;
        drawn.namespace[26] = INDEX as u8;
        drawn.namespace[27] = 0b11;
        drawn.namespace[28] = 0b1_1111;
        let first = u8::from(format.place() == Place::First);
        drawn.namespace[29] = format.kind().number() as u8 | first << 3;
        let at = 128 + 4 * INDEX;
        drawn.namespace[at] = format.metadata_bytes() as u8;
        drawn.namespace[at + 2] = format.data_bytes().trailing_zeros() as u8;
        let guard = Guard::ALL.iter().position(|guard| *guard == format.guard()).unwrap() as u32;
        drawn.set_guard(guard << 7 | format.storage_bits());
        drawn
    }

    fn set_guard(&mut self, format: u32) {
        self.extended[12 + 4 * INDEX..][..4].copy_from_slice(&format.to_le_bytes());
    }

    pub(crate) fn parse(&self) -> Result<Identity, IdentifyProblem> {
        let extended = has_wide_guards(&self.controller).then_some(&self.extended);
        let Drawn { controller, namespace, .. } = self;
        Identity::parse(&Pages { controller, namespace, extended })
    }
}

fn format(words: &str) -> Format {
    words.parse().unwrap()
}

proptest! {
    #[test]
    fn a_format_is_read_from_the_pages_that_name_it(
        format in formats(),
        blocks in 8..1_u64 << 40,
        limit in any::<u8>(),
        qualified in any::<bool>(),
    ) {
        let mut drawn = Drawn::new(&format, blocks);
        drawn.controller[77] = limit;
        if qualified {
            let guard = Guard::ALL.iter().position(|guard| *guard == format.guard()).unwrap();
            drawn.set_guard(3 << 7 | (guard as u32) << 9 | format.storage_bits());
        }
        let identity = drawn.parse().unwrap();
        prop_assert_eq!(identity.format, format);
        prop_assert_eq!(identity.drive_blocks, blocks);
        prop_assert_eq!(identity.blocks, blocks / format.parts() as u64);
        prop_assert!(identity.can_discard);
        let (most, entry) = (identity.most_blocks as usize, format.entry_bytes());
        prop_assert!(most >= 1 && most <= MOST_BLOCKS as usize && most * entry <= 4096);
        if (1..20).contains(&limit) {
            prop_assert!(most * (4096 + entry) <= 4096 << limit);
        }
        prop_assert!(identity.expect_size(blocks * format.data_bytes() as u64).is_ok());
    }

    #[test]
    fn any_bytes_give_an_identity_that_holds_or_an_error(
        format in formats(),
        changes in prop::collection::vec((0..3_usize, any::<prop::sample::Index>(), any::<u8>()), 0..6),
    ) {
        let mut drawn = Drawn::new(&format, 1 << 20);
        for (page, at, byte) in changes {
            match page {
                0 => drawn.controller[[77, 97, 520][at.index(3)]] = byte,
                1 => drawn.namespace[at.index(192)] = byte,
                _ => drawn.extended[at.index(80)] = byte,
            }
        }
        if let Ok(identity) = drawn.parse() {
            let Identity { format, blocks, drive_blocks, most_blocks, .. } = identity;
            prop_assert!(blocks > 0, "NVMEID-I1");
            prop_assert!((1..=MOST_BLOCKS).contains(&most_blocks), "NVMEID-I1");
            prop_assert_eq!(blocks, drive_blocks / format.parts() as u64);
            prop_assert_eq!(format.to_string().parse(), Ok(format));
        }
    }
}

/// The message about a namespace of 4096+16:64b with 1000 blocks after a change.
fn said(change: impl FnOnce(&mut Drawn)) -> String {
    let mut drawn = Drawn::new(&format("4096+16:64b"), 1000);
    change(&mut drawn);
    drawn.parse().unwrap_err().to_string()
}

#[test]
fn each_namespace_that_cannot_be_used_has_its_own_message() {
    let lbaf = 128 + 4 * INDEX;
    let cases = [
        ("no such namespace", said(|page| page.namespace[..24].fill(0))),
        ("has no metadata, and so no", said(|page| page.namespace[lbaf] = 0)),
        ("16 bytes of metadata beside each block, but no", said(|page| page.namespace[29] = 0)),
        ("extended blocks", said(|page| page.namespace[26] |= 1 << 4)),
        ("512 or 4096 bytes of data, not 2048", said(|page| page.namespace[lbaf + 2] = 11)),
        ("has 16 bytes; 8 bytes of metadata have no room", said(|page| page.namespace[lbaf] = 8)),
        ("8 to 64 bytes of metadata", said(|page| page.namespace[lbaf] = 128)),
        ("8 to 64 bytes of metadata", said(|page| page.namespace[lbaf] = 4)),
        ("0 to 48 bits, not 49", said(|page| page.set_guard(2 << 7 | 49))),
        ("16 to 64 bits, not 0", said(|page| page.set_guard(1 << 7))),
        ("guard of the namespace has the number 3", said(|page| page.set_guard(3 << 7 | 3 << 9))),
        (
            "7 blocks of 512 bytes, less than 4096",
            said(|page| {
                *page = Drawn::new(&format("512+16:64b"), 7);
            }),
        ),
    ];
    for (words, message) in cases {
        assert!(message.contains(words), "{message}");
        assert!(!message.contains("contradicts"), "{message}");
    }
}

#[test]
fn a_drive_that_contradicts_itself_is_refused() {
    let lbaf = 128 + 4 * INDEX;
    let cases = [
        (
            "has 1000 blocks, and room for 1001",
            said(|page| {
                page.namespace[8..16].copy_from_slice(&1001_u64.to_le_bytes());
            }),
        ),
        (
            "999 blocks are in use, of 998",
            said(|page| {
                page.namespace[8..16].copy_from_slice(&998_u64.to_le_bytes());
                page.namespace[16..24].copy_from_slice(&999_u64.to_le_bytes());
            }),
        ),
        ("has format 3, of 3", said(|page| page.namespace[25] = 2)),
        ("has format 35, of 8", said(|page| page.namespace[26] |= 2 << 5)),
        ("2^0 bytes", said(|page| page.namespace[lbaf + 2] = 0)),
        ("2^64 bytes", said(|page| page.namespace[lbaf + 2] = 64)),
        ("metadata apart from data", said(|page| page.namespace[27] = 1)),
        ("has type 4", said(|page| page.namespace[29] = 4)),
        ("type 2, which the drive does not support", said(|page| page.namespace[28] &= !2)),
        ("the last part of metadata", said(|page| page.namespace[28] &= !(1 << 4))),
        (
            "the first part of metadata",
            said(|page| {
                page.namespace[28] &= !(1 << 3);
                page.namespace[29] |= 1 << 3;
            }),
        ),
        (
            "more bytes than can be counted",
            said(|page| {
                page.namespace[..24].fill(0xff);
            }),
        ),
    ];
    for (words, message) in cases {
        assert!(message.contains(words), "{message}");
        assert!(message.contains("contradicts itself"), "{message}");
    }
}

#[test]
fn the_block_device_has_the_same_size_or_none() {
    let identity = Drawn::new(&format("512+8:16b"), 8001).parse().unwrap();
    assert_eq!(identity.blocks, 1000);
    assert_eq!((identity.expect_size(8001 * 512), identity.expect_size(0)), (Ok(()), Ok(())));
    let error = identity.expect_size(8000 * 512).unwrap_err().to_string();
    assert!(error.contains("4096512 bytes in this namespace, its block device 4096000"), "{error}");
}

#[test]
fn a_drive_without_the_newer_page_has_guards_of_16_bits() {
    let mut drawn = Drawn::new(&format("4096+64:64b"), 1000);
    drawn.controller[97] = 0;
    assert_eq!(drawn.parse().unwrap().format, format("4096+64:16b:type2"));
}

#[test]
fn a_namespace_has_its_longer_number_or_its_shorter_one_or_none() {
    let mut drawn = Drawn::new(&format("4096+16:64b"), 1000);
    assert_eq!(drawn.parse().unwrap().unique, None);
    drawn.namespace[120..128].fill(7);
    assert_eq!(
        drawn.parse().unwrap().unique,
        Some(*b"\x07\x07\x07\x07\x07\x07\x07\x07\0\0\0\0\0\0\0\0")
    );
    drawn.namespace[119] = 9;
    let unique = drawn.parse().unwrap().unique.unwrap();
    assert_eq!((unique[14], unique[15]), (0, 9), "NVMEUID-U1");
}
