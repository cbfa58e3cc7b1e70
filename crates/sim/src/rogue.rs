//! A tenant that calls everything, in any order, to use more than its limit.
//!
//! Problem.  Ways around a limit were operations that were not taken for additions: renames,
//!           reflinks, rollbacks, reads. A test for each finds no other.
//! Idea.     A subvolume has a limit, or a group of which all that it makes becomes a member.
//!           Bursts of calls of one kind, mixed with others, go on at the limit, with deletions,
//!           rollbacks and heirs between them. At rest the usage of all subvolumes but the root and
//!           the neighbour is compared with the limit. Power fails between the lives of a history.
//!
//! ROGUE-W1  When all edits are flushed, the usage is within twice the limit (removals may take as
//!           much again), the overdraft, and 64 KiB for the error of the estimate (R23).
//! ROGUE-W2  A neighbour without a limit can always write and create.
//! ROGUE-W3  `check` finds nothing after a life.
//!
//! Content is the business of `fs_level`: here no answer is expected.

use std::sync::Arc;

use copyhold_device::sim::SimImage;
use copyhold_fs::{
    Caller, FallocateMode, Filesystem, FsError, NodeId, OpenFlags, Options, RenameFlags, SetAttr,
    SubvolInfo, WriteFlags, XattrSet,
};
use copyhold_pool::Pool;
use copyhold_types::{BLOCK_BYTES, InodeNo, SubvolId};
use copyhold_volume::quota::{GroupId, Ledger, LimitKind};

use crate::dice::Dice;
use crate::machine::Machine;
use crate::memory_orders;
use crate::pool_level::Shape;
use crate::soundness::{check, check_charges, check_nothing_charged};
use crate::{Outcome, Plan, Sabotage};

const BLOCK: u64 = BLOCK_BYTES as u64;
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const ROOT: Caller = Caller::ROOT;
/// Names that the tenant uses.
const NAMES: u64 = 400;
const LIVES: u64 = 3;
/// Bursts of one life.
const BURSTS: u64 = 6;
/// Calls of one burst.
const CALLS: u64 = 400;
/// Kinds of calls.
const KINDS: u64 = 33;
/// Inodes whose leaves are copied, in so many clones.
const STAMPED: u64 = 128;
const CLONES: u64 = 24;
/// Deletions of one burst whose data a snapshot keeps.
const PINS: u64 = 16;
/// Extents of a scattered file.
const EXTENTS: u64 = 64;
/// Copies of one, and the end of all, at most.
const COPIES: u64 = 600;
const COPIED_MAX: u64 = 4 << 30;
/// Blocks of the pool: far more than any limit, so that nothing else refuses.
const BLOCKS: u64 = 32768;

/// Plays one tenant. Panics when a wall does not hold.
pub(crate) fn history(plan: &Plan) -> Outcome {
    let mut history = History::begin(plan);
    for life in 0..LIVES {
        history.life(life == 0);
    }
    let History { mut outcome, peak, limit, .. } = history;
    outcome.reached = u64::from(peak > limit / 10 * 9);
    outcome
}

struct History {
    plan: Plan,
    dice: Dice,
    shape: Shape,
    options: Options,
    image: SimImage,
    limit: u64,
    /// It is the limit of a group, not of the first subvolume.
    of_group: bool,
    /// The most that was used.
    peak: u64,
    /// The root of the tenant's first subvolume.
    home: NodeId,
    /// These dice choose orders about memory groups, so that all else stays what it was.
    operating: Dice,
    outcome: Outcome,
}

/// The tenant in one life.
struct Tenant<'a> {
    fs: &'a Arc<Filesystem>,
    dice: &'a mut Dice,
    home: NodeId,
    /// The roots of its subvolumes.
    dirs: Vec<NodeId>,
}

/// A new file of [`EXTENTS`] extents, open, and its end.
async fn scattered(
    fs: &Arc<Filesystem>,
    dir: NodeId,
    name: &[u8],
) -> Result<(NodeId, u64), FsError> {
    let flags = OpenFlags::READ_WRITE;
    let made = fs.create(&ROOT, dir, name, 0o644, flags, false).await?.0.node;
    for n in 0..EXTENTS {
        fs.write(made, 2 * n * BLOCK, &[8; 4096], WriteFlags::default()).await?;
    }
    fs.fsync(made, false).await?;
    Ok((made, 2 * EXTENTS * BLOCK))
}

fn root_of(subvol: SubvolId) -> NodeId {
    NodeId { subvol, ino: InodeNo::ROOT }
}

impl History {
    fn begin(plan: &Plan) -> History {
        let mut dice = Dice::new(plan.seed ^ 0x72_6f_67_75_65);
        let mut shape = Shape::by(&mut dice, plan);
        shape.create.log_bytes = Some(4 << 20);
        shape.blocks = BLOCKS;
        let options = Options {
            count_lookups: false,
            sabotage: plan.broken.and_then(Sabotage::of_fs),
            ..Options::default()
        };
        let mut history = History {
            plan: *plan,
            image: plan.blank(shape.blocks),
            shape,
            options,
            limit: dice.within(2..7) * (MIB / 2),
            of_group: dice.one_in(2),
            peak: 0,
            home: root_of(SubvolId::ROOT),
            operating: Dice::new(plan.seed ^ 0x6d_65_6d_6f_72_79),
            outcome: Outcome::default(),
            dice,
        };
        history.prepare();
        history
    }

    fn prepare(&mut self) {
        let machine = Machine::on(self.dice.number(), self.image.clone());
        let limit = self.limit;
        let prepared = machine.run(async {
            let (rt, device) = (machine.rt(), machine.device());
            Pool::create(&rt, &device, &self.shape.create).await?;
            let pool = Pool::open(rt, device, self.shape.open_for_tenants()).await?;
            Filesystem::format(&pool, &ROOT, 0o755).await?;
            let fs = Filesystem::open(pool, self.options.clone()).await?;
            fs.enable_quotas().await?;
            let home = fs.create_subvolume(&ROOT, fs.root(), b"tenant", None).await?;
            fs.create_subvolume(&ROOT, fs.root(), b"neighbour", None).await?;
            let mut group = GroupId::of(home);
            if self.of_group {
                let member = group;
                group = GroupId::new(1, 1).expect("a small number");
                fs.change_quotas(|ledger: &Ledger| ledger.create(group)).await?;
                fs.change_quotas(|ledger: &Ledger| ledger.assign(member, group)).await?;
            }
            let bytes = |ledger: &Ledger| ledger.limit(group, LimitKind::Referenced, Some(limit));
            fs.change_quotas(bytes).await?;
            fs.close().await?;
            fs.pool().close().await?;
            Ok::<NodeId, FsError>(root_of(home))
        });
        self.home = prepared.expect("the power is on").expect("a filesystem is made");
        self.image = machine.rest();
        self.outcome.note(machine.digest());
    }

    fn life(&mut self, is_first: bool) {
        let machine = Machine::on(self.dice.number(), self.image.clone());
        let opened = machine.run(async {
            let options = self.shape.open_for_tenants();
            let pool = Pool::open(machine.rt(), machine.device(), options).await?;
            Filesystem::open(pool, self.options.clone()).await
        });
        self.outcome.recoveries += 1;
        let fs = opened.expect("the power is on").expect("a sound pool is mounted");
        if let Some(rule) = self.plan.broken.and_then(Sabotage::of_volume) {
            fs.volumes().break_rule(rule);
        }
        if is_first && self.dice.one_in(2) {
            Tenant::of(&fs, &mut self.dice, self.home).pass_layers_on(&machine);
        }
        for burst in 0..BURSTS {
            if self.operating.one_in(4) {
                let subvols = [self.home.subvol, SubvolId::ROOT];
                let orders = memory_orders::give(&fs, &mut self.operating, &subvols);
                machine.run(orders).expect("the power is on");
            }
            let mut tenant = Tenant::of(&fs, &mut self.dice, self.home);
            let calls = tenant.burst(&machine);
            self.home = tenant.home;
            self.outcome.operations += calls;
            let used = machine.run(at_rest(&fs)).expect("the power is on");
            let used = used.unwrap_or_else(|error| panic!("ROGUE-W2: {error}"));
            self.plan.tell(|| format!("burst {burst}: {used} of {}", self.limit));
            let removals = self.limit;
            let most = self.limit + MIB + self.limit / 64 + 64 * KIB + removals;
            assert!(
                used <= most,
                "ROGUE-W1: {used} bytes are used under a limit of {}",
                self.limit
            );
            self.peak = self.peak.max(used);
        }
        check_charges(&fs);
        let memory = fs.pool().memory().clone();
        self.image = machine.crash(self.dice.number());
        drop(fs);
        check_nothing_charged(&memory);
        self.outcome.crashes += 1;
        self.outcome.note(machine.digest());
        check(self.dice.number(), &self.image, false);
    }
}

/// The usage of all that is the tenant's, once all edits are nodes; the neighbour has worked
/// before.
async fn at_rest(fs: &Arc<Filesystem>) -> Result<u64, FsError> {
    let neighbour = fs.lookup(fs.root(), b"neighbour").await?.node;
    let flags = OpenFlags::READ_WRITE;
    let made = fs.create(&ROOT, neighbour, b"f", 0o644, flags, false).await?.0.node;
    fs.write(made, 0, &[1; 4096], WriteFlags::default()).await?;
    fs.release(made);
    fs.sync().await?;
    fs.reaper_idle().await;
    fs.pool().flush_all().await?;
    let others = [SubvolId::ROOT, neighbour.subvol].map(GroupId::of);
    let groups = fs.volumes().ledger().show()?.into_iter();
    let own = groups.filter(|group| group.id.level() == 0 && !others.contains(&group.id));
    Ok(own.map(|group| group.referenced).sum())
}

impl<'a> Tenant<'a> {
    fn of(fs: &'a Arc<Filesystem>, dice: &'a mut Dice, home: NodeId) -> Tenant<'a> {
        let is_inside = |subvol: &SubvolInfo| subvol.parent.subvol == home.subvol;
        let inside = fs.subvolumes().into_iter().filter(|subvol| !subvol.is_dying);
        let inside = inside.filter(is_inside).map(|subvol| root_of(subvol.id));
        Tenant { fs, dice, home, dirs: std::iter::once(home).chain(inside).collect() }
    }

    /// Calls of one kind, with others among them; how many.
    fn burst(&mut self, machine: &Machine) -> u64 {
        let calls = self.dice.within(1..CALLS);
        let (kind, dir) = (self.dice.below(KINDS), self.dice.pick(&self.dirs));
        for _ in 0..calls {
            let kind = if self.dice.one_in(4) { self.dice.below(KINDS) } else { kind };
            machine.run(self.call(kind, dir)).expect("the power is on");
        }
        match self.dice.below(8) {
            0..3 => machine.run(self.change_subvolumes()).expect("the power is on"),
            3 | 4 => self.pin_and_roll_back(machine),
            5 => self.share_again_and_again(machine, dir),
            6 => self.restamp(machine, dir),
            _ => {}
        }
        calls
    }

    fn name(&mut self) -> Vec<u8> {
        let n = self.dice.below(NAMES);
        match self.dice.one_in(3) {
            true => format!("{n}{}", "l".repeat(250)).into_bytes(),
            false => n.to_string().into_bytes(),
        }
    }

    async fn file(&mut self, dir: NodeId) -> NodeId {
        let name = self.name();
        self.fs.lookup(dir, &name).await.map_or(dir, |entry| entry.node)
    }

    async fn call(&mut self, kind: u64, dir: NodeId) {
        let fs = self.fs;
        let (name, other) = (self.name(), self.name());
        let (file, small) = (self.file(dir).await, 1 + self.dice.below(2048) as usize);
        let (offset, len) = (self.dice.below(64) * BLOCK, self.dice.within(1..17) * BLOCK);
        let attribute = [b"user.", &other[..other.len().min(200)]].concat();
        // Any answer is right.
        match kind {
            0..4 => drop(self.create(dir, &name, small).await),
            4 => drop(fs.mkdir(&ROOT, dir, &name, 0o755).await),
            5 => drop(fs.symlink(&ROOT, dir, &name, &[b'x'; 3000]).await),
            6 | 7 => drop(fs.link(file, dir, &name).await),
            8..11 => {
                let whiteout = self.dice.one_in(2);
                let exchange = !whiteout && self.dice.one_in(3);
                let flags = RenameFlags { whiteout, exchange, ..RenameFlags::default() };
                drop(fs.rename(&ROOT, dir, &name, dir, &other, flags).await);
            }
            11 | 12 => {
                let mode = Some(0o600 + self.dice.below(8) as u32);
                drop(fs.setattr(&ROOT, file, &SetAttr { mode, ..SetAttr::default() }).await);
            }
            13 => {
                let size = Some(self.dice.below(MIB));
                drop(fs.setattr(&ROOT, file, &SetAttr { size, ..SetAttr::default() }).await);
            }
            14 | 15 => {
                let (value, any) = (vec![5; small], XattrSet::Any);
                drop(fs.set_xattr(&ROOT, file, &attribute, &value, any, false).await);
            }
            16 => drop(fs.remove_xattr(file, &attribute).await),
            17..20 => {
                let bytes = vec![7; len as usize];
                drop(fs.write(file, offset, &bytes, WriteFlags::default()).await);
            }
            20 | 21 => {
                let to = self.file(dir).await;
                drop(fs.copy_file_range(file, 0, to, offset, 256 * KIB).await);
            }
            22..26 => {
                let mode = match kind {
                    22 | 23 => FallocateMode::Punch,
                    24 => FallocateMode::Zero { keep_size: false },
                    _ => FallocateMode::Allocate { keep_size: true },
                };
                drop(fs.fallocate(file, offset, len, mode).await);
            }
            26..28 => drop(fs.unlink(dir, &name).await),
            28 => drop(fs.rmdir(dir, &name).await),
            29..31 => drop(fs.read(file, 0, 4096).await),
            _ => drop(fs.tmpfile(&ROOT, dir, 0o600).await.map(|entry| fs.release(entry.node))),
        }
    }

    async fn create(&mut self, dir: NodeId, name: &[u8], bytes: usize) -> Result<(), FsError> {
        let flags = OpenFlags::READ_WRITE;
        let made = self.fs.create(&ROOT, dir, name, 0o644, flags, false).await?.0.node;
        let written = self.fs.write(made, 0, &vec![6; bytes], WriteFlags::default()).await;
        self.fs.release(made);
        written.map(drop)
    }

    /// Makes, rolls back and deletes subvolumes inside the first one, and rolls that back.
    async fn change_subvolumes(&mut self) {
        let (fs, home) = (self.fs, self.home);
        let source = self.dice.pick(&self.dirs).subvol;
        let name = format!("subvolume {}", self.dice.below(6)).into_bytes();
        match self.dice.below(6) {
            0 => drop(fs.create_subvolume(&ROOT, home, &name, None).await),
            1 | 2 => drop(fs.snapshot(source, home, &name, false, None).await),
            3 => {
                let heir = self.dice.one_in(2).then_some(home.subvol);
                drop(fs.delete_subvolume(home, &name, heir).await);
            }
            4 => drop(fs.roll_back_subvolume(home, &name, source, None).await),
            _ => self.roll_home_back().await,
        }
    }

    /// Copies two files of many extents behind each other, again and again.
    fn share_again_and_again(&mut self, machine: &Machine, dir: NodeId) {
        let (fs, names) = (self.fs, [self.name(), self.name()]);
        let made = names.map(|name| machine.run(scattered(fs, dir, &name)).expect("it is on"));
        let [Ok(mut from), Ok(mut to)] = made else { return };
        for _ in 0..COPIES {
            let copy = fs.copy_file_range(from.0, 0, to.0, to.1, from.1);
            match machine.run(copy).expect("the power is on") {
                Ok(copied) if copied > 0 && to.1 < COPIED_MAX => to.1 += copied,
                _ => break,
            }
            std::mem::swap(&mut from, &mut to);
        }
        [from, to].into_iter().for_each(|(node, _)| fs.release(node));
    }

    /// Changes all inodes until a limit refuses that, twice: edits have become nodes in between.
    fn change_all(&self, machine: &Machine, dir: NodeId) {
        let fs = self.fs;
        for mode in [0o600, 0o640] {
            for n in 0..STAMPED {
                let change = SetAttr { mode: Some(mode), ..SetAttr::default() };
                let changed = machine.run(async {
                    let node = fs.lookup(dir, n.to_string().as_bytes()).await?.node;
                    fs.setattr(&ROOT, node, &change).await
                });
                if changed.expect("the power is on").is_err() {
                    break;
                }
            }
            drop(machine.run(fs.pool().flush_all()).expect("the power is on"));
        }
    }

    /// Makes clones, fills the limit, and changes the inodes of each clone, which copies leaves.
    fn restamp(&mut self, machine: &Machine, dir: NodeId) {
        let fs = self.fs;
        for n in 0..STAMPED {
            let name = n.to_string();
            let made = self.create(dir, name.as_bytes(), 1500);
            drop(machine.run(made).expect("the power is on"));
        }
        let mut clones = Vec::new();
        for n in 0..CLONES {
            let name = format!("subvolume {n}").into_bytes();
            let clone = fs.snapshot(dir.subvol, self.home, &name, false, None);
            clones.extend(machine.run(clone).expect("the power is on"));
        }
        drop(machine.run(self.create(dir, b"large", 8 << 20)).expect("the power is on"));
        for clone in clones {
            self.change_all(machine, root_of(clone));
        }
    }

    /// Makes clones that begin with a layer of few edits over many items, and changes each a
    /// little: later in a history, there may be no room for as many.
    fn pass_layers_on(&mut self, machine: &Machine) {
        let (fs, dir) = (self.fs, self.home);
        for n in 0..2 * STAMPED {
            let name = n.to_string();
            let made = self.create(dir, name.as_bytes(), 700);
            drop(machine.run(made).expect("the power is on"));
        }
        drop(machine.run(fs.pool().flush_all()).expect("the power is on"));
        for n in (0..2 * STAMPED).step_by(5) {
            let change = SetAttr { mode: Some(0o600), ..SetAttr::default() };
            let name = n.to_string();
            let changed = machine.run(async {
                let node = fs.lookup(dir, name.as_bytes()).await?.node;
                fs.setattr(&ROOT, node, &change).await
            });
            drop(changed.expect("the power is on"));
        }
        if let Some(source) = fs.volumes().subvol(dir.subvol) {
            drop(machine.run(fs.pool().flush_edits_of(source.files())).expect("the power is on"));
        }
        for n in 0..2 * CLONES {
            let name = format!("subvolume {n}").into_bytes();
            let clone = machine.run(fs.snapshot(dir.subvol, self.home, &name, false, None));
            if let Ok(clone) = clone.expect("the power is on") {
                let made = self.create(root_of(clone), b"new", 100);
                drop(machine.run(made).expect("the power is on"));
            }
        }
    }

    /// Deletes subvolumes whose data snapshots elsewhere keep, and rolls the first one back.
    fn pin_and_roll_back(&mut self, machine: &Machine) {
        for n in 0..PINS {
            let pin = format!("pin {}", self.dice.below(4 * PINS));
            machine.run(self.pin(pin.as_bytes())).expect("the power is on");
            if n % 4 == 3 {
                machine.run(self.roll_home_back()).expect("the power is on");
            }
        }
    }

    /// Makes a subvolume with data that a snapshot outside shares, and deletes it.
    async fn pin(&mut self, pin: &[u8]) {
        let (fs, home) = (self.fs, self.home);
        let Ok(inner) = fs.create_subvolume(&ROOT, home, b"inner", None).await else { return };
        drop(self.create(root_of(inner), b"f", 256 << 10).await);
        drop(fs.snapshot(inner, fs.root(), pin, true, None).await);
        drop(fs.delete_subvolume(home, b"inner", None).await);
    }

    /// All that it holds is deleted, and it is rolled back to a snapshot made just before.
    async fn roll_home_back(&mut self) {
        let (fs, root) = (self.fs, self.fs.root());
        for n in 0..6 {
            let name = format!("subvolume {n}").into_bytes();
            drop(fs.delete_subvolume(self.home, &name, None).await);
        }
        let Ok(made) = fs.snapshot(self.home.subvol, root, b"state", true, None).await else {
            return;
        };
        if let Ok(back) = fs.roll_back_subvolume(root, b"tenant", made, None).await {
            self.home = root_of(back.subvol);
        }
        drop(fs.delete_subvolume(root, b"state", None).await);
    }
}
