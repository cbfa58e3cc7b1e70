//! The caller: ownership of created files, and the credentials that `access` checks.

use crate::right::Right;

/// The identity behind an operation. Operations trust their caller (the kernel checks permissions
/// before it asks); only [`crate::Filesystem::access`] judges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups; `None` if the front end does not know them. Then a set-group-id bit
    /// that the caller may not set is the front end's to refuse.
    pub groups: Option<Vec<u32>>,
    /// Cleared from the mode of a created file, unless the directory has a default ACL.
    pub umask: u32,
    /// Manages the pool, as only the front end knows: uid 0 alone proves nothing, since every
    /// container has one.
    pub is_administrator: bool,
}

impl Caller {
    /// Everything is allowed, nothing is masked.
    pub const ROOT: Caller =
        Caller { uid: 0, gid: 0, groups: None, umask: 0, is_administrator: true };

    /// An ordinary caller, whatever its ids.
    pub const fn new(uid: u32, gid: u32, umask: u32) -> Caller {
        Caller { uid, gid, groups: None, umask, is_administrator: false }
    }

    /// To subvolumes: an owner, of uid 0 as of any other.
    pub(crate) fn right(&self) -> Right {
        if self.is_administrator { Right::Administrator } else { Right::Owner(self.uid) }
    }

    pub fn is_privileged(&self) -> bool {
        self.uid == 0
    }

    /// Whether the caller is known to be in `gid`.
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.as_ref().is_some_and(|groups| groups.contains(&gid))
    }
}
