//! The deletion whose turn it is: found without looking at those that wait.
//!
//! A family runs one deletion at a time, the one that has begun or else the first by id
//! (DELETE-D1). A deletion that has only records left to delete, and is in no family any more,
//! blocks no other. The ready deletions take turns, so a large one does not keep the small ones
//! waiting.
//!
//! QUEUE-Q1  Of each family with deletions one is `head`: the one that has begun, or the first.
//! QUEUE-Q2  `ready` are the heads, and the deletions with only records left, that can continue.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use copyhold_format::item::Step;
use copyhold_types::SubvolId;

use crate::family::FamilyId;

#[derive(Debug, Default)]
pub(crate) struct Queue {
    all: BTreeMap<SubvolId, Deletion>,
    families: BTreeMap<FamilyId, Waiting>,
    ready: BTreeSet<SubvolId>,
    /// Those whose last step failed, until the next retry.
    stopped: BTreeSet<SubvolId>,
    /// The deletion that had the last turn.
    last: Option<SubvolId>,
}

#[derive(Clone, Copy, Debug)]
struct Deletion {
    family: FamilyId,
    /// Nothing of it is left but records.
    is_forgotten: bool,
}

#[derive(Debug, Default)]
struct Waiting {
    head: Option<SubvolId>,
    begun: BTreeSet<SubvolId>,
    others: BTreeSet<SubvolId>,
}

impl Queue {
    /// A subvolume is being deleted, and has reached this step.
    pub(crate) fn file(&mut self, id: SubvolId, family: FamilyId, step: Step) {
        let begun = Deletion { family, is_forgotten: false };
        let deletion = self.all.entry(id).or_insert(begun);
        deletion.is_forgotten = matches!(step, Step::Forget { .. });
        let waiting = self.families.entry(family).or_default();
        waiting.begun.remove(&id);
        waiting.others.remove(&id);
        match step {
            Step::Settle => _ = waiting.others.insert(id),
            Step::Walk(_) | Step::Absorb | Step::Rebury { .. } => _ = waiting.begun.insert(id),
            Step::Forget { .. } => {}
        }
        self.elect(family);
        if self.all[&id].is_forgotten && !self.stopped.contains(&id) {
            self.ready.insert(id);
        }
    }

    /// Stops a deletion until the next retry. Others of its family wait for it.
    pub(crate) fn stop(&mut self, id: SubvolId) {
        if self.all.contains_key(&id) {
            self.stopped.insert(id);
            self.ready.remove(&id);
        }
    }

    /// All deletions can continue again.
    pub(crate) fn retry_all(&mut self) {
        for id in std::mem::take(&mut self.stopped) {
            let Deletion { family, is_forgotten } = self.all[&id];
            let head = self.families.get(&family).and_then(|waiting| waiting.head);
            if is_forgotten || head == Some(id) {
                self.ready.insert(id);
            }
        }
    }

    /// Nothing of it is left.
    pub(crate) fn end(&mut self, id: SubvolId) {
        let Some(Deletion { family, .. }) = self.all.remove(&id) else { return };
        self.ready.remove(&id);
        self.stopped.remove(&id);
        if let Some(waiting) = self.families.get_mut(&family) {
            waiting.begun.remove(&id);
            waiting.others.remove(&id);
        }
        self.elect(family);
    }

    fn elect(&mut self, family: FamilyId) {
        let Some(waiting) = self.families.get_mut(&family) else { return };
        let head = waiting.begun.first().or(waiting.others.first()).copied();
        let before = std::mem::replace(&mut waiting.head, head);
        if let Some(id) = before.filter(|_| before != head) {
            self.ready.remove(&id);
        }
        match head {
            Some(id) if !self.stopped.contains(&id) => _ = self.ready.insert(id),
            Some(_) => {}
            None => _ = self.families.remove(&family),
        }
    }

    /// The ready deletions, by id.
    pub(crate) fn ready(&self) -> Vec<SubvolId> {
        self.ready.iter().copied().collect()
    }

    /// Whose turn it is.
    pub(crate) fn next(&mut self) -> Option<SubvolId> {
        let behind = self.last.and_then(|last| self.ready.range(SubvolId(last.0 + 1)..).next());
        self.last = behind.or(self.ready.first()).copied();
        self.last
    }

    pub(crate) fn ready_len(&self) -> usize {
        self.ready.len()
    }

    /// All, by id.
    pub(crate) fn all(&self) -> Vec<SubvolId> {
        self.all.keys().copied().collect()
    }

    /// At most `most`, with ids behind `after`.
    pub(crate) fn behind(&self, after: SubvolId, most: usize) -> Vec<SubvolId> {
        let behind = (Bound::Excluded(after), Bound::Unbounded);
        self.all.range(behind).take(most).map(|(id, _)| *id).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(crate) fn has(&self, id: SubvolId) -> bool {
        self.all.contains_key(&id)
    }

    /// The first that cannot continue.
    pub(crate) fn stopped(&self) -> Option<SubvolId> {
        self.stopped.first().copied()
    }
}

#[cfg(test)]
mod tests {
    use copyhold_types::{EpochId, Key};

    use super::*;

    const FORGET: Step = Step::Forget { sets: None };

    fn file(queue: &mut Queue, id: u32, family: u64, step: Step) {
        queue.file(SubvolId(id), FamilyId(EpochId(family)), step);
    }

    fn ready(queue: &Queue) -> Vec<u32> {
        queue.ready().iter().map(|id| id.0).collect()
    }

    #[test]
    fn one_of_a_family_goes_on_and_the_next_when_it_is_only_to_be_forgotten() {
        let mut queue = Queue::default();
        [4, 3, 5].into_iter().for_each(|id| file(&mut queue, id, 1, Step::Settle));
        file(&mut queue, 9, 2, Step::Settle);
        assert_eq!(ready(&queue), [3, 9]);
        file(&mut queue, 4, 1, Step::Walk(Key::MIN));
        assert_eq!(ready(&queue), [4, 9], "what has begun goes on");
        file(&mut queue, 4, 1, FORGET);
        assert_eq!(ready(&queue), [3, 4, 9]);
        queue.end(SubvolId(4));
        queue.end(SubvolId(3));
        assert_eq!((ready(&queue), queue.all().len()), (vec![5, 9], 2));
        queue.end(SubvolId(5));
        queue.end(SubvolId(9));
        assert!(queue.next().is_none() && queue.families.is_empty());
    }

    #[test]
    fn what_cannot_go_on_is_in_the_way_of_its_family_only() {
        let mut queue = Queue::default();
        [3, 4].into_iter().for_each(|id| file(&mut queue, id, 1, Step::Settle));
        file(&mut queue, 9, 2, Step::Settle);
        queue.stop(SubvolId(3));
        assert_eq!((ready(&queue), queue.stopped()), (vec![9], Some(SubvolId(3))));
        file(&mut queue, 9, 2, FORGET);
        queue.stop(SubvolId(9));
        assert_eq!((ready(&queue), queue.stopped()), (vec![], Some(SubvolId(3))));
        queue.retry_all();
        assert_eq!((ready(&queue), queue.stopped()), (vec![3, 9], None));
    }

    #[test]
    fn those_that_may_go_on_take_turns() {
        let mut queue = Queue::default();
        for id in [3, 5, 9] {
            file(&mut queue, id, id.into(), Step::Settle);
        }
        let turns: Vec<u32> = (0..5).map(|_| queue.next().unwrap().0).collect();
        assert_eq!(turns, [3, 5, 9, 3, 5]);
    }
}
