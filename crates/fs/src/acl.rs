//! POSIX ACLs (`copyhold_format::item::Acl`): inheritance by new files, and the permission checks.
//! Of an ACL's entries the kernel passes those that fit a page to and from a FUSE mount.
//!
//! ACL-C1  An access ACL and the mode change in one transaction: by chmod, by setfacl, and where an
//!         ACL goes that says no more than the mode. So after a crash neither grants more than
//!         before and after.

use std::sync::Arc;

use copyhold_format::FormatError;
use copyhold_format::item::{
    ACCESS_ACL, Acl, AclEntry, DEFAULT_ACL, GROUP_OBJ, InodeFlags, InodeItem, MASK, NAMED_GROUP,
    NAMED_USER, OTHER, USER_OBJ, encode_acl,
};
use copyhold_types::InodeNo;

use crate::inode::{Inode, InodeRef, InodeState};
use crate::permit::Way;
use crate::privileges::SET_GID;
use crate::room::Room;
use crate::subvol::Subvol;
use crate::xattr_edit::XattrEdit;
use crate::{Caller, FileKind, Filesystem, FsError, NodeId, Result, Sabotage};

/// An ACL as a program has sent it.
fn sent(bytes: &[u8]) -> Result<Acl<'_>> {
    Acl::parse(bytes).map_err(|error| match error {
        FormatError::Field { field: "version", .. } => {
            FsError::NotSupported("this version of ACLs")
        }
        _ => FsError::Invalid("not a valid ACL"),
    })
}

/// An ACL as the table kept it.
fn stored<'a>(inode: &Inode, bytes: &'a [u8]) -> Result<Acl<'a>> {
    let what = || format!("an ACL of inode {} of subvolume {}", inode.node.ino, inode.node.subvol);
    Acl::parse(bytes).map_err(|source| FsError::Record { what: what(), source })
}

/// The mode of a file that gets an ACL from `caller`.
fn mode_for(acl: &Acl<'_>, item: &InodeItem, caller: &Caller, kill_sgid: bool) -> u16 {
    let mode = if acl.is_empty() { item.mode } else { item.mode & !0o777 | acl.mode() };
    let known = caller.groups.is_some() && !caller.is_privileged();
    let outside = known && !caller.in_group(item.gid);
    if kill_sgid || outside { mode & !SET_GID } else { mode }
}

/// The ACL with its classes limited to `mode`, as chmod and creation do.
fn restricted(acl: &Acl<'_>, mode: u16, and: bool) -> Vec<u8> {
    let has_mask = acl.perm(MASK).is_some();
    encode_acl(acl.entries().map(|entry| {
        let class = match entry.tag {
            USER_OBJ => Some(mode >> 6 & 7),
            MASK => Some(mode >> 3 & 7),
            GROUP_OBJ if !has_mask => Some(mode >> 3 & 7),
            OTHER => Some(mode & 7),
            _ => None,
        };
        let perm = class.map_or(entry.perm, |bits| if and { entry.perm & bits } else { bits });
        AclEntry { perm, ..entry }
    }))
}

/// Whether an ACL grants `want` to a caller that is not the owner.
fn grants(acl: &Acl<'_>, caller: &Caller, owner_gid: u32, want: u16) -> bool {
    let mask = acl.perm(MASK).unwrap_or(7);
    if let Some(user) = acl.entries().find(|e| e.tag == NAMED_USER && e.id == caller.uid) {
        return user.perm & mask & want == want;
    }
    let mut in_group = false;
    for entry in acl.entries() {
        let gid = match entry.tag {
            GROUP_OBJ => owner_gid,
            NAMED_GROUP => entry.id,
            _ => continue,
        };
        if caller.in_group(gid) {
            in_group = true;
            if entry.perm & mask & want == want {
                return true;
            }
        }
    }
    !in_group && acl.perm(OTHER).unwrap_or(0) & want == want
}

/// Attributes that a new file inherits from its directory.
pub(crate) struct Inherited {
    /// Permission bits, after umask or default ACL.
    pub(crate) mode: u32,
    access: Option<Vec<u8>>,
    default: Option<Vec<u8>>,
}

impl Inherited {
    /// The ACLs of the file `ino`, for the transaction that makes it.
    pub(crate) fn xattrs(&self, subvol: &Subvol, ino: InodeNo) -> Result<XattrEdit<'static>> {
        let mut edit = XattrEdit::new(subvol, ino, None);
        for (name, value) in [(ACCESS_ACL, &self.access), (DEFAULT_ACL, &self.default)] {
            if let Some(value) = value {
                edit.set(name, value)?;
            }
        }
        Ok(edit)
    }
}

impl Filesystem {
    /// The mode and ACLs of a file to be made in `dir`. The umask counts only without a default
    /// ACL.
    pub(crate) async fn inherited_acl(
        &self,
        dir: &Inode,
        kind: FileKind,
        mode: u32,
        umask: u32,
    ) -> Result<Inherited> {
        let masked = Inherited { mode: mode & !umask, access: None, default: None };
        if kind == FileKind::Symlink {
            return Ok(Inherited { mode, ..masked });
        }
        if !dir.state().item.has.has(InodeFlags::DEFAULT_ACL) {
            return Ok(masked);
        }
        let Some(bytes) = self.xattr_of(dir, DEFAULT_ACL).await? else { return Ok(masked) };
        let acl = stored(dir, &bytes)?;
        let access = restricted(&acl, mode as u16, true);
        let allows = stored(dir, &access)?.mode();
        Ok(Inherited {
            mode: mode & !0o777 | u32::from(allows),
            access: (!acl.is_plain()).then_some(access),
            default: (kind == FileKind::Directory).then_some(bytes),
        })
    }

    /// Adds to `edit` the change that keeps an access ACL in step with a mode that is being set
    /// (ACL-C1).
    pub(crate) async fn restrict_acl(
        &self,
        inode: &Inode,
        edit: &mut XattrEdit<'_>,
        mode: u32,
    ) -> Result<()> {
        let has = inode.state().item.has.has(InodeFlags::ACCESS_ACL);
        if !has || self.breaks(Sabotage::ChmodAlone) {
            return Ok(());
        }
        self.load_xattr(inode, edit, ACCESS_ACL).await?;
        let Some(bytes) = self.loaded_xattr(inode, edit, ACCESS_ACL).await? else { return Ok(()) };
        edit.set(ACCESS_ACL, &restricted(&stored(inode, &bytes)?, mode as u16, false))
    }

    /// Checks and stores an ACL, as `setfacl` sends it; one that says no more than the mode, or
    /// nothing, is removed. An access ACL changes the mode with it (ACL-C1).
    pub(crate) async fn set_acl(
        self: &Arc<Self>,
        caller: &Caller,
        inode: &InodeRef,
        name: &[u8],
        value: &[u8],
        kill_sgid: bool,
    ) -> Result<()> {
        let acl = sent(value)?;
        if acl.len() > 127 && self.breaks(Sabotage::RefuseLongAcls) {
            return Err(FsError::Invalid("not a valid ACL"));
        }
        let is_default = name == DEFAULT_ACL;
        match inode.kind {
            FileKind::Directory => {}
            _ if is_default => return Err(FsError::AccessDenied),
            FileKind::Symlink => return Err(FsError::NotSupported("an ACL on a symlink")),
            _ => {}
        }
        let new_mode = |item: &InodeItem| match is_default {
            true => item.mode,
            false => mode_for(&acl, item, caller, kill_sgid),
        };
        let is_same = |item: &InodeItem| new_mode(item) == item.mode;
        let now = self.now();
        let change = |state: &mut InodeState, item: &mut InodeItem| {
            state.permit(Way::Attributes)?;
            item.mode = new_mode(item);
            (state.shown.ctime, item.ctime) = (now, now);
            Ok(())
        };
        let mut room = Room::default();
        loop {
            let mut edit = self.edit_xattrs(inode).await;
            self.load_xattr(inode, &mut edit, name).await?;
            match acl.is_empty() || (acl.is_plain() && !is_default) {
                true => drop(edit.remove(name)),
                false => edit.set(name, value)?,
            }
            if edit.is_empty() && is_same(&inode.state().item) {
                return Ok(());
            }
            match self.change_inode_with_xattrs(inode, edit, &mut room, change).await {
                Err(refused) => room.wait(self, &inode.subvol, refused).await?,
                done => return done,
            }
        }
    }

    /// Whether `caller` may read (4), write (2), execute or search (1) `node`; mode and ACL decide.
    pub async fn access(&self, caller: &Caller, node: NodeId, mask: u32) -> Result<()> {
        let inode = self.inode(node).await?;
        let want = (mask & 7) as u16;
        let item = inode.state().item;
        if want & 2 != 0 {
            if matches!(inode.kind, FileKind::Regular | FileKind::Directory | FileKind::Symlink) {
                self.permit_in(&inode.subvol)?;
            }
            inode.state().permit(Way::Append)?;
        }
        if caller.is_privileged() {
            let runs = inode.is_dir() || item.mode & 0o111 != 0;
            return if want & 1 == 0 || runs { Ok(()) } else { Err(FsError::AccessDenied) };
        }
        let granted = if caller.uid == item.uid {
            item.mode >> 6 & want == want
        } else if item.has.has(InodeFlags::ACCESS_ACL) {
            match self.xattr_of(&inode, ACCESS_ACL).await? {
                Some(bytes) => grants(&stored(&inode, &bytes)?, caller, item.gid, want),
                None => false,
            }
        } else if caller.in_group(item.gid) {
            item.mode >> 3 & want == want
        } else {
            item.mode & want == want
        };
        if granted { Ok(()) } else { Err(FsError::AccessDenied) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        encode_acl(entries.iter().map(|&(tag, perm, id)| AclEntry { tag, perm, id }))
    }

    const NONE: u32 = u32::MAX;

    #[test]
    fn the_mask_limits_all_but_owner_and_other() {
        let bytes = acl(&[
            (USER_OBJ, 7, NONE),
            (NAMED_USER, 7, 5),
            (GROUP_OBJ, 7, NONE),
            (NAMED_GROUP, 6, 9),
            (MASK, 4, NONE),
            (OTHER, 1, NONE),
        ]);
        let acl = Acl::parse(&bytes).unwrap();
        let grants = |caller, gid, want| grants(&acl, &caller, gid, want);
        let someone = |uid, gid| Caller::new(uid, gid, 0);
        assert!(grants(someone(5, 1), 100, 4));
        assert!(!grants(someone(5, 1), 100, 2));
        assert!(grants(someone(6, 9), 100, 4));
        assert!(!grants(someone(6, 9), 100, 6));
        // In a group that grants less, the rest of the world's right does not count.
        assert!(!grants(someone(6, 100), 100, 1));
        assert!(grants(someone(6, 7), 100, 1));
    }
}
