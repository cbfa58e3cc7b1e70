//! Leaves that the next entries of a listing need are read ahead.
//!
//! Problem.  Entries come in the order of hashes, so that their inodes lie anywhere in the table:
//!           a cold `ls -l` waits for a leaf of inodes once for nearly each entry, and for each
//!           leaf of the directory itself.
//! Idea.     At an entry whose inode is not in memory, the leaves with the inodes of the next
//!           entries are read, each once and many at a time ([`read_together`]). Hashes are spread
//!           evenly, so that keys at even distances name the directory's next leaves, and these
//!           are read in the same way.
//!           Look-ups by name that come in the order of the entries have windows, too
//!           (`cache::runs`).
//! Cost.     Where all buckets and inodes are in memory, one look into the cache of inodes for
//!           each entry with attributes, and for each look-up.
//!
//! INOAHEAD-W1  A window has at most as many entries as come before it, which its place among the
//!              hashes tells; for inodes, [`INODES_MIN`] to [`INODES_MAX`]; for the directory's
//!              leaves, none to [`ENTRIES_MAX`], and [`LEAVES_MAX`] leaves. So a listing that ends
//!              early has read little in vain, and a small directory is read as without windows.
//!              Windows of look-ups are those of INORDER-O2.
//! INOAHEAD-W2  The reads belong to the call: they end with it, or when it is dropped.
//! INOAHEAD-W3  If memory is scarce (AHEAD-A1, AHEAD-A2), or a node is not kept or not readable,
//!              the call reads nothing more ahead. The look-up of the item returns the error.

use copyhold_format::item::{self, DIRENT, DirBucket, cookie};
use copyhold_pool::{Cached, Value};
use copyhold_types::{InodeNo, Key};
use copyhold_volume::read_together;

use super::buckets_from;
use crate::filesystem::FIRST_PLACEHOLDER;
use crate::inode::Inode;
use crate::{Filesystem, NodeId, Result};

/// Entries whose inodes are read at once: as many as half a page of a listing has, and no more
/// than the leaves for which a cache of usual size has room.
const INODES_MIN: u64 = 16;
const INODES_MAX: u64 = 256;
/// Entries whose leaves of the directory are read at once: some ten leaves, if names are short.
const ENTRIES_MAX: u64 = 16 << 10;
const LEAVES_MAX: usize = 16;
/// A leaf has more entries than that, unless their names are very long.
const ENTRIES_APART: u64 = 128;
/// Hashes are below.
const HASHES: u128 = 1 << 63;

/// The windows of one call of a listing.
pub(super) struct Ahead<'a> {
    fs: &'a Filesystem,
    dir: &'a Inode,
    /// Entries of the directory.
    entries: u64,
    /// The last entry whose inode was in a window.
    until: u64,
    /// INOAHEAD-W3.
    ended: bool,
}

impl<'a> Ahead<'a> {
    pub(super) fn new(fs: &'a Filesystem, dir: &'a Inode) -> Ahead<'a> {
        let entries = dir.state().item.size;
        Ahead { fs, dir, entries, until: 0, ended: false }
    }

    /// The buckets from `from` on, at most so many.
    pub(super) async fn buckets(&mut self, from: u64, count: usize) -> Result<Vec<(Key, Value)>> {
        let (first, end) = buckets_from(self.dir, from);
        let subvol = &self.dir.subvol;
        if let Cached::Known(items) =
            self.fs.volumes.range_cached(&subvol.volume, first, end, count)
        {
            return subvol.present().map(|()| items);
        }
        Box::pin(self.read_entries(from)).await;
        self.fs.buckets(self.dir, from, count).await
    }

    /// Reads the directory's next leaves, of which that with the bucket `from` is not in memory.
    async fn read_entries(&mut self, from: u64) {
        let window = self.shown(from).min(ENTRIES_MAX);
        if window < ENTRIES_APART || self.ended {
            return;
        }
        let apart = (HASHES / u128::from(self.entries)) as u64 * ENTRIES_APART;
        let offsets = (0..window / ENTRIES_APART).map(|n| from.saturating_add(n * apart));
        let ino = self.dir.node.ino.0;
        let keys = offsets.map(|offset| Key::new(ino, DIRENT, offset)).collect();
        self.read(keys, LEAVES_MAX).await;
    }

    /// Whether a window of inodes begins with the entry `at`, which leads to `node`.
    pub(super) fn is_due(&self, node: NodeId, at: u64) -> bool {
        at > self.until && !self.ended && !self.fs.inodes.has(node)
    }

    /// Reads the leaves with the inodes of a window. `items`: buckets, of which the first has the
    /// entry `at`.
    pub(super) async fn read_inodes(&mut self, items: &[(Key, Value)], at: u64) {
        let window = self.shown(at).clamp(INODES_MIN, INODES_MAX);
        self.read_window(items, at, window as usize).await;
    }

    async fn read_window(&mut self, items: &[(Key, Value)], at: u64, window: usize) {
        let mut keys = Vec::new();
        for (place, node) in entries(self.fs, self.dir, items, at).take(window) {
            self.until = place;
            if self.is_in_table(node) && !self.fs.inodes.has(node) {
                keys.push(item::inode_key(node.ino));
            }
        }
        self.read(keys, INODES_MAX as usize).await;
    }

    async fn read(&mut self, keys: Vec<Key>, most: usize) {
        let volume = &self.dir.subvol.volume;
        self.ended = !read_together(&self.fs.volumes, volume, &keys, most).await;
    }

    /// About how many entries come before this place.
    fn shown(&self, at: u64) -> u64 {
        (u128::from(at) * u128::from(self.entries) / HASHES) as u64
    }

    /// Whether the inode is an item of the table that the directory is in.
    fn is_in_table(&self, node: NodeId) -> bool {
        node.subvol == self.dir.node.subvol && node.ino.0 < FIRST_PLACEHOLDER
    }
}

/// The entries of the window that begins with a look-up of an entry in the bucket `at`: none if its
/// inode is in memory or of another subvolume, or if look-ups in this directory come in another
/// order (INORDER).
pub(super) fn window_of_look_up(
    fs: &Filesystem,
    dir: &Inode,
    node: NodeId,
    at: u64,
) -> Option<usize> {
    if node.subvol != dir.node.subvol || node.ino.0 >= FIRST_PLACEHOLDER || fs.inodes.has(node) {
        return None;
    }
    let entries = dir.state().item.size;
    fs.inodes.runs().step(dir.node, at, entries)
}

/// Reads the inodes of the window of a look-up ahead.
pub(super) async fn read_window_of_look_up(fs: &Filesystem, dir: &Inode, at: u64, window: usize) {
    // The look-up returns the error.
    let Ok(items) = fs.buckets(dir, at, window).await else { return };
    let mut ahead = Ahead::new(fs, dir);
    let runs = fs.inodes.runs();
    let last = entries(fs, dir, &items, at).take(window).last();
    runs.ends_at(dir.node, last.map_or(at, |(place, _)| place));
    ahead.read_window(&items, at, window).await;
    if ahead.ended {
        runs.pause(dir.node);
    }
}

/// The places and targets of the entries from `at` on, as far as their buckets are readable.
fn entries(
    fs: &Filesystem,
    dir: &Inode,
    items: &[(Key, Value)],
    at: u64,
) -> impl Iterator<Item = (u64, NodeId)> {
    let parsed = items.iter().map_while(|(key, value)| Some((key, DirBucket::parse(value).ok()?)));
    let entries = parsed.flat_map(move |(key, bucket)| {
        bucket.iter().map(move |entry| {
            let target = dir.found(fs, InodeNo(entry.ino.0), entry.kind);
            (cookie(key.offset, entry.index), target.node)
        })
    });
    entries.skip_while(move |(place, _)| *place < at)
}
