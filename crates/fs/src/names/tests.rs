//! The names against a plain set, with a front end that forgets them and without one.

use std::collections::BTreeSet;

use copyhold_memory::GroupLimits;
use copyhold_types::InodeNo;
use proptest::prelude::*;

use super::*;

const KEY: HashKey = HashKey([7; 16]);

struct World {
    owners: Vec<MemoryOwner>,
    gone: Vec<AtomicBool>,
    names: AbsentNames,
}

impl Presence for AtomicBool {
    fn is_gone(&self) -> bool {
        self.load(Relaxed)
    }
}

/// A name of a tenant: its number gives its length, too.
type Name = (usize, u8);

impl World {
    fn new(tenants: usize, limit: u64) -> World {
        let memory = Arc::new(Memory::default());
        let owners = (0..tenants).map(|_| memory.add_owner()).collect();
        let options = Options { names_max: limit, ..Options::default() };
        let gone = (0..tenants).map(|_| AtomicBool::new(false)).collect();
        World { owners, gone, names: AbsentNames::new(memory, &options) }
    }

    fn dir(&self, tenant: usize) -> Directory<'_> {
        let node = NodeId { subvol: SubvolId(tenant as u32 + 1), ino: InodeNo::ROOT };
        let (owner, subvol) = (&self.owners[tenant], &self.gone[tenant]);
        Directory { node, hash_key: &KEY, owner, subvol }
    }

    fn end_tenant(&self, tenant: usize) {
        self.gone[tenant].store(true, Relaxed);
        self.names.end_tenant(SubvolId(tenant as u32 + 1), &self.owners[tenant]);
    }

    fn insert(&self, (tenant, name): Name) -> Absent {
        self.names.insert(self.dir(tenant), &text(name), None)
    }

    fn hits(&self, (tenant, name): Name) -> bool {
        self.names.ask(self.dir(tenant), &text(name)).is_some()
    }

    fn remove(&self, (tenant, name): Name) {
        self.names.remove(self.dir(tenant), &text(name));
    }

    /// NAMES-N2 and CHARGE-C1.
    fn verify(&self) {
        self.names.shards.iter().for_each(|shard| shard.0.lock().verify());
        let figures = self.names.figures();
        assert!(figures.iter().all(|of| of.counts.live() == of.live), "NAMES-N2: {figures:?}");
        let live: u64 = figures.iter().map(|of| of.live).sum();
        assert_eq!((live, self.names.totals().live()), (self.names.live(), live), "NAMES-N2");
        assert_eq!(self.pages(3), figures);
    }

    /// The figures in pages of so many tenants.
    fn pages(&self, most: usize) -> Vec<NameFigures> {
        let mut listed: Vec<NameFigures> = Vec::new();
        loop {
            let after = listed.last().map_or(SubvolId(0), |last| last.subvol);
            let page = self.names.figures_behind(after, most);
            listed.extend_from_slice(&page);
            if page.len() < most {
                return listed;
            }
        }
    }
}

fn text(name: u8) -> Vec<u8> {
    vec![name; 1 + usize::from(name) % 40 + if name == 9 { 214 } else { 0 }]
}

#[test]
fn names_that_were_removed_to_make_room_return_and_others_are_new() {
    let world = World::new(1, 100);
    let returned = || world.names.totals()[NameEvent::Returned];
    for name in 0..200 {
        world.insert((0, name));
    }
    assert_eq!(returned(), 0, "all were new");
    let gone: Vec<Name> = (0..200).map(|name| (0, name)).filter(|of| !world.hits(*of)).collect();
    assert!(gone.len() >= 10, "{}", gone.len());
    for name in &gone[..10] {
        world.insert(*name);
    }
    assert_eq!(returned(), 10);
    let last = gone[9];
    assert!(world.hits(last));
    world.remove(last);
    world.insert(last);
    assert_eq!(returned(), 10, "a file had the name meanwhile");
    world.verify();
}

#[test]
fn the_setting_is_that_of_the_operator_also_where_memory_leaves_less() {
    let world = World::new(1, 100);
    world.names.set_limit(u64::MAX >> 8);
    assert_eq!(world.names.setting(), u64::MAX >> 8);
    assert!((1..world.names.setting()).contains(&world.names.limit()));
}

#[derive(Clone, Debug)]
enum Step {
    Ask(Name),
    Insert(Name),
    Remove(Name),
    Refuse(Name),
    PutBack,
    Pick(usize, usize),
    Confirm,
    Finish,
    DropTenant(usize),
    Limit(u64),
}

const TENANTS: usize = 3;

fn step() -> impl Strategy<Value = Step> {
    // All of them are fewer than the limit and its excess (NAMES-N5).
    let name = || (0..TENANTS, 0..20_u8);
    prop_oneof![
        3 => name().prop_map(Step::Ask),
        6 => name().prop_map(Step::Insert),
        3 => name().prop_map(Step::Remove),
        1 => name().prop_map(Step::Refuse),
        1 => Just(Step::PutBack),
        2 => (0..TENANTS, 1..40_usize).prop_map(|(tenant, most)| Step::Pick(tenant, most)),
        2 => Just(Step::Confirm),
        2 => Just(Step::Finish),
        1 => (0..TENANTS).prop_map(Step::DropTenant),
        1 => prop_oneof![Just(0), 10..50_u64].prop_map(Step::Limit),
    ]
}

proptest! {
    /// NAMES-N1 to NAMES-N3: with a front end that forgets, exactly the names that were inserted
    /// and not removed, finished or dropped since are entries.
    #[test]
    fn entries_are_the_names_that_a_front_end_may_know(
        steps in prop::collection::vec(step(), 1..300),
    ) {
        let world = World::new(TENANTS, 20);
        world.names.keep_for_front_end();
        let mut known: BTreeSet<Name> = BTreeSet::new();
        // Whether a look-up has hit the name since, and whether the name is in flight.
        let mut doomed: Vec<(Name, Victim, bool, bool)> = Vec::new();
        let mut limit = 20;
        for step in steps {
            match step {
                Step::Ask(name) => {
                    prop_assert_eq!(world.hits(name), limit > 0 && known.contains(&name));
                    doomed.iter_mut().filter(|of| of.0 == name).for_each(|of| of.2 |= limit > 0);
                }
                Step::Insert(name) => {
                    let answer = world.insert(name);
                    let unbounded = Absent { valid: VALID, is_over: false };
                    prop_assert!(limit > 0 || answer == unbounded);
                    if limit > 0 {
                        known.insert(name);
                    }
                    doomed.iter_mut().filter(|of| of.0 == name).for_each(|of| of.2 |= limit > 0);
                }
                Step::Remove(name) => {
                    world.remove(name);
                    known.remove(&name);
                    doomed.retain(|of| of.0 != name);
                }
                Step::Refuse(name) => {
                    let mut of_name = doomed.iter_mut().filter(|of| of.0 == name);
                    let doomed = of_name.next();
                    let flies = doomed.as_ref().is_some_and(|of| of.3);
                    prop_assert_eq!(world.names.refuses(world.dir(name.0), &text(name.1)), flies);
                    if let Some(of) = doomed {
                        of.2 |= !flies;
                    }
                }
                Step::PutBack => {
                    for (name, victim, ..) in doomed.drain(..) {
                        world.names.put_back(&victim);
                        if limit == 0 {
                            known.remove(&name);
                        }
                    }
                }
                Step::Pick(tenant, most) => {
                    for victim in world.names.pick_of(&world.owners[tenant], most) {
                        let name = (tenant, victim.name()[0]);
                        prop_assert_eq!(victim.name(), &text(name.1)[..]);
                        prop_assert!(known.contains(&name));
                        if !victim.expires {
                            prop_assert!(doomed.iter().all(|of| of.0 != name), "doomed once");
                            doomed.push((name, victim, false, false));
                        }
                    }
                }
                Step::Confirm => {
                    doomed.retain_mut(|(name, victim, asked, flies)| {
                        *flies = world.names.confirm(victim);
                        assert_eq!(*flies, !*asked, "NAMES-N3");
                        if !*flies && limit == 0 {
                            known.remove(name);
                        }
                        *flies
                    });
                }
                Step::Finish => {
                    for (name, victim, asked, _) in doomed.drain(..) {
                        world.names.finish(&victim, NameEvent::Pruned);
                        if !asked || limit == 0 {
                            known.remove(&name);
                        }
                    }
                }
                // A doomed entry ends by itself.
                Step::DropTenant(tenant) => {
                    let slot = world.owners[tenant].slot();
                    for shard in &world.names.shards {
                        shard.0.lock().drop_all_of(slot, &world.names.scarce);
                    }
                    known.retain(|name| name.0 != tenant || doomed.iter().any(|of| of.0 == *name));
                }
                Step::Limit(entries) => {
                    world.names.set_limit(entries);
                    limit = entries;
                    while world.names.drop_unwanted(64) {}
                    if limit == 0 {
                        known.retain(|name| doomed.iter().any(|of| of.0 == *name));
                    }
                }
            }
            world.verify();
            prop_assert_eq!(world.names.live(), known.len() as u64);
        }
        let memory = world.names.memory.clone();
        drop(world);
        prop_assert_eq!(memory.charged(MemoryClass::Name), 0);
    }

    /// Without a front end: no entry of a name that was not inserted, and never more than the
    /// limit.
    #[test]
    fn an_insertion_at_the_limit_evicts(
        steps in prop::collection::vec(step(), 1..300),
    ) {
        let world = World::new(TENANTS, 20);
        let mut known: BTreeSet<Name> = BTreeSet::new();
        for step in steps {
            match step {
                Step::Insert(name) => {
                    world.insert(name);
                    known.insert(name);
                }
                Step::Remove(name) => {
                    world.remove(name);
                    known.remove(&name);
                }
                Step::Ask(name) => prop_assert!(known.contains(&name) || !world.hits(name)),
                _ => {}
            }
            world.verify();
            prop_assert!(world.names.live() <= 20, "{}", world.names.live());
        }
    }
}

#[test]
fn a_tenant_above_its_part_recycles_its_own_names() {
    const LIMIT: u64 = 20_000;
    let world = World::new(2, LIMIT);
    let insert = |tenant: usize, number: u32| {
        world.names.insert(world.dir(tenant), &number.to_le_bytes(), None)
    };
    for number in 0..1000 {
        insert(0, number);
    }
    for number in 0..10 * LIMIT as u32 {
        insert(1, number);
    }
    assert!(world.names.live() <= LIMIT + 2048, "{}", world.names.live());
    let hits = |number: u32| world.names.ask(world.dir(0), &number.to_le_bytes()).is_some();
    assert!((0..1000).all(hits), "NAMES-N4");
    let rogue = &world.names.figures()[1];
    assert!(rogue.counts[NameEvent::Pruned] >= 9 * LIMIT, "{rogue:?}");
}

#[test]
fn names_that_are_asked_for_survive_ten_times_the_limit() {
    const LIMIT: u32 = 20_000;
    let world = World::new(1, LIMIT.into());
    let dir = world.dir(0);
    let hot = |number: u32| (u64::from(number) << 32).to_le_bytes();
    for number in 0..100 {
        world.names.insert(dir, &hot(number), None);
    }
    let mut missed = 0;
    for number in 0..10 * LIMIT {
        world.names.insert(dir, &number.to_le_bytes(), None);
        missed += u32::from(world.names.ask(dir, &hot(number % 100)).is_none());
    }
    assert_eq!(missed, 0);
}

#[test]
fn the_names_of_many_tenants_with_few_each_are_counted() {
    const TENANTS: usize = 500;
    let world = World::new(TENANTS, 50_000);
    for number in 0..60_u32 {
        for tenant in 0..TENANTS {
            world.names.insert(world.dir(tenant), &number.to_le_bytes(), None);
        }
    }
    let owed = world.names.live().abs_diff(world.names.published());
    assert!(owed <= 7 * 16 * SHARDS as u64, "NAMES-N6: {owed}");
    world.verify();
}

/// A front end that forgets nothing, as one of which the threads all wait.
#[test]
fn entries_have_a_bound_without_help_of_the_front_end() {
    const LIMIT: u64 = 20_000;
    let world = World::new(2, LIMIT);
    world.names.keep_for_front_end();
    for number in 0..1000_u32 {
        world.names.insert(world.dir(0), &number.to_le_bytes(), None);
    }
    for number in 0..3 * LIMIT as u32 {
        let event = Some(NameEvent::Retained);
        world.names.insert(world.dir(1), &number.to_le_bytes(), event);
    }
    assert!(world.names.live() <= LIMIT + excess(LIMIT) + 2 * 16 * SHARDS as u64, "NAMES-N5");
    world.verify();
    let figures = world.names.figures();
    assert_eq!((figures[0].live, figures[0].counts[NameEvent::Replaced]), (1000, 0), "NAMES-N4");
    assert!(figures[1].counts[NameEvent::Replaced] > LIMIT, "{figures:?}");
}

#[test]
fn a_subvolume_that_goes_takes_its_doomed_and_late_names_along() {
    let world = World::new(2, 1000);
    world.names.keep_for_front_end();
    let subvol = SubvolId(1);
    let drop_tenant = || {
        world.end_tenant(0);
        while world.names.drop_unwanted(4) {}
    };
    // Their answers are short: so they are doomed at once.
    for number in 0..1000 {
        world.names.insert(world.dir(1), &u32::to_le_bytes(number), None);
    }
    for name in 0..20 {
        world.insert((0, name));
    }
    let victims = world.names.pick_all(&world.owners[0], 10);
    assert!(victims.len() >= 2, "{victims:?}");
    drop_tenant();
    assert!(world.hits((0, victims[0].name()[0])));
    let (asked, other) = victims.split_at(1);
    assert!(!world.names.confirm(&asked[0]), "NAMES-N3");
    other.iter().for_each(|victim| world.names.finish(victim, NameEvent::Pruned));
    // An insertion of a caller that has not seen yet that the subvolume is gone.
    let live = world.names.live();
    world.insert((0, 0));
    assert_eq!(world.names.live(), live);
    world.names.note_delay(subvol, SHORT);
    assert_eq!(world.owners[0].charged(MemoryClass::Name), 0);
    assert!(world.names.figures().iter().all(|figures| figures.subvol != subvol));
    world.verify();
}

#[test]
fn without_a_limit_the_names_of_those_that_stay_are_dropped_behind_those_of_one_that_is_gone() {
    let world = World::new(3, 1000);
    for name in 0..20 {
        (0..3).for_each(|tenant| assert!(!world.insert((tenant, name)).is_over));
    }
    world.end_tenant(1);
    world.names.set_limit(0);
    while world.names.drop_unwanted(4) {}
    assert_eq!(world.names.live(), 0);
    assert!(world.names.figures().iter().all(|figures| figures.subvol != SubvolId(2)));
    world.verify();
}

#[test]
fn a_tenant_of_which_all_names_are_under_way_is_passed_over() {
    let world = World::new(3, 1000);
    world.names.keep_for_front_end();
    for number in 0..500_u32 {
        for tenant in 0..2 {
            world.names.insert(world.dir(tenant), &number.to_le_bytes(), None);
        }
    }
    world.owners[1].set_limits(&GroupLimits { weight: 90, ..GroupLimits::default() });
    // The names of the tenant that is the first.
    let first = world.names.pick_all(&world.owners[1], 1000);
    assert_eq!(first.len(), 500);
    for _ in 0..2 {
        let victims = world.names.pick(32);
        assert!(!victims.is_empty() && victims.iter().all(|of| of.dir.subvol == SubvolId(1)));
        victims.iter().for_each(|victim| world.names.put_back(victim));
    }
    first.iter().for_each(|victim| world.names.put_back(victim));
    let again = world.names.pick_all(&world.owners[1], 1000);
    assert_eq!(again.len(), 500);
}

/// Names of each length that there is, the longest of 255 bytes.
#[test]
fn names_of_each_length_are_found_charged_and_forgotten() {
    let world = World::new(1, 1000);
    world.names.keep_for_front_end();
    let (dir, name) = (world.dir(0), |len: usize| vec![b'x'; len]);
    for len in 1..=255 {
        world.names.insert(dir, &name(len), None);
    }
    assert!((1..=255).all(|len| world.names.ask(dir, &name(len)).is_some()));
    world.names.remove(dir, &name(255));
    assert!(
        world.names.ask(dir, &name(255)).is_none() && world.names.ask(dir, &name(254)).is_some()
    );
    world.names.insert(dir, &name(255), None);
    world.verify();
    let victims = world.names.pick_all(&world.owners[0], 1000);
    let lengths: BTreeSet<usize> = victims.iter().map(|victim| victim.name().len()).collect();
    assert_eq!((victims.len(), lengths), (255, (1..=255).collect()));
    for victim in &victims {
        assert!(world.names.confirm(victim));
        world.names.finish(victim, NameEvent::Dropped);
    }
    world.verify();
    assert_eq!((world.names.live(), world.owners[0].charged(MemoryClass::Name)), (0, 0));
}

/// A limit of 0 while a thread goes on asking for names, and adding them.
#[test]
#[allow(clippy::disallowed_methods, reason = "threads are the subject of this test")]
fn a_limit_of_zero_ends_a_million_names_beside_a_thread_that_adds_them() {
    const NAMES: u32 = 1_000_000;
    let world = World::new(2, 2 * u64::from(NAMES));
    let insert = |number: u32| world.names.insert(world.dir(0), &number.to_le_bytes(), None);
    for number in 0..NAMES {
        insert(number);
    }
    assert_eq!(world.names.live(), NAMES.into());
    let (round, ends) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while !ends.load(Relaxed) {
                let number = round.fetch_add(1, Relaxed) as u32;
                world.names.ask(world.dir(0), &(number % NAMES).to_le_bytes());
                insert(NAMES + number);
                world.names.insert(world.dir(1), &number.to_le_bytes(), None);
            }
        });
        let await_rounds = || {
            let begun = round.load(Relaxed);
            while round.load(Relaxed) < begun + 1000 {
                std::thread::yield_now();
            }
        };
        await_rounds();
        world.names.set_limit(0);
        while world.names.drop_unwanted(2048) {}
        assert_eq!(world.names.live(), 0, "an entry came behind the end of the limit");
        await_rounds();
        ends.store(true, Relaxed);
    });
    assert_eq!(world.names.live(), 0);
    assert!(world.owners.iter().all(|owner| owner.charged(MemoryClass::Name) == 0));
    world.verify();
    world.names.set_limit(1000);
    insert(1);
    assert!(world.names.ask(world.dir(0), &1_u32.to_le_bytes()).is_some());
}

/// A rogue that asks twice for each of its names (edge of the second chance) is bounded, too.
#[test]
fn names_that_are_asked_for_twice_are_bounded() {
    const LIMIT: u32 = 20_000;
    let world = World::new(1, LIMIT.into());
    for number in 0..10 * LIMIT {
        world.names.insert(world.dir(0), &number.to_le_bytes(), None);
        world.names.ask(world.dir(0), &number.to_le_bytes());
    }
    assert!(world.names.live() <= u64::from(LIMIT) + 2048, "{}", world.names.live());
    world.verify();
}

#[test]
fn answers_are_short_where_there_is_little_room_and_longer_when_they_are_repeated() {
    const LIMIT: u32 = 64_000;
    let world = World::new(2, LIMIT.into());
    world.names.keep_for_front_end();
    let dir = world.dir(0);
    let insert = |number: u32| world.names.insert(dir, &number.to_le_bytes(), None);
    assert_eq!(insert(0), Absent { valid: VALID, is_over: false });
    for number in 0..LIMIT + 1000 {
        insert(number);
    }
    assert_eq!(insert(LIMIT + 1000), Absent { valid: SHORT, is_over: true });
    let ask = || world.names.ask(dir, &(LIMIT + 1000).to_le_bytes()).unwrap().valid;
    assert_eq!([ask(), ask()], [8 * SHORT, 64 * SHORT]);
    // Another tenant has its part.
    let other = world.names.insert(world.dir(1), b"x", None);
    assert_eq!(other, Absent { valid: VALID, is_over: false }, "NAMES-N4");
    // The first names were answered for long. Ahead of the limit they expire first.
    let first = 0..LIMIT / 8;
    first.clone().for_each(|number| world.names.remove(dir, &number.to_le_bytes()));
    let victims = world.names.pick(640);
    assert!(!victims.is_empty() && victims.iter().all(|victim| victim.expires));
    // At the limit only those of which the front end asked again do.
    let again = LIMIT / 8..LIMIT / 4;
    for number in again.clone().chain(again.clone()) {
        assert!(world.names.ask(dir, &number.to_le_bytes()).is_some());
    }
    for number in first {
        insert(number);
    }
    let victims = world.names.pick(LIMIT as usize);
    let number = |victim: &Victim| u32::from_le_bytes(victim.name().try_into().unwrap());
    let (of_these, others): (Vec<_>, Vec<_>) =
        victims.iter().partition(|victim| again.contains(&number(victim)));
    assert!(!others.is_empty() && others.iter().all(|victim| !victim.expires));
    let mut first = BTreeSet::new();
    for victim in of_these {
        assert_eq!(victim.expires, first.insert(number(victim)));
    }
    assert!(!first.is_empty());
}
