//! Rules broken on purpose, so that a test can see the simulation notice.
//!
//! Without the feature `sabotage` this is nothing: no rule is ever broken.

use crate::Filesystem;

/// One broken rule each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// R21: punching holes takes any space, also that of the flusher.
    PunchInternally,
    /// R23: a reflink asks no limit.
    ShareUnasked,
    /// CACHE-C3: a refused write looks at inodes' states under the lock of the cache's map.
    AskUnderTheMap,
    /// R33: a batch installs all that it took, also where the file was cut or punched since.
    InstallStale,
    /// R34: fsync does not report an error of a background write.
    ForgetErrors,
    /// R34: an inode that is loaded again knows no txg that it was in.
    ForgetEvicted,
    /// R34, DIRTY-D8: fsync returns before the times are logged that an overtaken batch left.
    ForgetTimes,
    /// R34: fsync returns while a batch that began behind it writes data accepted before.
    ForgetTaken,
    /// DIRTY-D8: a close leaves a truncation in memory.
    ForgetEmptied,
    /// CHARGE-C1: dirty data is charged again.
    ChargeTwice,
    /// CHARGE-C1: a charge does not end with its object.
    LeakCharge,
    /// R35: extents cut off a file stay in the table when the cut is logged.
    KeepCuts,
    /// R35, DIRTY-D9: batches are taken beside the one that logs a cut.
    TakeBesideCut,
    /// R35: a file takes over a name before its data is written.
    RenameFirst,
    /// R36: a file grows without a look at the bytes of its last block behind the old end.
    KeepTails,
    /// LEFTOVER-O1: a caller that comes while the leftovers of a subvolume are being read
    /// continues.
    ChangeBeforeKnown,
    /// LEFTOVER-O2: setting a subvolume writable that is so already takes files in use for
    /// leftovers.
    ReplayInUse,
    /// READONLY-O1: a subvolume is marked read-only before its accepted data is installed.
    MarkFirst,
    /// R37: a snapshot is made before the dirty data of its source is written.
    SnapshotFirst,
    /// R38: files without a name stay in a snapshot.
    KeepOrphans,
    /// R41: a listing continues with the next hash, even if another entry has the last one.
    SkipCollisions,
    /// A copy does not ask the flags of the file that it goes to.
    CopyUnasked,
    /// A copy to a file with the flag SYNC is not durable when it returns.
    CopyUnsynced,
    /// PERMIT-M2: the file's flags refuse write-back of data that a cache took before they were
    /// set.
    JudgeAgain,
    /// A change of content leaves set-user-id and set-group-id.
    KeepPrivileges,
    /// PRIVS-V1: a chown removes capabilities before the file's flags refuse it.
    StripFirst,
    /// A copy-up of overlayfs loses set-user-id and set-group-id with the change of its owner.
    StripCopyUp,
    /// A file that was copied up keeps them at every later change of its owner.
    CopyUpForEver,
    /// A mode is set without the ACL that goes with it.
    ChmodAlone,
    /// Changes of attributes that add nothing are charged as growth: a limit refuses chmod of a
    /// file with an ACL.
    GrowAcls,
    /// ACLs have at most 127 entries.
    RefuseLongAcls,
    /// The removal of an ACL that does not exist fails.
    RefuseAbsentAcls,
    /// A whiteout does not inherit the default ACL of its directory.
    BareWhiteouts,
    /// `O_NOATIME` has no effect.
    AtimeAnyway,
    /// A mount that may not write discards free space.
    TrimReadOnly,
    /// A directory has no more subdirectories than a file has names.
    CountSubdirs,
    /// LISTING-I1: a listing that meets an error behind some entries returns the error alone.
    ForgetListed,
    /// NAMES-N1: a name that a file gets is still known to be absent.
    KeepAbsent,
    /// NAMES-N3: an entry ends although a look-up hit it while the front end forgot its name.
    ForgetAsked,
    /// PAGES-K2: a direct write leaves the pages of its range in the front end's cache.
    KeepStalePages,
    /// HOLES-H1: a hole is reported without a write-back of dirty pages that may fill it.
    BelieveHoles,
    /// Returned look-ups do not lead to the removal of unlinked files.
    ForgetNothing,
    /// A removal of an unlinked file that fails is not tried again.
    ReapOnce,
}

impl Sabotage {
    /// All of them, in the order of the rules.
    pub const ALL: [Sabotage; 43] = [
        Sabotage::PunchInternally,
        Sabotage::ShareUnasked,
        Sabotage::AskUnderTheMap,
        Sabotage::InstallStale,
        Sabotage::ForgetErrors,
        Sabotage::ForgetEvicted,
        Sabotage::ForgetTimes,
        Sabotage::ForgetTaken,
        Sabotage::ForgetEmptied,
        Sabotage::ChargeTwice,
        Sabotage::LeakCharge,
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
        Sabotage::CopyUnsynced,
        Sabotage::JudgeAgain,
        Sabotage::KeepPrivileges,
        Sabotage::StripFirst,
        Sabotage::StripCopyUp,
        Sabotage::CopyUpForEver,
        Sabotage::ChmodAlone,
        Sabotage::GrowAcls,
        Sabotage::RefuseLongAcls,
        Sabotage::RefuseAbsentAcls,
        Sabotage::BareWhiteouts,
        Sabotage::AtimeAnyway,
        Sabotage::TrimReadOnly,
        Sabotage::CountSubdirs,
        Sabotage::ForgetListed,
        Sabotage::KeepAbsent,
        Sabotage::ForgetAsked,
        Sabotage::KeepStalePages,
        Sabotage::BelieveHoles,
        Sabotage::ForgetNothing,
        Sabotage::ReapOnce,
    ];
}

impl Filesystem {
    /// Whether this rule is broken ([`crate::Options::sabotage`]). A front end asks it, too.
    #[cfg(feature = "sabotage")]
    pub fn breaks(&self, rule: Sabotage) -> bool {
        self.options.breaks(rule)
    }

    /// No rule is ever broken.
    #[cfg(not(feature = "sabotage"))]
    pub fn breaks(&self, _: Sabotage) -> bool {
        false
    }
}

impl crate::Options {
    #[cfg(feature = "sabotage")]
    pub(crate) fn breaks(&self, rule: Sabotage) -> bool {
        self.sabotage == Some(rule)
    }

    #[cfg(not(feature = "sabotage"))]
    pub(crate) fn breaks(&self, _: Sabotage) -> bool {
        false
    }
}
