//! Attributes: shown, and set.

use std::sync::Arc;

use copyhold_format::item::InodeItem;
use copyhold_pool::{Tier, Transaction};
use copyhold_types::Timestamp;
use copyhold_volume::quota::Request;

use crate::inode::{Inode, InodeRef, InodeState};
use crate::item_bytes::INODE_BYTES;
use crate::permit::Way;
use crate::privileges::{SET_GID, without_privileges};
use crate::promise::{Charge, credit_for, quota_tier};
use crate::room::Room;
use crate::throttle::before_change;
use crate::xattr_edit::XattrEdit;
use crate::xattr_list::expect_room_for_names;
use crate::{
    Attr, Caller, FileFlags, Filesystem, FsError, NodeId, Result, Sabotage, SetAttr, SetTime,
};

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
        if set.uid.is_some() && self.breaks(Sabotage::StripFirst) {
            Box::pin(self.strip_privileges(&inode, None)).await?;
        }
        self.permit(&inode, kind_of(set))?;
        before_change(self, inode.subvol.volume.owner()).await?;
        if let Some(size) = set.size {
            inode.expect_file()?;
            let data = inode.lock.write().await;
            inode.state().permit(Way::Overwrite)?;
            if set.kill_priv {
                Box::pin(self.strip_privileges(&inode, Some(caller))).await?;
            }
            match size == 0 && set.empties {
                true => self.empty(&inode).await?,
                false => self.set_size(&inode, size).await?,
            }
            drop(data);
        }
        let other = SetAttr { size: None, kill_priv: false, empties: false, ..*set };
        if other != SetAttr::default() {
            Box::pin(self.set_attributes(caller, &inode, &other)).await?;
        } else if set.kill_priv && set.size.is_none() && !inode.is_dir() {
            Box::pin(self.strip_privileges(&inode, None)).await?;
        }
        if set.size.is_some() {
            self.content_changed(&inode).await?;
        }
        Ok(inode.attr())
    }

    /// With a mode goes the ACL, with an owner the privileges: in one transaction (ACL-C1,
    /// PRIVS-V1).
    async fn set_attributes(
        self: &Arc<Self>,
        caller: &Caller,
        inode: &InodeRef,
        set: &SetAttr,
    ) -> Result<()> {
        let now = self.now();
        let change = |state: &mut InodeState, item: &mut InodeItem| {
            state.permit(kind_of(set))?;
            change(state, item, caller, set, now);
            Ok(())
        };
        let owner_changes = set.uid.is_some() || set.gid.is_some();
        if set.mode.is_none() && !owner_changes {
            return self.change_inode(inode, change).await;
        }
        let mut room = Room::default();
        loop {
            let mut edit = self.edit_xattrs(inode).await;
            if let Some(mode) = set.mode {
                self.restrict_acl(inode, &mut edit, mode).await?;
            }
            let in_copy_up = inode.state().in_copy_up;
            if owner_changes && !in_copy_up {
                self.remove_capabilities(inode, &mut edit).await?;
            }
            match self.change_inode_with_xattrs(inode, edit, &mut room, change).await {
                Err(refused) => room.wait(self, &inode.subvol, refused).await?,
                done => return done,
            }
        }
    }

    /// Logs a change of the inode item alone. `change` sees the state and the item to be logged.
    pub(crate) async fn change_inode(
        self: &Arc<Self>,
        inode: &Inode,
        change: impl FnOnce(&mut InodeState, &mut InodeItem) -> Result<()>,
    ) -> Result<()> {
        let charge = self.charge(&inode.subvol, Tier::Change, 1, INODE_BYTES).await?;
        self.apply_change(charge, inode, None, |state, item| {
            inode.subvol.writable()?;
            change(state, item)
        })
    }

    /// As [`Self::change_inode`]; never waits.
    pub(crate) fn change_inode_with(
        &self,
        charge: Charge,
        inode: &Inode,
        change: impl FnOnce(&mut InodeState, &mut InodeItem) -> Result<()>,
    ) -> Result<()> {
        self.apply_change(charge, inode, None, change)
    }

    /// As [`Self::change_inode`], with changes of attributes in the same transaction. If `room` is
    /// refused, the caller waits for it and begins again, for `edit` has the map lock (ROOM-W1).
    pub(crate) async fn change_inode_with_xattrs(
        self: &Arc<Self>,
        inode: &Inode,
        mut edit: XattrEdit<'_>,
        room: &mut Room,
        change: impl FnOnce(&mut InodeState, &mut InodeItem) -> Result<()>,
    ) -> Result<()> {
        expect_room_for_names(self, inode, edit.name_bytes()).await?;
        let (edits, bytes) = (1 + edit.edits(), INODE_BYTES + edit.bytes());
        let grows = edits > 1 && self.breaks(Sabotage::GrowAcls);
        let tier = if grows { Tier::Write } else { edit.tier() };
        let wanted = Request::for_edits(edits, bytes);
        let hold = room.hold(self, &inode.subvol, wanted, quota_tier(tier))?;
        let credit = credit_for(self, &inode.subvol, tier, (edits, bytes), 0).await?;
        let charge = Charge { credit, hold };
        self.apply_change(charge, inode, Some(&mut edit), |state, item| {
            inode.subvol.writable()?;
            change(state, item)
        })
    }

    fn apply_change(
        &self,
        charge: Charge,
        inode: &Inode,
        edit: Option<&mut XattrEdit<'_>>,
        change: impl FnOnce(&mut InodeState, &mut InodeItem) -> Result<()>,
    ) -> Result<()> {
        let mut state = inode.state();
        state.expect_present()?;
        if inode.is_placeholder() {
            return Err(FsError::NotPermitted("a subvolume's place in a snapshot does not change"));
        }
        let mut item = state.next_item();
        change(&mut state, &mut item)?;
        let mut tx = Transaction::new();
        let name_bytes = edit.as_ref().map_or(0, |edit| edit.name_bytes());
        if let Some(edit) = edit {
            edit.put(&mut tx, &mut item);
        }
        self.put_inode(&mut tx, inode.node.ino, &item);
        let txg = self.apply(&inode.subvol, charge, tx)?;
        state.logged(item, txg);
        state.xattr_names.change(name_bytes);
        Ok(())
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
        self.permit_in(&inode.subvol)?;
        before_change(self, inode.subvol.volume.owner()).await?;
        let now = self.now();
        self.change_inode(&inode, |state, item| {
            let guarded = FileFlags::IMMUTABLE.0 | FileFlags::APPEND.0;
            let project = project.unwrap_or(item.project);
            if (item.flags ^ flags.0) & guarded != 0 && !caller.is_privileged() {
                return Err(FsError::NotPermitted("only root sets or clears these flags"));
            }
            if !caller.is_privileged() && caller.uid != item.uid {
                return Err(FsError::NotPermitted("only the owner sets flags"));
            }
            let immutable = FileFlags::IMMUTABLE;
            let stays = state.has_flag(immutable) && flags.contains(immutable);
            if stays && (flags.0, project) != (item.flags, item.project) {
                state.permit(Way::Attributes)?;
            }
            item.flags = flags.0;
            item.project = project;
            item.ctime = now;
            state.shown.ctime = now;
            Ok(())
        })
        .await
    }
}

/// The way of an attribute change, which the file's flags permit or refuse.
fn kind_of(set: &SetAttr) -> Way {
    let times_now = set.mtime == Some(SetTime::Now) && set.atime == Some(SetTime::Now);
    let no_times = set.mtime.is_none() && set.atime.is_none();
    let no_rights = set.mode.is_none() && set.uid.is_none() && set.gid.is_none();
    match set.size {
        Some(_) => Way::Overwrite,
        None if set.accepted => Way::Accepted,
        None if no_rights && (times_now || no_times && set.ctime.is_none()) => Way::Touch,
        None => Way::Attributes,
    }
}

fn change(
    state: &mut InodeState,
    item: &mut InodeItem,
    caller: &Caller,
    set: &SetAttr,
    now: Timestamp,
) {
    if set.uid.is_some() || set.gid.is_some() {
        item.uid = set.uid.unwrap_or(item.uid);
        item.gid = set.gid.unwrap_or(item.gid);
        if item.mode & 0o170000 != 0o040000 && !state.in_copy_up {
            item.mode = without_privileges(item.mode, item.gid, None);
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
}

fn resolve(time: SetTime, now: Timestamp) -> Timestamp {
    match time {
        SetTime::Now => now,
        SetTime::At(at) => Timestamp { secs: at.secs, nanos: at.nanos.min(999_999_999) },
    }
}
