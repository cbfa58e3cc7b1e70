//! Changes of a file's extended attributes, gathered for one transaction.
//!
//! Load the bucket of each name, set and remove names, then [`XattrEdit::put`] adds the edits to a
//! transaction, and their changes to the inode's item. Names may share a bucket.
//!
//! The inode's map lock is held exclusively from before the first load until the transaction is
//! applied (FILES-F4). A file that is being made has no lock and nothing to load.

use std::collections::BTreeMap;

use copyhold_format::item::{
    ACCESS_ACL, DEFAULT_ACL, HashKey, InodeFlags, InodeItem, XATTR, XATTR_SHORT_MAX,
    XATTR_VALUE_PIECE, XattrBucket, XattrValue, xattr_bucket, xattr_piece,
};
use copyhold_pool::{Tier, Transaction, Value};
use copyhold_runtime::WriteGuard;
use copyhold_types::{InodeNo, Key};
use smallvec::SmallVec;

use crate::item_bytes::KEY_BYTES;
use crate::subvol::{FILES, Subvol};
use crate::{FsError, Result};

/// How an inode's item marks that it has this attribute, if the attribute is an ACL.
pub(crate) fn acl_flag(name: &[u8]) -> Option<u16> {
    match name {
        ACCESS_ACL => Some(InodeFlags::ACCESS_ACL),
        DEFAULT_ACL => Some(InodeFlags::DEFAULT_ACL),
        _ => None,
    }
}

/// Bytes of a name in a list, with the zero that ends it.
fn listed_bytes(name: &[u8]) -> i64 {
    name.len() as i64 + 1
}

pub(crate) struct XattrEdit<'a> {
    ino: InodeNo,
    hash_key: HashKey,
    map: Option<WriteGuard<'a>>,
    buckets: SmallVec<[Edited; 1]>,
    /// Of long values; `None` deletes.
    pieces: BTreeMap<Key, Option<Vec<u8>>>,
    /// Attributes more than before.
    added: i32,
    /// Bytes of the list of names more than before.
    name_bytes: i64,
    acls: SmallVec<[(u16, bool); 2]>,
    grows: bool,
}

struct Edited {
    key: Key,
    stored: Option<Value>,
    changed: Option<Vec<u8>>,
}

impl Edited {
    fn parsed(&self) -> XattrBucket<'_> {
        let bytes = self.changed.as_deref().or(self.stored.as_deref());
        bytes.map_or(XattrBucket::EMPTY, |bytes| {
            XattrBucket::parse(bytes).expect("parsed when it was looked up, or made here")
        })
    }
}

impl<'a> XattrEdit<'a> {
    pub(crate) fn new(subvol: &Subvol, ino: InodeNo, map: Option<WriteGuard<'a>>) -> XattrEdit<'a> {
        XattrEdit {
            ino,
            hash_key: subvol.hash_key,
            map,
            buckets: SmallVec::new(),
            pieces: BTreeMap::new(),
            added: 0,
            name_bytes: 0,
            acls: SmallVec::new(),
            grows: false,
        }
    }

    /// The key of the bucket of `name`.
    pub(crate) fn key(&self, name: &[u8]) -> Key {
        Key::new(self.ino.0, XATTR, xattr_bucket(&self.hash_key, name))
    }

    pub(crate) fn is_loaded(&self, key: Key) -> bool {
        self.buckets.iter().any(|bucket| bucket.key == key)
    }

    /// Adds a bucket as it is in the table; it has been parsed.
    pub(crate) fn load(&mut self, key: Key, stored: Option<Value>) {
        self.buckets.push(Edited { key, stored, changed: None });
    }

    fn place(&mut self, name: &[u8]) -> usize {
        let key = self.key(name);
        if let Some(at) = self.buckets.iter().position(|bucket| bucket.key == key) {
            return at;
        }
        assert!(self.map.is_none(), "a bucket is loaded before it is changed");
        self.load(key, None);
        self.buckets.len() - 1
    }

    /// The bucket of `name`, which was loaded, as it is to be.
    pub(crate) fn bucket(&self, name: &[u8]) -> XattrBucket<'_> {
        let key = self.key(name);
        let bucket = self.buckets.iter().find(|bucket| bucket.key == key);
        bucket.map_or(XattrBucket::EMPTY, Edited::parsed)
    }

    pub(crate) fn has(&self, name: &[u8]) -> bool {
        self.bucket(name).find(name).is_some()
    }

    pub(crate) fn set(&mut self, name: &[u8], value: &[u8]) -> Result<()> {
        let at = self.place(name);
        let (key, bucket) = (self.buckets[at].key, self.buckets[at].parsed());
        let old = bucket.find(name).map(|old| old.value);
        let stored = match value.len() <= XATTR_SHORT_MAX {
            true => XattrValue::Here(value),
            false => XattrValue::Pieces(value.len()),
        };
        let crowded = FsError::Crowded { what: "extended attribute with this hash" };
        let (bytes, index) = bucket.with(name, stored).ok_or(crowded)?;
        let old_pieces = old.map_or(0, |old| old.pieces());
        // An ACL that does not grow takes rights away, or changes them: that works when full.
        self.grows |= acl_flag(name).is_none() || old.is_none_or(|old| old.len() < value.len());
        if old.is_none() {
            self.added += 1;
            self.name_bytes += listed_bytes(name);
        }
        self.buckets[at].changed = Some(bytes);
        let mut pieces = value.chunks(XATTR_VALUE_PIECE).take(stored.pieces());
        for n in 0..stored.pieces().max(old_pieces) {
            let piece = pieces.next().map(<[u8]>::to_vec);
            self.pieces.insert(xattr_piece(self.ino, key.offset, index, n), piece);
        }
        self.acls.extend(acl_flag(name).map(|flag| (flag, true)));
        Ok(())
    }

    /// Whether it was there.
    pub(crate) fn remove(&mut self, name: &[u8]) -> bool {
        let at = self.place(name);
        let (key, bucket) = (self.buckets[at].key, self.buckets[at].parsed());
        let Some(old) = bucket.find(name) else { return false };
        let (index, pieces) = (old.index, old.value.pieces());
        let left = bucket.without(name);
        self.added -= 1;
        self.name_bytes -= listed_bytes(name);
        self.buckets[at].changed = Some(left);
        let keys = (0..pieces).map(|n| xattr_piece(self.ino, key.offset, index, n));
        self.pieces.extend(keys.map(|key| (key, None)));
        self.acls.extend(acl_flag(name).map(|flag| (flag, false)));
        true
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.buckets.iter().all(|bucket| bucket.changed.is_none())
    }

    /// Bytes by which the list of names becomes longer.
    pub(crate) fn name_bytes(&self) -> i64 {
        self.name_bytes
    }

    /// The tier that the transaction is charged as: one that adds nothing works at a limit and
    /// when full.
    pub(crate) fn tier(&self) -> Tier {
        if self.grows { Tier::Write } else { Tier::Change }
    }

    /// Edits that [`Self::put`] adds to a transaction.
    pub(crate) fn edits(&self) -> usize {
        self.changed().count() + self.pieces.len()
    }

    /// Bytes that [`Self::put`] adds to a transaction.
    pub(crate) fn bytes(&self) -> usize {
        let buckets: usize = self.changed().map(Vec::len).sum();
        let pieces: usize = self.pieces.values().flatten().map(Vec::len).sum();
        buckets + pieces + self.edits() * KEY_BYTES
    }

    fn changed(&self) -> impl Iterator<Item = &Vec<u8>> {
        self.buckets.iter().filter_map(|bucket| bucket.changed.as_ref())
    }

    /// Adds the edits to `tx`, and the count and the marks of ACLs to `item`. The lock stays.
    pub(crate) fn put(&mut self, tx: &mut Transaction, item: &mut InodeItem) {
        for bucket in &mut self.buckets {
            match bucket.changed.take() {
                Some(bytes) if bytes.is_empty() => tx.delete(FILES, bucket.key),
                Some(bytes) => tx.put(FILES, bucket.key, bytes),
                None => {}
            }
        }
        for (key, piece) in std::mem::take(&mut self.pieces) {
            match piece {
                Some(piece) => tx.put(FILES, key, piece),
                None => tx.delete(FILES, key),
            }
        }
        item.xattrs = item.xattrs.saturating_add_signed(self.added);
        for (flag, there) in self.acls.drain(..) {
            item.has.set(flag, there);
        }
    }
}
