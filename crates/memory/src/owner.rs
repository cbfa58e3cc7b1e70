//! Owners, and the bytes that are charged to them.
//!
//! CHARGE-C1  The counters of an owner are the sum of its charges. Each charge ends with the object
//!            that carries it; so an owner without objects has counters of zero.
//! CHARGE-C2  An owner exists as long as anything is charged to it, also when its subvolume is
//!            gone. Its slot belongs to no other owner until then.
//!
//! A change costs two relaxed additions: to the charge and to the owner's counter, which is on a
//! cache line of this owner alone. A new charge also costs a reference to the owner. The counters
//! of the shared owner are used by all. Sums over all owners are computed by the reader of a
//! figure.
//!
//! CHARGE-C3  An owner's highest usage is noted when one of its counters passes a multiple of
//!            64 KiB. So `peak` misses at most 64 KiB for each class. Limits are judged then, too
//!            (`limit`).

use std::fmt;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use copyhold_sync::{Mutex, of};

use crate::LOOKUP_BYTES;
use crate::drawn::Drawn;
use crate::history::History;
use crate::inside::Inside;
use crate::ledger::{Judged, Ledger, STEP};
use crate::listed::{LISTS, Listed, Lists};
use crate::place::{Place, Slot};
use crate::scan::Arm;

/// The list of the owners with some usage: behind those of the classes.
pub(crate) const OF_ANY_CLASS: usize = MemoryClass::ALL.len();
const _: () = assert!(OF_ANY_CLASS < LISTS, "each has a list");

/// A kind of object in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemoryClass {
    /// Nodes of trees, in the cache.
    Node,
    /// Inodes.
    Inode,
    /// Clean file data, in the cache.
    Data,
    /// File data that is not written back.
    Dirty,
    /// Edits of tables that no base has yet.
    Edit,
    /// Names that do not exist.
    Name,
    /// Files that the front end has looked up and not forgotten.
    Lookup,
    /// Requests that wait.
    Request,
}

impl MemoryClass {
    pub const ALL: [MemoryClass; 8] = [
        MemoryClass::Node,
        MemoryClass::Inode,
        MemoryClass::Data,
        MemoryClass::Dirty,
        MemoryClass::Edit,
        MemoryClass::Name,
        MemoryClass::Lookup,
        MemoryClass::Request,
    ];

    /// The key of this class in reports.
    pub fn name(self) -> &'static str {
        match self {
            MemoryClass::Node => "node",
            MemoryClass::Inode => "inode",
            MemoryClass::Data => "data",
            MemoryClass::Dirty => "dirty",
            MemoryClass::Edit => "edit",
            MemoryClass::Name => "name",
            MemoryClass::Lookup => "lookup",
            MemoryClass::Request => "request",
        }
    }

    /// Those that are divided when they are scarce.
    const DIVIDED: [MemoryClass; 3] = [MemoryClass::Dirty, MemoryClass::Edit, MemoryClass::Name];

    /// Its place among the classes that are divided.
    fn divided(self) -> Option<usize> {
        MemoryClass::DIVIDED.iter().position(|of| *of == self)
    }

    /// Whether its users are on a list of their own: it is one that is divided.
    pub(crate) fn has_list(self) -> bool {
        self.divided().is_some()
    }
}

/// On lines of its own, so that no two owners share one.
#[derive(Default)]
#[repr(align(64))]
struct Lines<T>(T);

/// Bytes by class.
type Counters = [AtomicI64; MemoryClass::ALL.len()];

/// All owners of a pool's memory.
pub struct Memory {
    slots: Arc<Slots>,
    shared: MemoryOwner,
    budget: AtomicU64,
    /// A place in [`Arm::ALL`].
    arm: AtomicUsize,
    drawn: Mutex<Drawn, of::MemoryPicture>,
}

#[derive(Default)]
struct Slots {
    /// By slot.
    owners: Mutex<Vec<Weak<Counted>>, of::MemoryOwners>,
    free: Mutex<Vec<Slot>, of::MemorySlots>,
    /// Owners that there were.
    made: AtomicU64,
    ledger: Arc<Ledger>,
    users: Lists,
    inside: Inside,
}

/// A counter of memory by class. Clones are the same owner.
#[derive(Clone)]
pub struct MemoryOwner(Arc<Counted>);

struct Counted {
    slot: Slot,
    /// Its number among all that there were: a slot is used again.
    serial: u64,
    charged: Lines<Counters>,
    history: History,
    place: Place,
    /// The part of a class that is its own when that is scarce (SCARCE-P3).
    parts: [AtomicU64; MemoryClass::DIVIDED.len()],
    listed: Listed,
    slots: Weak<Slots>,
    ledger: Arc<Ledger>,
    judged: Judged,
}

impl Default for Memory {
    fn default() -> Memory {
        let slots = Arc::new(Slots::default());
        let shared = MemoryOwner::new(&slots);
        debug_assert_eq!(shared.slot(), Slot::SHARED);
        let (budget, arm) = (AtomicU64::new(u64::MAX), AtomicUsize::new(0));
        Memory { slots, shared, budget, arm, drawn: Mutex::default() }
    }
}

impl Memory {
    /// The owner of shared objects: the pool's own tables, and content from before the snapshots
    /// that share it.
    pub fn shared(&self) -> &MemoryOwner {
        &self.shared
    }

    /// Adds an owner with counters of zero. It ends with its last clone and its last charge.
    pub fn add_owner(&self) -> MemoryOwner {
        MemoryOwner::new(&self.slots)
    }

    /// The rule by which protections count.
    pub fn arm(&self) -> Arm {
        Arm::ALL[self.arm.load(Relaxed)]
    }

    pub fn set_arm(&self, arm: Arm) {
        let place = Arm::ALL.iter().position(|of| *of == arm);
        self.arm.store(place.expect("all are there"), Relaxed);
        self.ledger().changes.fetch_add(1, Relaxed);
    }

    pub(crate) fn ledger(&self) -> &Ledger {
        &self.slots.ledger
    }

    /// Changes of limits, and of the rule of protections, so far.
    pub(crate) fn changes(&self) -> u64 {
        self.ledger().stamp().changes
    }

    pub(crate) fn drawn(&self) -> &Mutex<Drawn, of::MemoryPicture> {
        &self.drawn
    }

    /// All that there are, by slot.
    pub fn owners(&self) -> Vec<MemoryOwner> {
        self.slots.all()
    }

    pub(crate) fn lists(&self) -> &Lists {
        &self.slots.users
    }

    pub(crate) fn inside(&self) -> &Inside {
        &self.slots.inside
    }

    /// Those of these slots, in ascending order, that exist.
    pub(crate) fn owners_at(&self, slots: &[Slot]) -> Vec<MemoryOwner> {
        let owners = self.slots.owners.lock();
        let at = |slot: &Slot| owners.get(slot.0 as usize)?.upgrade().map(MemoryOwner);
        slots.iter().filter_map(at).collect()
    }

    pub(crate) fn budget_cell(&self) -> &AtomicU64 {
        &self.budget
    }

    /// The owner that has this slot now.
    pub fn owner(&self, slot: Slot) -> Option<MemoryOwner> {
        self.slots.owner(slot)
    }

    /// Bytes of a class, over all owners.
    pub fn charged(&self, class: MemoryClass) -> i64 {
        self.owners().iter().map(|owner| owner.charged(class)).sum()
    }
}

impl Slots {
    fn all(&self) -> Vec<MemoryOwner> {
        self.owners.lock().iter().filter_map(Weak::upgrade).map(MemoryOwner).collect()
    }

    fn owner(&self, slot: Slot) -> Option<MemoryOwner> {
        let owners = self.owners.lock();
        owners.get(slot.0 as usize).and_then(Weak::upgrade).map(MemoryOwner)
    }

    /// The holder of an owner, unless it has ended.
    fn holder(&self, of: &Place) -> Option<MemoryOwner> {
        let (slot, serial) = of.holder()?;
        self.owner(Slot(slot)).filter(|holder| holder.serial() == serial)
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.owners()).finish()
    }
}

impl MemoryOwner {
    /// Memory of an owner without a history, in bytes: its counters, behind two counts of
    /// references on a line of their own, and its slot.
    pub const BYTES: usize =
        align_of::<Counted>() + size_of::<Counted>() + size_of::<Weak<Counted>>();

    /// Memory for each owner with a holder, in bytes, beside that.
    pub const INSIDE_BYTES: usize = Inside::PAIR_BYTES;

    fn new(slots: &Arc<Slots>) -> MemoryOwner {
        let free = slots.free.lock().pop();
        let mut owners = slots.owners.lock();
        let slot = free.unwrap_or(Slot(owners.len() as u32));
        let slots_of = Arc::downgrade(slots);
        let place = Place::default();
        let serial = slots.made.fetch_add(1, Relaxed);
        let (charged, history) = (Lines::default(), History::default());
        let parts = MemoryClass::DIVIDED.map(|_| AtomicU64::new(u64::MAX));
        let account = Counted {
            slot,
            serial,
            charged,
            history,
            place,
            parts,
            listed: Listed::default(),
            slots: slots_of,
            ledger: slots.ledger.clone(),
            judged: Judged::default(),
        };
        let owner = MemoryOwner(Arc::new(account));
        let entry = Arc::downgrade(&owner.0);
        match owners.get_mut(slot.0 as usize) {
            Some(place) => *place = entry,
            None => owners.push(entry),
        }
        owner
    }

    pub fn slot(&self) -> Slot {
        self.0.slot
    }

    pub(crate) fn serial(&self) -> u64 {
        self.0.serial
    }

    pub(crate) fn place(&self) -> &Place {
        &self.0.place
    }

    /// Of a class that is not divided: all.
    pub(crate) fn part(&self, class: MemoryClass) -> u64 {
        class.divided().map_or(u64::MAX, |at| self.0.parts[at].load(Relaxed))
    }

    pub(crate) fn set_part(&self, class: MemoryClass, bytes: u64) {
        let at = class.divided().expect("a class with parts is divided");
        self.0.parts[at].store(bytes, Relaxed);
    }

    pub(crate) fn listed(&self) -> &Listed {
        &self.0.listed
    }

    /// A charge rises from nothing.
    fn begins_to_use(&self, class: MemoryClass) {
        let lists = [OF_ANY_CLASS, class as usize];
        let lists = if class.has_list() { &lists[..] } else { &lists[..1] };
        if !self.listed().is_on_each(lists)
            && let Some(slots) = self.0.slots.upgrade()
        {
            lists.iter().for_each(|list| slots.users.enter(*list, self.slot(), self.listed()));
        }
    }

    pub(crate) fn history(&self) -> &History {
        &self.0.history
    }

    pub(crate) fn ledger(&self) -> &Ledger {
        &self.0.ledger
    }

    pub(crate) fn judged(&self) -> &Judged {
        &self.0.judged
    }

    /// All owners of the same memory.
    pub(crate) fn all(&self) -> Vec<MemoryOwner> {
        self.0.slots.upgrade().map_or(Vec::new(), |slots| slots.all())
    }

    /// It has another holder, by these serial numbers (INSIDE-I1).
    pub(crate) fn moves_inside(&self, before: u64, now: u64) {
        if let Some(slots) = self.0.slots.upgrade() {
            slots.inside.has_moved(self.slot(), before, now);
        }
    }

    /// Its holder; none, if it is a child of the root.
    pub(crate) fn holder(&self) -> Option<MemoryOwner> {
        self.0.slots.upgrade()?.holder(&self.0.place)
    }

    /// Its holder, then that one's, and so on.
    pub(crate) fn above(&self) -> Vec<MemoryOwner> {
        self.holder().map_or(Vec::new(), |holder| holder.upwards(Some(self)))
    }

    /// This group and those above it, up to the first that comes again, or is `end`.
    fn upwards(self, end: Option<&MemoryOwner>) -> Vec<MemoryOwner> {
        let mut chain: Vec<MemoryOwner> = Vec::new();
        let mut next = Some(self);
        while let Some(group) = next.filter(|group| Some(group) != end && !chain.contains(group)) {
            next = group.holder();
            chain.push(group);
        }
        chain
    }

    /// Bytes of all classes, without those of the groups that it holds.
    pub fn usage(&self) -> u64 {
        MemoryClass::ALL.iter().map(|class| self.charged(*class).max(0) as u64).sum()
    }

    /// Bytes of a class.
    pub fn charged(&self, class: MemoryClass) -> i64 {
        self.0.charged.0[class as usize].load(Relaxed)
    }

    /// Charges `bytes` until the result is dropped.
    pub fn charge(&self, class: MemoryClass, bytes: i64) -> MemoryCharge {
        self.add(class, bytes);
        MemoryCharge { owner: self.clone(), class, bytes: AtomicI64::new(bytes) }
    }

    /// Charges `bytes` more, or fewer if it is negative. The object that has them takes them back
    /// when it is dropped (CHARGE-C1); where it has a word for that, [`Self::charge`] does.
    pub fn add(&self, class: MemoryClass, bytes: i64) {
        let before = self.0.charged.0[class as usize].fetch_add(bytes, Relaxed);
        if before <= 0 && before.wrapping_add(bytes) > 0 {
            self.begins_to_use(class);
        }
        // CHARGE-C3.
        let steps = (before.wrapping_add(bytes) / STEP).abs_diff(before / STEP);
        if steps > 0 {
            let usage = self.usage();
            self.note_peak(usage);
            self.has_passed_steps(steps, usage);
        }
    }

    pub(crate) fn note_peak(&self, usage: u64) {
        self.history().note_peak(usage);
    }
}

impl PartialEq for MemoryOwner {
    fn eq(&self, other: &MemoryOwner) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for MemoryOwner {}

impl fmt::Debug for MemoryOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let charged = MemoryClass::ALL.map(|class| (class.name(), self.charged(class)));
        let charged = charged.iter().filter(|(_, bytes)| *bytes != 0);
        write!(f, "{} ", self.0.slot.0)?;
        f.debug_map().entries(charged.copied()).finish()
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        for class in MemoryClass::ALL {
            let left = *self.charged.0[class as usize].get_mut();
            // A second panic would end the process, and hide the first.
            let is_right = left == 0 || std::thread::panicking();
            debug_assert!(is_right, "CHARGE-C1: {class:?} of owner {}: {left}", self.slot.0);
        }
        if let Some(slots) = self.slots.upgrade() {
            let above = || {
                let holder = slots.holder(&self.place);
                let up = holder.map_or(Vec::new(), |holder| holder.upwards(None));
                up.iter().map(MemoryOwner::slot).collect()
            };
            self.ledger.end(self.slot, &above);
            if let Some(record) = self.history.so_far()
                && let Some(holder) = slots.holder(&self.place)
            {
                holder.history().record().counts.inherit(&record.counts.read());
                holder.note_peak(self.history.peak());
            }
            slots.inside.has_moved(self.slot, self.place.holder.load(Relaxed), Place::TOP);
            slots.free.lock().push(self.slot);
        }
    }
}

/// Bytes that are charged to an owner as long as this exists.
#[must_use = "dropping a charge ends it"]
pub struct MemoryCharge {
    owner: MemoryOwner,
    class: MemoryClass,
    bytes: AtomicI64,
}

impl MemoryCharge {
    /// By so many bytes more, or less.
    pub fn change(&self, more: i64) {
        if more != 0 {
            self.bytes.fetch_add(more, Relaxed);
            self.owner.add(self.class, more);
        }
    }

    pub fn bytes(&self) -> i64 {
        self.bytes.load(Relaxed)
    }

    pub fn owner(&self) -> &MemoryOwner {
        &self.owner
    }
}

impl Drop for MemoryCharge {
    fn drop(&mut self) {
        self.owner.add(self.class, -*self.bytes.get_mut());
    }
}

impl fmt::Debug for MemoryCharge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of {}", self.bytes(), self.owner.0.slot.0)
    }
}

/// The charge of one file that the front end has looked up: one word, for there are very many.
#[derive(Debug)]
pub struct LookupCharge(MemoryOwner);

impl LookupCharge {
    pub fn new(owner: &MemoryOwner) -> LookupCharge {
        owner.add(MemoryClass::Lookup, LOOKUP_BYTES as i64);
        LookupCharge(owner.clone())
    }

    pub fn owner(&self) -> &MemoryOwner {
        &self.0
    }
}

impl Drop for LookupCharge {
    fn drop(&mut self) {
        self.0.add(MemoryClass::Lookup, -(LOOKUP_BYTES as i64));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::Event;

    #[test]
    fn a_slot_is_given_again_when_nothing_is_charged_to_its_owner() {
        let memory = Memory::default();
        let (one, two) = (memory.add_owner(), memory.add_owner());
        assert_eq!((one.slot(), two.slot()), (Slot(1), Slot(2)));
        let charge = one.charge(MemoryClass::Edit, 5);
        drop(one);
        assert_eq!(memory.add_owner().slot(), Slot(3), "CHARGE-C2");
        assert_eq!(memory.charged(MemoryClass::Edit), 5);
        drop(charge);
        let next = [memory.add_owner(), memory.add_owner()].map(|owner| owner.slot());
        assert_eq!(memory.charged(MemoryClass::Edit), 0);
        assert!(next.contains(&Slot(1)), "{next:?}");
    }

    /// As docs/memory.md has it.
    #[test]
    fn a_charge_takes_three_words_and_that_of_a_look_up_one() {
        assert_eq!(size_of::<MemoryCharge>(), 3 * size_of::<usize>());
        assert_eq!(size_of::<Option<LookupCharge>>(), size_of::<usize>());
    }

    /// And its slot. One without a history has no record.
    #[test]
    fn an_idle_owner_takes_five_lines_of_memory() {
        let bytes = MemoryOwner::BYTES;
        assert!(bytes <= 5 * 64 + size_of::<usize>(), "{bytes} bytes");
        let memory = Memory::default();
        let [holder, held] = std::array::from_fn(|_| memory.add_owner());
        held.set_holder(Some(&holder));
        drop(held.charge(MemoryClass::Node, 1000));
        let _figures = memory.figures(&holder);
        assert_eq!(held.counts(), crate::Counts::default());
        drop(held);
        assert!(holder.history().so_far().is_none());
    }

    #[test]
    fn an_owner_that_ends_leaves_its_counts_to_its_holder() {
        let memory = Memory::default();
        let (holder, held) = (memory.add_owner(), memory.add_owner());
        held.set_holder(Some(&holder));
        held.count(Event::Bypass);
        drop(held.charge(MemoryClass::Node, 1 << 20));
        drop(held);
        assert_eq!(holder.counts().event(Event::Bypass), 1);
        assert_eq!(holder.history().peak(), 1 << 20);
        // A slot that another owner has now is no holder.
        let held = memory.add_owner();
        held.set_holder(Some(&holder));
        held.count(Event::Bypass);
        let slot = holder.slot();
        drop(holder);
        let other = memory.add_owner();
        assert_eq!(other.slot(), slot);
        drop(held);
        assert_eq!(other.counts().event(Event::Bypass), 0);
    }

    #[test]
    fn the_highest_usage_is_noted() {
        let owner = Memory::default().add_owner();
        for _ in 0..1000 {
            owner.add(MemoryClass::Edit, 1000);
        }
        owner.add(MemoryClass::Edit, -900_000);
        owner.add(MemoryClass::Edit, 100_000);
        let peak = owner.history().peak();
        assert!((1_000_000 - STEP as u64..=1_000_000).contains(&peak), "CHARGE-C3: {peak}");
        owner.add(MemoryClass::Edit, -200_000);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Owner,
        Charge(usize, usize, i64),
        Change(usize, i64),
        Drop(usize),
        Leave(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        let (n, class, bytes) = (0..8_usize, 0..MemoryClass::ALL.len(), 0..1000_i64);
        prop_oneof![
            Just(Step::Owner),
            (n.clone(), class, bytes.clone()).prop_map(|(n, class, b)| Step::Charge(n, class, b)),
            (n.clone(), -500..500_i64).prop_map(|(n, more)| Step::Change(n, more)),
            n.clone().prop_map(Step::Drop),
            n.prop_map(Step::Leave),
        ]
    }

    proptest! {
        /// CHARGE-C1: the counters are the sums of the charges, and zero when those are gone.
        #[test]
        fn counters_are_sums_of_charges(steps in prop::collection::vec(step(), 0..60)) {
            let memory = Memory::default();
            let mut owners = vec![memory.shared().clone()];
            let mut charges: Vec<MemoryCharge> = Vec::new();
            for step in steps {
                match step {
                    Step::Owner => owners.push(memory.add_owner()),
                    Step::Charge(n, class, bytes) => {
                        let owner = &owners[n % owners.len()];
                        charges.push(owner.charge(MemoryClass::ALL[class], bytes));
                    }
                    Step::Change(n, more) if !charges.is_empty() => {
                        charges[n % charges.len()].change(more);
                    }
                    Step::Drop(n) if !charges.is_empty() => {
                        drop(charges.swap_remove(n % charges.len()));
                    }
                    Step::Leave(n) if owners.len() > 1 => {
                        drop(owners.swap_remove(1 + n % (owners.len() - 1)));
                    }
                    _ => {}
                }
                let mut sums = BTreeMap::new();
                for charge in &charges {
                    let key = (charge.owner().slot(), charge.class);
                    *sums.entry(key).or_insert(0) += charge.bytes();
                }
                let slots: Vec<Slot> = memory.owners().iter().map(MemoryOwner::slot).collect();
                for owner in memory.owners() {
                    for class in MemoryClass::ALL {
                        let sum = sums.remove(&(owner.slot(), class)).unwrap_or_default();
                        prop_assert_eq!(owner.charged(class), sum);
                    }
                }
                prop_assert!(sums.is_empty(), "CHARGE-C2: {:?}", sums);
                prop_assert!(slots.is_sorted(), "slots are places");
            }
            drop(charges);
            prop_assert!(MemoryClass::ALL.iter().all(|class| memory.charged(*class) == 0));
        }
    }
}
