//! The caller: ownership of created files, and the credentials that `access` checks.

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
}

impl Caller {
    /// Everything is allowed, nothing is masked.
    pub const ROOT: Caller = Caller { uid: 0, gid: 0, groups: None, umask: 0 };

    pub fn new(uid: u32, gid: u32, umask: u32) -> Caller {
        Caller { uid, gid, groups: None, umask }
    }

    pub fn is_privileged(&self) -> bool {
        self.uid == 0
    }

    /// Whether the caller is known to be in `gid`.
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.as_ref().is_some_and(|groups| groups.contains(&gid))
    }
}
