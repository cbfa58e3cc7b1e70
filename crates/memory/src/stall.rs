//! Requests that wait because memory is short, on the accounts of their groups.
//!
//! A wait counts for its group and for each group above: `some` of a group is the time in which a
//! request of it, or of any group that it holds, waits. A wait takes a short lock for each of these
//! at its begin and its end.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use copyhold_types::Nanos;

use crate::events::{Counts, Event, Stat};
use crate::history::Record;
use crate::owner::MemoryOwner;
use crate::pressure::Pressure;

/// A wait, until this is dropped.
#[must_use = "the wait ends when this is dropped"]
pub struct Stall<C: Fn() -> Nanos> {
    /// The group of the request, then those above it, as they were when the wait began.
    groups: Vec<MemoryOwner>,
    began: Nanos,
    clock: C,
}

/// Runs `wait`, and counts the time of it as a wait of `owner`, unless it ends at once: then no
/// lock is taken.
pub async fn stalled<F: Future>(
    owner: &MemoryOwner,
    clock: impl Fn() -> Nanos,
    wait: F,
) -> F::Output {
    let mut wait = pin!(wait);
    let at_once = poll_fn(|cx| match wait.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending => Poll::Ready(None),
    });
    match at_once.await {
        Some(done) => done,
        None => {
            let _stall = owner.stall(clock);
            wait.await
        }
    }
}

impl MemoryOwner {
    /// A request of this owner waits from now on; `clock` gives the time of the runtime.
    pub fn stall<C: Fn() -> Nanos>(&self, clock: C) -> Stall<C> {
        let groups: Vec<_> = std::iter::once(self.clone()).chain(self.above()).collect();
        let began = clock();
        groups.iter().for_each(|group| group.history().record().stalls.lock().begin(began));
        Stall { groups, began, clock }
    }

    /// The pressure of the group with all that it holds.
    pub fn pressure(&self, now: Nanos) -> Pressure {
        let read = |record: &Record| record.stalls.lock().read(now);
        self.history().so_far().map_or(Pressure::default(), read)
    }

    /// An occasion of this owner.
    pub fn count(&self, event: Event) {
        self.history().record().counts.event(event);
    }

    pub fn add_stat(&self, stat: Stat, more: u64) {
        self.history().record().counts.stat(stat, more);
    }

    /// Its own counters, with those of groups that it held until they ended.
    pub fn counts(&self) -> Counts {
        self.history().so_far().map_or(Counts::default(), |record| record.counts.read())
    }
}

impl<C: Fn() -> Nanos> Drop for Stall<C> {
    fn drop(&mut self) {
        let now = (self.clock)();
        self.groups.iter().for_each(|group| group.history().record().stalls.lock().end(now));
        let waited = Duration::from_nanos(now.saturating_sub(self.began));
        self.groups[0].add_stat(Stat::Throttle, waited.as_micros() as u64);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::task::{Context, Waker};

    use super::*;
    use crate::Memory;

    const SECOND: Nanos = 1_000_000_000;

    #[test]
    fn a_wait_counts_for_all_groups_above() {
        let memory = Memory::default();
        let [top, middle, low, other] = std::array::from_fn(|_| memory.add_owner());
        middle.set_holder(Some(&top));
        low.set_holder(Some(&middle));
        let time = Cell::new(SECOND);
        let total = |owner: &MemoryOwner| owner.pressure(time.get()).total.as_secs();
        let first = low.stall(|| time.get());
        time.set(2 * SECOND);
        let second = middle.stall(|| time.get());
        time.set(4 * SECOND);
        drop(first);
        time.set(5 * SECOND);
        drop(second);
        time.set(9 * SECOND);
        assert_eq!([&top, &middle, &low, &other].map(total), [4, 4, 3, 0]);
        let throttled = [&top, &middle, &low].map(|owner| owner.counts().stat(Stat::Throttle));
        assert_eq!(throttled, [0, 3_000_000, 3_000_000], "each wait by itself, at its own group");
    }

    #[test]
    fn a_group_that_moves_during_a_wait_ends_it_where_it_began() {
        let memory = Memory::default();
        let [from, to, moved] = std::array::from_fn(|_| memory.add_owner());
        moved.set_holder(Some(&from));
        let time = Cell::new(0);
        let wait = moved.stall(|| time.get());
        moved.set_holder(Some(&to));
        time.set(SECOND);
        drop(wait);
        time.set(9 * SECOND);
        let totals = [&from, &to].map(|owner| owner.pressure(time.get()).total.as_secs());
        assert_eq!(totals, [1, 0]);
    }

    #[test]
    fn a_future_that_waits_is_counted_until_it_ends_or_is_dropped() {
        let memory = Memory::default();
        let (owner, time) = (memory.add_owner(), Cell::new(SECOND));
        let total = || owner.pressure(time.get()).total.as_secs();
        let mut cx = Context::from_waker(Waker::noop());
        let ready = pin!(stalled(&owner, || time.get(), std::future::ready(7)));
        assert_eq!(ready.poll(&mut cx), Poll::Ready(7));
        let open = Cell::new(false);
        let gate = || poll_fn(|_| if open.get() { Poll::Ready(8) } else { Poll::Pending });
        let mut first = Box::pin(stalled(&owner, || time.get(), gate()));
        let mut second = Box::pin(stalled(&owner, || time.get(), gate()));
        assert!(first.as_mut().poll(&mut cx).is_pending());
        time.set(3 * SECOND);
        assert_eq!(total(), 2);
        open.set(true);
        assert_eq!(first.as_mut().poll(&mut cx), Poll::Ready(8));
        time.set(5 * SECOND);
        assert_eq!(total(), 2, "it has ended");
        open.set(false);
        assert!(second.as_mut().poll(&mut cx).is_pending());
        time.set(6 * SECOND);
        drop(second);
        time.set(9 * SECOND);
        assert_eq!(total(), 3, "a request that is cancelled waits no longer");
        assert_eq!(owner.counts().stat(Stat::Throttle), 3_000_000);
    }

    #[test]
    fn a_wait_in_a_circle_of_holders_begins() {
        let memory = Memory::default();
        let [one, two] = std::array::from_fn(|_| memory.add_owner());
        one.set_holder(Some(&two));
        two.set_holder(Some(&one));
        drop(one.stall(|| SECOND));
        assert_eq!(one.pressure(SECOND).total, Duration::ZERO);
    }
}
