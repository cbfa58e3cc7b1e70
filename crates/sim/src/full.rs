//! Pools that are run full, by whatever adds to a pool, and what must still be possible then.
//!
//! Problem.  Random histories of a few hundred operations hardly ever use up a reserve: it takes
//!           thousands that give nothing back, of one kind, in subvolumes that share all they have.
//! Idea.     A subvolume is cloned and the pool filled. Then one kind of operation after the other
//!           goes on in the clones until it is refused, with crashes and mounts in between. The
//!           tier of a kind says how much it must leave, which is checked when all is flushed.
//!
//! RUNFULL-U1  A class leaves at least the floor of the next tier (R21): three quarters of the
//!             reserve after fills, half after changes, a quarter after deletes.
//! RUNFULL-U2  After all but deletes a file can be unlinked; after everything each subvolume can be
//!             deleted, and its deletion ends, also by the next mount (R21).
//! RUNFULL-U3  When all is deleted, all space is free again. A write can use it right after the
//!             last deletion, within [`REFILL_WITHIN`]. No operation is refused for space while a
//!             background step could free some (R22).
//! RUNFULL-U4  Unchanged files keep their content; `check` finds nothing at any time.
//! RUNFULL-U5  `flush_all` returns Ok only when no edit from before the call is unflushed.
//!
//! Content is the business of `fs_level`; here one client goes on after every refusal.

mod operation;

use std::sync::Arc;
use std::time::Duration;

use copyhold_device::sim::SimImage;
use copyhold_fs::{Caller, Filesystem, FsError, NodeId, OpenFlags, Options, WriteFlags};
use copyhold_pool::Pool;
use copyhold_types::{BLOCK_BYTES, InodeNo, SubvolId};
use copyhold_volume::quota::{GroupId, Ledger, LimitKind};

use crate::dice::Dice;
use crate::machine::Machine;
use crate::memory_orders;
use crate::pool_level::Shape;
use crate::soundness::{check, check_charges, check_credits, check_nothing_charged};
use crate::{Outcome, Plan, Sabotage};
use operation::Class;

const BLOCK: u64 = BLOCK_BYTES as u64;
const ROOT: Caller = Caller::ROOT;
/// Files of the subvolume that is cloned.
const FILES: u64 = 12;
/// Blocks of the first of them.
const LARGE_BLOCKS: u64 = 256;
/// Rounds of flushes, a second each, by which all that was deleted must be free.
const SETTLING: usize = 16;
/// Of simulated time, for a write of all that was deleted just before.
const REFILL_WITHIN: Duration = Duration::from_secs(120);
/// Bytes that it writes at a time.
const REFILL_STEP: u64 = 1 << 20;
/// One in so many blocks is within the tolerance: a flush of the pool's own tables takes that much.
const SLACK: u64 = 16;

/// Runs a pool full. Panics when it is not what it must be.
pub(crate) fn history(plan: &Plan) -> Outcome {
    let mut history = History::begin(plan);
    let phases = history.dice.within(2..6);
    for _ in 0..phases {
        history.phase();
    }
    history.delete_all();
    history.outcome
}

struct History {
    plan: Plan,
    dice: Dice,
    shape: Shape,
    options: Options,
    image: SimImage,
    /// Names of the clones, which are in the root directory, and of their source.
    clones: Vec<Vec<u8>>,
    /// The farthest that anything so far may go into the reserve.
    class: Class,
    /// Blocks that are allocated in the empty pool.
    empty: u64,
    /// These dice choose orders about memory groups, so that all else stays what it was.
    operating: Dice,
    outcome: Outcome,
}

/// A mounted filesystem and who works in it.
struct Client<'a> {
    fs: &'a Arc<Filesystem>,
    dice: &'a mut Dice,
    clones: &'a mut Vec<Vec<u8>>,
    /// Makes unused names.
    fresh: u64,
}

fn root_of(subvol: SubvolId) -> NodeId {
    NodeId { subvol, ino: InodeNo::ROOT }
}

/// The files that no write changes.
fn content(n: u64) -> Vec<u8> {
    Dice::new(n).bytes(6000)
}

async fn create(fs: &Arc<Filesystem>, dir: NodeId, name: &[u8]) -> Result<NodeId, FsError> {
    let (made, _) = fs.create(&ROOT, dir, name, 0o644, OpenFlags::READ_WRITE, true).await?;
    fs.release(made.node);
    Ok(made.node)
}

impl History {
    fn begin(plan: &Plan) -> History {
        let mut dice = Dice::new(plan.seed ^ 0x66_75_6c_6c);
        let mut shape = Shape::by(&mut dice, plan);
        shape.create.node_bytes = Some(dice.pick(&[16 << 10, 32 << 10]));
        shape.create.log_bytes = Some(dice.pick(&[1, 1 << 20]));
        shape.blocks = dice.pick(&[2048, 3072]);
        let options = Options {
            count_lookups: false,
            dirty_bytes_max: 1 << 20,
            sabotage: plan.broken.and_then(Sabotage::of_fs),
            ..Options::default()
        };
        let mut history = History {
            plan: *plan,
            image: plan.blank(shape.blocks),
            shape,
            options,
            clones: vec![b"origin".to_vec()],
            class: Class::Fill,
            empty: 0,
            operating: Dice::new(plan.seed ^ 0x6d_65_6d_6f_72_79),
            outcome: Outcome::default(),
            dice,
        };
        history.prepare();
        history
    }

    fn prepare(&mut self) {
        let machine = Machine::on(self.dice.number(), self.image.clone());
        let (dice, clones) = (&mut self.dice, &mut self.clones);
        let prepared = machine.run(async {
            let (rt, device) = (machine.rt(), machine.device());
            Pool::create(&rt, &device, &self.shape.create).await?;
            let pool = Pool::open(rt, device, self.shape.open_for_tenants()).await?;
            Filesystem::format(&pool, &ROOT, 0o755).await?;
            let fs = Filesystem::open(pool, self.options.clone()).await?;
            let empty = fs.pool().space().allocated;
            let origin = fs.create_subvolume(&ROOT, fs.root(), &clones[0], None).await?;
            let dir = root_of(origin);
            for n in 0..FILES {
                let node = create(&fs, dir, format!("f{n}").as_bytes()).await?;
                let bytes = match n {
                    0 => dice.bytes((LARGE_BLOCKS * BLOCK) as usize),
                    _ => content(n),
                };
                fs.write(node, 0, &bytes, WriteFlags::default()).await?;
            }
            for n in 0..dice.pick(&[0, 200]) {
                create(&fs, dir, format!("small{n}").as_bytes()).await?;
            }
            let unchanged = fs.create_subvolume(&ROOT, fs.root(), b"unchanged", None).await?;
            let node = create(&fs, root_of(unchanged), b"f").await?;
            fs.write(node, 0, &content(0), WriteFlags::default()).await?;
            create(&fs, fs.root(), b"spare").await?;
            fs.sync().await?;
            if dice.one_in(2) {
                fs.pool().flush_all().await?;
            }
            let limited = dice.one_in(4);
            if limited {
                fs.enable_quotas().await?;
            }
            for n in 0..dice.pick(&[3, 12, 40]) {
                let name = format!("clone{n}").into_bytes();
                let clone = fs.snapshot(origin, fs.root(), &name, false, None).await?;
                if limited && dice.one_in(2) {
                    let limit = dice.within(64..1024) * BLOCK;
                    let limit = |ledger: &Ledger| {
                        ledger.limit(GroupId::of(clone), LimitKind::Referenced, Some(limit))
                    };
                    fs.change_quotas(limit).await?;
                }
                clones.push(name);
            }
            if dice.one_in(4) {
                // Nothing of the source is left but what its clones have.
                fs.delete_subvolume(fs.root(), &clones.remove(0), None).await?;
            }
            fill(&fs).await?;
            fs.close().await?;
            fs.pool().close().await?;
            Ok::<u64, FsError>(empty)
        });
        self.empty = prepared.expect("the power is on").expect("a filesystem is made");
        self.image = machine.rest();
        self.outcome.note(machine.digest());
    }

    /// Switches on, and mounts what there is.
    fn mount(&mut self) -> (Machine, Arc<Filesystem>) {
        check(self.dice.number(), &self.image, false);
        let machine = Machine::on(self.dice.number(), self.image.clone());
        let opened = machine.run(async {
            let options = self.shape.open_for_tenants();
            let pool = Pool::open(machine.rt(), machine.device(), options).await?;
            Filesystem::open(pool, self.options.clone()).await
        });
        self.outcome.recoveries += 1;
        let fs = opened.expect("the power is on");
        let fs =
            fs.unwrap_or_else(|error| panic!("RUNFULL-U2: a full pool is not mounted: {error}"));
        if let Some(rule) = self.plan.broken.and_then(Sabotage::of_volume) {
            fs.volumes().break_rule(rule);
        }
        (machine, fs)
    }

    /// Ends a mount in one way or the other.
    fn unmount(&mut self, machine: Machine, fs: Arc<Filesystem>) {
        check_credits(fs.pool());
        check_charges(&fs);
        let memory = fs.pool().memory().clone();
        self.image = match self.dice.one_in(2) {
            true => {
                self.outcome.crashes += 1;
                machine.crash(self.dice.number())
            }
            false => {
                let closed = machine.run(async {
                    match fs.close().await {
                        // Of a cut that is too large for the space that deletes may take.
                        Err(FsError::NoSpace(_)) if self.class == Class::Delete => {}
                        closed => closed?,
                    }
                    Ok::<(), FsError>(fs.pool().close().await?)
                });
                closed.expect("the power is on").expect("the filesystem is well");
                machine.rest()
            }
        };
        drop(fs);
        check_nothing_charged(&memory);
        self.outcome.note(machine.digest());
    }

    /// A few kinds of operations, each until it is refused or there were enough.
    fn phase(&mut self) {
        let (machine, fs) = self.mount();
        let reserve = fs.pool().space().reserve;
        if self.operating.one_in(4) {
            let subvols: Vec<SubvolId> = fs.subvolumes().iter().map(|subvol| subvol.id).collect();
            let orders = memory_orders::give(&fs, &mut self.operating, &subvols);
            machine.run(orders).expect("the power is on");
        }
        for _ in 0..self.dice.within(1..4) {
            let class = self.dice.pick(&[Class::Fill, Class::Change, Class::Delete]);
            let kind = self.dice.pick(class.kinds());
            let most = self.dice.pick(&[20, 200, 3000]);
            let before = self.left(&machine, &fs);
            let mut client = Client {
                fs: &fs,
                dice: &mut self.dice,
                clones: &mut self.clones,
                fresh: self.outcome.operations << 16,
            };
            let done = machine.run(client.go_on(kind, most)).expect("the power is on");
            self.outcome.operations += done;
            self.class = self.class.max(class);
            let left = self.left(&machine, &fs);
            self.plan
                .tell(|| format!("{done} of {kind:?}: {before} of {reserve} left, then {left}"));
            let must = class.leaves(reserve).min(before).saturating_sub(reserve / SLACK);
            assert!(
                left >= must,
                "RUNFULL-U1: {kind:?} leaves {left} blocks of {before}, not {must}"
            );
        }
        self.unmount(machine, fs);
    }

    /// Free blocks without a reservation, after all edits are flushed.
    fn left(&self, machine: &Machine, fs: &Arc<Filesystem>) -> u64 {
        let settled = machine.run(async {
            match fs.sync().await {
                Err(FsError::NoSpace(_)) if self.class == Class::Delete => {}
                synced => synced?,
            }
            fs.reaper_idle().await;
            for _ in 0..2 {
                let before = fs.pool().open_txg();
                fs.pool().flush_all().await?;
                let left = fs.pool().oldest_pin().filter(|pin| *pin < before);
                assert_eq!(
                    left, None,
                    "RUNFULL-U5: edits from before txg {before} are not flushed"
                );
            }
            Ok::<(), FsError>(())
        });
        let settled = settled.expect("the power is on");
        settled
            .unwrap_or_else(|error| panic!("RUNFULL-U1: a full pool cannot be flushed: {error}"));
        let space = fs.pool().space();
        (space.free + space.freeing).saturating_sub(space.reserved)
    }

    /// RUNFULL-U2 to RUNFULL-U4.
    fn delete_all(&mut self) {
        let (mut machine, mut fs) = self.mount();
        if self.class < Class::Delete {
            let unlinked = machine.run(fs.unlink(fs.root(), b"spare")).expect("the power is on");
            unlinked.unwrap_or_else(|error| panic!("RUNFULL-U2: nothing can be unlinked: {error}"));
        }
        while !self.clones.is_empty() {
            let nth = self.dice.below(self.clones.len() as u64) as usize;
            let name = self.clones.swap_remove(nth);
            let deleted = fs.delete_subvolume(fs.root(), &name, None);
            let deleted = machine.run(deleted).expect("the power is on");
            let name = String::from_utf8_lossy(&name).into_owned();
            deleted.unwrap_or_else(|error| panic!("RUNFULL-U2: {name} cannot be deleted: {error}"));
            if self.dice.one_in(8) {
                // A deletion is permanent, and not repeated.
                machine.run(fs.sync()).expect("the power is on").ok();
                self.unmount(machine, fs);
                (machine, fs) = self.mount();
            }
        }
        let at_once = self.dice.one_in(2);
        let most = self.empty + self.shape.blocks / SLACK;
        let freed = machine.run(async {
            fs.unlink(fs.root(), b"ballast").await?;
            if at_once {
                self.refill(&fs, most).await?;
            }
            fs.sync_subvolumes(&[]).await?;
            let node = fs.lookup(fs.root(), b"unchanged").await?.node;
            let node = fs.lookup(node, b"f").await?.node;
            assert_eq!(fs.read(node, 0, 1 << 20).await?.to_vec(), content(0), "RUNFULL-U4");
            fs.reaper_idle().await;
            fs.sync().await?;
            // Flushes go on in the background, and each frees what the one before has replaced.
            for _ in 0..SETTLING {
                fs.pool().flush_all().await?;
                fs.sync().await?;
                fs.pool().runtime().sleep(Duration::from_secs(1)).await;
                if fs.pool().space().allocated <= most {
                    break;
                }
            }
            Ok::<(), FsError>(())
        });
        let freed = freed.expect("the power is on");
        freed.unwrap_or_else(|error| panic!("RUNFULL-U2: space is not freed: {error}"));
        let space = fs.pool().space();
        assert!(
            space.allocated <= most,
            "RUNFULL-U3: {} in an empty pool, now {space:?}",
            self.empty
        );
        self.outcome.reached += u64::from(at_once);
        self.class = Class::Fill;
        self.unmount(machine, fs);
        check(self.dice.number(), &self.image, false);
    }

    /// Writes what there is room for when at most so many blocks are allocated, and deletes it.
    async fn refill(&self, fs: &Arc<Filesystem>, allocated: u64) -> Result<(), FsError> {
        let rt = fs.pool().runtime();
        let since = rt.now();
        let space = fs.pool().space();
        let blocks = space.total - allocated - space.reserve - self.shape.blocks / SLACK;
        let node = create(fs, fs.root(), b"refill").await?;
        for at in (0..blocks * BLOCK).step_by(REFILL_STEP as usize) {
            fs.write(node, at, &[3; REFILL_STEP as usize], WriteFlags::default()).await?;
        }
        fs.fsync(node, false).await?;
        let took = Duration::from_nanos(rt.now() - since);
        assert!(
            took < REFILL_WITHIN,
            "RUNFULL-U3: writing {blocks} blocks that were deleted: {took:?}"
        );
        fs.unlink(fs.root(), b"refill").await
    }
}

/// Writes into one file until nothing is free.
async fn fill(fs: &Arc<Filesystem>) -> Result<(), FsError> {
    let node = create(fs, fs.root(), b"ballast").await?;
    let mut at = 0;
    for len in [1 << 20, 1 << 16, 4096] {
        let data = vec![1; len];
        while fs.write(node, at, &data, WriteFlags::default()).await.is_ok() {
            at += len as u64;
        }
    }
    fs.fsync(node, false).await
}
