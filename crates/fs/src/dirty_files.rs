//! The dirty files, and which of them is to be written next.
//!
//! There may be as many as there are blocks in the limit, each with one dirty block: a hundred
//! tenants that write here and there. So each operation of a write takes few steps of trees. The
//! files of a tenant that has enough tasks are passed over in one step.
//!
//! DIRTYSET-D1  A file waits in `queue`, under the time since when, exactly while no task writes
//!              it. `heads` has the oldest of each tenant.
//! DIRTYSET-D2  The tenant of a file is that of its subvolume when the file became dirty: a move of
//!              the subvolume changes it for the next time.
//! DIRTYSET-D3  A file is written by the task that began it last. A task that ends later than its
//!              entry (the file was clean meanwhile, and dirty again) changes nothing.

use std::collections::{BTreeMap, BTreeSet};

use copyhold_types::{InodeNo, Nanos, SubvolId};

use crate::NodeId;
use crate::inode::InodeRef;

/// The number of a task that writes files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TaskId(pub(crate) u64);

pub(crate) struct DirtyFiles<T = InodeRef> {
    files: BTreeMap<NodeId, Dirty<T>>,
    /// By tenant, time and number.
    queue: BTreeSet<(SubvolId, Nanos, NodeId)>,
    heads: BTreeSet<(Nanos, SubvolId)>,
}

impl<T> Default for DirtyFiles<T> {
    fn default() -> Self {
        let (files, queue, heads) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        DirtyFiles { files, queue, heads }
    }
}

struct Dirty<T> {
    file: T,
    tenant: SubvolId,
    since: Nanos,
    /// The task that is writing it, and since when.
    writer: Option<(TaskId, Nanos)>,
}

impl<T: Clone> DirtyFiles<T> {
    /// The file of this tenant is dirty since `now`, if it was not before.
    pub(crate) fn insert(&mut self, node: NodeId, file: &T, tenant: SubvolId, now: Nanos) {
        if self.files.contains_key(&node) {
            return;
        }
        let dirty = Dirty { file: file.clone(), tenant, since: now, writer: None };
        self.files.insert(node, dirty);
        self.wait(tenant, |queue| queue.insert((tenant, now, node)));
    }

    pub(crate) fn remove(&mut self, node: NodeId) {
        if let Some(Dirty { tenant, since, .. }) = self.files.remove(&node) {
            self.wait(tenant, |queue| queue.remove(&(tenant, since, node)));
        }
    }

    /// The file that has waited longest, if it waits since `due` or longer, and its tenant; of
    /// tenants that `may` be chosen.
    pub(crate) fn oldest(
        &self,
        due: Nanos,
        may: impl Fn(SubvolId) -> bool,
    ) -> Option<(SubvolId, NodeId)> {
        let old = self.heads.iter().take_while(|(since, _)| *since <= due);
        let tenant = old.map(|(_, tenant)| *tenant).find(|tenant| may(*tenant))?;
        self.head(tenant).map(|(_, node)| (tenant, node))
    }

    /// A task begins to write a file that waits. If it writes, blocks that become dirty meanwhile
    /// are so since `now`.
    pub(crate) fn begin(&mut self, node: NodeId, now: Nanos, task: TaskId) -> Option<T> {
        let dirty = self.files.get_mut(&node).filter(|dirty| dirty.writer.is_none())?;
        let (tenant, since, file) = (dirty.tenant, dirty.since, dirty.file.clone());
        dirty.writer = Some((task, now));
        self.wait(tenant, |queue| queue.remove(&(tenant, since, node)));
        Some(file)
    }

    /// The task has ended; the file waits again (DIRTYSET-D3), as old as before if the task did
    /// not write.
    pub(crate) fn ended(&mut self, node: NodeId, task: TaskId, has_written: bool) {
        let dirty = self.files.get_mut(&node);
        let is_its = |dirty: &Dirty<T>| dirty.writer.is_some_and(|(writer, _)| writer == task);
        if let Some(dirty) = dirty.filter(|dirty| is_its(dirty)) {
            let begun = dirty.writer.take().map(|(_, begun)| begun);
            dirty.since = begun.filter(|_| has_written).unwrap_or(dirty.since);
            let (tenant, since) = (dirty.tenant, dirty.since);
            self.wait(tenant, |queue| queue.insert((tenant, since, node)));
        }
    }

    /// The tenant that a dirty file had when it became dirty.
    pub(crate) fn tenant_of(&self, node: NodeId) -> Option<SubvolId> {
        self.files.get(&node).map(|dirty| dirty.tenant)
    }

    pub(crate) fn find(&self, node: NodeId) -> Option<T> {
        self.files.get(&node).map(|dirty| dirty.file.clone())
    }

    /// Whether a file of the tenant waits.
    pub(crate) fn waits(&self, tenant: SubvolId) -> bool {
        self.head(tenant).is_some()
    }

    /// Tenants of which a file waits.
    pub(crate) fn tenants_that_wait(&self) -> usize {
        self.heads.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// All of them, by number.
    pub(crate) fn all(&self) -> Vec<T> {
        self.files.values().map(|dirty| dirty.file.clone()).collect()
    }

    /// Those of a subvolume, by number.
    pub(crate) fn of(&self, subvol: SubvolId) -> Vec<T> {
        let first = NodeId { subvol, ino: InodeNo::ROOT };
        let own = self.files.range(first..).take_while(|(node, _)| node.subvol == subvol);
        own.map(|(_, dirty)| dirty.file.clone()).collect()
    }

    /// The file of a tenant that has waited longest.
    fn head(&self, tenant: SubvolId) -> Option<(Nanos, NodeId)> {
        let first = NodeId { subvol: SubvolId(0), ino: InodeNo(0) };
        let next = self.queue.range((tenant, 0, first)..).next();
        next.filter(|(of, ..)| *of == tenant).map(|(_, since, node)| (*since, *node))
    }

    /// Changes the queue of a tenant (DIRTYSET-D1).
    fn wait<R>(
        &mut self,
        tenant: SubvolId,
        change: impl FnOnce(&mut BTreeSet<(SubvolId, Nanos, NodeId)>) -> R,
    ) {
        let before = self.head(tenant);
        change(&mut self.queue);
        let after = self.head(tenant);
        if before != after {
            before.map(|(since, _)| self.heads.remove(&(since, tenant)));
            after.map(|(since, _)| self.heads.insert((since, tenant)));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TASK: TaskId = TaskId(1);

    fn node(subvol: u32, ino: u64) -> NodeId {
        NodeId { subvol: SubvolId(subvol), ino: InodeNo(ino) }
    }

    fn oldest<T: Clone>(dirty: &DirtyFiles<T>, due: Nanos) -> Option<NodeId> {
        dirty.oldest(due, |_| true).map(|(_, node)| node)
    }

    #[test]
    fn what_waits_longest_is_next_and_what_is_written_is_not() {
        let mut dirty = DirtyFiles::default();
        let (one, two, three) = (node(1, 7), node(1, 5), node(2, 5));
        for (node, name, now) in [(one, "one", 3), (two, "two", 9), (three, "three", 9)] {
            dirty.insert(node, &name, node.subvol, now);
        }
        dirty.insert(one, &"again", one.subvol, 20);
        assert_eq!((oldest(&dirty, 2), oldest(&dirty, 3)), (None, Some(one)));
        assert_eq!(dirty.begin(one, 10, TASK), Some("one"));
        assert_eq!(dirty.begin(one, 10, TASK), None);
        assert_eq!(oldest(&dirty, Nanos::MAX), Some(two));
        dirty.remove(two);
        assert_eq!(oldest(&dirty, Nanos::MAX), Some(three));
        dirty.ended(one, TASK, true);
        assert_eq!((oldest(&dirty, 9), dirty.begin(three, 11, TASK)), (Some(three), Some("three")));
        assert_eq!(oldest(&dirty, Nanos::MAX), Some(one));
        assert_eq!((dirty.all(), dirty.of(SubvolId::ROOT)), (vec!["one", "three"], vec!["one"]));
    }

    #[test]
    fn a_file_that_is_clean_before_its_task_has_ended_waits_for_nothing() {
        let mut dirty = DirtyFiles::default();
        dirty.insert(node(1, 7), &(), SubvolId(1), 3);
        dirty.begin(node(1, 7), 4, TASK);
        dirty.remove(node(1, 7));
        dirty.ended(node(1, 7), TASK, true);
        assert!(dirty.is_empty() && oldest(&dirty, Nanos::MAX).is_none());
    }

    #[test]
    fn a_file_is_as_old_as_before_if_its_task_has_not_written() {
        let mut dirty = DirtyFiles::default();
        dirty.insert(node(1, 7), &(), SubvolId(1), 3);
        dirty.begin(node(1, 7), 9, TASK);
        dirty.ended(node(1, 7), TASK, false);
        assert_eq!(oldest(&dirty, 3), Some(node(1, 7)), "WRITERS-W3");
    }

    /// DIRTYSET-D3.
    #[test]
    fn a_task_that_ends_late_leaves_the_file_to_the_next_one() {
        let (mut dirty, late, next) = (DirtyFiles::default(), TASK, TaskId(2));
        dirty.insert(node(1, 7), &(), SubvolId(1), 3);
        dirty.begin(node(1, 7), 4, late);
        dirty.remove(node(1, 7));
        dirty.insert(node(1, 7), &(), SubvolId(1), 5);
        assert!(dirty.begin(node(1, 7), 6, next).is_some());
        dirty.ended(node(1, 7), late, true);
        assert_eq!(oldest(&dirty, Nanos::MAX), None);
        dirty.ended(node(1, 7), next, true);
        assert_eq!(oldest(&dirty, Nanos::MAX), Some(node(1, 7)));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(NodeId, SubvolId),
        Remove(NodeId),
        Begin(NodeId),
        /// Of the task that began it so many begins ago, of any file; whether it wrote.
        End(NodeId, u64, bool),
    }

    fn step() -> impl Strategy<Value = Step> {
        let file = (1..4_u32, 1..4_u64).prop_map(|(subvol, ino)| node(subvol, ino));
        prop_oneof![
            (file.clone(), 1..4_u32)
                .prop_map(|(file, tenant)| Step::Insert(file, SubvolId(tenant))),
            file.clone().prop_map(Step::Remove),
            file.clone().prop_map(Step::Begin),
            (file, 0..3_u64, any::<bool>())
                .prop_map(|(file, ago, wrote)| Step::End(file, ago, wrote)),
        ]
    }

    /// Dirty since, of which subvolume, and its task with the time before that began.
    type Plain = (Nanos, SubvolId, Option<(TaskId, Nanos)>);

    proptest! {
        /// DIRTYSET-D1 to DIRTYSET-D3 against a list.
        #[test]
        fn the_oldest_of_the_tenants_that_may_be_chosen_is_next(
            steps in prop::collection::vec(step(), 0..60),
            passed in 1..4_u32,
        ) {
            let mut dirty = DirtyFiles::default();
            let mut plain: BTreeMap<NodeId, Plain> = BTreeMap::new();
            let mut last = 0;
            for (now, step) in steps.into_iter().enumerate() {
                let now = now as Nanos;
                match step {
                    Step::Insert(file, tenant) => {
                        dirty.insert(file, &(), tenant, now);
                        plain.entry(file).or_insert((now, tenant, None));
                    }
                    Step::Remove(file) => {
                        dirty.remove(file);
                        plain.remove(&file);
                    }
                    Step::Begin(file) => {
                        last += 1;
                        let may = plain.get_mut(&file).filter(|(.., writer)| writer.is_none());
                        let begun = dirty.begin(file, now, TaskId(last));
                        prop_assert_eq!(begun.is_some(), may.is_some());
                        may.into_iter()
                            .for_each(|entry| entry.2 = Some((TaskId(last), now)));
                    }
                    Step::End(file, ago, wrote) => {
                        let task = TaskId(last.saturating_sub(ago));
                        dirty.ended(file, task, wrote);
                        let is_its = |writer: &(TaskId, Nanos)| writer.0 == task;
                        if let Some(entry) = plain.get_mut(&file)
                            && let Some((_, begun)) = entry.2.filter(is_its)
                        {
                            entry.0 = if wrote { begun } else { entry.0 };
                            entry.2 = None;
                        }
                    }
                }
                for due in [now / 2, Nanos::MAX] {
                    let may = |tenant: SubvolId| tenant.0 != passed;
                    let waits = plain.iter().filter(|(_, (since, tenant, writer))| {
                        writer.is_none() && *since <= due && may(*tenant)
                    });
                    let first = waits.map(|(node, (since, tenant, _))| (*since, *tenant, *node)).min();
                    let next = dirty.oldest(due, may);
                    prop_assert_eq!(next, first.map(|(_, tenant, node)| (tenant, node)));
                }
            }
        }
    }
}
