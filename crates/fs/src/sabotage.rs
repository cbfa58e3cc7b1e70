//! Rules broken on purpose, so that a test can see the simulation notice.
//!
//! Without the feature `sabotage` this is nothing: no rule is ever broken.

use crate::Filesystem;

/// One broken rule each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// R21: holes take whatever there is, also what the flusher needs.
    PunchInternally,
    /// C3: a refused write looks at inodes' states under the lock of the cache's map.
    AskUnderTheMap,
    /// R34: an inode that leaves memory takes along which txg has its last change.
    ForgetTxg,
    /// R36: a file grows without a look at what its last block has behind the old end.
    KeepTails,
    /// O1: a caller that comes while the leftovers of a subvolume are being read goes on.
    ChangeBeforeKnown,
    /// O2: setting a subvolume writable that is so already takes files in use for leftovers.
    ReplayInUse,
    /// W1: a subvolume is marked read-only before what it has accepted is installed.
    MarkFirst,
}

impl Sabotage {
    /// All of them, in the order of the rules.
    pub const ALL: [Sabotage; 7] = [
        Sabotage::PunchInternally,
        Sabotage::AskUnderTheMap,
        Sabotage::ForgetTxg,
        Sabotage::KeepTails,
        Sabotage::ChangeBeforeKnown,
        Sabotage::ReplayInUse,
        Sabotage::MarkFirst,
    ];
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
