//! Extended attributes: buckets by hash, long values in pieces. Changed under the inode's map lock.

use std::sync::Arc;

use copyhold_format::item::{
    XATTR, XATTR_NAME_MAX, XATTR_VALUE_MAX, XattrBucket, XattrValue, xattr_bucket, xattr_piece,
};
use copyhold_pool::Value;
use copyhold_types::Key;

use crate::inode::{Inode, InodeRef, InodeState};
use crate::permit::Way;
use crate::room::Room;
use crate::throttle::before_change;
use crate::xattr_edit::{XattrEdit, acl_flag};
use crate::xattr_list::names;
use crate::{Caller, Filesystem, FsError, NodeId, Result, Sabotage};

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
        let key = Key::new(inode.node.ino.0, XATTR, xattr_bucket(&inode.subvol.hash_key, name));
        let bucket = self.xattr_bucket(inode, key).await?;
        self.value_in(inode, key, parsed(&bucket), name).await
    }

    /// The value of an attribute in a bucket that was looked up under the map lock.
    async fn value_in(
        &self,
        inode: &Inode,
        key: Key,
        bucket: XattrBucket<'_>,
        name: &[u8],
    ) -> Result<Option<Vec<u8>>> {
        let Some(found) = bucket.find(name) else { return Ok(None) };
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
        self.permit(&inode, Way::Attributes)?;
        before_change(self, inode.subvol.volume.owner()).await?;
        check_name(name)?;
        if value.len() > XATTR_VALUE_MAX {
            return Err(FsError::AttributeTooBig { len: value.len(), max: XATTR_VALUE_MAX });
        }
        if acl_flag(name).is_some() {
            return Box::pin(self.set_acl(caller, &inode, name, value, kill_sgid)).await;
        }
        let mut room = Room::default();
        loop {
            let mut edit = self.edit_xattrs(&inode).await;
            self.load_xattr(&inode, &mut edit, name).await?;
            match (how, edit.has(name)) {
                (XattrSet::Create, true) => return Err(FsError::Exists),
                (XattrSet::Replace, false) => return Err(FsError::NoAttribute),
                _ => {}
            }
            edit.set(name, value)?;
            match self.change_xattrs(&inode, edit, &mut room).await {
                Err(refused) => Box::pin(room.wait(self, &inode.subvol, refused)).await?,
                done => return done,
            }
        }
    }

    /// The names, each ended by a zero byte, as `listxattr` returns them: at most 64 KiB, else
    /// [`FsError::AttributeListTooBig`].
    pub async fn list_xattr(&self, node: NodeId) -> Result<Vec<u8>> {
        let inode = self.inode(node).await?;
        if inode.state().item.xattrs == 0 {
            return Ok(Vec::new());
        }
        let _map = inode.map.read().await;
        names(self, &inode).await
    }

    /// An ACL that is not there is no error, as on Linux.
    pub async fn remove_xattr(self: &Arc<Self>, node: NodeId, name: &[u8]) -> Result<()> {
        self.writable()?;
        let inode = self.inode(node).await?;
        self.permit(&inode, Way::Attributes)?;
        before_change(self, inode.subvol.volume.owner()).await?;
        check_name(name)?;
        let mut room = Room::default();
        loop {
            let mut edit = self.edit_xattrs(&inode).await;
            self.load_xattr(&inode, &mut edit, name).await?;
            if !edit.remove(name) {
                let is_refused =
                    acl_flag(name).is_none() || self.breaks(Sabotage::RefuseAbsentAcls);
                return if is_refused { Err(FsError::NoAttribute) } else { Ok(()) };
            }
            match self.change_xattrs(&inode, edit, &mut room).await {
                Err(refused) => Box::pin(room.wait(self, &inode.subvol, refused)).await?,
                done => return done,
            }
        }
    }

    /// Begins a change of attributes; takes the map lock.
    pub(crate) async fn edit_xattrs<'a>(&self, inode: &'a Inode) -> XattrEdit<'a> {
        XattrEdit::new(&inode.subvol, inode.node.ino, Some(inode.map.write().await))
    }

    /// Makes `name` known to `edit`.
    pub(crate) async fn load_xattr(
        &self,
        inode: &Inode,
        edit: &mut XattrEdit<'_>,
        name: &[u8],
    ) -> Result<()> {
        let key = edit.key(name);
        if !edit.is_loaded(key) {
            let is_none = inode.state().item.xattrs == 0;
            let bucket = if is_none { None } else { self.xattr_bucket(inode, key).await? };
            edit.load(key, bucket);
        }
        Ok(())
    }

    /// The value of an attribute that is known to `edit` and was not changed by it.
    pub(crate) async fn loaded_xattr(
        &self,
        inode: &Inode,
        edit: &XattrEdit<'_>,
        name: &[u8],
    ) -> Result<Option<Vec<u8>>> {
        self.value_in(inode, edit.key(name), edit.bucket(name), name).await
    }

    /// Applies a change of attributes that concerns nothing else.
    async fn change_xattrs(
        self: &Arc<Self>,
        inode: &InodeRef,
        edit: XattrEdit<'_>,
        room: &mut Room,
    ) -> Result<()> {
        let now = self.now();
        self.change_inode_with_xattrs(inode, edit, room, |state: &mut InodeState, item| {
            state.permit(Way::Attributes)?;
            (state.shown.ctime, item.ctime) = (now, now);
            Ok(())
        })
        .await
    }

    async fn xattr_bucket(&self, inode: &Inode, key: Key) -> Result<Option<Value>> {
        let value = self.get(&inode.subvol, key).await?;
        if let Some(bytes) = &value {
            XattrBucket::parse(bytes)
                .map_err(|source| self.damaged_record("an attribute bucket", inode.node, source))?;
        }
        Ok(value)
    }
}

fn parsed(bucket: &Option<Value>) -> XattrBucket<'_> {
    bucket.as_deref().map_or(XattrBucket::EMPTY, |bytes| {
        XattrBucket::parse(bytes).expect("parsed when it was looked up")
    })
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
