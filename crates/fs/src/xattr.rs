//! Extended attributes: buckets by hash, long values in pieces. Changed under the inode's map lock.

use std::sync::Arc;

use copyhold_format::item::{
    InodeFlags, XATTR, XATTR_NAME_MAX, XATTR_SHORT_MAX, XATTR_VALUE_MAX, XATTR_VALUE_PIECE,
    XattrBucket, XattrValue, xattr_bucket, xattr_piece,
};
use copyhold_pool::{Tier, Transaction, Value};
use copyhold_types::Key;

use crate::acl::{ACCESS_ACL, Acl, DEFAULT_ACL};
use crate::filesystem::{INODE_BYTES, KEY_BYTES};
use crate::inode::{Inode, InodeRef};
use crate::subvol::{FILES, Subvol};
use crate::{Caller, FileKind, Filesystem, FsError, NodeId, Result};

pub(crate) const CAPABILITY: &[u8] = b"security.capability";
const SET_GID: u16 = 0o2000;

/// How an extended attribute is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrSet {
    Any,
    /// Fails with [`FsError::Exists`].
    Create,
    /// Fails with [`FsError::NoAttribute`].
    Replace,
}

impl Filesystem {
    pub async fn get_xattr(&self, node: NodeId, name: &[u8]) -> Result<Vec<u8>> {
        let inode = self.inode(node).await?;
        check_name(name)?;
        self.xattr_of(&inode, name).await?.ok_or(FsError::NoAttribute)
    }

    /// The value of an attribute, if there is one.
    pub(crate) async fn xattr_of(&self, inode: &Inode, name: &[u8]) -> Result<Option<Vec<u8>>> {
        if inode.state().item.xattrs == 0 {
            return Ok(None);
        }
        let _map = inode.map.read().await;
        let (key, bucket) = self.xattr_bucket(inode, name).await?;
        let Some(found) = parsed(&bucket).find(name) else { return Ok(None) };
        let len = match found.value {
            XattrValue::Here(bytes) => return Ok(Some(bytes.to_vec())),
            XattrValue::Pieces(len) => len,
        };
        let mut value = Vec::with_capacity(len);
        for n in 0..found.value.pieces() {
            let key = xattr_piece(inode.node.ino, key.offset, found.index, n);
            if let Some(piece) = self.get(&inode.subvol, key).await? {
                value.extend_from_slice(&piece);
            }
        }
        if value.len() != len {
            let name = String::from_utf8_lossy(name);
            return Err(inode.damaged(0, format!("attribute {name:?} is incomplete")));
        }
        Ok(Some(value))
    }

    /// `name` with its namespace. An access ACL changes the mode with it; `kill_sgid` is FUSE's
    /// `SETXATTR_ACL_KILL_SGID`.
    #[allow(clippy::too_many_arguments)] // as setxattr(2) has them
    pub async fn set_xattr(
        self: &Arc<Self>,
        caller: &Caller,
        node: NodeId,
        name: &[u8],
        value: &[u8],
        how: XattrSet,
        kill_sgid: bool,
    ) -> Result<()> {
        self.writable()?;
        let inode = self.inode(node).await?;
        inode.subvol.writable()?;
        check_name(name)?;
        if value.len() > XATTR_VALUE_MAX {
            return Err(FsError::AttributeTooBig { len: value.len(), max: XATTR_VALUE_MAX });
        }
        if name == ACCESS_ACL || name == DEFAULT_ACL {
            return self.set_acl(caller, &inode, name, value, kill_sgid).await;
        }
        self.set_xattr_of(&inode, name, value, how, None).await
    }

    /// Sets an attribute and, with an access ACL, the mode in the same transaction.
    pub(crate) async fn set_xattr_of(
        self: &Arc<Self>,
        inode: &InodeRef,
        name: &[u8],
        value: &[u8],
        how: XattrSet,
        mode: Option<u16>,
    ) -> Result<()> {
        let ino = inode.node.ino;
        let _map = inode.map.write().await;
        let (key, bucket) = self.xattr_bucket(inode, name).await?;
        let old = parsed(&bucket).find(name);
        match (how, old) {
            (XattrSet::Create, Some(_)) => return Err(FsError::Exists),
            (XattrSet::Replace, None) => return Err(FsError::NoAttribute),
            _ => {}
        }
        let short = value.len() <= XATTR_SHORT_MAX;
        let stored = if short { XattrValue::Here(value) } else { XattrValue::Pieces(value.len()) };
        let crowded = FsError::Crowded { what: "extended attribute with this hash" };
        let (bytes, index) = parsed(&bucket).with(name, stored).ok_or(crowded)?;
        let old_pieces = old.map_or(0, |old| old.value.pieces());
        let pieces = stored.pieces().max(old_pieces);
        let long = if short { 0 } else { value.len() };
        let size = INODE_BYTES + (pieces + 1) * KEY_BYTES + bytes.len() + long;
        let credit = self.charge(&inode.subvol, Tier::Write, pieces + 2, size).await?;

        let now = self.now();
        let mut state = inode.state();
        state.expect_present()?;
        state.expect_mutable()?;
        let mut item = state.next_item();
        let mut tx = Transaction::new();
        tx.put(FILES, key, bytes);
        let mut rest = if short { &[][..] } else { value };
        for n in 0..pieces {
            let key = xattr_piece(ino, key.offset, index, n);
            let (piece, more) = rest.split_at(rest.len().min(XATTR_VALUE_PIECE));
            rest = more;
            match piece {
                [] => tx.delete(FILES, key),
                piece => tx.put(FILES, key, piece),
            }
        }
        item.xattrs += u32::from(old.is_none());
        note_acl(&mut item.has, name, true);
        if let Some(mode) = mode {
            item.mode = item.mode & 0o170000 | mode;
        }
        item.ctime = now;
        self.put_inode(&mut tx, ino, &item);
        let txg = self.apply(&inode.subvol, credit, tx)?;
        state.logged_and_shown(item, txg, false);
        Ok(())
    }

    /// The names, each ended by a zero byte, as `listxattr` returns them.
    pub async fn list_xattr(&self, node: NodeId) -> Result<Vec<u8>> {
        let inode = self.inode(node).await?;
        let mut names = Vec::new();
        if inode.state().item.xattrs == 0 {
            return Ok(names);
        }
        let _map = inode.map.read().await;
        let mut from = Key::new(node.ino.0, XATTR, 0);
        let end = Key::new(node.ino.0, copyhold_types::Kind(XATTR.0 + 1), 0);
        loop {
            let items = self.range(&inode.subvol, from, end, 64).await?;
            for (_, value) in &items {
                let bucket = XattrBucket::parse(value)
                    .map_err(|source| self.damaged_record("an attribute bucket", node, source))?;
                for entry in bucket.iter() {
                    names.extend_from_slice(entry.name);
                    names.push(0);
                }
            }
            match items.last().and_then(|(key, _)| key.successor()) {
                Some(next) => from = next,
                None => return Ok(names),
            }
        }
    }

    pub async fn remove_xattr(self: &Arc<Self>, node: NodeId, name: &[u8]) -> Result<()> {
        self.writable()?;
        let inode = self.inode(node).await?;
        inode.subvol.writable()?;
        check_name(name)?;
        inode.state().expect_mutable()?;
        self.remove_xattr_of(&inode, name).await
    }

    pub(crate) async fn remove_xattr_of(
        self: &Arc<Self>,
        inode: &InodeRef,
        name: &[u8],
    ) -> Result<()> {
        let _map = inode.map.write().await;
        let (key, bucket) = self.xattr_bucket(inode, name).await?;
        let bucket = parsed(&bucket);
        let old = bucket.find(name).ok_or(FsError::NoAttribute)?;
        let pieces = old.value.pieces();
        let left = bucket.without(name);
        let size = INODE_BYTES + (pieces + 1) * KEY_BYTES + left.len();
        let credit = self.charge(&inode.subvol, Tier::Delete, pieces + 2, size).await?;

        let now = self.now();
        let mut state = inode.state();
        state.expect_present()?;
        let mut item = state.next_item();
        let mut tx = Transaction::new();
        match left.is_empty() {
            true => tx.delete(FILES, key),
            false => tx.put(FILES, key, left),
        }
        for n in 0..pieces {
            tx.delete(FILES, xattr_piece(inode.node.ino, key.offset, old.index, n));
        }
        item.xattrs = item.xattrs.saturating_sub(1);
        note_acl(&mut item.has, name, false);
        item.ctime = now;
        self.put_inode(&mut tx, inode.node.ino, &item);
        let txg = self.apply(&inode.subvol, credit, tx)?;
        state.logged_and_shown(item, txg, false);
        Ok(())
    }

    async fn xattr_bucket(&self, inode: &Inode, name: &[u8]) -> Result<(Key, Option<Value>)> {
        let offset = xattr_bucket(&inode.subvol.hash_key, name);
        let key = Key::new(inode.node.ino.0, XATTR, offset);
        let value = self.get(&inode.subvol, key).await?;
        if let Some(bytes) = &value {
            XattrBucket::parse(bytes)
                .map_err(|source| self.damaged_record("an attribute bucket", inode.node, source))?;
        }
        Ok((key, value))
    }
}

fn parsed(bucket: &Option<Value>) -> XattrBucket<'_> {
    bucket.as_deref().map_or(XattrBucket::EMPTY, |bytes| {
        XattrBucket::parse(bytes).expect("parsed when it was looked up")
    })
}

fn note_acl(has: &mut InodeFlags, name: &[u8], there: bool) {
    match name {
        ACCESS_ACL => has.set(InodeFlags::ACCESS_ACL, there),
        DEFAULT_ACL => has.set(InodeFlags::DEFAULT_ACL, there),
        _ => {}
    }
}

fn check_name(name: &[u8]) -> Result<()> {
    if name.is_empty() || name.contains(&0) {
        return Err(FsError::Invalid("the name of an attribute"));
    }
    if name.len() > XATTR_NAME_MAX {
        return Err(FsError::NameTooLong { len: name.len(), max: XATTR_NAME_MAX });
    }
    Ok(())
}

/// Bytes of a single attribute item in a new file.
pub(crate) fn first_xattr(subvol: &Subvol, name: &[u8], value: &[u8]) -> (u64, Vec<u8>) {
    let here = XattrValue::Here(value);
    let (bytes, _) = XattrBucket::EMPTY.with(name, here).expect("an ACL fits a bucket");
    (xattr_bucket(&subvol.hash_key, name), bytes)
}

impl Filesystem {
    /// Checks and stores an ACL, as `setfacl` sends it; an empty one is removed.
    async fn set_acl(
        self: &Arc<Self>,
        caller: &Caller,
        inode: &InodeRef,
        name: &[u8],
        value: &[u8],
        kill_sgid: bool,
    ) -> Result<()> {
        let acl = Acl::parse(value)?;
        // Also where it only changes the mode, or takes nothing away.
        inode.state().expect_mutable()?;
        if name == DEFAULT_ACL {
            if inode.kind != FileKind::Directory {
                return Err(FsError::AccessDenied);
            }
            return match acl.is_empty() {
                true => self.forget_acl(inode, name).await,
                false => self.set_xattr_of(inode, name, value, XattrSet::Any, None).await,
            };
        }
        if inode.kind == FileKind::Symlink {
            return Err(FsError::NotSupported("an ACL on a symlink"));
        }
        let (old, gid) = {
            let state = inode.state();
            (state.item.mode & 0o7777, state.item.gid)
        };
        let outside = caller.groups.is_some() && !caller.in_group(gid) && !caller.is_privileged();
        let mut mode = if acl.is_empty() { old } else { old & !0o777 | acl.mode() };
        if kill_sgid || outside {
            mode &= !SET_GID;
        }
        if acl.is_empty() || acl.is_plain() {
            // Nothing that the mode does not say.
            self.forget_acl(inode, name).await?;
            if mode == old {
                return Ok(());
            }
            let now = self.now();
            return self
                .change_inode(inode, |state, item| {
                    item.mode = item.mode & 0o170000 | mode;
                    item.ctime = now;
                    state.shown.ctime = now;
                    Ok(())
                })
                .await;
        }
        self.set_xattr_of(inode, name, value, XattrSet::Any, Some(mode)).await
    }

    async fn forget_acl(self: &Arc<Self>, inode: &InodeRef, name: &[u8]) -> Result<()> {
        match self.remove_xattr_of(inode, name).await {
            Err(FsError::NoAttribute) => Ok(()),
            other => other,
        }
    }
}
