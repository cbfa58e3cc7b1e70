//! The lives of a filesystem: switched on, recovered, checked, verified, used, and ended in some
//! way.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use copyhold_device::sim::{Fault, Lasting, SimDisk, SimImage, Trigger};
use copyhold_format::label::Label;
use copyhold_fs::{Caller, DataCache, FallocateMode, Filesystem, FsError, OpenFlags, Options};
use copyhold_memory::Memory;
use copyhold_pool::{Pool, PoolError};
use copyhold_runtime::BoxFuture;
use copyhold_types::{BLOCK_BYTES, SubvolId};

use super::client::{self, Client, FrontEnd, Habits, Looker, Manager, ModeHabits, Operator};
use super::collisions;
use super::drive::play_faults;
use super::goes_on::goes_on;
use super::modes::count_by_mode;
use super::second_opinion;
use super::settings::{self, Changed};
use super::tree::{SHARED_DIRS, shared_name};
use super::usage::Shown;
use super::world::{Shared, World};
use super::{verify, visit};
use crate::damage;
use crate::dice::Dice;
use crate::growth::{self, grow_sometimes, label_now};
use crate::machine::Machine;
use crate::pool_level::Shape;
use crate::soundness::{
    are_inodes_at_rest, check, check_charges, check_credits, check_nothing_charged,
};
use crate::weather::Weather;
use crate::{Outcome, Plan, Sabotage};

const CLIENTS_MAX: u64 = 4;

/// Lives through a whole history. Panics when the filesystem is not what it must be.
pub fn history(plan: &Plan) -> Outcome {
    let mut history = History::begin(plan);
    let lives = 2 + history.dice.below(4);
    for _ in 0..lives {
        history.life();
    }
    history.last_look();
    history.outcome
}

struct History {
    plan: Plan,
    shape: Shape,
    options: Options,
    dice: Dice,
    label: Label,
    disk: SimDisk,
    shared: Arc<Shared>,
    clients: u64,
    outcome: Outcome,
    /// Blocks of the image that cannot be read for a while.
    unreadable: Vec<(u64, Lasting)>,
    growing: Dice,
    /// One copy of something was damaged on purpose: `check` may say so.
    damaged: bool,
    /// It is known to the byte who pays for what.
    exact: bool,
    /// How many of a hundred things that clients do are about subvolumes.
    tenancy: u64,
    /// Quotas are turned on and off.
    quotas: bool,
    /// These dice choose the clients' operations on quotas, so that all other choices stay the
    /// same.
    managing: Dice,
    /// Clients turn them on and off, too.
    turning: bool,
    /// The first visitor after a recovery.
    visiting: Dice,
    /// These dice choose the clients' habits, likewise.
    habits: Dice,
    /// They care for rights, and hold files in other ways than by name.
    careful: bool,
    /// These dice choose the clients' changes of memory groups, likewise.
    operating: Dice,
    /// They change their limits.
    limiting: bool,
    /// These dice choose the limit of absent names, and the clients' look-ups of them.
    naming: Dice,
    /// They look at names.
    looking: bool,
    /// These dice choose the clients' changes of checksum modes, likewise.
    mode_dice: Dice,
    /// They change them.
    modes: bool,
}

impl History {
    fn begin(plan: &Plan) -> History {
        let mut dice = Dice::new(plan.seed ^ 0x66_73);
        let mut shape = Shape::by(&mut dice, plan);
        shape.create.node_bytes = Some(dice.pick(&[16 << 10, 32 << 10]));
        let exact = dice.one_in(2);
        let quotas = exact || dice.one_in(2);
        let tenancy = if exact { dice.pick(&[20, 20, 60]) } else { dice.pick(&[0, 0, 40]) };
        let mut habits = Dice::new(plan.seed ^ 0x68_61_62_69_74_73);
        let careful = habits.one_in(2);
        let sabotage = plan.broken.and_then(Sabotage::of_fs);
        let options = options(&mut dice, exact);
        let options = Options { sabotage, count_lookups: careful, ..options };
        let machine = Machine::on(dice.number(), plan.blank(shape.blocks));
        let clients = 1 + dice.below(CLIENTS_MAX);
        let (rt, device) = (machine.rt(), machine.device());
        let label = machine.run(Pool::create(&rt, &device, &shape.create));
        let label = label.expect("the power is on").expect("a pool is made");
        let mut world = World::new(clients as usize);
        let made = machine.run(async {
            let pool = Pool::open(machine.rt(), machine.device(), shape.open_for_tenants()).await?;
            Filesystem::format(&pool, &Caller::ROOT, 0o755).await?;
            collisions::prepare(&pool).await?;
            let fs = Filesystem::open(pool.clone(), options.clone()).await?;
            world.shared[0] = Some(fs.root());
            for n in 1..SHARED_DIRS {
                let made = fs.mkdir(&Caller::ROOT, fs.root(), &shared_name(n), 0o755).await?;
                world.shared[n] = Some(made.node);
            }
            if shape.crowded {
                crowd(&fs, 16 + dice.magnitude(9)).await?;
            }
            fs.close().await?;
            pool.close().await?;
            Ok::<(), FsError>(())
        });
        made.expect("the power is on").expect("a filesystem is made");
        let mut managing = Dice::new(plan.seed ^ 0x71_75_6f_74_61_73);
        let turning = quotas && managing.one_in(3);
        let mut operating = Dice::new(plan.seed ^ 0x6d_65_6d_6f_72_79);
        let limiting = operating.one_in(3);
        let mut naming = Dice::new(plan.seed ^ 0x6e_61_6d_65_73);
        let looking = naming.one_in(3);
        let mut mode_dice = Dice::new(plan.seed ^ 0x6d_6f_64_65_73);
        let modes = mode_dice.one_in(3);
        let modes = plan.modes.unwrap_or(modes);
        History {
            plan: *plan,
            shape,
            options,
            label,
            disk: machine.rest().into(),
            shared: Arc::new(Shared { world: parking_lot::Mutex::new(world) }),
            clients,
            outcome: Outcome::default(),
            unreadable: Vec::new(),
            growing: growth::dice(plan),
            damaged: false,
            exact,
            tenancy,
            quotas,
            managing,
            turning,
            visiting: Dice::new(plan.seed ^ 0x76_69_73_69_74),
            habits,
            careful,
            operating,
            limiting,
            naming,
            looking,
            mode_dice,
            modes,
            dice,
        }
    }

    /// One life; its end is the next one's disk.
    fn life(&mut self) {
        let memory = self.live();
        check_nothing_charged(&memory);
    }

    fn live(&mut self) -> Arc<Memory> {
        let today = Weather::today(&mut self.dice);
        let weather = self.plan.weather.unwrap_or(today);
        let (machine, fs) = loop {
            let (machine, fs) = self.recover();
            self.plan.tell(|| format!("a life: {weather:?}, {:?}", fs.pool().log_use()));
            if self.change_settings(&machine, &fs) {
                break (machine, fs);
            }
            self.disk = self.crash(&machine).into();
        };
        weather.come_over(&machine, &mut self.dice, 28, &self.plan);
        let memory = fs.pool().memory().clone();
        let front_end = self.front_end(&fs);
        let mut tasks = self.clients(&fs, front_end.as_ref(), weather.shows());
        if let Some(front_end) = front_end {
            tasks.push(Box::pin(client::prune(fs.clone(), front_end, self.naming.fork())));
        }
        if self.plan.grows {
            let pool = fs.pool().clone();
            let growth = grow_sometimes(pool, self.growing.fork(), weather.shows());
            tasks.push(Box::pin(growth));
        }
        let done = machine.run_all(tasks);
        self.disk = match done {
            Some(()) => self.end(weather, &machine, fs),
            None if weather.kills() => self.kill(&machine),
            None => self.crash(&machine).into(),
        };
        self.outcome.note(machine.digest());
        memory
    }

    /// False if the power has failed meanwhile.
    fn change_settings(&mut self, machine: &Machine, fs: &Arc<Filesystem>) -> bool {
        let mut done = Changed { between: None, lasting: true };
        if self.quotas && self.dice.one_in(2) {
            if self.dice.one_in(3) {
                let nth = self.dice.magnitude(4);
                machine.disk.arm(Trigger::Write { nth, why: None }, Fault::PowerOff);
            }
            let Some(changed) = machine.run(settings::change(fs, &mut self.dice)) else {
                let mut world = self.shared.world.lock();
                let moment = world.tick();
                world.usage.eras.may_have_turned(moment);
                return false;
            };
            machine.disk.disarm();
            done = changed.unwrap_or_else(|error| panic!("settings: {error}"));
        }
        let shown = Shown::of(fs.volumes().ledger());
        self.plan.tell(|| format!("quotas: {}, {} groups", shown.on, shown.groups.len()));
        let world = &mut *self.shared.world.lock();
        for shown in done.between.iter().chain([&shown]) {
            let moment = world.tick();
            world.usage.eras.turned(moment, shown.on, shown.generation);
        }
        if done.lasting {
            let moment = world.tick();
            world.sync(moment);
        }
        true
    }

    /// The front end of this life, if its clients look at absent names: there are none, few, or
    /// as many as they like, and the front end keeps them or not.
    fn front_end(&mut self, fs: &Filesystem) -> Option<Arc<FrontEnd>> {
        if !self.looking {
            return None;
        }
        fs.names().set_limit(self.naming.pick(&[0, 8, 65_536]));
        if self.naming.one_in(2) {
            fs.names().keep_for_front_end();
        }
        Some(Arc::default())
    }

    fn clients(
        &mut self,
        fs: &Arc<Filesystem>,
        front_end: Option<&Arc<FrontEnd>>,
        forgiving: bool,
    ) -> Vec<BoxFuture<'static, ()>> {
        let operations = self.dice.magnitude(9) / self.clients;
        (0..self.clients as usize)
            .map(|id| {
                let (fs, shared) = (fs.clone(), self.shared.clone());
                let (dice, exact) = (self.dice.fork(), self.exact);
                let (tenancy, promises, turns) = (self.tenancy, self.quotas, self.turning);
                let manager = Manager { dice: self.managing.fork(), promises, turns };
                let habits = Habits::new(self.habits.fork(), self.careful);
                let operator = Operator { dice: self.operating.fork(), limits: self.limiting };
                let front_end = front_end.cloned();
                let looker = Looker { dice: self.naming.fork(), front_end };
                let modes = ModeHabits { dice: self.mode_dice.fork(), modes: self.modes };
                let client = Client {
                    id,
                    fs,
                    shared,
                    dice,
                    forgiving,
                    exact,
                    tenancy,
                    manager,
                    habits,
                    operator,
                    looker,
                    modes,
                };
                self.outcome.operations += operations;
                Box::pin(client.live(operations)) as BoxFuture<'static, ()>
            })
            .collect()
    }

    // -- coming up ----------------------------------------------------------

    /// Switches on until a recovery goes through, and verifies what it has found.
    fn recover(&mut self) -> (Machine, Arc<Filesystem>) {
        self.check();
        loop {
            let (disk, unreadable) = (self.disk.clone(), &mut self.unreadable);
            let machine = Machine::on_again(&mut self.dice, disk, unreadable, 4);
            let opened = machine.run(async {
                let pool =
                    Pool::open(machine.rt(), machine.device(), self.shape.open_for_tenants())
                        .await?;
                Filesystem::open(pool, self.options.clone()).await
            });
            match opened {
                Some(Ok(fs)) => {
                    machine.disk.disarm();
                    self.outcome.recoveries += 1;
                    if let Some(rule) = self.plan.broken.and_then(Sabotage::of_volume) {
                        fs.volumes().break_rule(rule);
                    }
                    self.verify(&machine, &fs);
                    return (machine, fs);
                }
                Some(Err(FsError::Pool(
                    error @ (PoolError::Device(_) | PoolError::Unreadable { .. }),
                ))) => {
                    self.plan.tell(|| format!("not opened: {error}"));
                    self.disk = machine.kill(self.dice.number());
                }
                Some(Err(error)) => panic!("the filesystem cannot be opened: {error}"),
                None => self.disk = self.down(&machine),
            }
        }
    }

    /// After a third of the recoveries several visitors open all subvolumes at once, before any
    /// client. Returns whether they have: then times are not those of the image.
    fn visit(&mut self, machine: &Machine, fs: &Arc<Filesystem>) -> bool {
        if !self.visiting.one_in(3) {
            return false;
        }
        let count = 2 + self.visiting.below(3);
        let visitors = (0..count)
            .map(|nth| Box::pin(visit::visit(fs.clone(), nth, count)) as BoxFuture<'static, ()>);
        machine.run_all(visitors.collect()).expect("the power is on");
        let synced = machine.run(fs.sync()).expect("the power is on");
        synced.unwrap_or_else(|error| panic!("behind the first visits: {error}"));
        true
    }

    fn verify(&mut self, machine: &Machine, fs: &Arc<Filesystem>) {
        let was_visited = self.visit(machine, fs);
        let looked = machine.run(verify::look(fs)).expect("the power is on");
        let names = looked.unwrap_or_else(|error| panic!("after recovery: {error}"));
        if self.plan.second_opinion && !was_visited {
            let root = machine.run(verify::look_at(fs, fs.root())).expect("the power is on");
            let root = root.unwrap_or_else(|error| panic!("the root after recovery: {error}"));
            second_opinion::compare(self.disk.image(), &root, &names);
        }
        {
            let mut world = self.shared.world.lock();
            let shown = Shown::of(fs.volumes().ledger());
            verify::settle(&mut world, &names, &shown);
            let subvols = fs.subvolumes().into_iter();
            let live = subvols.filter(|subvol| !subvol.is_dying).map(|subvol| subvol.id);
            let live: BTreeSet<SubvolId> = live.collect();
            let world = &mut *world;
            world.usage.settle_heirs(&world.nodes);
            let eras = &mut world.usage.eras;
            eras.settle(shown.on, shown.generation, world.synced);
            eras.retain_heirs_of(|subvol| !live.contains(&subvol));
        }
        self.plan.tell(|| format!("recovered, with {} names", names.len()));
        self.check_modes(machine, fs);
        if self.dice.one_in(2) {
            self.check_usage(machine, fs);
        }
    }

    /// Each extent has a checksum mode that its file has had.
    fn check_modes(&mut self, machine: &Machine, fs: &Arc<Filesystem>) {
        if !self.modes {
            return;
        }
        let world = self.shared.world.lock().clone();
        let checked = machine.run(verify::check_extents(fs, &world));
        let found = checked.expect("the power is on").expect("the filesystem is well");
        self.outcome.by_mode = count_by_mode(&found);
    }

    /// When nothing is on its way any more, each subvolume pays for what it must, to the byte.
    fn check_usage(&mut self, machine: &Machine, fs: &Arc<Filesystem>) {
        if !self.exact {
            return;
        }
        let quiet = machine.run(async {
            fs.sync().await?;
            // Files without a name are removed when their subvolume is looked at.
            verify::look(fs).await?;
            fs.reaper_idle().await;
            fs.sync_subvolumes(&[]).await?;
            verify::nameless_in_read_only(fs).await
        });
        let nameless = quiet.expect("the power is on").expect("the filesystem is well");
        let world = self.shared.world.lock();
        let shown = Shown::of(fs.volumes().ledger());
        let files = world.files().into_iter().map(|id| world.data[&id].now());
        world.usage.check(&shown, files, &world.counts(&nameless));
    }

    /// `check` finds nothing wrong with the image.
    fn check(&mut self) {
        check(self.dice.number(), self.disk.image(), self.damaged);
    }

    // -- going down ---------------------------------------------------------

    fn crash(&mut self, machine: &Machine) -> SimImage {
        self.outcome.crashes += 1;
        self.plan.tell(|| format!("the power fails at {} us", machine.rt.now() / 1000));
        machine.crash(self.dice.number())
    }

    fn kill(&mut self, machine: &Machine) -> SimDisk {
        self.plan.tell(|| format!("the daemon is killed at {} us", machine.rt.now() / 1000));
        machine.kill(self.dice.number())
    }

    /// One or the other.
    fn down(&mut self, machine: &Machine) -> SimDisk {
        if self.dice.one_in(3) { self.kill(machine) } else { self.crash(machine).into() }
    }

    fn end(&mut self, weather: Weather, machine: &Machine, fs: Arc<Filesystem>) -> SimDisk {
        check_credits(fs.pool());
        check_charges(&fs);
        machine.disk.disarm();
        match weather {
            Weather::Calm | Weather::HostFull => self.end_well(machine, &fs),
            Weather::Killed => self.kill(machine),
            Weather::PowerCutInSettling => self.cut_in_settling(machine, &fs).into(),
            Weather::LogRot
            | Weather::LogUnreadable
            | Weather::UberblockRot
            | Weather::LostWrite => {
                self.damaged = true;
                self.crash_in(weather, machine).into()
            }
            _ => self.crash_in(weather, machine).into(),
        }
    }

    fn crash_in(&mut self, weather: Weather, machine: &Machine) -> SimImage {
        let mut image = self.crash(machine);
        self.label = label_now(&self.plan, &self.label, &image);
        let (dice, unreadable) = (&mut self.dice, &mut self.unreadable);
        damage::by_weather(weather, dice, &self.label, &mut image, unreadable);
        image
    }

    /// Everything is closed, and all is there.
    fn end_well(&mut self, machine: &Machine, fs: &Arc<Filesystem>) -> SimDisk {
        if !self.shared.world.lock().troubled {
            self.check_usage(machine, fs);
            let checked = machine.run(verify::check_leaks(fs)).expect("the power is on");
            checked.expect("the filesystem is well");
        }
        let (moment, versions) = self.shared.world.lock().before_sync();
        let closed = machine.run(async {
            fs.close().await?;
            Ok::<(), FsError>(fs.pool().close().await?)
        });
        closed.expect("the power is on").expect("the filesystem is well");
        if !are_inodes_at_rest(fs) {
            // A task that pauses before it would write a file again has the file until then.
            let rt = machine.rt();
            machine.run(async { rt.sleep(Duration::from_secs(1)).await });
        }
        assert!(are_inodes_at_rest(fs), "CHARGE-C1: inodes at rest");
        self.shared.world.lock().after_sync(moment, &versions);
        if self.dice.one_in(2) { machine.rest().into() } else { self.down(machine) }
    }

    /// The power fails while everything is being written: data, nodes, records, uberblocks.
    fn cut_in_settling(&mut self, machine: &Machine, fs: &Arc<Filesystem>) -> SimImage {
        let nth = self.dice.magnitude(5);
        let trigger =
            self.dice.pick(&[Trigger::Write { nth, why: None }, Trigger::Flush { nth: nth / 2 }]);
        self.plan.tell(|| format!("settling, until {trigger:?}"));
        machine.disk.arm(trigger, Fault::PowerOff);
        let settled = machine.run(async {
            fs.sync().await?;
            Ok::<(), FsError>(fs.pool().flush_all().await?)
        });
        if let Some(settled) = settled {
            settled.expect("the filesystem is well");
        }
        self.crash(machine)
    }

    /// The end: one more recovery, without any faults, and all that has just been made of it.
    fn last_look(&mut self) {
        let (machine, fs) = self.recover();
        let memory = fs.pool().memory().clone();
        self.outcome.grown += u64::from(fs.pool().label().blocks > self.shape.blocks);
        self.disk = self.end_well(&machine, &fs);
        drop(fs);
        self.outcome.note(machine.digest());
        drop(machine);
        check_nothing_charged(&memory);
        self.check();
        if self.modes && self.plan.protection.is_some() {
            let mut dice = self.mode_dice.fork();
            let seen = self.use_disk(|machine, fs| play_faults(machine, fs, &mut dice));
            (self.outcome.lost_writes, self.outcome.forgotten) = (seen.lost_writes, seen.forgotten);
            self.check();
        }
        let goes_on = self.use_disk(goes_on);
        self.outcome.reached += u64::from(goes_on);
        self.check();
    }

    /// Mounts the disk. No client knows its content any more, so anything may be deleted.
    fn use_disk<T>(&mut self, use_it: impl FnOnce(&Machine, &Arc<Filesystem>) -> T) -> T {
        let machine = Machine::on(self.plan.seed, self.disk.image().clone());
        let options = Options { count_lookups: false, ..self.options.clone() };
        let opened = machine.run(async {
            let pool = Pool::open(machine.rt(), machine.device(), self.shape.open_for_tenants());
            Filesystem::open(pool.await?, options).await
        });
        let fs = opened.expect("the power is on").expect("it opens");
        let used = use_it(&machine, &fs);
        let memory = fs.pool().memory().clone();
        let closed = machine.run(async {
            fs.close().await?;
            Ok::<(), FsError>(fs.pool().close().await?)
        });
        closed.expect("the power is on").expect("the filesystem is well");
        drop(fs);
        self.disk = machine.rest().into();
        check_nothing_charged(&memory);
        used
    }
}

/// Takes all space but so many blocks, in a file that no client touches.
async fn crowd(fs: &Arc<Filesystem>, left: u64) -> Result<(), FsError> {
    let (root, flags) = (&Caller::ROOT, OpenFlags::READ_WRITE);
    let name = shared_name(SHARED_DIRS);
    let (made, _) = fs.create(root, fs.root(), &name, 0o600, flags, true).await?;
    fs.release(made.node);
    let blocks = fs.pool().space().available().saturating_sub(left);
    let mode = FallocateMode::Allocate { keep_size: true };
    match fs.fallocate(made.node, 0, blocks.max(1) * BLOCK_BYTES as u64, mode).await {
        // More crowded than that it cannot be.
        Err(FsError::NoSpace(_)) => Ok(()),
        other => other,
    }
}

/// Limits small enough to be reached.
fn options(dice: &mut Dice, exact: bool) -> Options {
    let attach = dice.pick(&[0, 8 << 10, 64 << 10]);
    Options {
        writeback_interval: Duration::from_millis(dice.pick(&[5, 100, 5000])),
        dirty_bytes_max: dice.pick(&[128 << 10, 1 << 20, 64 << 20]),
        file_dirty_bytes_start: dice.pick(&[32 << 10, 256 << 10, 8 << 20]),
        // A record that is only in the log is copied, where other content is shared.
        attach_bytes_max: if exact { 0 } else { attach },
        inodes_max: dice.pick(&[4, 32, 65_536]),
        data_cache: DataCache::All,
        count_lookups: false,
        ..Options::default()
    }
}
