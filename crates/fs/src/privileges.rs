//! Privileges that a file loses when its content or its owner changes: setuid, setgid,
//! capabilities.
//!
//! | bit | goes | stays |
//! | --- | --- | --- |
//! | setuid | always | |
//! | setgid | the group may execute, or the caller is outside of it | else: no privilege |
//! | capabilities | always | |
//!
//! A change of content by a caller that may keep privileges (CAP_FSETID) takes nothing away; the
//! front end knows. Directories keep their setgid bit when their owner changes, and a copy-up of
//! overlayfs keeps all until it has a name: see [`Filesystem::tmpfile_for_copy_up`].
//!
//! PRIVS-V1  Privileges go in one transaction, with the change of owner if that is the cause: a
//!           refused chown takes nothing, and no crash leaves capabilities with a new owner.

use std::sync::Arc;

use copyhold_format::item::InodeItem;

use crate::inode::{Inode, InodeRef, InodeState};
use crate::room::Room;
use crate::xattr_edit::XattrEdit;
use crate::{Caller, FileKind, Filesystem, Result, Sabotage};

pub(crate) const SET_UID: u16 = 0o4000;
pub(crate) const SET_GID: u16 = 0o2000;
const GROUP_EXEC: u16 = 0o010;
const CAPABILITY: &[u8] = b"security.capability";

/// `mode` of a file of the group `gid` without its privileges. Without a caller, setgid goes only
/// if the group may execute.
pub(crate) fn without_privileges(mode: u16, gid: u32, caller: Option<&Caller>) -> u16 {
    let mode = mode & !SET_UID;
    let outside = caller.is_some_and(|by| !by.is_privileged() && !by.in_group(gid));
    if mode & GROUP_EXEC != 0 || outside { mode & !SET_GID } else { mode }
}

impl Filesystem {
    /// Takes away the privileges that a change of content must not leave.
    pub(crate) async fn strip_privileges(
        self: &Arc<Self>,
        inode: &InodeRef,
        caller: Option<&Caller>,
    ) -> Result<()> {
        let stripped = |item: &InodeItem| without_privileges(item.mode, item.gid, caller);
        let (has_bits, xattrs) = {
            let state = inode.state();
            (stripped(&state.item) != state.item.mode, state.item.xattrs)
        };
        let has_capabilities = xattrs > 0 && self.xattr_of(inode, CAPABILITY).await?.is_some();
        let nothing = !has_bits && !has_capabilities;
        if nothing || self.breaks(Sabotage::KeepPrivileges) {
            return Ok(());
        }
        let now = self.now();
        let change = |state: &mut InodeState, item: &mut InodeItem| {
            item.mode = stripped(item);
            item.ctime = now;
            state.shown.ctime = now;
            Ok(())
        };
        let mut room = Room::default();
        loop {
            let mut edit = self.edit_xattrs(inode).await;
            self.remove_capabilities(inode, &mut edit).await?;
            match self.change_inode_with_xattrs(inode, edit, &mut room, change).await {
                Err(refused) => room.wait(self, &inode.subvol, refused).await?,
                done => return done,
            }
        }
    }

    /// Adds the removal of a regular file's capabilities to `edit`.
    pub(crate) async fn remove_capabilities(
        &self,
        inode: &Inode,
        edit: &mut XattrEdit<'_>,
    ) -> Result<()> {
        if inode.kind == FileKind::Regular {
            self.load_xattr(inode, edit, CAPABILITY).await?;
            edit.remove(CAPABILITY);
        }
        Ok(())
    }
}
