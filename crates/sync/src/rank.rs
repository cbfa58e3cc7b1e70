//! The order of all blocking locks.

/// The place of a lock in the order: a type, so that it takes no memory in the lock.
pub trait Ranked {
    const RANK: Rank;
}

macro_rules! ranks {
    ($($(#[$about:meta])+ $name:ident,)+) => {
        /// All ranks, outermost first: a thread waits for a lock only if its rank is behind those
        /// of all locks that the thread holds.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Rank {
            $($(#[$about])+ $name,)+
        }

        /// Each rank as a type, for the type of its locks.
        pub mod of {
            $($(#[$about])+ #[derive(Debug)] pub struct $name;
            impl super::Ranked for $name {
                const RANK: super::Rank = super::Rank::$name;
            })+
        }
    };
}

ranks! {
    // The library.

    /// The position of an open file, while a thread reads or writes there.
    FilePosition,
    /// The calls on a pool that are under way.
    LibraryCalls,

    // The filesystem. States come before the caches, so that a new inode is in the cache before
    // its directory's state is unlocked.

    /// Leftovers of the last use that are still to be removed.
    Leftovers,
    /// Files without a name.
    ReaperQueue,
    /// Refusals that were logged lately, and the work before them.
    Refusals,
    /// The state of one inode, by its number.
    InodeState,
    /// Files with dirty data.
    DirtyFiles,
    /// Failures of write-back, for writers that wait for room.
    DirtyFailures,
    /// The rates at which dirty data leaves memory.
    DirtyPace,
    /// Lanes of the callers of each tenant.
    CallerLanes,
    /// A shard of the inodes in memory.
    InodeCache,
    /// The last look-ups of some directories.
    LookUpRuns,
    /// Access times that wait to be logged.
    AccessTimes,
    /// The subvolumes that were requested.
    Subvols,
    /// A shard of the names that do not exist.
    Names,
    /// The tenants with such names.
    NameTenants,
    /// Names of subvolumes and directories, for the pages of a list.
    EntryNames,

    // Subvolumes, epochs and quotas.

    /// The tree of epochs of one family, by its number.
    Family,
    /// The quota hold of a batch of dirty blocks.
    BatchHold,
    /// Burials in one family, by its number.
    Burial,
    /// Counts of shared extents.
    Shares,
    /// Pending releases that cannot be taken up.
    ReleasesAside,
    /// Changes of owners.
    Owners,
    /// The subvolumes by number.
    Volumes,
    /// The record of one subvolume.
    SubvolItem,
    /// Groups, limits and relations.
    QuotaGroups,

    // Transactions: the caller of `apply` may hold any lock listed above.

    /// Node writes of one flush.
    NodeWrites,
    /// The pieces of fragmented nodes, as far as a flush has read them.
    FlushPieces,
    /// The units that are due; a plan looks at all tables.
    FlushPace,
    /// Partitions of which the base cannot be read.
    BrokenParts,
    /// One table is handed over at a time.
    ForkOrder,
    /// The open txg: shared by those that join.
    TxgGate,

    // The accounts that a transaction charges; the pool locks these when it closes a txg, too.

    /// Owners of which the rows can go.
    Sweepable,
    /// The accounts by subvolume.
    Accounts,
    /// Accounts with a change in the open txg.
    DirtyAccounts,
    /// Usage by epoch.
    QuotaRows,
    /// The groups that one account counts for, by its subvolume.
    AccountWay,
    /// Rows with a change in the open txg.
    DirtyRows,

    // The pool's own books.

    /// Txgs that readers pin.
    Pins,
    /// Flushes of which the record is being applied.
    FlushRecording,
    /// Records of the open txg.
    TxgGathered,
    /// Data that transactions carry, until the device has it.
    Attached,
    /// The content of the log, by txg.
    Journal,
    /// Tables that were handed over.
    ForkGone,
    /// The layer above the pool.
    Tenancy,
    /// Tasks that wait for a commit.
    CommitGroup,
    /// Whether a mark is due.
    Marker,
    /// The tables in memory.
    Tables,
    /// Tables with edits.
    BusyTables,
    /// The root of the table of tables.
    TablesRoot,
    /// Tasks that wait for room in the log.
    LogRoomWaiters,
    /// Space by which tables may grow.
    Growth,
    /// Space for layers.
    LayerSpace,
    /// Tasks that wait for credit.
    AdmissionWaiters,
    /// Ranges of numbers in hand.
    Ids,

    // Tables.

    /// The pieces of the maps in use.
    MapPieces,
    /// The nodes that one decision has read.
    KeptNodes,
    /// The boundary between the caches of nodes and of clean data.
    CacheBalance,
    /// A shard of the cache of nodes.
    NodeCache,
    /// A shard of the cache of clean data.
    CleanData,
    /// The store of tests.
    TableStore,
    /// The partitions of one table, newer tables first.
    Partitions,
    /// One partition: base, layers, deltas.
    Partition,

    // Space.

    /// Allocation where no lane has room.
    ScarceSpace,
    /// One allocation lane.
    Lane,
    /// One metaslab.
    Metaslab,

    // Devices.

    /// Writes that wait for space below the pool.
    HostSpace,
    /// Changes of tuples that wait for their turn.
    EntryChanges,
    /// Faults of an emulated drive that wait for their request.
    DriveFaults,
    /// The file that a device is on.
    DeviceFile,
    /// The namespace of a drive that a device is on.
    NvmeDrive,
    /// The simulated device.
    SimDevice,

    // The runtime: locks of tasks and executors, which any code may wake.

    /// Tasks that wait for a task lock.
    TaskQueue,
    /// An executor's submissions.
    RingSubmit,
    /// An executor's completions that are being reported.
    RingReap,
    /// The seeded runtime.
    SeededState,
    /// The executors' threads, until they are joined.
    ExecutorThreads,
    /// Tasks of the seeded runtime that are ready.
    SeededReady,
    /// Timers of one executor.
    Timers,
    /// Tasks of one executor that are ready.
    ExecutorQueue,
    /// Whether an executor sleeps.
    ExecutorParked,
    /// Operations that wait for the pool of threads.
    ThreadReactor,
    /// An operation's buffers.
    OpWork,
    /// An operation's outcome.
    OpReply,

    // The mount: nothing is called while one of these is held, and wakers take them under any lock.

    /// The reaction of a daemon to a signal.
    DaemonPhase,
    /// The state of one request.
    RequestPlace,
    /// Memory of requests that ended.
    SparePlaces,
    /// POSIX and flock locks of files of the filesystem in memory.
    FileLocks,
    /// Inodes and names of the filesystem in memory, and of the stub in tests of the transport.
    MemfsTree,
    /// Requests that were read and not begun.
    Backlog,
    /// Requests under way.
    Desk,
    /// Answers on their way to a ring's thread.
    Mailbox,
    /// Requests that can be interrupted.
    Interrupts,
    /// Ranges of files whose pages the kernel is to drop.
    PageDrops,
    /// Names that the kernel is forgetting.
    NameFlights,
    /// Tokens of open directories.
    Tokens,
    /// Tenants with requests that have turns or wait for them.
    Turns,
    /// An operation behind its first poll.
    Parking,

    // Owners of memory: objects of all layers are charged to them, and are dropped under any lock.

    /// The owners above their parts of a class.
    MemoryOver,
    /// The move of a group to another holder.
    MemoryMoves,
    /// The picture of groups that walks share.
    MemoryPicture,
    /// The owners that have a part of a class.
    MemoryDivided,
    /// The owners that use a class of memory.
    MemoryUsers,
    /// The owners, by slot.
    MemoryOwners,
    /// Slots that are free.
    MemorySlots,
    /// The reported usage of all owners.
    MemoryLimits,
    /// The groups that each group holds.
    MemoryInside,
    /// The waits of one owner's requests.
    MemoryStalls,

    // Rules broken on purpose: nothing is called while one of these is held.

    /// Rows kept by a sabotage.
    SabotageRows,
    /// Heirs kept by a sabotage.
    SabotageHeirs,
}
