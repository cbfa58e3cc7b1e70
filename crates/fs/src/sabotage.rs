//! Rules broken on purpose, so that a test can see the simulation notice.
//!
//! Without the feature `sabotage` this is nothing: no rule is ever broken.

use crate::Filesystem;

/// One broken rule each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// R34: an inode that leaves memory takes along which txg has its last change.
    ForgetTxg,
    /// R36: a file grows without a look at what its last block has behind the old end.
    KeepTails,
}

impl Sabotage {
    /// All of them, in the order of the rules.
    pub const ALL: [Sabotage; 2] = [Sabotage::ForgetTxg, Sabotage::KeepTails];
}

impl Filesystem {
    /// Whether this rule is broken ([`crate::Options::sabotage`]).
    #[cfg(feature = "sabotage")]
    pub(crate) fn breaks(&self, rule: Sabotage) -> bool {
        self.options.sabotage == Some(rule)
    }

    #[cfg(not(feature = "sabotage"))]
    pub(crate) fn breaks(&self, _: Sabotage) -> bool {
        false
    }
}
