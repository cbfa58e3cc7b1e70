//! How the queues of a connection are divided among threads.

use std::collections::BTreeMap;

/// Entries that a queue begins with.
const DEPTH: usize = 16;
const DEPTH_MIN: usize = 4;
/// Entries that a queue has besides, for requests that come before its thread's next turn
/// (URING-U3): they have a page each until they are used.
const RESERVE: usize = 128;
const RESERVE_MIN: usize = 2 * DEPTH_MIN;
/// Most entries in reserve of all queues.
const RESERVE_ALL: usize = 2048;

/// The work of one thread.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// The CPU that it is bound to.
    pub(super) cpu: usize,
    /// Numbers of the queues, which are those of the callers' CPUs.
    pub(super) queues: Vec<u16>,
    /// Entries of each queue that keep their memory.
    pub(super) depth: usize,
    /// As many more, and so many are always in the kernel's hand.
    pub(super) reserve: usize,
    pub(super) payload_bytes: usize,
}

/// A thread for each allowed CPU. It serves its CPU's queue, and its share of those whose CPUs are
/// not allowed, or not there.
pub(super) fn plans(
    queues: usize,
    allowed: &[usize],
    payload_bytes: usize,
    memory: usize,
) -> Vec<Plan> {
    let depth = (memory / payload_bytes / queues).clamp(DEPTH_MIN, DEPTH);
    let reserve = (RESERVE_ALL / queues).clamp(RESERVE_MIN, RESERVE);
    let mut bound: Vec<usize> = allowed.iter().copied().filter(|cpu| *cpu < queues).collect();
    if bound.is_empty() {
        bound.push(0);
    }
    let mut served: BTreeMap<usize, Vec<u16>> = bound.iter().map(|cpu| (*cpu, vec![])).collect();
    for queue in 0..queues {
        let cpu = if bound.contains(&queue) { queue } else { bound[queue % bound.len()] };
        served.get_mut(&cpu).expect("a bound CPU").push(queue as u16);
    }
    let plan = |(cpu, queues)| Plan { cpu, queues, depth, reserve, payload_bytes };
    served.into_iter().map(plan).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_queue_is_served_once_and_by_its_own_cpu_if_that_is_allowed() {
        let plans = plans(6, &[1, 4, 9], 256 << 10, 64 << 20);
        assert_eq!(plans.iter().map(|plan| plan.cpu).collect::<Vec<_>>(), [1, 4]);
        assert!(plans.iter().all(|plan| plan.queues.contains(&(plan.cpu as u16))));
        let mut served: Vec<u16> = plans.iter().flat_map(|plan| plan.queues.clone()).collect();
        served.sort_unstable();
        assert_eq!(served, [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn many_cpus_get_fewer_entries_each() {
        let entries = |queues| {
            let Plan { depth, reserve, .. } = plans(queues, &[0], 256 << 10, 64 << 20)[0];
            (depth, reserve)
        };
        assert_eq!([2, 32, 512].map(entries), [(16, 128), (8, 64), (4, 8)]);
    }
}
