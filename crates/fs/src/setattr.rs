//! Attributes: shown, and set.

use std::sync::Arc;

use copyhold_format::item::InodeItem;
use copyhold_pool::{Tier, Transaction};
use copyhold_types::Timestamp;

use crate::filesystem::INODE_BYTES;
use crate::inode::{Inode, InodeRef, State};
use crate::promise::Charge;
use crate::xattr::CAPABILITY;
use crate::{
    Attr, Caller, FileFlags, FileKind, Filesystem, FsError, NodeId, Result, SetAttr, SetTime,
};

const SET_UID: u16 = 0o4000;
const SET_GID: u16 = 0o2000;
const GROUP_EXEC: u16 = 0o010;

impl Filesystem {
    pub async fn getattr(&self, node: NodeId) -> Result<Attr> {
        Ok(self.inode(node).await?.attr())
    }

    pub async fn setattr(
        self: &Arc<Self>,
        caller: &Caller,
        node: NodeId,
        set: &SetAttr,
    ) -> Result<Attr> {
        self.writable()?;
        let inode = self.inode(node).await?;
        inode.subvol.writable()?;
        inode.state().expect_not_immutable()?;
        if let Some(size) = set.size {
            inode.expect_file()?;
            let _data = inode.lock.write().await;
            if set.kill_priv {
                self.kill_priv(&inode).await?;
            }
            self.set_size(&inode, size).await?;
        }
        if set.mode.is_some() {
            self.chmod_acl(&inode, set.mode.unwrap_or(0)).await?;
        }
        if set.uid.is_some() || set.gid.is_some() {
            self.drop_capabilities(&inode).await?;
        }
        let other = SetAttr { size: None, kill_priv: false, ..*set };
        if other != SetAttr::default() {
            let now = self.now();
            self.change_inode(&inode, |state, item| change(state, item, caller, set, now)).await?;
        }
        Ok(inode.attr())
    }

    /// Logs a change of the inode item alone. `change` sees the state and the item to be logged.
    pub(crate) async fn change_inode(
        self: &Arc<Self>,
        inode: &Inode,
        change: impl FnOnce(&mut State, &mut InodeItem) -> Result<()>,
    ) -> Result<()> {
        let charge = self.charge(&inode.subvol, Tier::Delete, 1, INODE_BYTES).await?;
        self.change_inode_with(charge, inode, change)
    }

    /// As [`Self::change_inode`]; never waits.
    pub(crate) fn change_inode_with(
        &self,
        charge: Charge,
        inode: &Inode,
        change: impl FnOnce(&mut State, &mut InodeItem) -> Result<()>,
    ) -> Result<()> {
        let mut state = inode.state();
        state.expect_present()?;
        let mut item = state.next_item();
        change(&mut state, &mut item)?;
        let mut tx = Transaction::new();
        self.put_inode(&mut tx, inode.node.ino, &item);
        let txg = self.apply(&inode.subvol, charge, tx)?;
        state.logged(item, txg);
        Ok(())
    }

    /// Takes away what a change of content must not leave: set-user-id, set-group-id where the
    /// group may execute, capabilities.
    pub(crate) async fn kill_priv(self: &Arc<Self>, inode: &InodeRef) -> Result<()> {
        self.drop_capabilities(inode).await?;
        let mode = inode.state().item.mode;
        if without_privileges(mode) == mode {
            return Ok(());
        }
        let now = self.now();
        self.change_inode(inode, |state, item| {
            item.mode = without_privileges(item.mode);
            item.ctime = now;
            state.shown.ctime = now;
            Ok(())
        })
        .await
    }

    async fn drop_capabilities(self: &Arc<Self>, inode: &InodeRef) -> Result<()> {
        if inode.kind != FileKind::Regular || inode.state().item.xattrs == 0 {
            return Ok(());
        }
        match self.remove_xattr_of(inode, CAPABILITY).await {
            Err(FsError::NoAttribute) => Ok(()),
            other => other,
        }
    }

    /// Sets [`FileFlags`] and, if given, the project id. Bits outside [`FileFlags::SETTABLE`] are
    /// refused with [`FsError::NotSupported`].
    pub async fn set_flags(
        self: &Arc<Self>,
        caller: &Caller,
        node: NodeId,
        flags: FileFlags,
        project: Option<u32>,
    ) -> Result<()> {
        self.writable()?;
        if flags.0 & !FileFlags::SETTABLE.0 != 0 {
            return Err(FsError::NotSupported("one of these flags"));
        }
        let inode = self.inode(node).await?;
        inode.subvol.writable()?;
        let now = self.now();
        self.change_inode(&inode, |state, item| {
            let guarded = FileFlags::IMMUTABLE.0 | FileFlags::APPEND.0;
            if (item.flags ^ flags.0) & guarded != 0 && !caller.is_privileged() {
                return Err(FsError::NotPermitted("only root sets or clears these flags"));
            }
            if !caller.is_privileged() && caller.uid != item.uid {
                return Err(FsError::NotPermitted("only the owner sets flags"));
            }
            item.flags = flags.0;
            item.project = project.unwrap_or(item.project);
            item.ctime = now;
            state.shown.ctime = now;
            Ok(())
        })
        .await
    }
}

fn change(
    state: &mut State,
    item: &mut InodeItem,
    caller: &Caller,
    set: &SetAttr,
    now: Timestamp,
) -> Result<()> {
    let append = state.has_flag(FileFlags::APPEND);
    let times_now = set.mtime == Some(SetTime::Now) && set.atime == Some(SetTime::Now);
    let harmless = set.mode.is_none() && set.uid.is_none() && set.gid.is_none() && times_now;
    if append && !harmless {
        return Err(FsError::NotPermitted("the file can only be appended to"));
    }
    if set.uid.is_some() || set.gid.is_some() {
        item.uid = set.uid.unwrap_or(item.uid);
        item.gid = set.gid.unwrap_or(item.gid);
        if item.mode & 0o170000 != 0o040000 {
            item.mode = without_privileges(item.mode);
        }
    }
    if let Some(mode) = set.mode {
        let mut mode = mode as u16 & 0o7777;
        let known_outside = caller.groups.is_some() && !caller.in_group(item.gid);
        if known_outside && !caller.is_privileged() {
            mode &= !SET_GID;
        }
        item.mode = item.mode & 0o170000 | mode;
    }
    if let Some(time) = set.atime {
        state.shown.atime = resolve(time, now);
        item.atime = state.shown.atime;
    }
    if let Some(time) = set.mtime {
        state.shown.mtime = resolve(time, now);
        item.mtime = state.shown.mtime;
    }
    state.shown.ctime = set.ctime.unwrap_or(now);
    item.ctime = state.shown.ctime;
    Ok(())
}

fn resolve(time: SetTime, now: Timestamp) -> Timestamp {
    match time {
        SetTime::Now => now,
        SetTime::At(at) => Timestamp { secs: at.secs, nanos: at.nanos.min(999_999_999) },
    }
}

fn without_privileges(mode: u16) -> u16 {
    let mode = mode & !SET_UID;
    if mode & GROUP_EXEC != 0 { mode & !SET_GID } else { mode }
}
