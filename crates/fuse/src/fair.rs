//! A queue of requests that are served in turn, by tenant.
//!
//! Problem.  In the order of arrival, a request waits for all that came before it. With a thousand
//!           requests of one tenant in the queue, a look-up of another waits for all their answers.
//! Idea.     Each tenant has a *line*. The head of a line has a *start*: the time at which a server
//!           of all tenants at once, each with its part by weight, would begin the request. The
//!           head with the earliest start leaves first. A request that finds its line empty starts
//!           now; the next one, when its tenant has paid for this one: its work by the weight.
//! In core.  The lines, and those that were emptied while their tenant has still to pay.
//!
//! FAIR-F1  Requests of one tenant leave in the order in which they came.
//! FAIR-F2  While two tenants have requests here, the work of those that left, divided by the
//!          weight, differs by no more than that of the largest request of each.
//! FAIR-F3  A request that finds its line empty, of a tenant that has paid, waits for one request
//!          of each other tenant at most, whatever their lines and weights.
//!
//! A change costs a search in two trees of as many tenants as have requests here, or have to pay.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The tenant of a request, and its part of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    pub tenant: u64,
    /// 1 to 10,000; 100 is usual.
    pub weight: u32,
}

impl Default for Share {
    fn default() -> Share {
        Share { tenant: 0, weight: 100 }
    }
}

/// The largest weight: the least work of a request of one unit is above zero.
const WEIGHT_MAX: u64 = 10_000;
/// Emptied lines that are kept beside the others before those that are paid for are removed: so
/// many at least, and as many as the last removal has left.
const EMPTIED: usize = 64;

/// `T`: a request.
#[derive(Debug)]
pub(crate) struct FairQueue<T> {
    lines: BTreeMap<u64, Line<T>>,
    /// The start of each line with a head, and its tenant.
    heads: BTreeSet<(u64, u64)>,
    /// The start of the request that left last.
    now: u64,
    /// Lines that the last removal of emptied ones has left.
    left: usize,
}

#[derive(Debug)]
struct Line<T> {
    weight: u64,
    /// Of the head; without one, the time until which the tenant has to pay.
    start: u64,
    /// Each request with its work.
    requests: VecDeque<(u64, T)>,
}

impl<T> Default for FairQueue<T> {
    fn default() -> FairQueue<T> {
        FairQueue { lines: BTreeMap::new(), heads: BTreeSet::new(), now: 0, left: 0 }
    }
}

impl<T> FairQueue<T> {
    /// Adds a request at the end of its tenant's line.
    pub(crate) fn push(&mut self, share: Share, work: usize, request: T) {
        let Share { tenant, weight } = share;
        let new = Line { weight: 1, start: self.now, requests: VecDeque::new() };
        let line = self.lines.entry(tenant).or_insert(new);
        line.weight = u64::from(weight).clamp(1, WEIGHT_MAX);
        if line.requests.is_empty() {
            line.start = line.start.max(self.now);
            self.heads.insert((line.start, tenant));
        }
        line.requests.push_back((work as u64, request));
    }

    /// Removes the request that is the next.
    pub(crate) fn pop(&mut self) -> Option<T> {
        let (start, tenant) = self.heads.pop_first()?;
        self.now = start;
        let line = self.lines.get_mut(&tenant).expect("a head is that of a line");
        let (work, request) = line.requests.pop_front().expect("a line with a head");
        line.start = start + (work * WEIGHT_MAX / line.weight).max(1);
        if !line.requests.is_empty() {
            self.heads.insert((line.start, tenant));
        } else if self.heads.is_empty() {
            // No tenant waits: nothing is left to be paid for.
            *self = FairQueue::default();
        } else if self.lines.len() > 2 * self.heads.len().max(self.left) + EMPTIED {
            self.lines.retain(|_, line| !line.requests.is_empty() || line.start > start);
            self.left = self.lines.len();
        }
        Some(request)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn share(tenant: u64, weight: u32) -> Share {
        Share { tenant, weight }
    }

    #[test]
    fn a_request_waits_for_one_of_each_other_tenant_whatever_their_lines() {
        let mut queue = FairQueue::default();
        for number in 0..1000 {
            queue.push(share(1, 10_000), 1, (1, number));
            queue.push(share(2, 1), 1 << 20, (2, number));
        }
        for _ in 0..500 {
            queue.pop();
        }
        queue.push(share(3, 100), 1, (3, 0));
        let before: Vec<_> = (0..).map_while(|_| queue.pop().filter(|(of, _)| *of != 3)).collect();
        assert!(before.len() <= 2, "FAIR-F3: {before:?}");
    }

    #[test]
    fn a_tenant_that_sends_one_request_at_a_time_pays_for_each() {
        let mut queue = FairQueue::default();
        (0..1000).for_each(|_| queue.push(share(1, 100), 10, 1));
        let mut large = 0;
        queue.push(share(2, 100), 100, 2);
        for _ in 0..220 {
            if queue.pop() == Some(2) {
                large += 1;
                queue.push(share(2, 100), 100, 2);
            }
        }
        assert!((20..=21).contains(&large), "{large} of 100 each beside 200 of 10 each");
    }

    #[test]
    fn lines_that_are_paid_for_are_removed() {
        let mut queue = FairQueue::default();
        (0..10).for_each(|_| queue.push(share(0, 1), 1000, 0));
        for tenant in 1..1000 {
            queue.push(share(tenant, 100), 1, tenant);
            queue.push(share(tenant, 100), 1, tenant);
            while queue.pop() != Some(tenant) {}
            queue.pop();
            assert!(queue.lines.len() <= 2 * 2 + EMPTIED + 1, "{}", queue.lines.len());
        }
        while queue.pop().is_some() {}
        assert!(queue.lines.is_empty());
    }

    #[test]
    fn lines_that_are_not_paid_for_are_not_looked_at_again_at_each_request() {
        let mut queue = FairQueue::default();
        (0..2).for_each(|_| queue.push(share(0, 10_000), 1 << 20, 0));
        let (mut removals, tenants) = (0, 10_000);
        for tenant in 1..tenants {
            queue.push(share(tenant, 1), 1 << 20, tenant);
            let left = queue.left;
            while queue.pop() != Some(tenant) {
                queue.push(share(0, 10_000), 1 << 20, 0);
            }
            removals += u32::from(queue.left != left);
        }
        assert!(queue.lines.len() > EMPTIED, "they have still to pay");
        assert!(removals <= tenants.ilog2(), "{removals}");
    }

    /// All requests in one list, each with its tenant, work and number.
    #[derive(Default)]
    struct Model {
        waiting: Vec<(u64, u64, u64)>,
        /// Work by weight that left since all tenants had requests.
        served: BTreeMap<u64, u64>,
    }

    impl Model {
        fn first_of(&self, tenant: u64) -> Option<u64> {
            let first = self.waiting.iter().find(|(of, ..)| *of == tenant);
            first.map(|(.., number)| *number)
        }

        fn has_all(&self, tenants: u64) -> bool {
            (0..tenants).all(|tenant| self.first_of(tenant).is_some())
        }
    }

    const TENANTS: u64 = 3;
    const WORK_MAX: u64 = 50;

    proptest! {
        /// FAIR-F1 and FAIR-F2, beside a list; nothing is lost.
        #[test]
        fn tenants_are_served_by_weight_and_each_in_order(
            weights in prop::array::uniform3(1..400_u32),
            steps in prop::collection::vec((any::<bool>(), 0..TENANTS, 1..WORK_MAX), 0..400),
        ) {
            let (mut queue, mut model) = (FairQueue::default(), Model::default());
            let all = steps.into_iter().enumerate();
            let rest = (0..400).map(|_| (0, (false, 0, 0)));
            for (number, (comes, tenant, work)) in all.chain(rest) {
                let number = number as u64;
                if comes {
                    let share = share(tenant, weights[tenant as usize]);
                    queue.push(share, work as usize, (tenant, number));
                    model.waiting.push((tenant, work, number));
                    continue;
                }
                let had_all = model.has_all(TENANTS);
                let Some((tenant, number)) = queue.pop() else {
                    prop_assert!(model.waiting.is_empty());
                    continue;
                };
                prop_assert_eq!(model.first_of(tenant), Some(number), "FAIR-F1");
                let at = model.waiting.iter().position(|(.., n)| *n == number).expect("first");
                let (_, work, _) = model.waiting.remove(at);
                if !had_all {
                    model.served.clear();
                    continue;
                }
                *model.served.entry(tenant).or_default() += work;
                let part = |of: u64| {
                    let served = model.served.get(&of).copied().unwrap_or_default();
                    served as f64 / f64::from(weights[of as usize])
                };
                for one in 0..TENANTS {
                    for other in 0..TENANTS {
                        let largest = |of: u64| WORK_MAX as f64 / f64::from(weights[of as usize]);
                        let most = largest(one) + largest(other) + 0.01;
                        prop_assert!(part(one) - part(other) <= most, "FAIR-F2");
                    }
                }
            }
            prop_assert!(queue.pop().is_none());
        }
    }
}
