//! Errors in a pool's records of its space.

use copyhold_types::Run;

use crate::layout::MetaslabId;

/// Each means that something on disk is damaged; nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpaceError {
    #[error(
        "{run:?} in {metaslab} cannot be freed, because it is not allocated: a pointer or the \
         space map is damaged; mount read-only and run `copyhold check`"
    )]
    NotAllocated { run: Run, metaslab: MetaslabId },
    #[error("{run:?} does not lie on any device of the pool; run `copyhold check`")]
    Outside { run: Run },
    #[error(
        "{run:?} in {metaslab} is allocated, but belongs to a label or the log; run \
             `copyhold check`"
    )]
    Fixed { run: Run, metaslab: MetaslabId },
    #[error(
        "the space map of {metaslab} has {what} = {found}, but its descriptor has {wanted}; run \
         `copyhold check`"
    )]
    Mismatch { metaslab: MetaslabId, what: &'static str, found: u64, wanted: u64 },
    #[error("there is no {metaslab}; run `copyhold check`")]
    NoMetaslab { metaslab: MetaslabId },
}
