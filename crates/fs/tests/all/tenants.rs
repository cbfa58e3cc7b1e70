//! Subvolumes and snapshots: what they show, and that their space comes back.

use std::collections::BTreeMap;
use std::sync::Arc;

use copyhold_fs::{Caller, Filesystem, FsError, NodeId, SetAttr};
use copyhold_types::SubvolId;
use copyhold_volume::quota::{GroupId, Ledger, LimitKind};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};

use crate::common::tenants::*;
use crate::common::*;

#[test]
fn a_snapshot_stays_as_it_was_and_a_clone_goes_its_own_way() {
    let world = World::new(1, 16384);
    world.run(async {
        let fs = world.open().await;
        let a = subvolume(&fs, "a").await;
        let node = file(&fs, root_of(a), "f").await;
        write(&fs, node, 0, &pattern(1, 200_000)).await;
        let s = snapshot(&fs, a, "s", true).await;
        let c = snapshot(&fs, a, "c", false).await;
        write(&fs, node, 50_000, &pattern(2, 60_000)).await;
        let cloned = fs.lookup(root_of(c), b"f").await.unwrap().node;
        assert_eq!(cloned.ino, node.ino, "an inode number means the same file in both");
        write(&fs, cloned, 0, &pattern(3, 10_000)).await;
        let (mut in_a, mut in_c) = (pattern(1, 200_000), pattern(1, 200_000));
        in_a[50_000..110_000].copy_from_slice(&pattern(2, 60_000));
        in_c[..10_000].copy_from_slice(&pattern(3, 10_000));
        for round in 0..2 {
            assert_eq!(content(&fs, root_of(s), "f").await, pattern(1, 200_000), "{round}");
            assert_eq!(content(&fs, root_of(a), "f").await, in_a);
            assert_eq!(content(&fs, root_of(c), "f").await, in_c);
            fs.sync().await.unwrap();
            fs.pool().flush_all().await.unwrap();
        }
        let kept = fs.lookup(root_of(s), b"f").await.unwrap().node;
        let refused = fs.write(kept, 0, b"x", Default::default()).await;
        assert!(matches!(refused, Err(FsError::ReadOnly { .. })), "{refused:?}");
        fs.set_subvolume_read_only(s, false).await.unwrap();
        write(&fs, kept, 0, b"x").await;
        world.close(fs).await;
    });
}

#[test]
fn an_fsync_of_a_file_makes_the_snapshot_durable_that_it_is_in() {
    let world = World::new(52, 16384);
    world.run(async {
        let fs = world.open().await;
        let origin = subvolume(&fs, "origin").await;
        write(&fs, file(&fs, root_of(origin), "f").await, 0, b"before").await;
        fs.sync().await.unwrap();
        let snap = snapshot(&fs, origin, "snap", true).await;
        let made = fs.pool().open_txg();
        let copy = fs.lookup(root_of(snap), b"f").await.unwrap().node;
        assert!(fs.pool().durable_txg() < made);
        fs.fsync(copy, false).await.unwrap();
        assert!(fs.pool().durable_txg() >= made);
        world.close(fs).await;
    });
}

#[test]
fn an_entry_of_a_subvolume_counts_only_where_its_record_says() {
    let world = World::new(2, 16384);
    world.run(async {
        let fs = world.open().await;
        let a = subvolume(&fs, "a").await;
        let inner = fs.create_subvolume(&Caller::ROOT, root_of(a), b"inner", None).await.unwrap();
        file(&fs, root_of(inner), "f").await;
        let up = fs.lookup(root_of(inner), b"..").await.unwrap().node;
        assert_eq!(up, root_of(a));
        let s = snapshot(&fs, a, "s", false).await;
        let there = fs.lookup(root_of(s), b"inner").await.unwrap();
        assert_ne!(there.node, root_of(inner));
        assert_eq!(names(&fs, there.node).await, [".", ".."]);
        let made = fs.mkdir(&Caller::ROOT, there.node, b"x", 0o755).await;
        assert!(made.is_err());
        let held = fs.delete_subvolume(ROOT, b"a", None).await;
        assert!(held.is_err(), "it holds another one");
        fs.rmdir(root_of(s), b"inner").await.unwrap();
        assert_eq!(names(&fs, root_of(s)).await, [".", ".."]);
        let across = fs
            .rename(&Caller::ROOT, root_of(inner), b"f", root_of(a), b"f", Default::default())
            .await;
        assert!(matches!(across, Err(FsError::CrossSubvolume)));
        fs.rename(&Caller::ROOT, ROOT, b"s", ROOT, b"t", Default::default()).await.unwrap();
        assert_eq!(fs.lookup(ROOT, b"t").await.unwrap().node, root_of(s));
        fs.delete_subvolume(root_of(a), b"inner", None).await.unwrap();
        fs.delete_subvolume(ROOT, b"a", None).await.unwrap();
        assert!(matches!(fs.getattr(root_of(a)).await, Err(FsError::Stale)));
        fs.delete_subvolume(ROOT, b"t", None).await.unwrap();
        fs.sync_subvolumes(&[]).await.unwrap();
        assert_eq!(fs.subvolumes().len(), 1);
        world.close(fs).await;
    });
}

const MIB: u64 = 1 << 20;

/// Futures of operations move between threads.
#[test]
fn operations_can_move_between_threads() {
    fn moves(_: impl Send) {}
    let world = World::new(6, 16384);
    world.run(async {
        let fs = world.open().await;
        moves(fs.copy_file_range(ROOT, 0, ROOT, 0, 0));
        moves(fs.create_subvolume(&Caller::ROOT, ROOT, b"a", None));
        moves(fs.snapshot(SubvolId::ROOT, ROOT, b"a", true, None));
        moves(fs.delete_subvolume(ROOT, b"a", None));
        moves(fs.sync_subvolumes(&[]));
        moves(fs.enable_quotas());
        world.close(fs).await;
    });
}

async fn data_of(fs: &Arc<Filesystem>, subvol: SubvolId) -> u64 {
    fs.volumes().finish_background().await.unwrap();
    fs.sync().await.unwrap();
    fs.volumes().ledger().show_group(GroupId::of(subvol)).unwrap().data
}

/// The rows of the reference, section 7, that a container host meets first.
#[test]
fn an_extent_is_charged_to_its_creator_until_its_last_reference_goes() {
    let world = World::new(3, 32768);
    world.run(async {
        let fs = world.open().await;
        let old = subvolume(&fs, "old").await;
        let node = file(&fs, root_of(old), "f").await;
        write(&fs, node, 0, &pattern(9, MIB as usize)).await;
        fs.sync().await.unwrap();
        fs.enable_quotas().await.unwrap();
        assert_eq!(data_of(&fs, old).await, 0, "what was there before is not counted");
        write(&fs, node, 0, &pattern(8, 64 << 10)).await;
        assert_eq!(data_of(&fs, old).await, 64 << 10);

        let a = subvolume(&fs, "a").await;
        let node = file(&fs, root_of(a), "f").await;
        write(&fs, node, 0, &pattern(1, MIB as usize)).await;
        let s = snapshot(&fs, a, "s", true).await;
        assert_eq!((data_of(&fs, a).await, data_of(&fs, s).await), (MIB, 0));
        write(&fs, node, 0, &pattern(2, 512 << 10)).await;
        assert_eq!((data_of(&fs, a).await, data_of(&fs, s).await), (MIB + MIB / 2, 0));
        fs.unlink(root_of(a), b"f").await.unwrap();
        fs.release(node);
        fs.forget(node, 1);
        assert_eq!((data_of(&fs, a).await, data_of(&fs, s).await), (MIB, 0));
        fs.delete_subvolume(ROOT, b"a", None).await.unwrap();
        assert_eq!(data_of(&fs, a).await, MIB, "a tombstone pays for what the snapshot holds");
        fs.delete_subvolume(ROOT, b"s", None).await.unwrap();
        fs.volumes().finish_background().await.unwrap();
        fs.sync().await.unwrap();
        fs.volumes().finish_background().await.unwrap();
        let gone = fs.volumes().ledger().show_group(GroupId::of(a));
        assert!(gone.is_err(), "it went with its last byte: {gone:?}");
        world.close(fs).await;
    });
}

#[test]
fn a_tenant_at_its_limit_is_refused_and_can_still_tidy_up() {
    let world = World::new(4, 32768);
    world.run(async {
        let fs = world.open().await;
        fs.enable_quotas().await.unwrap();
        let (a, b) = (subvolume(&fs, "a").await, subvolume(&fs, "b").await);
        let limit = |bytes| {
            let fs = fs.clone();
            async move {
                let group = GroupId::of(a);
                let change = |ledger: &Ledger| ledger.limit(group, LimitKind::Referenced, bytes);
                fs.change_quotas(change).await.unwrap();
            }
        };
        limit(Some(4 * MIB)).await;
        let mut files = Vec::new();
        let refused = loop {
            let name = format!("f{}", files.len());
            let node = file(&fs, root_of(a), &name).await;
            files.push(name);
            let wrote = fs.write(node, 0, &pattern(3, 256 << 10), Default::default()).await;
            fs.release(node);
            match wrote {
                Ok(()) => fs.sync().await.unwrap(),
                Err(refused) => break refused,
            }
            assert!(files.len() < 20);
        };
        assert!(matches!(refused, FsError::Quota(_)), "{refused:?}");
        assert!(files.len() > 12, "{} files of 256 KiB under 4 MiB", files.len());
        assert!(fs.statfs_of(root_of(a)).blocks_available < 256);
        assert!(fs.statfs_of(root_of(b)).blocks_available > 10_000);
        let other = file(&fs, root_of(b), "f").await;
        write(&fs, other, 0, &pattern(3, 3 * MIB as usize)).await;
        let first = fs.lookup(root_of(a), b"f0").await.unwrap().node;
        fs.setattr(&Caller::ROOT, first, &SetAttr { mode: Some(0o600), ..SetAttr::default() })
            .await
            .unwrap();
        fs.rename(&Caller::ROOT, root_of(a), b"f0", root_of(a), b"g", Default::default())
            .await
            .unwrap();
        for name in &files[1..5] {
            let node = fs.lookup(root_of(a), name.as_bytes()).await.unwrap().node;
            fs.unlink(root_of(a), name.as_bytes()).await.unwrap();
            fs.forget(node, 2);
        }
        let again = file(&fs, root_of(a), "again").await;
        write(&fs, again, 0, &pattern(4, 512 << 10)).await;
        fs.sync().await.unwrap();
        world.close(fs).await;
    });
}

#[test]
fn a_limit_of_snapshots_refuses_one_more() {
    let world = World::new(8, 16384);
    world.run(async {
        let fs = world.open().await;
        fs.enable_quotas().await.unwrap();
        let a = subvolume(&fs, "a").await;
        let group = GroupId::of(a);
        let change = |ledger: &Ledger| ledger.limit(group, LimitKind::Snapshots, Some(1));
        fs.change_quotas(change).await.unwrap();
        snapshot(&fs, a, "s", true).await;
        let refused = fs.snapshot(a, ROOT, b"t", true, None).await;
        assert!(matches!(refused, Err(FsError::Quota(_))), "{refused:?}");
        fs.delete_subvolume(ROOT, b"s", None).await.unwrap();
        snapshot(&fs, a, "t", true).await;
        world.close(fs).await;
    });
}

#[test]
fn copied_ranges_share_their_blocks_and_part_when_either_side_writes() {
    let world = World::new(5, 32768);
    world.run(async {
        let fs = world.open().await;
        fs.enable_quotas().await.unwrap();
        let (a, b) = (subvolume(&fs, "a").await, subvolume(&fs, "b").await);
        let len = 3 * MIB as usize + 1234;
        let from = file(&fs, root_of(a), "f").await;
        write(&fs, from, 0, &pattern(1, len)).await;
        let to = file(&fs, root_of(b), "g").await;
        let near = file(&fs, root_of(a), "h").await;
        let mut copied = 0;
        while copied < len as u64 {
            let left = len as u64 - copied;
            copied += fs.copy_file_range(from, copied, to, copied, left).await.unwrap();
        }
        assert_eq!(fs.copy_file_range(from, 4096, near, 8192, 40_000).await.unwrap(), 40_000);
        assert_eq!(data_of(&fs, b).await, 0, "who wrote it pays");
        let whole = (len as u64).div_ceil(4096) * 4096;
        assert_eq!(data_of(&fs, a).await, whole + 4096, "the last block of one copy is not whole");
        write(&fs, to, 100_000, &pattern(2, 5000)).await;
        write(&fs, from, 0, &pattern(3, 20_000)).await;
        let (mut in_a, mut in_b) = (pattern(1, len), pattern(1, len));
        let mut in_h = vec![0; 8192];
        in_h.extend_from_slice(&in_b[4096..44_096]);
        in_b[100_000..105_000].copy_from_slice(&pattern(2, 5000));
        in_a[..20_000].copy_from_slice(&pattern(3, 20_000));
        for _ in 0..2 {
            assert!(read(&fs, to, 0, 1 << 23).await == in_b);
            assert!(read(&fs, from, 0, 1 << 23).await == in_a);
            assert!(read(&fs, near, 0, 1 << 23).await == in_h);
            fs.sync().await.unwrap();
            fs.pool().flush_all().await.unwrap();
        }
        for (node, dir, name) in [(from, a, "f"), (near, a, "h")] {
            fs.unlink(root_of(dir), name.as_bytes()).await.unwrap();
            fs.release(node);
            fs.forget(node, 1);
        }
        assert!(read(&fs, to, 0, 1 << 23).await == in_b);
        assert!(data_of(&fs, a).await > 2 * MIB, "it pays for what the copy holds");
        fs.unlink(root_of(b), b"g").await.unwrap();
        fs.release(to);
        fs.forget(to, 1);
        assert_eq!((data_of(&fs, a).await, data_of(&fs, b).await), (0, 0));
        world.close(fs).await;
    });
}

type Files = BTreeMap<String, Vec<u8>>;

struct History {
    rng: Xoshiro256PlusPlus,
    live: BTreeMap<SubvolId, (String, Files)>,
    /// Where the entries of those are that are not in the root.
    inside: BTreeMap<SubvolId, SubvolId>,
    next: u32,
}

impl History {
    fn below(&mut self, n: u64) -> u64 {
        self.rng.next_u64() % n
    }

    fn any(&mut self) -> SubvolId {
        let n = self.below(self.live.len() as u64) as usize;
        *self.live.keys().nth(n).expect("there is one")
    }

    async fn step(&mut self, fs: &Arc<Filesystem>) {
        match self.below(100) {
            0..3 if self.live.len() < 7 => self.born(fs, None, false).await,
            3..14 if self.live.len() < 7 => {
                let of = self.any();
                self.born(fs, Some(of), false).await;
            }
            14..20 if self.live.len() > 1 => {
                let id = self.any();
                self.delete(fs, id).await;
            }
            20..23 => self.roll_back(fs).await,
            23..26 => self.move_entry(fs).await,
            26..30 => {
                let (id, name) = (self.any(), format!("f{}", self.below(4)));
                if self.live.get_mut(&id).expect("it lives").1.remove(&name).is_some() {
                    fs.unlink(root_of(id), name.as_bytes()).await.unwrap();
                }
            }
            30..36 => fs.sync().await.unwrap(),
            36..40 => fs.pool().flush_all().await.unwrap(),
            50..58 => self.copy(fs).await,
            40..50 => drop(fs.volumes().background_step().await.unwrap()),
            _ => {
                let (id, name) = (self.any(), format!("f{}", self.below(4)));
                let (at, len) = (self.below(40_000) as usize, self.below(30_000) as usize + 1);
                let data = pattern(self.below(256) as u8, len);
                let node = file(fs, root_of(id), &name).await;
                write(fs, node, at as u64, &data).await;
                fs.release(node);
                let file = self.live.get_mut(&id).expect("it lives").1.entry(name).or_default();
                file.resize(file.len().max(at + len), 0);
                file[at..at + len].copy_from_slice(&data);
            }
        }
    }

    fn place(&self, id: SubvolId) -> NodeId {
        self.inside.get(&id).map_or(ROOT, |holder| root_of(*holder))
    }

    fn holds(&self, id: SubvolId) -> bool {
        self.inside.values().any(|holder| *holder == id)
    }

    async fn delete(&mut self, fs: &Arc<Filesystem>, id: SubvolId) {
        let place = self.place(id);
        let name = self.live[&id].0.clone();
        let deleted = fs.delete_subvolume(place, name.as_bytes(), None).await;
        assert_eq!(deleted.is_err(), self.holds(id), "subvolume {id}: {deleted:?}");
        if deleted.is_ok() {
            self.live.remove(&id);
            self.inside.remove(&id);
        }
    }

    /// One becomes what another is, and is gone or kept; if they are related.
    async fn roll_back(&mut self, fs: &Arc<Filesystem>) {
        let (id, to) = (self.any(), self.any());
        let (place, name) = (self.place(id), self.live[&id].0.clone());
        let family = |id| fs.volumes().subvol(id).expect("it lives").family_number();
        let may = id != to && family(id) == family(to);
        let keep = (self.below(2) == 0 && self.live.len() < 7).then(|| {
            self.next += 1;
            format!("v{}", self.next)
        });
        let kept = keep.as_ref().map(|name| (ROOT, name.as_bytes()));
        let done = fs.roll_back_subvolume(place, name.as_bytes(), to, kept).await;
        let may = may && (keep.is_some() || !self.holds(id));
        assert_eq!(done.is_ok(), may, "{id} to {to}: {done:?}");
        let Ok(done) = done else { return };
        let files = self.live[&to].1.clone();
        let old = self.live.remove(&id).expect("it lives");
        self.live.insert(done.subvol, (name, files));
        if let Some(holder) = self.inside.remove(&id) {
            self.inside.insert(done.subvol, holder);
        }
        if let Some(keep) = keep {
            self.live.insert(id, (keep, old.1));
        }
    }

    /// Moves an entry into another subvolume, or back.
    async fn move_entry(&mut self, fs: &Arc<Filesystem>) {
        let (id, into) = (self.any(), self.any());
        let (from, name) = (self.place(id), self.live[&id].0.clone());
        let to = if self.below(3) == 0 { ROOT } else { root_of(into) };
        let mut way = Some(to.subvol).filter(|_| to != ROOT);
        let mut under_itself = false;
        while let Some(at) = way {
            under_itself |= at == id;
            way = self.inside.get(&at).copied();
        }
        let plain = Default::default();
        let moved =
            fs.rename(&Caller::ROOT, from, name.as_bytes(), to, name.as_bytes(), plain).await;
        assert_eq!(moved.is_ok(), !under_itself, "{id} to {to}: {moved:?}");
        match moved {
            Ok(()) if to == ROOT => drop(self.inside.remove(&id)),
            Ok(()) => drop(self.inside.insert(id, to.subvol)),
            Err(_) => {}
        }
    }

    /// Copies a file's content to another file, of any subvolume.
    async fn copy(&mut self, fs: &Arc<Filesystem>) {
        let (from, to) = (self.any(), self.any());
        let (name, new_name) = (format!("f{}", self.below(4)), format!("f{}", self.below(4)));
        let Some(bytes) = self.live[&from].1.get(&name).cloned() else { return };
        if (from, &name) == (to, &new_name) {
            return;
        }
        let at = self.below(3) * 4096;
        let source = fs.lookup(root_of(from), name.as_bytes()).await.unwrap().node;
        let target = file(fs, root_of(to), &new_name).await;
        let mut done = 0;
        while done < bytes.len() as u64 {
            let left = bytes.len() as u64 - done;
            done += fs.copy_file_range(source, done, target, at + done, left).await.unwrap();
        }
        fs.release(target);
        let file = self.live.get_mut(&to).expect("it lives").1.entry(new_name).or_default();
        let at = at as usize;
        file.resize(file.len().max(at + bytes.len()), 0);
        file[at..at + bytes.len()].copy_from_slice(&bytes);
    }

    async fn born(&mut self, fs: &Arc<Filesystem>, of: Option<SubvolId>, read_only: bool) {
        self.next += 1;
        let name = format!("v{}", self.next);
        let id = match of {
            None => subvolume(fs, &name).await,
            Some(of) => snapshot(fs, of, &name, read_only).await,
        };
        let files = of.map_or_else(Files::new, |of| self.live[&of].1.clone());
        self.live.insert(id, (name, files));
    }

    async fn compare(&self, fs: &Arc<Filesystem>) {
        for (id, (name, files)) in &self.live {
            let entry = fs.lookup(self.place(*id), name.as_bytes()).await.unwrap();
            assert_eq!(entry.node, root_of(*id));
            let mut found = names(fs, root_of(*id)).await.split_off(2);
            found.retain(|name| name.starts_with('f'));
            let there: Vec<String> = files.keys().cloned().collect();
            assert_eq!(found, there, "subvolume {id}");
            for (name, bytes) in files {
                let found = content(fs, root_of(*id), name).await;
                assert!(found == *bytes, "subvolume {id} {name} differs");
            }
        }
    }
}

#[test]
fn subvolumes_share_and_part_through_crashes_and_give_everything_back() {
    for seed in seeds(24) {
        let mut world = World::new(seed, 32768);
        let rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut history = History { rng, live: BTreeMap::new(), inside: BTreeMap::new(), next: 0 };
        let mut fs = world.run(world.open());
        let before = world.run(free_blocks(&fs));
        world.run(history.born(&fs, None, false));
        for _ in 0..5 {
            world.run(async {
                for _ in 0..25 {
                    history.step(&fs).await;
                }
                fs.sync().await.unwrap();
            });
            world = world.crash(fs, seed);
            fs = world.run(world.open());
            world.run(history.compare(&fs));
        }
        world.run(async {
            while !history.live.is_empty() {
                let innermost: Vec<SubvolId> = history.live.keys().copied().collect();
                for id in innermost {
                    history.delete(&fs, id).await;
                }
            }
            fs.sync_subvolumes(&[]).await.unwrap();
            assert_eq!(names(&fs, ROOT).await, [".", ".."]);
            let after = free_blocks(&fs).await;
            // What the tables of the pool itself have grown by.
            assert!(after + 64 >= before, "seed {seed}: {before} blocks were free, now {after}");
            world.close(fs).await;
        });
    }
}
