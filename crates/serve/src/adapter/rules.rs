//! The rights of callers, as the mount gives them.

use crate::namespaces::Namespaces;

/// See the [module](self). `tenants` and `who` answer questions by them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// The ordinary user who did, if root did not.
    pub(crate) mounted_by: Option<u32>,
    /// Owners of directories may make and delete subvolumes in them.
    pub(crate) owners_may: bool,
    /// Processes that call can be looked up.
    pub(crate) sees_callers: bool,
    /// All callers see all subvolumes and groups, and the state of the pool.
    pub(crate) public_lists: bool,
    /// The mount namespaces of administrators.
    pub(crate) namespaces: Namespaces,
}
