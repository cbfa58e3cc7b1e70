//! Bad copies of each kind, and namespaces whose tuples are there, erased, or elsewhere.

use copyhold_runtime::SeededRuntime;
use copyhold_types::{BLOCK_BYTES, DeviceId};

use super::super::header_digest;
use super::*;
use crate::sim::{Lasting, SimDevice, make_namespace};
use crate::{Device, IoError};

const BLOCKS: u64 = 640;
/// Blocks that were written without a birth.
const KNOWN: [u64; 2] = [0, 500];

struct World {
    rt: Arc<SeededRuntime>,
    disk: Arc<SimDevice>,
    below: DynDevice,
    namespace: Arc<Emulated>,
}

impl World {
    fn new(format: &str) -> World {
        let rt = SeededRuntime::new(1);
        let disk = SimDevice::new(rt.clone(), DeviceId(0), BLOCKS, 1);
        let namespace = make_namespace(&rt, &disk, format);
        for block in KNOWN {
            let data = Buf::from_bytes(&[7; BLOCK_BYTES]);
            rt.block_on(namespace.write(block, data.into(), Purpose::Label)).unwrap();
        }
        rt.block_on(namespace.flush()).unwrap();
        World { rt, below: disk.clone(), disk, namespace }
    }

    /// Changes a copy, and gives it the digest of its content.
    fn sign(&self, block: u64, change: impl FnOnce(&mut [u8; BLOCK_BYTES])) {
        self.disk.corrupt(block, |copy| {
            change(copy);
            let digest = header_digest(copy);
            copy[32..48].copy_from_slice(&digest.to_le_bytes());
        });
    }

    fn look(&self) -> Headers {
        self.rt.block_on(look_at_headers(self.rt.clone(), &self.below))
    }

    /// Blocks of rotten copies beside a good one.
    fn rotten(&self) -> Vec<u64> {
        match self.look() {
            Headers::Good { rotten, .. } => rotten,
            _ => panic!("one is good"),
        }
    }

    fn remake(&self, known: &[u64]) -> Result<Vec<u64>, Remake> {
        let header = *self.namespace.header();
        let of = (header.format, header.identity);
        self.rt.block_on(remake_headers(self.rt.clone(), &self.below, of, known))
    }

    fn lose_headers(&self) {
        (BLOCKS - HEADERS..BLOCKS).for_each(|at| self.disk.corrupt(at, |copy| copy.fill(0)));
    }

    /// Gives a block the tuples of a block that was never written.
    fn erase_tuple(&self, block: u64) {
        let (at, bytes) = self.namespace.place_of_metadata(block);
        self.disk.corrupt(at, |content| content[bytes].fill(0));
    }
}

#[test]
fn only_a_rotten_copy_is_written_over() {
    for bad in [BLOCKS - 2, BLOCKS - 1] {
        let damages: [fn(&mut [u8; BLOCK_BYTES]); 4] = [
            |copy| copy.fill(0),
            |copy| copy[0] ^= 1,
            |copy| copy[100] ^= 1,
            // The version alone.
            |copy| copy[9] ^= 1,
        ];
        for damage in damages {
            let world = World::new("4096+16:64b");
            let whole = world.disk.image();
            world.disk.corrupt(bad, damage);
            let Headers::Good { namespace, rotten } = world.look() else { panic!("one is good") };
            assert_eq!(rotten, [bad]);
            let mend = mend_headers(&world.below, namespace.header(), &rotten);
            world.rt.block_on(mend).unwrap();
            assert!(world.disk.image() == whole);
            assert!(world.rotten().is_empty());
        }
        // A newer program's.
        let newer: [fn(&mut [u8; BLOCK_BYTES]); 2] = [|copy| copy[8] = 2, |copy| copy[64] = 1];
        for change in newer {
            let world = World::new("4096+16:64b");
            world.sign(bad, change);
            assert!(world.rotten().is_empty(), "PICOPY-C1");
            let opened = Emulated::find(world.rt.clone(), world.below.clone(), OpenMode::ReadOnly);
            assert_eq!(world.rt.block_on(opened).unwrap().unwrap().defects().len(), 1);
        }
    }
}

#[test]
fn a_copy_that_cannot_be_read_is_rotten_if_the_medium_has_lost_it() {
    for (errno, is_lost) in [(libc::ENODATA, true), (libc::EIO, false), (libc::ENOMEM, false)] {
        let world = World::new("4096+16:64b");
        world.disk.break_block(BLOCKS - 1, errno, Lasting::Forever);
        assert_eq!(!world.rotten().is_empty(), is_lost, "{errno}");
        world.disk.corrupt(BLOCKS - 2, |copy| copy[100] ^= 1);
        match world.look() {
            Headers::Lost => assert!(is_lost),
            Headers::Unread(DeviceError::Read { source: IoError(found), .. }) => {
                assert_eq!((found, is_lost), (errno, false));
            }
            _ => panic!("none is known to be good"),
        }
    }
}

#[test]
fn two_copies_of_which_one_is_of_another_version_are_not_lost() {
    let world = World::new("4096+16:64b");
    world.sign(BLOCKS - 1, |copy| copy[8] = 2);
    world.disk.corrupt(BLOCKS - 2, |copy| copy.fill(0));
    assert!(matches!(world.look(), Headers::Unusable(HeaderProblem::Version(2))));
    // Rot of the version alone.
    let world = World::new("4096+16:64b");
    world.disk.corrupt(BLOCKS - 1, |copy| copy[8] = 2);
    world.disk.corrupt(BLOCKS - 2, |copy| copy.fill(0));
    assert!(matches!(world.look(), Headers::Lost));
}

#[test]
fn a_header_that_forbids_writing_is_not_written_again() {
    let world = World::new("4096+16:64b");
    world.sign(BLOCKS - 1, |copy| copy[56] = 1);
    world.disk.corrupt(BLOCKS - 2, |copy| copy.fill(0));
    let before = world.disk.image();
    let Headers::Good { namespace, rotten } = world.look() else { panic!("one is good") };
    assert_eq!(rotten, [BLOCKS - 2]);
    let mend = mend_headers(&world.below, namespace.header(), &rotten);
    let refused = world.rt.block_on(mend).unwrap_err().to_string();
    assert!(refused.contains("only read it: 0x1"), "{refused}");
    assert!(world.disk.image() == before);
}

#[test]
fn lost_headers_are_made_where_each_known_block_has_its_tuple() {
    for format in ["4096+16:64b", "4096+8:16b:type1", "512+64:32b:type3:first"] {
        let world = World::new(format);
        let whole = world.disk.image();
        world.lose_headers();
        let before = world.disk.image();
        assert!(matches!(world.remake(&[]), Err(Remake::NothingKnown)), "{format}");
        let refused = world.remake(&[KNOWN[0], KNOWN[1], 300]);
        assert!(matches!(refused, Err(Remake::NoTuple { block: 300 })), "never written: {format}");
        assert!(world.disk.image() == before, "{format}");
        assert_eq!(world.remake(&KNOWN).unwrap(), [BLOCKS - 2, BLOCKS - 1]);
        assert!(world.disk.image() == whole, "{format}");
        world.lose_headers();
        for erased in KNOWN {
            let (at, _) = world.namespace.place_of_metadata(erased);
            let entries = world.disk.read_block_now(at);
            world.erase_tuple(erased);
            let refused = world.remake(&KNOWN);
            let is_named = matches!(refused, Err(Remake::NoTuple { block }) if block == erased);
            assert!(is_named, "{format}: block {erased}");
            world.disk.corrupt(at, |content| content.copy_from_slice(&entries[..]));
        }
    }
}
