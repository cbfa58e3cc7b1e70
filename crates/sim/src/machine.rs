//! A machine with one disk, whose power can fail.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_lock::Semaphore;
use copyhold_device::pi::{Emulated, Format, Header};
use copyhold_device::sim::{Fault, Lasting, SimConfig, SimDevice, SimDisk, SimImage, Trigger};
use copyhold_device::{Device, DynDevice, OpenMode};
use copyhold_runtime::{BoxFuture, Rt, Runtime, SeededRuntime};
use copyhold_types::DeviceId;
use futures_util::future::{Either, select};
use futures_util::pin_mut;

use crate::dice::Dice;

const EIO: i32 = 5;

/// Every operation of a history is shorter; a longer one waits for an event that never comes.
const PATIENCE: Duration = Duration::from_secs(3600);

/// The greatest number of turns of tasks. An operation with more loops for ever, or repeats a step
/// too often while little time passes.
const TURNS: u64 = 1_000_000;

/// From power on to power off.
pub struct Machine {
    pub rt: Arc<SeededRuntime>,
    pub disk: Arc<SimDevice>,
    /// With protection information, on the disk; without one the disk is the device.
    namespace: Option<Arc<Emulated>>,
}

/// The image of a disk that gives a pool so many blocks: an empty one, or a namespace.
pub(crate) fn blank(blocks: u64, protection: Option<Format>) -> SimImage {
    let Some(format) = protection else { return SimImage::empty(blocks) };
    let machine = Machine::on(0, SimImage::empty(Emulated::blocks_for(format, blocks)));
    let made = machine.run(Emulated::create(machine.rt(), machine.device(), format));
    made.expect("the power is on").expect("a namespace is made");
    machine.rest()
}

/// The namespace that a program would find. Without one the disk has no request for it.
fn namespace_on(rt: &Arc<SeededRuntime>, disk: &Arc<SimDevice>) -> Option<Arc<Emulated>> {
    let last = disk.geometry().blocks - 1;
    Header::parse(&disk.read_block_now(last))?.ok()?;
    let found = Emulated::find(rt.clone(), disk.clone(), OpenMode::ReadWrite);
    rt.block_on(found).expect("the headers are good")
}

/// Changes both halves of a block of a namespace, as the drive sees them.
pub fn damage(
    disk: &SimDevice,
    namespace: &Emulated,
    block: u64,
    data: impl FnOnce(&mut [u8]),
    metadata: impl FnOnce(&mut [u8]),
) {
    disk.corrupt(block, |bytes| data(bytes));
    let (entries, range) = namespace.place_of_metadata(block);
    disk.corrupt(entries, |bytes| {
        let entry = &mut bytes[range];
        entry.iter_mut().for_each(|byte| *byte = !*byte);
        metadata(entry);
        entry.iter_mut().for_each(|byte| *byte = !*byte);
    });
}

impl Machine {
    /// Switches on a machine with a disk; that of a machine whose process was killed has a cache.
    pub fn on(seed: u64, disk: impl Into<SimDisk>) -> Machine {
        let rt = SeededRuntime::new(seed);
        let mut config = SimConfig { one_slow_in: 4 << (seed % 4), ..SimConfig::new(seed) };
        if seed >> 8 & 3 == 0 {
            // So slow that what is being read may be freed, and used again, meanwhile.
            config.read_latency.end *= 20;
        }
        let disk = SimDevice::from_disk(rt.clone() as Rt, DeviceId(0), disk.into(), config);
        let namespace = namespace_on(&rt, &disk);
        Machine { rt, disk, namespace }
    }

    /// Switches on a machine that is to recover. Some blocks of its disk cannot be read; its power
    /// may fail again, after fewer than `2^bits` writes: mostly, where the cache holds something.
    pub(crate) fn on_again(
        dice: &mut Dice,
        disk: SimDisk,
        unreadable: &mut Vec<(u64, Lasting)>,
        bits: u64,
    ) -> Machine {
        let one_in = if disk.is_flushed() { 4 } else { 2 };
        let machine = Machine::on(dice.number(), disk);
        for (block, lasting) in unreadable.drain(..) {
            machine.disk.break_block(block, EIO, lasting);
        }
        if dice.one_in(one_in) {
            let nth = dice.magnitude(bits);
            let write = Trigger::Write { nth, why: None };
            let trigger = dice.pick(&[write, Trigger::Flush { nth: nth / 4 }]);
            machine.disk.arm(trigger, Fault::PowerOff);
        }
        machine
    }

    pub fn rt(&self) -> Rt {
        self.rt.clone() as Rt
    }

    pub fn device(&self) -> DynDevice {
        match &self.namespace {
            Some(namespace) => namespace.clone(),
            None => self.disk.clone(),
        }
    }

    pub fn namespace(&self) -> Option<&Arc<Emulated>> {
        self.namespace.as_ref()
    }

    /// See [`damage`].
    ///
    /// # Panics
    /// The disk has no namespace.
    pub fn damage(
        &self,
        block: u64,
        data: impl FnOnce(&mut [u8]),
        metadata: impl FnOnce(&mut [u8]),
    ) {
        let namespace = self.namespace.as_ref().expect("the disk has a namespace");
        damage(&self.disk, namespace, block, data, metadata);
    }

    /// Runs until `future` is done; nothing, if the power failed before.
    pub fn run<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let done = self.rt.block_on_within(TURNS, async {
            let off = select(self.disk.until_off(), self.rt.sleep(PATIENCE));
            pin_mut!(future);
            match select(future, off).await {
                // Another task may have lost the power in this very turn.
                Either::Left((done, _)) => (!self.disk.is_off()).then_some(done),
                Either::Right((Either::Left(_), _)) => None,
                Either::Right((Either::Right(_), _)) => {
                    panic!("stuck: not done after {} s", PATIENCE.as_secs())
                }
            }
        });
        done.unwrap_or_else(|| panic!("stuck: not done after {TURNS} turns"))
    }

    /// Runs all tasks, side by side, until each is done; nothing, if the power failed before.
    pub fn run_all(&self, tasks: Vec<BoxFuture<'static, ()>>) -> Option<()> {
        let done = Arc::new(Semaphore::new(0));
        let count = tasks.len();
        for task in tasks {
            let done = done.clone();
            self.rt.spawn(Box::pin(async move {
                task.await;
                done.add_permits(1);
            }));
        }
        self.run(async {
            for _ in 0..count {
                done.acquire().await.forget();
            }
        })
    }

    /// Switches the machine off, now.
    pub fn crash(&self, seed: u64) -> SimImage {
        self.disk.power_off();
        self.rt.drop_tasks();
        self.disk.crash(seed)
    }

    /// Kills what runs on the machine; the disk keeps its cache.
    pub fn kill(&self, seed: u64) -> SimDisk {
        self.disk.power_off();
        self.rt.drop_tasks();
        self.disk.kill(seed)
    }

    /// Stops the machine when all that it wrote has come to rest, flushed or not; the cache is
    /// written out.
    pub fn rest(&self) -> SimImage {
        self.disk.power_off();
        self.rt.drop_tasks();
        self.disk.image()
    }

    /// A number for all that happened: the same for the same history.
    pub fn digest(&self) -> u64 {
        self.disk.digest().rotate_left(17) ^ self.rt.history()
    }

    /// Lets the power fail in a while, whatever happens then.
    pub fn fail_power_in(&self, nanos: u64) {
        let (disk, sleep) = (self.disk.clone(), self.rt.sleep(Duration::from_nanos(nanos)));
        self.rt.spawn(Box::pin(async move {
            sleep.await;
            disk.power_off();
        }));
    }

    /// After a while the host's disk has room for so many blocks only; three seconds later for all.
    /// `copies`: the host copies on write, so nothing at all can be written without room.
    pub fn fill_host(&self, nanos: u64, blocks: u64, copies: bool) {
        self.disk.set_host_copies(copies);
        let (disk, rt) = (self.disk.clone(), self.rt());
        self.rt.spawn(Box::pin(async move {
            rt.sleep(Duration::from_nanos(nanos)).await;
            disk.set_host_free(Some(blocks));
            rt.sleep(Duration::from_secs(3)).await;
            disk.set_host_free(None);
        }));
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.rt.drop_tasks();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another task's write may be the one at which the power fails, while this one ends.
    #[test]
    fn what_ends_in_the_turn_in_which_the_power_fails_is_not_done() {
        let machine = Machine::on(1, SimImage::empty(16));
        assert_eq!(machine.run(async { machine.disk.power_off() }), None);
    }
}
