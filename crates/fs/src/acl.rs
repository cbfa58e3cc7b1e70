//! POSIX ACLs: what the attributes `system.posix_acl_access` and `…_default` hold, what a new file
//! inherits, and who may do what.
//!
//! ```text
//! version u32 (2), then per entry:  tag u16 · permissions u16 · uid or gid u32
//! ```
//!
//! The entries are sorted by tag, users and groups by id; where there are any of these, a mask is,
//! too, and it takes the place of the group in the mode. An ACL is as long as an attribute can be:
//! 8191 entries. Of these the kernel passes what fits a page to and from a FUSE mount.
//!
//! C1  An access ACL and the mode change in one transaction: by chmod, by setfacl, and where an ACL
//!     goes that says no more than the mode. So after a crash neither grants more than before and
//!     after.

use std::sync::Arc;

use copyhold_format::item::{InodeFlags, InodeItem};
use copyhold_types::InodeNo;
use smallvec::SmallVec;

use crate::inode::{Inode, InodeRef};
use crate::permit::Way;
use crate::privileges::SET_GID;
use crate::subvol::Subvol;
use crate::xattr_edit::XattrEdit;
use crate::{Caller, FileKind, Filesystem, FsError, NodeId, Result, Sabotage};

const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// How an inode's item marks that it has this attribute, if the attribute is an ACL.
pub(crate) fn acl_flag(name: &[u8]) -> Option<u16> {
    match name {
        ACCESS_ACL => Some(InodeFlags::ACCESS_ACL),
        DEFAULT_ACL => Some(InodeFlags::DEFAULT_ACL),
        _ => None,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AclEntry {
    tag: u16,
    perm: u16,
    id: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Acl(SmallVec<[AclEntry; 6]>);

impl Acl {
    /// Checks what a program has sent, or the table kept. No entries at all are an empty ACL.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Acl> {
        let bad = FsError::Invalid("not a valid ACL");
        if bytes.is_empty() {
            return Ok(Acl::default());
        }
        let (version, rest) = bytes.split_at_checked(4).ok_or(bad.clone())?;
        if version != VERSION.to_le_bytes() {
            return Err(FsError::NotSupported("this version of ACLs"));
        }
        if rest.len() % 8 != 0 {
            return Err(bad);
        }
        let entries = rest.chunks_exact(8).map(|raw| AclEntry {
            tag: u16::from_le_bytes([raw[0], raw[1]]),
            perm: u16::from_le_bytes([raw[2], raw[3]]),
            id: u32::from_le_bytes([raw[4], raw[5], raw[6], raw[7]]),
        });
        let acl = Acl(entries.collect());
        if acl.is_valid() { Ok(acl) } else { Err(bad) }
    }

    fn is_valid(&self) -> bool {
        if self.0.is_empty() {
            return true;
        }
        let one = |tag| self.0.iter().filter(|entry| entry.tag == tag).count() == 1;
        let named = self.0.iter().any(|entry| matches!(entry.tag, USER | GROUP));
        let masks = self.0.iter().filter(|entry| entry.tag == MASK).count();
        let known = |entry: &AclEntry| {
            matches!(entry.tag, USER_OBJ | USER | GROUP_OBJ | GROUP | MASK | OTHER)
                && entry.perm <= 7
        };
        let sorted = self.0.windows(2).all(|pair| {
            let by_id = matches!(pair[0].tag, USER | GROUP) && pair[0].id < pair[1].id;
            pair[0].tag < pair[1].tag || (pair[0].tag == pair[1].tag && by_id)
        });
        self.0.iter().all(known)
            && sorted
            && one(USER_OBJ)
            && one(GROUP_OBJ)
            && one(OTHER)
            && masks <= 1
            && (masks == 1 || !named)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a mode says it all.
    pub(crate) fn is_plain(&self) -> bool {
        self.0.len() == 3
    }

    fn perm(&self, tag: u16) -> Option<u16> {
        self.0.iter().find(|entry| entry.tag == tag).map(|entry| entry.perm)
    }

    /// The permission bits that go with it.
    pub(crate) fn mode(&self) -> u16 {
        let group = self.perm(MASK).or(self.perm(GROUP_OBJ)).unwrap_or(0);
        self.perm(USER_OBJ).unwrap_or(0) << 6 | group << 3 | self.perm(OTHER).unwrap_or(0)
    }

    /// The mode of a file that gets it from `caller`.
    fn mode_for(&self, item: &InodeItem, caller: &Caller, kill_sgid: bool) -> u16 {
        let mode = if self.is_empty() { item.mode } else { item.mode & !0o777 | self.mode() };
        let known = caller.groups.is_some() && !caller.is_privileged();
        let outside = known && !caller.in_group(item.gid);
        if kill_sgid || outside { mode & !SET_GID } else { mode }
    }

    /// Limits the classes to `mode`, as chmod and creation do.
    fn restricted(&self, mode: u16, and: bool) -> Acl {
        let has_mask = self.perm(MASK).is_some();
        let entries = self.0.iter().map(|entry| {
            let class = match entry.tag {
                USER_OBJ => Some(mode >> 6 & 7),
                MASK => Some(mode >> 3 & 7),
                GROUP_OBJ if !has_mask => Some(mode >> 3 & 7),
                OTHER => Some(mode & 7),
                _ => None,
            };
            let perm = class.map_or(entry.perm, |bits| if and { entry.perm & bits } else { bits });
            AclEntry { perm, ..*entry }
        });
        Acl(entries.collect())
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(4 + self.0.len() * 8);
        out.extend_from_slice(&VERSION.to_le_bytes());
        for entry in &self.0 {
            out.extend_from_slice(&entry.tag.to_le_bytes());
            out.extend_from_slice(&entry.perm.to_le_bytes());
            out.extend_from_slice(&entry.id.to_le_bytes());
        }
        out
    }

    /// Whether it grants `want` to a caller who is not the owner.
    fn grants(&self, caller: &Caller, owner_gid: u32, want: u16) -> bool {
        let mask = self.perm(MASK).unwrap_or(7);
        if let Some(user) = self.0.iter().find(|e| e.tag == USER && e.id == caller.uid) {
            return user.perm & mask & want == want;
        }
        let mut in_group = false;
        for entry in &self.0 {
            let gid = match entry.tag {
                GROUP_OBJ => owner_gid,
                GROUP => entry.id,
                _ => continue,
            };
            if caller.in_group(gid) {
                in_group = true;
                if entry.perm & mask & want == want {
                    return true;
                }
            }
        }
        !in_group && self.perm(OTHER).unwrap_or(0) & want == want
    }
}

/// What a new file gets from its directory.
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
        let acl = Acl::parse(&bytes)?;
        let access = acl.restricted(mode as u16, true);
        Ok(Inherited {
            mode: mode & !0o777 | u32::from(access.mode()),
            access: (!access.is_plain()).then(|| access.encode()),
            default: (kind == FileKind::Directory).then_some(bytes),
        })
    }

    /// Adds to `edit` what keeps an access ACL in step with a mode that is being set (C1).
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
        edit.set(ACCESS_ACL, &Acl::parse(&bytes)?.restricted(mode as u16, false).encode())
    }

    /// Checks and stores an ACL, as `setfacl` sends it; one that says no more than the mode, or
    /// nothing, is removed. An access ACL changes the mode with it (C1).
    pub(crate) async fn set_acl(
        self: &Arc<Self>,
        caller: &Caller,
        inode: &InodeRef,
        name: &[u8],
        value: &[u8],
        kill_sgid: bool,
    ) -> Result<()> {
        let acl = Acl::parse(value)?;
        if acl.0.len() > 127 && self.breaks(Sabotage::RefuseLongAcls) {
            return Err(FsError::Invalid("not a valid ACL"));
        }
        let is_default = name == DEFAULT_ACL;
        match inode.kind {
            FileKind::Directory => {}
            _ if is_default => return Err(FsError::AccessDenied),
            FileKind::Symlink => return Err(FsError::NotSupported("an ACL on a symlink")),
            _ => {}
        }
        let mut edit = self.edit_xattrs(inode).await;
        self.load_xattr(inode, &mut edit, name).await?;
        match acl.is_empty() || (acl.is_plain() && !is_default) {
            true => drop(edit.remove(name)),
            false => edit.set(name, value)?,
        }
        let new_mode = |item: &InodeItem| match is_default {
            true => item.mode,
            false => acl.mode_for(item, caller, kill_sgid),
        };
        let is_same = |item: &InodeItem| new_mode(item) == item.mode;
        if edit.is_empty() && is_same(&inode.state().item) {
            return Ok(());
        }
        let now = self.now();
        self.change_inode_with_xattrs(inode, edit, |state, item| {
            state.permit(Way::Attributes)?;
            item.mode = new_mode(item);
            (state.shown.ctime, item.ctime) = (now, now);
            Ok(())
        })
        .await
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
                Some(bytes) => Acl::parse(&bytes)?.grants(caller, item.gid, want),
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
        Acl(entries.iter().map(|&(tag, perm, id)| AclEntry { tag, perm, id }).collect()).encode()
    }

    const NONE: u32 = u32::MAX;

    #[test]
    fn a_named_user_needs_a_mask() {
        let plain = [(USER_OBJ, 6, NONE), (GROUP_OBJ, 4, NONE), (OTHER, 0, NONE)];
        assert!(Acl::parse(&acl(&plain)).unwrap().is_plain());
        let named = [
            (USER_OBJ, 6, NONE),
            (USER, 7, 5),
            (GROUP_OBJ, 4, NONE),
            (MASK, 5, NONE),
            (OTHER, 0, NONE),
        ];
        let good = Acl::parse(&acl(&named)).unwrap();
        assert_eq!(good.mode(), 0o650);
        let no_mask: Vec<_> = named.iter().copied().filter(|entry| entry.0 != MASK).collect();
        assert!(Acl::parse(&acl(&no_mask)).is_err());
        let mut unsorted = named;
        unsorted.swap(0, 1);
        assert!(Acl::parse(&acl(&unsorted)).is_err());
        assert!(Acl::parse(&acl(&named)[..11]).is_err());
    }

    #[test]
    fn the_mask_limits_all_but_owner_and_other() {
        let bytes = acl(&[
            (USER_OBJ, 7, NONE),
            (USER, 7, 5),
            (GROUP_OBJ, 7, NONE),
            (GROUP, 6, 9),
            (MASK, 4, NONE),
            (OTHER, 1, NONE),
        ]);
        let acl = Acl::parse(&bytes).unwrap();
        let someone = |uid, gid| Caller::new(uid, gid, 0);
        assert!(acl.grants(&someone(5, 1), 100, 4));
        assert!(!acl.grants(&someone(5, 1), 100, 2));
        assert!(acl.grants(&someone(6, 9), 100, 4));
        assert!(!acl.grants(&someone(6, 9), 100, 6));
        // In a group that grants less, the rest of the world's right does not count.
        assert!(!acl.grants(&someone(6, 100), 100, 1));
        assert!(acl.grants(&someone(6, 7), 100, 1));
    }
}
