//! Listing directories.
//!
//! A listing has the order of the keys, which is that of the hashes, and continues after a cookie:
//! it never skips or repeats an entry that stays, for any entries that are made or removed
//! meanwhile (R41).
//!
//! LISTING-I1  Entries that were taken are answered. An error behind them ends the answer; the next
//!             call begins at that place and returns the error. So every look-up that was counted
//!             is known to the front end, which gives it back.

use copyhold_format::item::{DirBucket, cookie};
use copyhold_types::{InodeNo, Key};

use super::ahead::Ahead;
use super::buckets_from;
use crate::inode::Inode;
use crate::{Attr, FileKind, Filesystem, NodeId, Result, Sabotage};

/// Buckets looked up at once; fewer at the beginning of a listing, which may be all of it.
pub(super) const BUCKETS: usize = 256;
const DOT: u64 = 1;
const DOT_DOT: u64 = 2;

/// One entry, as a listing shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirEntry<'a> {
    pub name: &'a [u8],
    pub node: NodeId,
    pub kind: FileKind,
    /// A listing with this cookie continues after this entry; below 2^63. 0 is the start (R41).
    pub cookie: u64,
    /// In `readdirplus`, for all but "." and "..".
    pub attr: Option<Attr>,
}

/// How a directory is listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListFlags {
    /// Each entry but "." and ".." comes with its attributes, and counts as a look-up.
    pub attributes: bool,
    /// The access time stays (`O_NOATIME`).
    pub no_atime: bool,
}

/// Takes entries until it says no.
type Visit<'a> = &'a mut (dyn FnMut(&DirEntry<'_>) -> bool + Send);

impl Filesystem {
    /// Hands entries behind the cookie `after` to `visit` until it says false: that entry was not
    /// taken. 0 starts. Entries that are neither made nor removed meanwhile come exactly once.
    pub async fn readdir(&self, dir: NodeId, after: u64, visit: Visit<'_>) -> Result<()> {
        self.list(dir, after, ListFlags::default(), visit).await
    }

    /// As [`Self::readdir`], with attributes; each entry taken, but for "." and "..", counts as a
    /// look-up.
    pub async fn readdirplus(&self, dir: NodeId, after: u64, visit: Visit<'_>) -> Result<()> {
        let flags = ListFlags { attributes: true, ..ListFlags::default() };
        self.list(dir, after, flags, visit).await
    }

    /// As [`Self::readdir`] or [`Self::readdirplus`].
    pub async fn list(
        &self,
        dir: NodeId,
        after: u64,
        flags: ListFlags,
        visit: Visit<'_>,
    ) -> Result<()> {
        let mut any = false;
        let mut take = |entry: &DirEntry<'_>| {
            let taken = visit(entry);
            any |= taken;
            taken
        };
        match self.list_all(dir, after, flags, &mut take).await {
            // LISTING-I1: the error comes with the next call.
            Err(_) if any && !self.breaks(Sabotage::ForgetListed) => Ok(()),
            listed => listed,
        }
    }

    async fn list_all(
        &self,
        dir: NodeId,
        after: u64,
        flags: ListFlags,
        visit: Visit<'_>,
    ) -> Result<()> {
        let dir = self.inode(dir).await?;
        dir.expect_dir()?;
        let _entries = dir.lock.read().await;
        let parent = self.parent(&dir);
        for (name, node, at) in [(&b"."[..], dir.node, DOT), (b"..", parent, DOT_DOT)] {
            let entry = DirEntry { name, node, kind: FileKind::Directory, cookie: at, attr: None };
            if after < at && !visit(&entry) {
                return Ok(());
            }
        }
        let mut from = match after & !0xff {
            last if last > 0 && self.breaks(Sabotage::SkipCollisions) => last + 0x100,
            last => last,
        };
        let mut buckets = 32;
        let mut ahead = Ahead::new(self, &dir);
        loop {
            let items = ahead.buckets(from, buckets).await?;
            for (n, (key, value)) in items.iter().enumerate() {
                let parsed = DirBucket::parse(value).map_err(|source| {
                    self.damaged_record("a directory bucket", dir.node, source)
                })?;
                for entry in parsed.iter().filter(|e| cookie(key.offset, e.index) > after) {
                    let found = dir.found(self, InodeNo(entry.ino.0), entry.kind);
                    let at = cookie(key.offset, entry.index);
                    if flags.attributes && ahead.is_due(found.node, at) {
                        Box::pin(ahead.read_inodes(&items[n..], at)).await;
                    }
                    let shown = DirEntry {
                        name: entry.name,
                        node: found.node,
                        kind: found.kind,
                        cookie: at,
                        attr: None,
                    };
                    if !self.show(&dir, shown, flags.attributes, visit).await? {
                        return Ok(());
                    }
                }
            }
            let last = items.len() < buckets;
            match items.last() {
                Some((key, _)) if !last => from = key.offset + 1,
                _ => break,
            }
            buckets = BUCKETS;
        }
        if !flags.no_atime || self.breaks(Sabotage::AtimeAnyway) {
            self.touch_atime(&dir);
        }
        Ok(())
    }

    pub(super) async fn buckets(
        &self,
        dir: &Inode,
        from: u64,
        count: usize,
    ) -> Result<Vec<(Key, copyhold_pool::Value)>> {
        let (from, to) = buckets_from(dir, from);
        self.range(&dir.subvol, from, to, count).await
    }

    async fn show(
        &self,
        dir: &Inode,
        mut shown: DirEntry<'_>,
        plus: bool,
        visit: &mut (dyn FnMut(&DirEntry<'_>) -> bool + Send),
    ) -> Result<bool> {
        if !plus {
            return Ok(visit(&shown));
        }
        let inode = self.inode_of_entry(dir, shown.node).await?;
        shown.attr = Some(inode.attr());
        let taken = visit(&shown);
        if taken && self.options.count_lookups {
            self.inodes.add_lookup(&inode);
        }
        Ok(taken)
    }
}
