//! The protection of groups in one walk of reclaim.
//!
//! Problem.  A protection that is all or nothing lets a group be trampled as soon as it is a page
//!           above it, and promises of several groups may add up to more than there is.
//! Idea.     A walk begins at the group whose memory is short, its *root*, and goes down. Of the
//!           protection of a group, each child gets the part that it claims and uses; if they claim
//!           more than there is, in proportion; and if they claim less, the rest goes to those that
//!           use more than they claim. Nothing is stored: walks with different roots see different
//!           protections.
//!
//! PROTECT-E1  The root of a walk has no protection from itself.
//! PROTECT-E2  A child of the root has the protection that is configured for it.
//! PROTECT-E3  Below that, the protections of children are together at most that of their parent,
//!             or of its usage; none is larger than its group's usage.
//!
//! The rules are those of memory.min and memory.low in cgroup v2 with `memory_recursiveprot`
//! (Linux, `mm/page_counter.c`, `effective_protection`).

/// Promised bytes: `min` is never reclaimed, `low` only when nothing else is left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Promise {
    pub min: u64,
    pub low: u64,
}

/// A group as a walk finds it: usage in bytes, that of its children included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupUse {
    /// Its place in the list of the walk, before this one's; of the root none.
    pub parent: Option<usize>,
    pub usage: u64,
    pub promise: Promise,
    /// Its share of what is scarce, beside the other children of its parent.
    pub weight: u32,
    /// Of children that are not in the list of the walk: the sum of what they claim.
    pub claimed: Promise,
}

impl Promise {
    pub(crate) fn add(&mut self, more: Promise) {
        self.min = self.min.saturating_add(more.min);
        self.low = self.low.saturating_add(more.low);
    }

    pub(crate) fn take(&mut self, less: Promise) {
        self.min = self.min.saturating_sub(less.min);
        self.low = self.low.saturating_sub(less.low);
    }
}

/// A group claims the part of its promise that it uses.
pub(crate) fn claim(group: &GroupUse) -> Promise {
    let Promise { min, low } = group.promise;
    Promise { min: min.min(group.usage), low: low.min(group.usage) }
}

/// The protection of each group; the first is the root, and parents come before their children.
pub fn protections(groups: &[GroupUse]) -> Vec<Promise> {
    let mut claimed: Vec<Promise> = groups.iter().map(|group| group.claimed).collect();
    for group in groups {
        if let Some(parent) = group.parent {
            claimed[parent].add(claim(group));
        }
    }
    let mut given: Vec<Promise> = Vec::with_capacity(groups.len());
    for group in groups {
        given.push(match group.parent {
            None => Promise::default(),
            Some(parent) if groups[parent].parent.is_none() => group.promise,
            Some(parent) => {
                let (of, has, claimed) = (groups[parent].usage, given[parent], claimed[parent]);
                let part = |wanted, has, claimed| part(group.usage, wanted, of, has, claimed);
                Promise {
                    min: part(group.promise.min, has.min, claimed.min),
                    low: part(group.promise.low, has.low, claimed.low),
                }
            }
        });
    }
    given
}

/// The part of a parent's protection `has` that a child gets with `usage`, which wants `wanted`:
/// the parent uses `of`, and its children claim `claimed`.
fn part(usage: u64, wanted: u64, of: u64, has: u64, claimed: u64) -> u64 {
    let claim = wanted.min(usage);
    if claimed > has {
        return scaled(claim, has, claimed);
    }
    // Usages are read one after the other, so a sum may be smaller than a part of it.
    let unclaimed = of.saturating_sub(claimed);
    let more = if unclaimed > 0 { scaled(usage - claim, has - claimed, unclaimed) } else { 0 };
    usage.min(claim + more)
}

/// `amount · by / of`, for any amounts.
fn scaled(amount: u64, by: u64, of: u64) -> u64 {
    (u128::from(amount) * u128::from(by) / u128::from(of)) as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn group(parent: usize, usage: u64, low: u64) -> GroupUse {
        let promise = Promise { min: 0, low };
        GroupUse { parent: Some(parent), usage, promise, ..GroupUse::default() }
    }

    fn root(usage: u64) -> GroupUse {
        GroupUse { usage, ..GroupUse::default() }
    }

    /// The usage and the promise of a child.
    type Child = (u64, u64);

    /// The protection of a parent with two children, and the part that each child gets: section 3
    /// of the reference, in thousandths of its units.
    const VECTORS: [(u64, [Child; 2], [u64; 2]); 3] = [
        (8_000, [(10_000, 6_000), (10_000, 4_000)], [4_800, 3_200]), // overcommitted
        (4_000, [(3_000, 5_000), (7_000, 5_000)], [1_500, 2_500]),   // by use
        (8_000, [(6_000, 2_000), (4_000, 1_000)], [4_857, 3_142]),   // the rest floats
    ];

    /// A parent and two children, whose promises are these parts of the numbers of a vector.
    fn given((has, children): (u64, [Child; 2]), promise: impl Fn(u64) -> Promise) -> [Promise; 2] {
        let sum = children.iter().map(|(usage, _)| usage).sum();
        let group =
            |parent, usage, bytes| GroupUse { promise: promise(bytes), ..group(parent, usage, 0) };
        let [one, two] = children.map(|(usage, bytes)| group(1, usage, bytes));
        let given = protections(&[root(sum), group(0, sum, has), one, two]);
        [given[2], given[3]]
    }

    #[test]
    fn children_share_the_protection_of_their_parent() {
        for (has, children, parts) in VECTORS {
            let given = |promise: fn(u64) -> Promise| given((has, children), promise);
            let low = given(|low| Promise { min: 0, low });
            assert_eq!(low, parts.map(|low| Promise { min: 0, low }));
            let min = given(|min| Promise { min, low: 0 });
            assert_eq!(min, parts.map(|min| Promise { min, low: 0 }));
        }
    }

    /// Of groups with `min` and `low`, each is shared out by itself.
    #[test]
    fn min_and_low_of_a_parent_are_shared_out_beside_each_other() {
        for (has, children, parts) in VECTORS {
            let both = given((has, children), |bytes| Promise { min: bytes, low: bytes });
            assert_eq!(both, parts.map(|bytes| Promise { min: bytes, low: bytes }));
            let fifth = given((has, children), |low| Promise { min: low / 5, low });
            let min = given((has, children), |bytes| Promise { min: bytes / 5, low: 0 });
            assert_eq!(fifth.map(|given| given.low), parts);
            assert_eq!(fifth.map(|given| given.min), min.map(|given| given.min));
        }
    }

    #[test]
    fn a_group_is_not_protected_from_its_own_limit() {
        let groups = [GroupUse { promise: Promise { min: 5, low: 9 }, ..root(20) }];
        assert_eq!(protections(&groups), [Promise::default()], "PROTECT-E1");
        let child = GroupUse { promise: Promise { min: 5, low: 90 }, ..group(0, 20, 0) };
        assert_eq!(protections(&[root(20), child])[1], child.promise, "PROTECT-E2");
    }

    fn trees() -> impl Strategy<Value = Vec<GroupUse>> {
        let sizes = prop_oneof![Just(0_u64), 0..100 * MIB, Just(u64::MAX >> 8)];
        let leaf = (any::<usize>(), sizes.clone(), sizes.clone(), sizes);
        prop::collection::vec(leaf, 1..24).prop_map(|leaves| {
            let mut groups = vec![GroupUse::default()];
            for (parent, usage, min, low) in leaves {
                let parent = Some(parent % groups.len());
                let promise = Promise { min, low };
                groups.push(GroupUse { parent, usage, promise, ..GroupUse::default() });
            }
            for at in (1..groups.len()).rev() {
                let parent = groups[at].parent.expect("only the root has none");
                groups[parent].usage += groups[at].usage;
            }
            groups
        })
    }

    proptest! {
        #[test]
        fn no_more_is_given_than_a_parent_has(groups in trees()) {
            let given = protections(&groups);
            for (at, of) in groups.iter().enumerate() {
                let is_top = of.parent.is_none();
                let children: Vec<usize> =
                    (0..groups.len()).filter(|child| groups[*child].parent == Some(at)).collect();
                let low: u128 = children.iter().map(|child| u128::from(given[*child].low)).sum();
                let min: u128 = children.iter().map(|child| u128::from(given[*child].min)).sum();
                if !is_top {
                    prop_assert!(low <= u128::from(given[at].low.min(of.usage)), "PROTECT-E3");
                    prop_assert!(min <= u128::from(given[at].min.min(of.usage)), "PROTECT-E3");
                    let used = |child: &usize| given[*child].low <= groups[*child].usage;
                    prop_assert!(children.iter().all(used), "PROTECT-E3");
                }
            }
        }
    }
}
