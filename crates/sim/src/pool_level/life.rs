//! The lives of a pool: switched on, recovered, verified, used, and ended in some way.

use std::sync::Arc;
use std::time::Duration;

use copyhold_device::sim::{Fault, FaultRates, Lasting, SimDisk, SimImage, Trigger};
use copyhold_format::label::Label;
use copyhold_pool::{OpenOptions, Pool, PoolError, map_use};
use copyhold_runtime::BoxFuture;
use copyhold_types::{NodePtr, Purpose, Run};

use super::client::Client;
use super::model::Shared;
use super::shape::Shape;
use super::verify;
use crate::damage;
use crate::dice::Dice;
use crate::growth::{self, grow_sometimes, label_now};
use crate::machine::Machine;
use crate::soundness::check_credits;
use crate::weather::Weather;
use crate::{Outcome, Plan};

const CLIENTS_MAX: u64 = 4;
const EIO: i32 = 5;
/// By then a pool is filled, something is deleted and written again, and all of it is flushed.
const GOES_ON_WITHIN: Duration = Duration::from_secs(120);

/// Lives through a whole history. Panics when the pool is not what it must be.
pub fn history(plan: &Plan) -> Outcome {
    let mut dice = Dice::new(plan.seed);
    let shape = Shape::by(&mut dice, plan);
    let mut history = History::begin(plan, shape, dice);
    history.crowd();
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
    dice: Dice,
    label: Label,
    disk: SimDisk,
    shared: Arc<Shared>,
    outcome: Outcome,
    /// The copy of nodes that may rot; the other stays good.
    weak_copy: usize,
    /// Blocks of the image that can be read only when this is over.
    unreadable: Vec<(u64, Lasting)>,
    growing: Dice,
    /// They are of the last txgs, and can be read once the pool is open.
    tail_is_hidden: bool,
}

impl History {
    fn begin(plan: &Plan, shape: Shape, mut dice: Dice) -> History {
        let machine = Machine::on(dice.number(), plan.blank(shape.blocks));
        let (rt, device) = (machine.rt(), machine.device());
        let label = machine.run(Pool::create(&rt, &device, &shape.create));
        let label = label.expect("nothing happens yet").expect("a pool is made");
        let image = machine.crash(dice.number());
        History {
            plan: *plan,
            weak_copy: dice.below(2) as usize,
            shape,
            dice,
            label,
            disk: image.into(),
            shared: Arc::default(),
            outcome: Outcome::default(),
            unreadable: Vec::new(),
            growing: growth::dice(plan),
            tail_is_hidden: false,
        }
    }

    /// Fills the pool with data that no client touches again, if that is its shape.
    fn crowd(&mut self) {
        if !self.shape.crowded {
            return;
        }
        let (machine, pool) = self.recover();
        let mut client = Client::new(0, &pool, &self.shared, self.dice.fork(), false);
        let left = 128 << self.dice.below(3);
        let crowded = machine.run(async {
            client.fill(left).await?;
            pool.close().await
        });
        crowded.expect("the power is on").expect("a new pool has room");
        self.shared.world.lock().sync_all();
        self.disk = machine.rest().into();
    }

    /// One life; its end is the next one's disk.
    fn life(&mut self) {
        let today = Weather::today(&mut self.dice);
        let weather = self.plan.weather.unwrap_or(today);
        let (machine, pool) = self.recover();
        self.plan.tell(|| format!("a life: {weather:?}, {:?}", pool.log_use()));
        weather.come_over(&machine, &mut self.dice, 27, &self.plan);
        let mut clients = self.clients(&pool, weather.shows());
        if self.plan.grows {
            let growth = grow_sometimes(pool.clone(), self.growing.fork(), weather.shows());
            clients.push(Box::pin(growth));
        }
        let done = machine.run_all(clients);
        self.shared.world.lock().know_durable(pool.durable_txg());
        self.disk = match done {
            Some(_) => self.end(weather, &machine, pool),
            None if weather.kills() => self.kill(&machine),
            None if weather == Weather::TailUnreadable => self.down(&machine),
            None => self.crash(&machine).into(),
        };
        self.outcome.note(machine.digest());
        match weather {
            Weather::Misread => self.misread(),
            Weather::TailUnreadable => self.hide_tail(),
            _ => {}
        }
    }

    fn clients(&mut self, pool: &Arc<Pool>, forgiving: bool) -> Vec<BoxFuture<'static, ()>> {
        let count = 1 + self.dice.below(CLIENTS_MAX);
        let operations = self.dice.magnitude(9) / count;
        (0..count)
            .map(|id| {
                let client = Client::new(id, pool, &self.shared, self.dice.fork(), forgiving);
                self.outcome.operations += operations;
                Box::pin(client.live(operations)) as BoxFuture<'static, ()>
            })
            .collect()
    }

    // -- coming up ----------------------------------------------------------

    /// Switches on until a recovery goes through, and verifies what it has found.
    fn recover(&mut self) -> (Machine, Arc<Pool>) {
        self.label = label_now(&self.plan, &self.label, self.disk.image());
        damage::check_kept_log(&self.label, self.disk.image());
        loop {
            let (disk, unreadable) = (self.disk.clone(), &mut self.unreadable);
            let machine = Machine::on_again(&mut self.dice, disk, unreadable, 3);
            let opened = Pool::open(machine.rt(), machine.device(), self.shape.open(false));
            match machine.run(opened) {
                Some(Ok(pool)) => {
                    machine.disk.disarm();
                    if std::mem::take(&mut self.tail_is_hidden) {
                        machine.disk.heal();
                    }
                    self.outcome.recoveries += 1;
                    self.verify(&machine, &pool);
                    return (machine, pool);
                }
                // A read error loses nothing; the next attempt can read.
                Some(Err(error @ (PoolError::Device(_) | PoolError::Unreadable { .. }))) => {
                    self.plan.tell(|| format!("not opened: {error}"));
                    if let PoolError::Unreadable { .. } = error {
                        self.read_so_far(&machine);
                    }
                    self.disk = machine.kill(self.dice.number());
                }
                Some(Err(error)) => panic!("the pool cannot be opened: {error}"),
                None => self.disk = self.down(&machine),
            }
        }
    }

    /// A reader is not refused for what cannot be read. Where later txgs were durable, nodes of the
    /// state before them may have been used again.
    fn read_so_far(&self, machine: &Machine) {
        let options = OpenOptions { read_only: true, ..self.shape.open(true) };
        machine.disk.disarm();
        let opened = machine.run(Pool::open(machine.rt(), machine.device(), options));
        match opened.expect("the power is on") {
            Ok(_) | Err(PoolError::Damaged { .. }) => {}
            Err(error) => panic!("not even for reading: {error}"),
        }
    }

    fn verify(&mut self, machine: &Machine, pool: &Arc<Pool>) {
        let mut world = self.shared.world.lock();
        let verified = machine.run(async {
            let n = verify::find_prefix(pool, &world, CLIENTS_MAX).await?;
            let state = world.state_at(n);
            verify::check_space(pool, &state).await?;
            Ok::<u64, PoolError>(n)
        });
        match verified {
            Some(Ok(n)) => {
                let (last, synced) = (world.last(), world.synced);
                self.plan.tell(|| format!("recovered {n} of {last}, {synced} synced"));
                world.settle(n);
            }
            Some(Err(error)) => panic!("after recovery: {error}"),
            None => panic!("the power failed where it should not"),
        }
        drop(world);
        let world = std::mem::take(&mut *self.shared.world.lock());
        self.shared = Arc::new(Shared::with(world));
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

    fn end(&mut self, weather: Weather, machine: &Machine, pool: Arc<Pool>) -> SimDisk {
        check_credits(&pool);
        machine.disk.disarm();
        let maps = map_use(&pool);
        self.outcome.whole_maps += maps.wholes;
        self.outcome.map_deltas += maps.deltas;
        match weather {
            Weather::Calm | Weather::HostFull => self.end_well(machine, &pool),
            Weather::Killed => self.kill(machine),
            Weather::TailUnreadable => self.down(machine),
            Weather::NodeRot => {
                self.rot_node(machine, &pool);
                self.end_well(machine, &pool)
            }
            Weather::PowerCutInSettling => self.cut_in_settling(machine, &pool).into(),
            Weather::LogRotTwice => self.rot_log_twice(machine, &pool).into(),
            Weather::TailRot => self.rot_tail(machine, &pool).into(),
            Weather::MapUnreadable => self.hide_map(machine).into(),
            Weather::ListUnreadable => self.hide_lists(machine, &pool),
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

    /// Everybody has finished: the pool is what they made of it, before and after it is closed.
    fn end_well(&mut self, machine: &Machine, pool: &Arc<Pool>) -> SimDisk {
        let mut world = self.shared.world.lock();
        let closes = self.dice.one_in(2);
        let ended = machine.run(async {
            verify::is_now(pool, &world).await?;
            verify::check_space(pool, &world.now).await?;
            if closes { pool.close().await } else { Ok(()) }
        });
        ended.expect("the power is on").expect("the pool is well");
        if closes {
            world.sync_all();
        }
        drop(world);
        if self.dice.one_in(2) { machine.rest().into() } else { self.down(machine) }
    }

    fn cut_in_settling(&mut self, machine: &Machine, pool: &Arc<Pool>) -> SimImage {
        let nth = self.dice.magnitude(4);
        let write = Trigger::Write { nth, why: Some(self.dice.pick(&Purpose::OF_ENGINE)) };
        let trigger = self.dice.pick(&[write, Trigger::Flush { nth }]);
        self.plan.tell(|| format!("settling, until {trigger:?}"));
        machine.disk.arm(trigger, Fault::PowerOff);
        if let Some(settled) = machine.run(pool.flush_all()) {
            settled.expect("the pool is well");
        }
        self.crash(machine)
    }

    /// Leaves the pool alone until it is idle, everything acknowledged and marked so.
    fn come_to_rest(&mut self, machine: &Machine, pool: &Arc<Pool>) -> SimImage {
        let mut client = Client::new(0, pool, &self.shared, self.dice.fork(), false);
        let resting = machine.run(async {
            client.transact().await?;
            pool.commit(pool.open_txg()).await?;
            machine.rt().sleep(Duration::from_secs(2)).await;
            Ok::<(), PoolError>(())
        });
        resting.expect("the power is on").expect("the pool is well");
        self.shared.world.lock().sync_all();
        machine.rest()
    }

    // -- damage -------------------------------------------------------------

    fn rot_node(&mut self, machine: &Machine, pool: &Arc<Pool>) {
        let nodes = machine.run(verify::settled_nodes(pool)).expect("the power is on");
        for ptr in nodes.expect("the pool is well") {
            if let Some(addr) = ptr.copies[self.weak_copy].filter(|_| self.dice.one_in(3)) {
                machine.disk.rot(addr.block() + self.dice.below(ptr.blocks.into()));
            }
        }
    }

    /// Both copies of a block of the log rot: the pool must say so, or have no use for it. Then the
    /// damage is undone, and nothing may have been lost.
    fn rot_log_twice(&mut self, machine: &Machine, pool: &Arc<Pool>) -> SimImage {
        let whole = self.come_to_rest(machine, pool);
        let at = damage::log_block(&mut self.dice, &self.label, &whole);
        let mut image = whole.clone();
        for start in self.label.log {
            damage::rot(&mut self.dice, &mut image, start + at);
        }
        let machine = Machine::on(self.dice.number(), image);
        let opened = Pool::open(machine.rt(), machine.device(), self.shape.open(false));
        match machine.run(opened).expect("the power is on") {
            Err(PoolError::Log(_)) => {
                let opened = Pool::open(machine.rt(), machine.device(), self.shape.open(true));
                let opened = machine.run(opened).expect("the power is on");
                let excused = matches!(opened, Ok(_) | Err(PoolError::Damaged { .. }));
                assert!(excused, "not even for reading: {:?}", opened.err());
                whole
            }
            Err(error) => panic!("the pool cannot be opened: {error}"),
            Ok(pool) => {
                self.verify(&machine, &pool);
                machine.rest()
            }
        }
    }

    /// Data that the last batch brought rots (rule R14).
    fn rot_tail(&mut self, machine: &Machine, pool: &Arc<Pool>) -> SimImage {
        let before = self.shared.world.lock().last();
        let mut image = self.come_to_rest(machine, pool);
        let runs = self.shared.world.lock().extents_since(before);
        self.rot_one_of(&mut image, &runs);
        image
    }

    fn rot_one_of(&mut self, image: &mut SimImage, runs: &[Run]) -> Option<(u64, usize)> {
        if runs.is_empty() {
            return None;
        }
        let run = self.dice.pick(runs);
        let block = run.addr.block() + self.dice.below(run.blocks.into());
        self.shared.world.lock().spoiled.insert(block);
        Some(damage::rot(&mut self.dice, image, block))
    }

    /// A recovery reads some data wrongly and cuts what was not acknowledged; after the next crash
    /// the data can be read again (rule R13).
    fn misread(&mut self) {
        let world = self.shared.world.lock();
        let runs = world.extents_of_doubt();
        drop(world);
        let mut image = self.disk.image().clone();
        let Some((block, byte)) = self.rot_one_of(&mut image, &runs) else { return };
        self.plan.tell(|| format!("block {block} is misread"));
        self.disk = image.into();
        let (machine, pool) = self.recover();
        drop(pool);
        let mut image = self.crash(&machine);
        image.corrupt(block, |bytes| bytes[byte] ^= 0x40);
        self.disk = image.into();
        self.shared.world.lock().spoiled.remove(&block);
    }

    /// The next life cannot read the map of a metaslab; in a pool of large metaslabs, which would
    /// have too little space, only until it tries again.
    fn hide_map(&mut self, machine: &Machine) -> SimImage {
        let image = self.crash(machine);
        let maps = self.maps_of(&image);
        let many = self.label.metaslab_blocks == 256 && !self.shape.crowded;
        let lasting = if many { Lasting::Forever } else { Lasting::Once };
        if !maps.is_empty() {
            let map = self.dice.pick(&maps);
            self.plan.tell(|| format!("{map:?} cannot be read, {lasting:?}"));
            self.unreadable = map.runs().map(|run| (run.addr.block(), lasting)).collect();
        }
        image
    }

    /// The maps that a recovery finds. Where later ones lay, it may put nodes.
    fn maps_of(&self, image: &SimImage) -> Vec<NodePtr> {
        let machine = Machine::on(self.plan.seed, image.clone());
        let options = OpenOptions { read_only: true, ..self.shape.open(true) };
        let maps = machine.run(async {
            let pool = Pool::open(machine.rt(), machine.device(), options).await?;
            verify::maps(&pool).await
        });
        maps.expect("the power is on").expect("the pool is well")
    }

    /// Lists of fragmented nodes cannot be read while these may be replaced: the listed blocks are
    /// freed later.
    fn hide_lists(&mut self, machine: &Machine, pool: &Arc<Pool>) -> SimDisk {
        let lists = machine.run(verify::lists(pool)).expect("the power is on");
        let hidden: Vec<_> = lists.into_iter().filter(|_| self.dice.one_in(2)).collect();
        self.plan.tell(|| format!("{} lists cannot be read", hidden.len()));
        for run in hidden.iter().flat_map(NodePtr::runs) {
            machine.disk.break_block(run.addr.block(), EIO, Lasting::Forever);
        }
        drop(machine.run(pool.flush_all()).expect("the power is on"));
        machine.disk.heal();
        machine.run(pool.flush_all()).expect("the power is on").expect("the pool is well");
        self.end_well(machine, pool)
    }

    /// Data of the last two txgs cannot be read for a while. The result is the batch with data that
    /// may be torn, or no batch, if it was not acknowledged; or one more attempt.
    fn hide_tail(&mut self) {
        let runs = self.shared.world.lock().extents_of_last(2);
        if runs.is_empty() {
            return;
        }
        for _ in 0..1 + self.dice.below(3) {
            let run = self.dice.pick(&runs);
            let block = run.addr.block() + self.dice.below(run.blocks.into());
            self.shared.world.lock().spoiled.insert(block);
            let lasting = self.dice.pick(&[Lasting::Once, Lasting::UntilWritten]);
            self.unreadable.push((block, lasting));
            self.tail_is_hidden = true;
        }
    }

    /// The end: whatever happened before, one more recovery, without any faults.
    fn last_look(&mut self) {
        let (machine, pool) = self.recover();
        machine.disk.set_rates(FaultRates::default());
        let world = self.shared.world.lock();
        let looked = machine.run(verify::is_now(&pool, &world));
        looked.expect("the power is on").expect("the pool is well");
        drop(world);
        self.outcome.grown += u64::from(pool.label().blocks > self.shape.blocks);
        self.goes_on(&machine, &pool);
        self.outcome.note(machine.digest());
    }

    /// Whatever the history has made of the pool, a deletion succeeds, and a write of what it
    /// freed, and neither takes long (R21).
    fn goes_on(&mut self, machine: &Machine, pool: &Arc<Pool>) {
        if !pool.space_map().set_aside().is_empty() {
            return; // What is freed there is lost to all until its map can be read.
        }
        let mut client = Client::new(0, pool, &self.shared, Dice::new(self.plan.seed), false);
        let since = machine.rt.now();
        let done = machine.run(async {
            let refilled = client.delete_and_write().await?;
            pool.flush_all().await.map(|()| refilled)
        });
        let done = done.expect("the power is on");
        let refilled =
            done.unwrap_or_else(|error| panic!("R21: deleting, writing and flushing: {error}"));
        self.outcome.reached += u64::from(refilled);
        let took = Duration::from_nanos(machine.rt.now() - since);
        assert!(took < GOES_ON_WITHIN, "R21: a deletion and a write took {took:?}");
    }
}
