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
    /// R33: a batch installs what it took, also where the file was cut or punched since.
    InstallStale,
    /// R34: fsync does not report an error of a background write.
    ForgetErrors,
    /// R34: an inode that is loaded again knows no txg that it was in.
    ForgetEvicted,
    /// R35: what was cut off a file stays in the table when the cut is logged.
    KeepCuts,
    /// R35, D9: batches are taken beside the one that logs a cut.
    TakeBesideCut,
    /// R35: a file takes over a name before its data is written.
    RenameFirst,
    /// R36: a file grows without a look at what its last block has behind the old end.
    KeepTails,
    /// O1: a caller that comes while the leftovers of a subvolume are being read goes on.
    ChangeBeforeKnown,
    /// O2: setting a subvolume writable that is so already takes files in use for leftovers.
    ReplayInUse,
    /// RO1: a subvolume is marked read-only before what it has accepted is installed.
    MarkFirst,
    /// R37: a snapshot is made before what is dirty of its source is written.
    SnapshotFirst,
    /// R38: what a snapshot has of files without a name stays.
    KeepOrphans,
    /// R41: a listing goes on with the next hash, whatever else has the last one.
    SkipCollisions,
    /// A copy does not ask the flags of the file that it goes to.
    CopyUnasked,
    /// A change of content leaves set-user-id and set-group-id.
    KeepPrivileges,
    /// A mode is set without the ACL that goes with it.
    ChmodAlone,
    /// Returned look-ups do not lead to the removal of unlinked files.
    ForgetNothing,
}

impl Sabotage {
    /// All of them, in the order of the rules.
    pub const ALL: [Sabotage; 19] = [
        Sabotage::PunchInternally,
        Sabotage::AskUnderTheMap,
        Sabotage::InstallStale,
        Sabotage::ForgetErrors,
        Sabotage::ForgetEvicted,
        Sabotage::KeepCuts,
        Sabotage::TakeBesideCut,
        Sabotage::RenameFirst,
        Sabotage::KeepTails,
        Sabotage::ChangeBeforeKnown,
        Sabotage::ReplayInUse,
        Sabotage::MarkFirst,
        Sabotage::SnapshotFirst,
        Sabotage::KeepOrphans,
        Sabotage::SkipCollisions,
        Sabotage::CopyUnasked,
        Sabotage::KeepPrivileges,
        Sabotage::ChmodAlone,
        Sabotage::ForgetNothing,
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
