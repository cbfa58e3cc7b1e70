//! What btrfs offers only as an ioctl, or its programs only in newer versions than distributions
//! have.
//!
//! Layouts from `linux/btrfs.h` and `linux/fs.h`. Each structure is exactly what its number
//! promises, which is all the safety there is to it.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use rustix::ioctl::{Opcode, Updater, ioctl, opcode};

const BTRFS: u8 = 0x94;

#[repr(C)]
struct QuotaControl {
    command: u64,
    status: u64,
}

const QUOTA_CONTROL: Opcode = opcode::read_write::<QuotaControl>(BTRFS, 40);
const ENABLE_SIMPLE: u64 = 4;

/// `btrfs quota enable --simple`, which btrfs-progs have from 6.7 on.
pub(crate) fn enable_simple_quotas(root: &File) -> io::Result<()> {
    let mut control = QuotaControl { command: ENABLE_SIMPLE, status: 0 };
    // SAFETY: the number was made of the structure's size, and the kernel keeps no pointer to it.
    unsafe { ioctl(root, Updater::<QUOTA_CONTROL, _>::new(&mut control)) }.map_err(Into::into)
}

/// Where a search of a tree begins and ends. In the words of `struct btrfs_ioctl_search_key`.
#[repr(C)]
#[derive(Clone, Copy)]
struct SearchKey {
    tree: u64,
    object: [u64; 2],
    offset: [u64; 2],
    generation: [u64; 2],
    kind: [u32; 2],
    items: u32,
    unused: [u32; 9],
}

const SEARCH_BYTES: usize = 4096 - size_of::<SearchKey>();

#[repr(C)]
struct Search {
    key: SearchKey,
    found: [u8; SEARCH_BYTES],
}

const _: () = assert!(size_of::<Search>() == 4096);
const TREE_SEARCH: Opcode = opcode::read_write::<Search>(BTRFS, 17);
/// Object, offset, kind and length behind the item's generation.
const ITEM_HEADER_BYTES: usize = 32;

/// One item of a tree.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(crate) object: u64,
    pub(crate) kind: u32,
    pub(crate) offset: u64,
    pub(crate) value: Vec<u8>,
}

/// All items of a tree, in order of their keys. An item that is larger than a page is left out.
pub(crate) fn items(root: &File, tree: u64) -> io::Result<Vec<Item>> {
    let mut found = Vec::new();
    let mut next = Some((0, 0, 0));
    while let Some((object, kind, offset)) = next {
        let mut search = Search {
            key: SearchKey {
                tree,
                object: [object, u64::MAX],
                offset: [offset, u64::MAX],
                generation: [0, u64::MAX],
                kind: [kind, u32::from(u8::MAX)],
                items: u32::MAX,
                unused: [0; 9],
            },
            found: [0; SEARCH_BYTES],
        };
        // SAFETY: as above; the search writes into the structure only.
        unsafe { ioctl(root, Updater::<TREE_SEARCH, _>::new(&mut search)) }?;
        let batch = parse_items(&search.found, search.key.items);
        next = batch.last().and_then(after);
        found.extend(batch);
    }
    Ok(found)
}

fn parse_items(bytes: &[u8], count: u32) -> Vec<Item> {
    let mut rest = bytes;
    let mut items = Vec::new();
    for _ in 0..count {
        let Some((header, behind)) = rest.split_at_checked(ITEM_HEADER_BYTES) else { break };
        let wide = |at: usize| u64::from_ne_bytes(header[at..at + 8].try_into().expect("8 bytes"));
        let narrow =
            |at: usize| u32::from_ne_bytes(header[at..at + 4].try_into().expect("4 bytes"));
        let Some((value, behind)) = behind.split_at_checked(narrow(28) as usize) else { break };
        items.push(Item {
            object: wide(8),
            kind: narrow(24),
            offset: wide(16),
            value: value.to_vec(),
        });
        rest = behind;
    }
    items
}

/// The key after an item's: (object, kind, offset) counts like one number.
fn after(item: &Item) -> Option<(u64, u32, u64)> {
    if let Some(offset) = item.offset.checked_add(1) {
        return Some((item.object, item.kind, offset));
    }
    if item.kind < u32::from(u8::MAX) {
        return Some((item.object, item.kind + 1, 0));
    }
    item.object.checked_add(1).map(|object| (object, 0, 0))
}

/// `struct file_dedupe_range` with one target.
#[repr(C)]
struct Dedupe {
    source_offset: u64,
    bytes: u64,
    targets: u16,
    reserved: [u16; 3],
    target: i64,
    target_offset: u64,
    deduped: u64,
    status: i32,
    reserved_too: u32,
}

/// The number is of the part before the targets, 24 bytes.
const DEDUPE: Opcode = opcode::read_write::<[u64; 3]>(0x94, 54);

/// Shares what is equal at the beginning of two files; how many bytes were.
pub(crate) fn deduplicate(source: &File, target: &File, bytes: u64) -> io::Result<u64> {
    let mut dedupe = Dedupe {
        source_offset: 0,
        bytes,
        targets: 1,
        reserved: [0; 3],
        target: i64::from(target.as_raw_fd()),
        target_offset: 0,
        deduped: 0,
        status: 0,
        reserved_too: 0,
    };
    // SAFETY: the kernel reads the first 24 bytes and, as they say, one target behind them; all of
    // it is in the structure. `target` is open until the call ends.
    unsafe { ioctl(source, Updater::<DEDUPE, _>::new(&mut dedupe)) }?;
    if dedupe.status < 0 {
        Err(io::Error::from_raw_os_error(-dedupe.status))
    } else {
        Ok(dedupe.deduped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_read_as_far_as_they_are_whole() {
        let mut bytes = Vec::new();
        for field in [9u64, 5, 256] {
            bytes.extend(field.to_ne_bytes());
        }
        for field in [132u32, 2] {
            bytes.extend(field.to_ne_bytes());
        }
        bytes.extend([7, 8]);
        let items = parse_items(&bytes, 2);
        assert_eq!(items.len(), 1);
        assert_eq!((items[0].object, items[0].kind, items[0].offset), (5, 132, 256));
        assert_eq!(items[0].value, [7, 8]);
        bytes.truncate(33);
        assert!(parse_items(&bytes, 1).is_empty());
    }

    #[test]
    fn the_next_key_carries_over() {
        let item = |object, kind, offset| Item { object, kind, offset, value: Vec::new() };
        assert_eq!(after(&item(1, 2, 3)), Some((1, 2, 4)));
        assert_eq!(after(&item(1, 2, u64::MAX)), Some((1, 3, 0)));
        assert_eq!(after(&item(1, 255, u64::MAX)), Some((2, 0, 0)));
        assert_eq!(after(&item(u64::MAX, 255, u64::MAX)), None);
    }
}
