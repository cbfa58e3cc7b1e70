//! The number of a namespace, by which a pool knows it again.
//!
//! Problem.  Another namespace of the same format may have the pool's blocks, and not its tuples: a
//!           copy, or the same one after it was formatted anew.
//! Idea.     Drives give a namespace a number that no other has, in one of two fields of its page.
//!           The list of descriptors (CNS 03h) repeats them, and adds a UUID. That may be another
//!           one after each start of an emulated drive, so it counts for nothing.
//!
//! NVMEUID-U1  The number of a namespace is the same at each opening: the fields are always taken
//!             in the same order, and one that is zero is none.

use super::command::PAGE_BYTES;

/// By the page of the namespace: NGUID or EUI-64, which has zeros behind its 8 bytes.
pub(super) fn of_page(namespace: &[u8; PAGE_BYTES]) -> Option<[u8; 16]> {
    number(&namespace[104..120]).or_else(|| number(&namespace[120..128]))
}

fn number(bytes: &[u8]) -> Option<[u8; 16]> {
    if bytes.iter().all(|byte| *byte == 0) {
        return None;
    }
    let mut number = [0; 16];
    number[..bytes.len()].copy_from_slice(bytes);
    Some(number)
}
