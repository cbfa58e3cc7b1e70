//! A group that is over its memory waits for itself, and no other group waits for it.

use std::sync::Arc;
use std::time::Duration;

use copyhold_fs::{
    Caller, FallocateMode, FileFlags, Filesystem, FsError, NodeId, OpenFlags, Options, RenameFlags,
    SetAttr, WriteFlags, owed_delay,
};
use copyhold_memory::{Event, GroupLimits, MemoryClass, MemoryOwner, Stat, delay_above_high};
use copyhold_pool::{FlushPolicy, Limits, OpenOptions, Pool, is_edit_part_used_up};
use copyhold_runtime::{Rt, Runtime};
use copyhold_types::{Nanos, SubvolId};
use futures_util::future::join_all;

use crate::common::{World, pattern, write};
use crate::quotas::{make, root_of, subvolume};

fn owner(fs: &Filesystem, subvol: SubvolId) -> MemoryOwner {
    fs.volumes().subvol(subvol).unwrap().owner().clone()
}

async fn chmod(fs: &Arc<Filesystem>, node: NodeId, mode: u32) {
    let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
    fs.setattr(&Caller::ROOT, node, &set).await.unwrap();
}

/// A filesystem with room for few unflushed edits.
async fn edits_limited(world: &World, flush: FlushPolicy) -> Arc<Filesystem> {
    let delta_bytes = match flush {
        FlushPolicy::Threshold => 256 << 10,
        // The plan keeps more free otherwise.
        FlushPolicy::Even => 64 << 10,
    };
    let limits = Limits { delta_bytes, flush, ..Limits::default() };
    let options = OpenOptions { tenants: true, limits, ..OpenOptions::default() };
    let rt: Rt = world.rt.clone();
    let pool = Pool::open(rt, world.device.clone(), options).await.unwrap();
    Filesystem::open(pool, Options::default()).await.unwrap()
}

/// EDITS-E1 and EDITS-E2: a tenant makes files as fast as it may, another one changes one of its.
#[test]
fn a_tenant_changes_files_without_a_wait_beside_one_with_its_part_of_edits() {
    change_beside_a_rogue(FlushPolicy::Threshold);
}

/// As above, where a round is not due at each look.
#[test]
fn a_tenant_changes_files_without_a_wait_while_flushes_are_even() {
    change_beside_a_rogue(FlushPolicy::Even);
}

fn change_beside_a_rogue(flush: FlushPolicy) {
    let world = World::with_log(81, 65_536, 32 << 20);
    world.run(async {
        let fs = edits_limited(&world, flush).await;
        let (rogue, neighbour) = (subvolume(&fs, "rogue").await, subvolume(&fs, "neighbour").await);
        let file = make(&fs, root_of(neighbour), "file").await.unwrap();
        let flood = (0..8).map(|thread| {
            let fs = &fs;
            async move {
                for n in 0..400 {
                    make(fs, root_of(rogue), &format!("{thread}.{n}")).await.unwrap();
                }
            }
        });
        let mut flooding = Box::pin(join_all(flood));
        let mut mode = 0;
        while futures_util::poll!(&mut flooding).is_pending() {
            let before = world.rt.now();
            mode += 1;
            chmod(&fs, file, 0o600 | (mode % 8)).await;
            assert_eq!(world.rt.now(), before, "the neighbour waits");
            world.rt.sleep(Duration::from_micros(50)).await;
        }
        drop(flooding);
        let waited = [rogue, neighbour].map(|of| owner(&fs, of).counts().stat(Stat::Throttle));
        assert!(waited[0] > 0 && waited[1] == 0, "{waited:?}");
        world.close(fs).await;
    });
}

/// Makes files until the group of this subvolume has its part of unflushed edits.
async fn use_up_edits(fs: &Arc<Filesystem>, of: SubvolId, made: &mut usize) {
    let owner = owner(fs, of);
    while !is_edit_part_used_up(fs.pool(), &owner) {
        *made += 1;
        make(fs, root_of(of), &format!("file{made}")).await.unwrap();
    }
}

/// Calls that make many edits wait before they begin. A rename between two directories does not:
/// the kernel would let no other tenant rename meanwhile.
#[test]
fn each_call_that_makes_many_edits_waits_for_the_part_of_its_group() {
    let world = World::with_log(84, 65_536, 32 << 20);
    world.run(async {
        let fs = edits_limited(&world, FlushPolicy::Threshold).await;
        let tenant = subvolume(&fs, "tenant").await;
        let (root, owner) = (root_of(tenant), owner(&fs, tenant));
        let [from, to] = [make(&fs, root, "from").await, make(&fs, root, "to").await];
        let (from, to) = (from.unwrap(), to.unwrap());
        let dir = fs.mkdir(&Caller::ROOT, root, b"dir", 0o755).await.unwrap().node;
        write(&fs, from, 0, &pattern(1, 64 << 10)).await;
        fs.sync().await.unwrap();
        let truncate = OpenFlags { truncate: true, ..OpenFlags::READ_WRITE };
        let (hole, space) = (FallocateMode::Punch, FallocateMode::Allocate { keep_size: false });
        let done = async |call| match call {
            "copy" => fs.copy_file_range(from, 0, to, 0, 64 << 10).await.map(drop),
            "punch" => fs.fallocate(from, 0, 8192, hole).await,
            "allocate" => fs.fallocate(from, 1 << 20, 8192, space).await,
            "write" => fs.write(to, 0, b"x", WriteFlags::default()).await,
            "open" => fs.open_node(to, truncate).await,
            "flags" => fs.set_flags(&Caller::ROOT, to, FileFlags::NODUMP, None).await,
            "subvolume" => subvolume_in(&fs, root, "inner").await,
            "snapshot" => {
                let made = fs.snapshot(tenant, root, b"kept", true, None).await;
                made.map(drop)
            }
            "delete" => fs.delete_subvolume(root, b"inner", None).await.map(drop),
            "rename" => rename(&fs, (root, "from"), (root, "new")).await,
            _ => rename(&fs, (root, "new"), (dir, "new")).await,
        };
        let mut made = 0;
        let calls = [
            "copy",
            "punch",
            "allocate",
            "write",
            "open",
            "flags",
            "subvolume",
            "snapshot",
            "delete",
            "rename",
            "rename to another directory",
        ];
        for call in calls {
            use_up_edits(&fs, tenant, &mut made).await;
            let before = owner.counts().stat(Stat::Throttle);
            done(call).await.unwrap();
            let waited = owner.counts().stat(Stat::Throttle) > before;
            assert_eq!(waited, call != "rename to another directory", "{call}");
        }
        fs.release(to);
        world.close(fs).await;
    });
}

async fn subvolume_in(fs: &Arc<Filesystem>, parent: NodeId, name: &str) -> Result<(), FsError> {
    let made = fs.create_subvolume(&Caller::ROOT, parent, name.as_bytes(), None).await;
    made.map(drop)
}

async fn rename(
    fs: &Arc<Filesystem>,
    (parent, name): (NodeId, &str),
    (new_parent, new_name): (NodeId, &str),
) -> Result<(), FsError> {
    let (name, new_name, none) = (name.as_bytes(), new_name.as_bytes(), RenameFlags::default());
    fs.rename(&Caller::ROOT, parent, name, new_parent, new_name, none).await
}

/// A file of a tenant whose group has these limits; its memory is used by nothing else.
async fn limited(fs: &Arc<Filesystem>, limits: GroupLimits) -> (NodeId, MemoryOwner) {
    let tenant = subvolume(fs, "tenant").await;
    let file = make(fs, root_of(tenant), "file").await.unwrap();
    fs.sync().await.unwrap();
    let owner = owner(fs, tenant);
    owner.set_limits(&limits);
    (file, owner)
}

/// DIRTYROOM-D3.
#[test]
fn a_writer_above_the_limit_waits_for_its_own_data_and_goes_on_without_any() {
    const MAX: u64 = 256 << 10;
    const PIECE: u64 = 64 << 10;
    for max in [MAX, 0] {
        let world = World::new(82, 65_536);
        world.run(async {
            let fs = world.open().await;
            let limits = GroupLimits { max, ..GroupLimits::default() };
            let (file, owner) = limited(&fs, limits).await;
            let other = subvolume(&fs, "other").await;
            let other = make(&fs, root_of(other), "file").await.unwrap();
            for n in 0..64 {
                write(&fs, file, n * PIECE, &pattern(1, PIECE as usize)).await;
                let now = world.rt.now();
                write(&fs, other, 0, &pattern(2, 100)).await;
                assert_eq!(world.rt.now(), now, "another tenant waits");
                let dirty = fs.dirty_bytes();
                assert!(dirty <= max + PIECE + 4096, "{dirty} bytes are dirty with {max}");
            }
            let counts = owner.counts();
            assert!(counts.event(Event::Max) > 0 && counts.stat(Stat::Throttle) > 0);
            assert_eq!(counts.event(Event::Forced) > 0, max == 0);
            world.close(fs).await;
        });
    }
}

/// THROTTLE-T2: also above `max`, and of two limits neither hides the other.
#[test]
fn a_creation_above_a_limit_is_delayed_and_a_cached_write_is_not() {
    const MIB: u64 = 1 << 20;
    let (none, long) = (GroupLimits::default(), Duration::from_millis(10));
    let high = GroupLimits { high: 2 * MIB, ..none };
    for limits in [high, GroupLimits { max: 3 * MIB, ..high }, GroupLimits { max: 3 * MIB, ..none }]
    {
        let world = World::new(85, 65_536);
        world.run(async {
            let fs = world.open().await;
            let (file, owner) = limited(&fs, limits).await;
            let _used = owner.charge(MemoryClass::Lookup, 5 << 20);
            let before = world.rt.now();
            let waited = || Duration::from_nanos(world.rt.now() - before);
            let cached = WriteFlags { accepted: true, ..WriteFlags::default() };
            fs.write(file, 0, b"x", cached).await.unwrap();
            assert!(waited() < long, "THROTTLE-T3: {:?} with {limits:?}", waited());
            make(&fs, root_of(file.subvol), "new").await.unwrap();
            assert!(waited() >= long, "{:?} with {limits:?}", waited());
            if limits.high < u64::MAX {
                let before = world.rt.now();
                fs.write(file, 0, b"x", WriteFlags::default()).await.unwrap();
                assert!(Duration::from_nanos(world.rt.now() - before) >= long, "{limits:?}");
            }
            world.close(fs).await;
        });
    }
}

/// THROTTLE-T2.
#[test]
fn a_writer_above_high_is_delayed_and_its_fsync_and_removals_are_not() {
    const HIGH: u64 = 2 << 20;
    const PIECE: usize = 256 << 10;
    let world = World::with_log(83, 65_536, 8 << 20);
    world.run(async {
        let fs = world.open().await;
        let limits = GroupLimits { high: HIGH, ..GroupLimits::default() };
        let (file, owner) = limited(&fs, limits).await;
        let gone = make(&fs, root_of(file.subvol), "gone").await.unwrap();
        let mut waits = Vec::new();
        for n in 0..10 {
            let before = world.rt.now();
            write(&fs, file, n * PIECE as u64, &pattern(1, PIECE)).await;
            waits.push(Duration::from_nanos(world.rt.now() - before));
        }
        let long = Duration::from_millis(10);
        assert!(waits[0] < long && waits.is_sorted(), "{waits:?}");
        assert!(waits[9] >= long && waits[9] < Duration::from_secs(2) + long, "{waits:?}");
        assert!(owner.counts().event(Event::High) > 0);
        let since = |before: Nanos| Duration::from_nanos(world.rt.now() - before);
        let before = world.rt.now();
        fs.unlink(root_of(file.subvol), b"gone").await.unwrap();
        fs.fsync(file, false).await.unwrap();
        assert!(since(before) < long, "{:?}", since(before));
        fs.release(gone);
        world.close(fs).await;
    });
}

/// THROTTLE-T2: copies take memory without a write, and preallocation takes it for its extents.
#[test]
fn copies_reflinks_and_preallocation_above_high_are_delayed() {
    const BYTES: u64 = 64 << 10;
    let world = World::new(86, 65_536);
    world.run(async {
        let fs = world.open().await;
        let (file, owner) = limited(&fs, above_high()).await;
        let from = make(&fs, fs.root(), "from").await.unwrap();
        write(&fs, from, 0, &pattern(1, BYTES as usize)).await;
        fs.sync().await.unwrap();
        let _used = owner.charge(MemoryClass::Lookup, 5 << 20);
        let space = FallocateMode::Allocate { keep_size: false };
        for call in ["reflink", "copy", "preallocation"] {
            let before = world.rt.now();
            match call {
                "reflink" => fs.copy_file_range(from, 0, file, 0, BYTES).await.map(drop),
                "copy" => fs.copy_file_range(from, 1, file, BYTES, 100).await.map(drop),
                _ => fs.fallocate(file, 1 << 20, 8192, space).await,
            }
            .unwrap();
            let waited = Duration::from_nanos(world.rt.now() - before);
            assert!(waited >= Duration::from_millis(10), "{call}: {waited:?}");
        }
        world.close(fs).await;
    });
}

/// THROTTLE-T2: a copy pays for each step, as a write does, and no request waits for longer.
#[test]
fn a_copy_above_high_ends_behind_its_first_step_and_pays_for_it() {
    const BYTES: u64 = 8 << 20;
    for by_front_end in [false, true] {
        let world = World::with_log(88, 65_536, 8 << 20);
        world.run(async {
            let fs = world.open().await;
            if by_front_end {
                fs.delays().wait_in_front_end();
            }
            let (file, owner) = limited(&fs, above_high()).await;
            let from = make(&fs, fs.root(), "from").await.unwrap();
            write(&fs, from, 0, &pattern(1, BYTES as usize)).await;
            fs.sync().await.unwrap();
            let copy = async |at| {
                // From the next byte on: no block can be shared.
                fs.copy_file_range(from, at + 1, file, at, BYTES - 1 - at).await.unwrap()
            };
            let used = owner.charge(MemoryClass::Lookup, 5 << 20);
            let (mut copied, mut calls) = (0, 0);
            while copied < BYTES / 2 {
                let before = world.rt.now();
                copied += copy(copied).await;
                if let Some(owed) = owed_delay(&fs, file.subvol) {
                    owed.await;
                }
                calls += 1;
                let waited = Duration::from_nanos(world.rt.now() - before);
                assert!(waited >= Duration::from_secs(2), "{waited:?} for {copied}");
                assert!(waited < Duration::from_millis(2500), "{waited:?} for {copied}");
            }
            assert!(calls >= 4, "{copied} bytes in {calls} calls");
            drop(used);
            owner.set_limits(&GroupLimits::default());
            assert_eq!(
                copied + copy(copied).await,
                BYTES - 1,
                "below its limit it takes all steps"
            );
            world.close(fs).await;
        });
    }
}

/// The delay of a reflink is that of the edits that it leaves in memory.
#[test]
fn a_reflink_of_many_extents_is_delayed_by_the_memory_of_its_edits() {
    const EXTENTS: u64 = 256;
    const OVER: u64 = 100 << 20;
    let world = World::new(89, 65_536);
    world.run(async {
        let fs = world.open().await;
        let limits = GroupLimits { high: 10 * OVER, ..GroupLimits::default() };
        let (file, owner) = limited(&fs, limits).await;
        let from = make(&fs, fs.root(), "from").await.unwrap();
        for n in 0..EXTENTS {
            write(&fs, from, 8192 * n, &pattern(n as u8, 4096)).await;
            fs.fsync(from, false).await.unwrap();
        }
        let _used = owner.charge(MemoryClass::Lookup, (11 * OVER) as i64);
        let (before, edits) = (world.rt.now(), owner.charged(MemoryClass::Edit));
        let mut shared = 0;
        while shared < 8192 * EXTENTS - 4096 {
            shared += fs.copy_file_range(from, shared, file, shared, 1 << 30).await.unwrap();
        }
        let edits = (owner.charged(MemoryClass::Edit) - edits) as u64;
        let waited = Duration::from_nanos(world.rt.now() - before);
        let wanted = delay_above_high(OVER, 10 * OVER, edits / 4096);
        assert!(edits > 8192 && waited >= wanted, "{waited:?} for {edits} bytes: {wanted:?}");
        world.close(fs).await;
    });
}

fn above_high() -> GroupLimits {
    GroupLimits { high: 2 << 20, ..GroupLimits::default() }
}

/// THROTTLE-T4.
#[test]
fn a_delay_that_is_left_to_the_front_end_is_waited_for_behind_the_call() {
    let world = World::new(87, 65_536);
    world.run(async {
        let fs = world.open().await;
        fs.delays().wait_in_front_end();
        let (file, owner) = limited(&fs, above_high()).await;
        let _used = owner.charge(MemoryClass::Lookup, 5 << 20);
        let (before, long) = (world.rt.now(), Duration::from_millis(10));
        let waited = || Duration::from_nanos(world.rt.now() - before);
        fs.write(file, 0, b"x", WriteFlags::default()).await.unwrap();
        make(&fs, root_of(file.subvol), "new").await.unwrap();
        assert!(waited() < long, "{:?}", waited());
        assert!(owed_delay(&fs, SubvolId::ROOT).is_none(), "of another subvolume");
        // The sum of both delays, each of which is the longest one.
        for seconds in [2, 4] {
            owed_delay(&fs, file.subvol).expect("it is owed").await;
            assert_eq!(waited().as_secs(), seconds);
        }
        assert!(owed_delay(&fs, file.subvol).is_none());
        world.close(fs).await;
    });
}
