//! Writers follow write-back before memory is full.
//!
//! Problem.  Memory takes writes faster than the device, until the limit of dirty data is used up.
//!           From then on all writers wait for the same batch, and fill its room at once: a write
//!           takes no time or a tenth of a second, and a second while metadata is being flushed.
//! Idea.     (Linux, `balance_dirty_pages`.) Above half of its part of the limit, a write waits for
//!           the time in which as many blocks leave memory as it has added, multiplied by a factor
//!           that grows with the fill: nothing at half, once at three quarters, ever more towards
//!           the end. So the fill stays near three quarters, and the last quarter takes the writes
//!           while the device is busy with other things.
//! Rate.     Data leaves memory in batches, so the rate is an average: windows of a fifth of a
//!           second or longer, each with its share of two seconds. The first window is shorter:
//!           until then no write waits here.
//! Queue.    The writers of a subvolume have one clock. The wait of each write begins when the
//!           waits of those before it have ended.
//!
//! DIRTYPACE-D1  A write waits only above half of its part, while half of the limit is used, for
//!               `WAIT_MAX` at most, and with no lock that suspends a task. A write of bytes that
//!               a cache of the kernel took earlier does not wait. Without parts ([`Arm::Off`])
//!               no write does.
//! DIRTYPACE-D2  Nothing is kept of a subvolume without dirty data.
//! DIRTYPACE-D3  Only time in which its writes would wait counts for the rate of a subvolume: else
//!               the rate is that of its writers, and not of the device.
//! DIRTYPACE-D4  A write waits behind its change, for the blocks that it has added to memory and
//!               leaves there: one over blocks that are in memory already waits for nothing, and
//!               neither does one that is durable when it returns (the file's flag SYNC). A copy of
//!               many steps ends behind the first one that is to wait, with a short count.
//! DIRTYPACE-D5  A front end gets the wait ([`Paced`]), and ends before it all that other requests
//!               of the tenant wait for in the daemon. Other callers wait in the call.
//!
//! [`Arm::Off`]: copyhold_memory::Arm::Off

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use copyhold_runtime::{BoxFuture, Rt};
use copyhold_sync::{Mutex, of};
use copyhold_types::{Nanos, SubvolId};

const SECOND: f64 = 1e9;
/// The least time over which a rate is measured, and the time over which rates are averaged. After
/// a pause a window begins anew.
const WINDOW: Nanos = 200_000_000;
const FIRST_WINDOW: Nanos = 50_000_000;
const AVERAGE: Nanos = 2_000_000_000;
const PAUSE: Nanos = 1_000_000_000;
/// Waits shorter than this add up.
const WAIT_MIN: Nanos = 1_000_000;
const WAIT_MAX: Nanos = 200_000_000;

/// The result of a request, and its wait for write-back (DIRTYPACE-D5).
#[must_use = "the request waits for write-back"]
pub struct Paced<T> {
    result: T,
    wait: Option<BoxFuture<'static, ()>>,
}

impl<T> Paced<T> {
    pub(crate) fn new(result: T, wait: Option<BoxFuture<'static, ()>>) -> Paced<T> {
        Paced { result, wait }
    }

    /// Whether there is a wait.
    pub fn waits(&self) -> bool {
        self.wait.is_some()
    }

    /// Waits, at most a fifth of a second, and returns the result.
    pub async fn wait(self) -> T {
        if let Some(wait) = self.wait {
            wait.await;
        }
        self.result
    }
}

pub(crate) struct DirtyPace {
    rt: Rt,
    by_subvol: Mutex<BTreeMap<SubvolId, Pace>, of::DirtyPace>,
    /// Entries of the map.
    entries: AtomicUsize,
}

/// Of one subvolume.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    /// Blocks that leave memory in a second; 0: unknown.
    rate: f64,
    /// The beginning of the window, and the blocks since.
    since: Option<Nanos>,
    blocks: u64,
    /// The last time at which blocks left memory.
    noted: Nanos,
    /// The end of all waits so far.
    end: Nanos,
}

impl Pace {
    /// Blocks have left memory. `is_busy`: writes wait.
    fn note(&mut self, now: Nanos, blocks: u64, is_busy: bool) {
        let is_long = now.saturating_sub(std::mem::replace(&mut self.noted, now)) > PAUSE;
        let since = match self.since {
            Some(since) if is_busy && !is_long => since,
            // DIRTYPACE-D3.
            _ => {
                (self.since, self.blocks) = (is_busy.then_some(now), 0);
                return;
            }
        };
        self.blocks += blocks;
        let window = now - since;
        if window < if self.rate == 0.0 { FIRST_WINDOW } else { WINDOW } {
            return;
        }
        let rate = self.blocks as f64 * SECOND / window as f64;
        let share = if self.rate == 0.0 { 1.0 } else { (window as f64 / AVERAGE as f64).min(0.5) };
        self.rate += (rate - self.rate) * share;
        (self.since, self.blocks) = (Some(now), 0);
    }

    /// The wait of a write of so many blocks.
    fn wait(&mut self, now: Nanos, blocks: f64, fill: f64) -> Nanos {
        // At the end of its part a writer waits for room (`dirty_room`).
        if self.rate == 0.0 || !(0.5..1.0).contains(&fill) {
            return 0;
        }
        // From half of the part to all of it: 0 to ever more, and 1 in the middle.
        let factor = (fill - 0.5) / (1.0 - fill).max(0.01);
        let takes = (blocks * factor * SECOND / self.rate).min(WAIT_MAX as f64) as Nanos;
        self.end = (self.end.max(now) + takes).min(now + WAIT_MAX);
        let wait = self.end - now;
        if wait < WAIT_MIN { 0 } else { wait }
    }
}

impl DirtyPace {
    pub(crate) fn new(rt: Rt) -> DirtyPace {
        DirtyPace { rt, by_subvol: Mutex::new(BTreeMap::new()), entries: AtomicUsize::new(0) }
    }

    /// Blocks of a subvolume have left memory. `is_busy`: its writes wait. `is_clean`: it has no
    /// dirty data. Without entries, and while writes do not wait, this is one load.
    pub(crate) fn note_written(
        &self,
        subvol: SubvolId,
        blocks: usize,
        is_busy: bool,
        is_clean: impl Fn() -> bool,
    ) {
        if !is_busy && self.entries.load(Relaxed) == 0 {
            return;
        }
        let mut paces = self.by_subvol.lock();
        // Asked under the lock: the last blocks of all find it clean.
        if is_clean() {
            paces.remove(&subvol); // DIRTYPACE-D2
        } else if is_busy || paces.contains_key(&subvol) {
            paces.entry(subvol).or_default().note(self.rt.now(), blocks as u64, is_busy);
        }
        self.entries.store(paces.len(), Relaxed);
    }

    /// The wait of a write that has added blocks, if it is worth a timer. It begins now.
    pub(crate) fn wait(
        &self,
        subvol: SubvolId,
        blocks: f64,
        fill: f64,
    ) -> Option<BoxFuture<'static, ()>> {
        let wait = self.by_subvol.lock().get_mut(&subvol)?.wait(self.rt.now(), blocks, fill);
        (wait > 0).then(|| self.rt.sleep(Duration::from_nanos(wait)))
    }
}

#[cfg(test)]
mod tests {
    use copyhold_runtime::{Runtime, SeededRuntime};
    use proptest::prelude::*;

    use super::*;

    const MS: Nanos = 1_000_000;

    /// 1,000 blocks a second.
    fn measured() -> Pace {
        let mut pace = Pace::default();
        (0..10).for_each(|n| pace.note(n * 250 * MS, 250, true));
        pace
    }

    #[test]
    fn a_rate_is_that_of_the_time_in_which_half_of_the_limit_is_used() {
        let mut pace = measured();
        assert_eq!(pace.rate, 1000.0);
        pace.note(2300 * MS, 1, false);
        pace.note(60_000 * MS, 5000, true);
        assert_eq!(pace.rate, 1000.0, "DIRTYPACE-D3");
        pace.note(90_000 * MS, 5000, true);
        assert_eq!(pace.rate, 1000.0, "its window is over");
        // A tenth of the time of an average, at 2,000 a second.
        pace.note(90_200 * MS, 400, true);
        assert_eq!(pace.rate, 1100.0);
    }

    #[test]
    fn a_write_waits_for_the_time_of_its_blocks_behind_the_writes_before_it() {
        let mut pace = measured();
        let now = 10_000 * MS;
        assert_eq!(Pace::default().wait(now, 9.0, 0.9), 0, "the rate is unknown");
        assert_eq!(pace.wait(now, 9.0, 0.5), 0, "DIRTYPACE-D1");
        assert_eq!([1, 2, 3].map(|_| pace.wait(now, 5.0, 0.75)), [5 * MS, 10 * MS, 15 * MS]);
        assert_eq!(pace.wait(now + 15 * MS, 5.0, 0.875), 15 * MS, "nearer to the end");
        assert_eq!(pace.wait(now, 1000.0, 0.99), WAIT_MAX, "DIRTYPACE-D1");
        assert_eq!(pace.wait(now, 1000.0, 1.0), 0, "it waits for room");
    }

    #[test]
    fn waits_that_are_too_short_for_a_timer_add_up() {
        let mut pace = measured();
        let waits = (0..5).map(|_| pace.wait(0, 1.0, 0.6)).filter(|&wait| wait > 0);
        assert_eq!(waits.count(), 1, "of a quarter of a block each");
    }

    /// DIRTYPACE-D2.
    #[test]
    fn nothing_is_kept_of_a_subvolume_without_dirty_data() {
        let rt = SeededRuntime::new(1);
        let pace = DirtyPace::new(rt.clone());
        let subvol = SubvolId(7);
        rt.block_on(async {
            for _ in 0..3 {
                pace.note_written(subvol, 100, true, || false);
                rt.sleep(Duration::from_millis(100)).await;
            }
            assert!(pace.wait(subvol, 100.0, 0.9).is_some());
            assert!(pace.wait(SubvolId(8), 100.0, 0.9).is_none());
            pace.note_written(SubvolId(8), 1, false, || false);
            pace.note_written(subvol, 1, false, || true);
            assert_eq!((pace.by_subvol.lock().len(), pace.entries.load(Relaxed)), (0, 0));
        });
    }

    proptest! {
        /// A device writes batches, writers write as fast as they may: memory neither fills nor
        /// becomes empty, whatever the rate, and a pause of the device fits into the last quarter.
        #[test]
        fn memory_stays_near_three_quarters(
            rate in 500_u64..20_000,
            writers in 1_usize..64,
            blocks in 1_u64..16,
        ) {
            let writers = writers.min((rate / blocks / 20) as usize + 1);
            // Memory for two seconds, and batches of a 32nd of them.
            let (limit, batch) = (2 * rate, rate / 16);
            let (mut pace, mut dirty) = (Pace::default(), limit / 2);
            let mut next = vec![0; writers];
            let (mut ends, second) = (batch * 1_000_000_000 / rate, 1_000_000_000);
            while ends < 15 * second {
                // The next event: a write, or the end of a batch.
                let (writer, at) =
                    next.iter().copied().enumerate().min_by_key(|next| next.1).expect("one");
                if at < ends {
                    let wait = match dirty + blocks > limit {
                        true => 10 * MS,
                        false => {
                            dirty += blocks;
                            pace.wait(at, blocks as f64, dirty as f64 / limit as f64)
                        }
                    };
                    next[writer] = at + wait.max(blocks * 1000);
                    continue;
                }
                dirty -= batch.min(dirty);
                pace.note(ends, batch, dirty > limit / 2);
                if ends > 8 * second {
                    let fill = dirty as f64 / limit as f64;
                    prop_assert!((0.45..0.9).contains(&fill), "{fill}, {pace:?}");
                }
                ends += batch * second / rate;
            }
        }
    }
}
