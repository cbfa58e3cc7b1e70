//! A cache of pages, and tenants that read them: one re-reads its set at random, and a rival
//! re-reads in order more than it gets room for, so each of its reads needs room.

use std::hash::{Hash, Hasher};

use copyhold_memory::{
    Arm, Event, GroupLimits, Memory, MemoryClass, MemoryOwner, Promise, RingKind, Rings, Stat,
};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};

pub(crate) const PAGE: u64 = 4096;

/// A page of a tenant's, hashed as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Page {
    tenant: u32,
    number: u64,
}

impl Hash for Page {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let number = self.number << 8 | u64::from(self.tenant);
        state.write_u64(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    }
}

pub(crate) struct Cache {
    pub(crate) memory: Memory,
    pages: Rings<Page, ()>,
    random: Xoshiro256PlusPlus,
}

impl Cache {
    /// For so many pages.
    pub(crate) fn new(arm: Arm, pages: u64) -> Cache {
        let memory = Memory::default();
        memory.set_arm(arm);
        let mut rings = Rings::new(MemoryClass::Data, RingKind::TwoRings);
        drop(rings.set_bytes_max(&memory, (pages * PAGE) as usize));
        Cache { memory, pages: rings, random: Xoshiro256PlusPlus::seed_from_u64(1) }
    }

    /// A lower bound, which is kept at once.
    pub(crate) fn set_pages_max(&mut self, pages: u64) {
        drop(self.pages.fit_bytes_max(&self.memory, (pages * PAGE) as usize));
    }

    /// A tenant with so many pages of `low`.
    pub(crate) fn tenant(&self, low: u64) -> Tenant {
        let owner = self.memory.add_owner();
        let promise = Promise { min: 0, low: low * PAGE };
        owner.set_limits(&GroupLimits { promise, ..GroupLimits::default() });
        Tenant { owner, next: 0 }
    }

    /// Reads a page of a tenant's; whether it was in memory.
    pub(crate) fn read(&mut self, tenant: &Tenant, number: u64) -> bool {
        let page = Page { tenant: tenant.owner.slot().0, number };
        let hit = self.pages.get(&page).is_some();
        if !hit {
            drop(self.pages.insert(&self.memory, page, (), PAGE as usize, &tenant.owner));
        }
        hit
    }

    /// Reads any of the first `set` pages of a tenant's.
    pub(crate) fn read_any(&mut self, tenant: &Tenant, set: u64) {
        let number = self.random.next_u64() % set;
        self.read(tenant, number);
    }

    /// Reads the next of the first `set` pages of a tenant's, in a circle.
    pub(crate) fn read_next(&mut self, tenant: &mut Tenant, set: u64) {
        tenant.next = (tenant.next + 1) % set;
        self.read(tenant, tenant.next);
    }
}

pub(crate) struct Tenant {
    pub(crate) owner: MemoryOwner,
    next: u64,
}

impl Tenant {
    pub(crate) fn pages(&self) -> u64 {
        self.owner.charged(MemoryClass::Data) as u64 / PAGE
    }

    /// Pages that reclaim has looked at.
    pub(crate) fn scanned(&self) -> u64 {
        self.owner.counts().stat(Stat::Scan) / PAGE
    }

    /// Pages of these that it has evicted.
    pub(crate) fn stolen(&self) -> u64 {
        self.owner.counts().stat(Stat::Steal) / PAGE
    }

    pub(crate) fn events(&self, event: Event) -> u64 {
        self.owner.counts().event(event)
    }
}
