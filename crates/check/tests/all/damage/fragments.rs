//! Nodes in fragments: lists and fragments that rot, cannot be read, or mean nothing.

use copyhold_check::{Problem, Severity};
use copyhold_device::sim::{Lasting, SimImage};
use copyhold_format::node::{Fragment, Level, encode_fragments, parse_fragments};
use copyhold_types::{BLOCK_BYTES, Digest, Key, NodePtr};

use super::nodes::{copies, nodes, only, read_often, rot_all};
use super::pool::{Power, TABLE, kinds, report, rot, sound_with};

const EIO: i32 = 5;

/// Leaves of eight blocks, in a pool whose free space is in runs of four.
fn in_fragments() -> SimImage {
    sound_with(32 << 10, Some(4))
}

/// A leaf of the files, in several blocks.
fn leaf(image: &SimImage) -> NodePtr {
    let leaves = nodes(image, TABLE, Level::Leaf);
    *leaves.iter().find(|leaf| leaf.fragmented).expect("some leaf is in fragments")
}

fn fragments(image: &SimImage, leaf: &NodePtr) -> Vec<Fragment> {
    let list = image.read_block(copies(leaf)[0].addr.block());
    parse_fragments(&list, leaf).unwrap()
}

/// Puts another list in the place of a leaf's, in both copies.
fn put_list(image: &mut SimImage, leaf: &NodePtr, digest: Digest, fragments: &[Fragment]) {
    let list: [u8; BLOCK_BYTES] = encode_fragments(digest, fragments)[..].try_into().unwrap();
    for run in copies(leaf) {
        image.corrupt(run.addr.block(), |block| *block = list);
    }
}

/// One leaf is lost, and it is named; nothing is said of its blocks that is not known.
fn assert_lost(image: &SimImage) {
    assert_eq!(kinds(image), ["node", "unaccounted"]);
    assert_eq!(report(image).worst(), Some(Severity::DataLost));
}

#[test]
fn nodes_in_fragments_are_sound() {
    let image = in_fragments();
    let leaf = leaf(&image);
    assert!(fragments(&image, &leaf).len() > 1, "{leaf:?}");
    let report = report(&image);
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
}

#[test]
fn one_copy_of_a_list_or_of_a_fragment_is_written_again_from_the_other() {
    let sound = in_fragments();
    let leaf = leaf(&sound);
    let fragment = fragments(&sound, &leaf)[1];
    for block in [copies(&leaf)[1].addr.block(), fragment.copies[0].unwrap().block()] {
        let mut image = sound.clone();
        rot(&mut image, block);
        let report = report(&image);
        assert!(matches!(only(&report), Problem::NodeCopy { .. }), "{report:?}");
        assert_eq!(report.worst(), Some(Severity::Repairable));
        assert!(kinds(&read_often(&image)).is_empty());
    }
}

#[test]
fn a_list_that_rots_in_both_copies_loses_its_node() {
    let mut image = in_fragments();
    let leaf = leaf(&image);
    rot_all(&mut image, &leaf);
    assert_lost(&image);
    let power = Power::on(&image);
    let pool = power.open(false).unwrap();
    power.rt.block_on(pool.range(TABLE, Key::MIN, Key::MAX, usize::MAX)).unwrap_err();
}

#[test]
fn a_list_that_cannot_be_read_from_any_copy_loses_its_node() {
    let image = in_fragments();
    let power = Power::on(&image);
    for run in copies(&leaf(&image)) {
        power.device.break_block(run.addr.block(), EIO, Lasting::Forever);
    }
    let report = power.check().unwrap();
    let mut kinds: Vec<_> = report.problems().map(Problem::kind).collect();
    kinds.sort_unstable();
    assert_eq!(kinds, ["node", "unaccounted"], "{report:#?}");
}

#[test]
fn fragments_that_rot_in_both_copies_lose_their_node() {
    let mut image = in_fragments();
    let leaf = leaf(&image);
    let [first, .., last] = fragments(&image, &leaf)[..] else { unreachable!() };
    rot(&mut image, first.copies[0].unwrap().block());
    rot(&mut image, last.copies[1].unwrap().block());
    assert_lost(&image);
}

#[test]
fn a_list_with_a_right_check_that_means_nothing_loses_its_node() {
    let sound = in_fragments();
    let leaf = leaf(&sound);
    let fragments = fragments(&sound, &leaf);
    let mut reversed = fragments.clone();
    reversed.reverse();
    let beyond = |of: &Fragment| Fragment { blocks: of.blocks + 1, ..*of };
    let longer: Vec<Fragment> = fragments.iter().map(beyond).collect();
    for (digest, fragments) in [
        (Digest(1), fragments.clone()),
        (leaf.digest, reversed),
        (leaf.digest, longer),
        (leaf.digest, fragments[1..].to_vec()),
    ] {
        let mut image = sound.clone();
        put_list(&mut image, &leaf, digest, &fragments);
        assert!(kinds(&image).contains(&"node"), "{fragments:?}");
    }
}
