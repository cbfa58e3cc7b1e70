//! The option of a mount that admits administrators of other mount namespaces.

/// The mount namespaces from which callers may manage a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Namespaces {
    /// The daemon's own.
    #[default]
    Own,
    /// All. The user namespace remains the daemon's.
    Any,
}
