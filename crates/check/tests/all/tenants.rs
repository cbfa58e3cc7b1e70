//! Whatever subvolumes share, and however they end, the pool is sound: after a crash at any moment,
//! with deletions half done and releases pending, and when all has settled.

use std::collections::BTreeMap;
use std::sync::Arc;

use copyhold_device::sim::SimImage;
use copyhold_fs::{Caller, Filesystem, NodeId, OpenFlags};
use copyhold_pool::{IdSpace, Limits, Pool, Tier, Transaction};
use copyhold_types::{EpochId, InodeNo, SubvolId};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};

use crate::power::Power;

const SUBVOLS: usize = 7;
const LIVES: usize = 4;
const STEPS: usize = 40;

fn root_of(subvol: SubvolId) -> NodeId {
    NodeId { subvol, ino: InodeNo::ROOT }
}

struct History {
    rng: Xoshiro256PlusPlus,
    /// Subvolumes with their names, and the subvolumes that hold them.
    live: BTreeMap<SubvolId, (SubvolId, String)>,
    next: u32,
}

impl History {
    fn below(&mut self, n: u64) -> u64 {
        self.rng.next_u64() % n
    }

    fn any(&mut self) -> SubvolId {
        let n = self.below(self.live.len() as u64 + 1) as usize;
        self.live.keys().nth(n).copied().unwrap_or(SubvolId::ROOT)
    }

    async fn step(&mut self, fs: &Arc<Filesystem>) {
        match self.below(100) {
            0..5 if self.live.len() < SUBVOLS => self.born(fs, None).await,
            5..20 if self.live.len() < SUBVOLS => {
                let of = self.any();
                self.born(fs, Some(of)).await;
            }
            20..30 => self.die(fs).await,
            30..38 => {
                let (id, name) = (self.any(), self.name());
                drop(fs.unlink(root_of(id), &name).await);
            }
            38..43 => fs.sync().await.unwrap(),
            43..48 => fs.pool().flush_all().await.unwrap(),
            64..74 => self.copy(fs).await,
            48..64 => assert!(fs.volumes().background_step().await.is_ok()),
            _ => self.write(fs).await,
        }
    }

    fn name(&mut self) -> Vec<u8> {
        format!("f{}", self.below(6)).into_bytes()
    }

    async fn write(&mut self, fs: &Arc<Filesystem>) {
        let (dir, name) = (root_of(self.any()), self.name());
        let (at, len) = (self.below(400_000), self.below(60_000) as usize + 1);
        let flags = OpenFlags::READ_WRITE;
        let made = fs.create(&Caller::ROOT, dir, &name, 0o644, flags, false).await;
        let Ok((entry, _)) = made else { return };
        let data = vec![self.below(256) as u8; len];
        fs.write(entry.node, at, &data, Default::default()).await.unwrap();
        if self.below(3) == 0 {
            fs.fsync(entry.node, false).await.unwrap();
        }
        fs.release(entry.node);
    }

    /// Whole blocks are shared, within a subvolume or between two.
    async fn copy(&mut self, fs: &Arc<Filesystem>) {
        let (from, to) = (root_of(self.any()), root_of(self.any()));
        let [source, target] = [self.name(), self.name()];
        let (Ok(source), Ok(target)) =
            (fs.lookup(from, &source).await, fs.lookup(to, &target).await)
        else {
            return;
        };
        let [at, to, blocks] = [100, 100, 20].map(|most| self.below(most));
        if source.node != target.node {
            let [at, to, len] = [at, to, blocks + 1].map(|blocks| blocks * 4096);
            fs.copy_file_range(source.node, at, target.node, to, len).await.unwrap();
        }
    }

    async fn born(&mut self, fs: &Arc<Filesystem>, of: Option<SubvolId>) {
        self.next += 1;
        let (holder, name) = (self.any(), format!("v{}", self.next));
        let holder = if self.below(3) == 0 { holder } else { SubvolId::ROOT };
        let (at, bytes) = (root_of(holder), name.as_bytes());
        let id = match of {
            None => fs.create_subvolume(&Caller::ROOT, at, bytes, None).await,
            Some(of) => fs.snapshot(of, at, bytes, false, None).await,
        };
        self.live.insert(id.unwrap(), (holder, name));
    }

    async fn die(&mut self, fs: &Arc<Filesystem>) {
        let id = self.any();
        let holds = self.live.values().any(|(holder, _)| *holder == id);
        if id != SubvolId::ROOT && !holds {
            let (holder, name) = self.live.remove(&id).expect("it lives");
            fs.delete_subvolume(root_of(holder), name.as_bytes(), None).await.unwrap();
        }
    }
}

async fn enable_quotas(fs: &Arc<Filesystem>) {
    let (volumes, pool) = (fs.volumes(), fs.pool());
    let from = EpochId(pool.next_id(IdSpace::Epoch).await.unwrap());
    let rows = volumes.ledger().enable(from, copyhold_volume::residents(volumes)).unwrap();
    let mut tx = Transaction::new();
    rows.into_iter().for_each(|(key, edit)| tx.edit(Pool::SYSTEM, key, edit));
    let credit = pool.admit(Tier::Write, 64, 8192).await.unwrap();
    pool.apply(credit, tx).unwrap();
    for subvol in volumes.list().into_iter().filter(|subvol| !subvol.is_dying()) {
        let credit = pool.admit(Tier::Write, 8, 1024).await.unwrap();
        volumes.renew(&subvol, credit).await.unwrap();
    }
}

/// `cache`: bytes of nodes in memory; with few, releases stay pending.
fn limits(cache: usize) -> Limits {
    Limits { delta_bytes: 96 << 10, node_cache_bytes: cache, ..Limits::default() }
}

fn history(seed: u64, cache: usize, quotas: bool) {
    let mut power = Power::on(seed, SimImage::empty(32768));
    power.format(4);
    let rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut history = History { rng, live: BTreeMap::new(), next: 0 };
    for life in 0..LIVES {
        power.rt.block_on(async {
            let pool = power.pool(limits(cache)).await;
            let fs = Filesystem::open(pool, Default::default()).await.unwrap();
            if quotas && life == 1 {
                enable_quotas(&fs).await;
            }
            for _ in 0..STEPS {
                history.step(&fs).await;
            }
            if life + 1 == LIVES {
                fs.close().await.unwrap();
                fs.pool().close().await.unwrap();
            } else {
                // Names must not be made twice in the next life.
                fs.sync().await.unwrap();
                history.write(&fs).await;
                fs.volumes().background_step().await.unwrap();
            }
        });
        power.rt.drop_tasks();
        let image = power.device.crash(history.below(1000));
        power = Power::on(history.below(1000), image);
        let report = power.check();
        assert!(report.is_clean(), "seed {seed} life {life}: {:#?}", report.findings);
    }
}

#[test]
fn a_pool_of_many_tenants_is_sound() {
    (0..16).for_each(|seed| history(seed, 4 << 20, false));
}

#[test]
fn pending_releases_are_accounted_for() {
    (100..110).for_each(|seed| history(seed, 64 << 10, false));
}

#[test]
fn what_each_tenant_pays_for_is_what_it_has() {
    (200..210).for_each(|seed| history(seed, 4 << 20, true));
}
