//! The model of owners, modes, ACLs and file flags.
//!
//! The plainest model: an ACL is what it says by name, and its encoding an attribute like others.

use std::collections::BTreeMap;

use copyhold_fs::{Caller, FileFlags};

use super::tree::{Kind, Object};

pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";

pub(crate) const SET_UID: u32 = 0o4000;
pub(crate) const SET_GID: u32 = 0o2000;

/// Where no id is meant.
const NOBODY: u32 = u32::MAX;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Acl {
    pub(crate) owner: u32,
    pub(crate) users: BTreeMap<u32, u32>,
    pub(crate) group: u32,
    pub(crate) groups: BTreeMap<u32, u32>,
    pub(crate) mask: Option<u32>,
    pub(crate) other: u32,
}

impl Acl {
    /// Owner, group and the rest: a mode says the same.
    pub(crate) fn is_plain(&self) -> bool {
        self.users.is_empty() && self.groups.is_empty() && self.mask.is_none()
    }

    pub(crate) fn mode(&self) -> u32 {
        self.owner << 6 | self.mask.unwrap_or(self.group) << 3 | self.other
    }

    /// The ACL after a change of its classes.
    fn with_classes(&self, class: impl Fn(u32, u32) -> u32) -> Acl {
        let mut acl = self.clone();
        acl.owner = class(self.owner, 6);
        match &mut acl.mask {
            Some(mask) => *mask = class(*mask, 3),
            None => acl.group = class(self.group, 3),
        }
        acl.other = class(self.other, 0);
        acl
    }

    /// Behind a chmod.
    pub(crate) fn chmod(&self, mode: u32) -> Acl {
        self.with_classes(|_, shift| mode >> shift & 7)
    }

    /// Of a file that is made with `mode`.
    pub(crate) fn inherited(&self, mode: u32) -> Acl {
        self.with_classes(|has, shift| has & mode >> shift)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let users = self.users.iter().map(|(id, perm)| (0x02, *perm, *id));
        let groups = self.groups.iter().map(|(id, perm)| (0x08, *perm, *id));
        let entries = [(0x01, self.owner, NOBODY)].into_iter().chain(users);
        let entries = entries.chain([(0x04, self.group, NOBODY)]).chain(groups);
        let entries = entries.chain(self.mask.map(|mask| (0x10, mask, NOBODY)));
        let mut bytes = 2_u32.to_le_bytes().to_vec();
        for (tag, perm, id) in entries.chain([(0x20, self.other, NOBODY)]) {
            bytes.extend((tag as u16).to_le_bytes());
            bytes.extend((perm as u16).to_le_bytes());
            bytes.extend(id.to_le_bytes());
        }
        bytes
    }

    /// Parses the output of [`Self::encode`].
    pub(crate) fn decode(bytes: &[u8]) -> Acl {
        let mut acl = Acl::default();
        for entry in bytes[4..].chunks_exact(8) {
            let word = |at| u32::from(u16::from_le_bytes([entry[at], entry[at + 1]]));
            let (tag, perm) = (word(0), word(2));
            let id = u32::from_le_bytes(entry[4..8].try_into().expect("four bytes"));
            match tag {
                0x01 => acl.owner = perm,
                0x02 => drop(acl.users.insert(id, perm)),
                0x04 => acl.group = perm,
                0x08 => drop(acl.groups.insert(id, perm)),
                0x10 => acl.mask = Some(perm),
                _ => acl.other = perm,
            }
        }
        acl
    }
}

/// The mode of a file after a change of its content or owner, if the file is in a group and the
/// caller may be outside of it.
pub(crate) fn without_privileges(mode: u32, gid: u32, by: Option<&Caller>) -> u32 {
    let mode = mode & !SET_UID;
    let is_outside = by.is_some_and(|by| !by.is_privileged() && !by.in_group(gid));
    if mode & 0o010 != 0 || is_outside { mode & !SET_GID } else { mode }
}

/// The caller's groups are known, and `gid` is not among them.
fn is_known_outside(caller: &Caller, gid: u32) -> bool {
    !caller.is_privileged() && caller.groups.is_some() && !caller.in_group(gid)
}

impl Object {
    pub(crate) fn has_flag(&self, flag: FileFlags) -> bool {
        FileFlags(self.flags).contains(flag)
    }

    pub(crate) fn is_immutable(&self) -> bool {
        self.has_flag(FileFlags::IMMUTABLE)
    }

    /// Nothing of it may be changed but by appending.
    pub(crate) fn is_guarded(&self) -> bool {
        self.is_immutable() || self.has_flag(FileFlags::APPEND)
    }

    fn acl(&self, name: &[u8]) -> Option<Acl> {
        self.xattrs.get(name).map(|bytes| Acl::decode(bytes))
    }

    /// The rights of a file that `caller` creates in a directory; without one, in a directory
    /// without a default ACL.
    pub(crate) fn made_in(dir: Option<&Object>, kind: Kind, mode: u32, caller: &Caller) -> Object {
        let mut new = Object::new(kind, mode & !caller.umask);
        (new.uid, new.gid) = (caller.uid, caller.gid);
        let is_symlink = matches!(new.kind, Kind::Symlink(_));
        if is_symlink {
            new.mode = mode;
        }
        let Some(dir) = dir else { return new };
        let is_dir = new.kind == Kind::Dir;
        if is_dir || new.kind == Kind::File {
            new.checksum_mode = dir.checksum_mode;
        }
        if let Some(default) = dir.acl(DEFAULT).filter(|_| !is_symlink) {
            let access = default.inherited(mode);
            new.mode = mode & !0o777 | access.mode();
            if !access.is_plain() {
                new.xattrs.insert(ACCESS.to_vec(), access.encode());
            }
            if is_dir {
                new.xattrs.insert(DEFAULT.to_vec(), default.encode());
            }
        }
        if dir.mode & SET_GID != 0 {
            new.gid = dir.gid;
            let runs_as_group = SET_GID | 0o010;
            if is_dir {
                new.mode |= SET_GID;
            } else if new.mode & runs_as_group == runs_as_group && is_known_outside(caller, new.gid)
            {
                new.mode &= !SET_GID;
            }
        }
        let passed_on = FileFlags::NODUMP.0 | FileFlags::NOATIME.0 | FileFlags::SYNC.0;
        new.flags = if is_symlink { 0 } else { dir.flags & passed_on };
        new
    }

    pub(crate) fn chmod(&mut self, mode: u32, caller: &Caller) {
        self.mode = if is_known_outside(caller, self.gid) { mode & !SET_GID } else { mode };
        if let Some(acl) = self.acl(ACCESS) {
            self.xattrs.insert(ACCESS.to_vec(), acl.chmod(mode).encode());
        }
    }

    pub(crate) fn chown(&mut self, uid: Option<u32>, gid: Option<u32>) {
        self.uid = uid.unwrap_or(self.uid);
        self.gid = gid.unwrap_or(self.gid);
        if !self.kind.is_dir() {
            self.mode = without_privileges(self.mode, self.gid, None);
        }
    }

    /// `None` removes it; an ACL equivalent to a mode is not kept.
    pub(crate) fn set_acl(&mut self, name: &[u8], acl: Option<&Acl>) {
        let is_access = name == ACCESS;
        if let Some(acl) = acl.filter(|_| is_access) {
            self.mode = self.mode & !0o777 | acl.mode();
        }
        match acl.filter(|acl| !(is_access && acl.is_plain())) {
            Some(acl) => drop(self.xattrs.insert(name.to_vec(), acl.encode())),
            None => drop(self.xattrs.remove(name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use copyhold_format::item::ChecksumMode;

    use super::*;

    fn acl() -> Acl {
        let (users, groups) = (BTreeMap::from([(5, 7)]), BTreeMap::from([(9, 6)]));
        Acl { owner: 7, users, group: 5, groups, mask: Some(6), other: 1 }
    }

    #[test]
    fn an_acl_is_read_as_it_was_written_and_its_mask_is_the_group_of_the_mode() {
        assert_eq!(Acl::decode(&acl().encode()), acl());
        assert_eq!(acl().mode(), 0o761);
        let changed = acl().chmod(0o640);
        assert_eq!((changed.mode(), changed.group), (0o640, 5));
    }

    #[test]
    fn what_is_made_has_no_more_than_its_directory_passes_on() {
        let mut dir = Object::new(Kind::Dir, 0o2755);
        dir.gid = 30;
        dir.checksum_mode = ChecksumMode::Guard;
        dir.set_acl(DEFAULT, Some(&acl()));
        let caller = Caller::new(1, 2, 0o077);
        let new = Object::made_in(Some(&dir), Kind::File, 0o644, &caller);
        assert_eq!((new.mode, new.uid, new.gid), (0o640, 1, 30));
        assert_eq!(new.acl(ACCESS), Some(acl().inherited(0o644)));
        let below = Object::made_in(Some(&dir), Kind::Dir, 0o777, &caller);
        assert_eq!((below.mode, below.acl(DEFAULT)), (0o2761, Some(acl())));
        let fifo = Object::made_in(Some(&dir), Kind::Fifo, 0o644, &caller);
        let modes = [&new, &below, &fifo].map(|of| of.checksum_mode);
        assert_eq!(modes, [ChecksumMode::Guard, ChecksumMode::Guard, ChecksumMode::Item]);
        assert_eq!(Object::made_in(None, Kind::File, 0o666, &caller).mode, 0o600);
    }
}
