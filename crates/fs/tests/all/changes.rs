//! What changed between two subvolumes of a family, against two full walks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use copyhold_fs::{
    Caller, Change, Changes, FallocateMode, FileKind, Filesystem, FsError, Named, Names, NodeId,
    OpenFlags, RenameFlags, SetAttr, SetTime, Side, What, XattrSet,
};
use copyhold_types::{InodeNo, Key, Purpose, SubvolId, Timestamp};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};

use crate::common::*;

/// Asks the filesystem for names, a few steps at a time.
struct Asker<'a> {
    world: &'a World,
    fs: &'a Arc<Filesystem>,
    subvols: [SubvolId; 2],
}

impl Names for Asker<'_> {
    type Error = FsError;

    fn homes(&mut self, side: Side, inos: &[InodeNo]) -> Result<Vec<Option<InodeNo>>, FsError> {
        self.world.run(self.fs.homes(self.subvols[side as usize], inos))
    }

    fn named(
        &mut self,
        side: Side,
        dir: Option<InodeNo>,
        wanted: &BTreeSet<InodeNo>,
    ) -> Result<Vec<Named>, FsError> {
        let (mut found, mut from) = (Vec::new(), None);
        loop {
            let subvol = self.subvols[side as usize];
            let step = self.world.run(self.fs.named(subvol, dir, wanted, from))?;
            found.extend(step.items.into_iter().map(|(_, named)| named));
            from = step.next;
            if from.is_none() {
                return Ok(found);
            }
        }
    }
}

fn diff(world: &World, fs: &Arc<Filesystem>, pair: [SubvolId; 2], most: usize) -> Vec<Change> {
    let (mut changes, mut from) = (Changes::default(), None);
    for id in pair {
        world.run(fs.settle_for_scan(id)).unwrap();
    }
    loop {
        let step = world.run(fs.changes(pair, from, most)).unwrap();
        step.items.into_iter().flat_map(|(_, facts)| facts).for_each(|fact| changes.add(fact));
        from = step.next;
        if from.is_none() {
            break;
        }
    }
    let mut asker = Asker { world, fs, subvols: pair };
    changes.summary(&mut asker).unwrap()
}

/// A directory, and a name in it.
type Place = (Id, Vec<u8>);

/// One file, whatever it is called.
type Id = (u64, Timestamp, bool);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    kind: FileKind,
    mode: u32,
    content: Vec<u8>,
    mtime: Timestamp,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// A subvolume, walked by its directories.
#[derive(Debug, Default)]
struct Walked {
    files: BTreeMap<Id, Seen>,
    /// Directory, name, what it leads to.
    names: BTreeSet<(Id, Vec<u8>, Id)>,
    paths: BTreeMap<Vec<u8>, Id>,
}

impl Walked {
    async fn of(fs: &Arc<Filesystem>, subvol: SubvolId) -> Walked {
        let mut walked = Walked::default();
        let root = NodeId { subvol, ino: InodeNo::ROOT };
        let mut todo = vec![(Vec::new(), root)];
        walked.see(fs, root, false).await;
        while let Some((path, dir)) = todo.pop() {
            let from = Self::id(fs, dir, false).await;
            for name in names(fs, dir).await.into_iter().filter(|name| name != "." && name != "..")
            {
                let entry = fs.lookup(dir, name.as_bytes()).await.unwrap();
                // A nested subvolume, or where one was.
                let nested = entry.node.subvol != subvol || entry.node.ino.0 >= 1 << 35;
                let id = Self::id(fs, entry.node, nested).await;
                let path = [&path[..], name.as_bytes()].join(&b'/');
                let path = path.strip_prefix(b"/").unwrap_or(&path).to_vec();
                walked.names.insert((from, name.into_bytes(), id));
                walked.paths.insert(path.clone(), id);
                if !nested {
                    walked.see(fs, entry.node, false).await;
                    if entry.attr.kind == FileKind::Directory {
                        todo.push((path, entry.node));
                    }
                }
            }
        }
        walked
    }

    async fn id(fs: &Arc<Filesystem>, node: NodeId, nested: bool) -> Id {
        if nested {
            let id = if node.ino == InodeNo::ROOT { u64::from(node.subvol.0) } else { node.ino.0 };
            return (id & 0xffff_ffff, Timestamp::default(), true);
        }
        (node.ino.0, fs.getattr(node).await.unwrap().btime, false)
    }

    async fn see(&mut self, fs: &Arc<Filesystem>, node: NodeId, nested: bool) {
        let id = Self::id(fs, node, nested).await;
        let attr = fs.getattr(node).await.unwrap();
        let content = match attr.kind {
            FileKind::Regular => read(fs, node, 0, attr.size as usize).await,
            FileKind::Symlink => fs.readlink(node).await.unwrap(),
            _ => Vec::new(),
        };
        let mut xattrs = BTreeMap::new();
        for n in 0..3 {
            let name = format!("user.{n}").into_bytes();
            if let Ok(value) = fs.get_xattr(node, &name).await {
                xattrs.insert(name, value);
            }
        }
        let (kind, mode, mtime) = (attr.kind, attr.mode, attr.mtime);
        self.files.insert(id, Seen { kind, mode, content, mtime, xattrs });
    }

    fn path_of(&self, dir: Id, name: &[u8]) -> Vec<u8> {
        let is_it = |path: &&Vec<u8>| {
            let at = path.iter().rposition(|&byte| byte == b'/');
            let (above, last) =
                at.map_or((&[][..], &path[..]), |at| (&path[..at], &path[at + 1..]));
            let above = self.paths.get(above).copied();
            last == name && above.unwrap_or(self.root()) == dir
        };
        self.paths.keys().find(is_it).expect("a name has a path").clone()
    }

    fn root(&self) -> Id {
        *self.files.keys().find(|(ino, _, nested)| *ino == 1 && !nested).unwrap()
    }
}

fn text(changes: &[Change]) -> String {
    let line = |change: &Change| {
        let path = String::from_utf8_lossy(&change.path).into_owned();
        let from = match &change.what {
            What::Renamed { from } => String::from_utf8_lossy(from).into_owned(),
            what => format!("{what:?}"),
        };
        format!("{path} {from} {:?} {:?}\n", change.kind, change.links)
    };
    changes.iter().map(line).collect()
}

/// What two walks say, by the definitions of the comparison.
fn compare(old: &Walked, new: &Walked, found: &[Change], tell: &str) {
    let mut found: Vec<Change> = found.to_vec();
    let mut take = |path: &[u8], is_it: &dyn Fn(&What) -> bool, why: &str| {
        let at = found.iter().position(|change| change.path == path && is_it(&change.what));
        let shown = String::from_utf8_lossy(path).into_owned();
        let at =
            at.unwrap_or_else(|| panic!("{why} {shown} is not told: {}\n{tell}", text(&found)));
        found.remove(at)
    };
    let mut by_id: BTreeMap<Id, [Vec<Place>; 2]> = BTreeMap::new();
    for (dir, name, id) in old.names.difference(&new.names) {
        by_id.entry(*id).or_default()[0].push((*dir, name.clone()));
    }
    for (dir, name, id) in new.names.difference(&old.names) {
        by_id.entry(*id).or_default()[1].push((*dir, name.clone()));
    }
    let relisted: BTreeSet<Id> = by_id.values().flatten().flatten().map(|(dir, _)| *dir).collect();
    let (mut went, mut came) = (BTreeMap::new(), BTreeMap::new());
    for (id, [gone, added]) in &by_id {
        let pairs = gone.len().min(added.len());
        for ((dir, name), (to, new_name)) in gone.iter().zip(added) {
            let from = old.path_of(*dir, name);
            let path = new.path_of(*to, new_name);
            if from != path {
                take(&path, &|what| *what == What::Renamed { from: from.clone() }, "renamed");
            }
        }
        went.extend(gone.iter().skip(pairs).map(|(dir, name)| (old.path_of(*dir, name), *id)));
        came.extend(added.iter().skip(pairs).map(|(dir, name)| (new.path_of(*dir, name), *id)));
    }
    for (path, id) in &came {
        let same = |gone: &Id| {
            let kinds = [old.files.get(gone), new.files.get(id)].map(|seen| seen.map(|it| it.kind));
            kinds[0] == kinds[1] && kinds[0].is_some()
        };
        match went.get(path).is_some_and(same) {
            true => {
                take(path, &|what| matches!(what, What::Modified { .. }), "replaced");
                if old.files.contains_key(id) {
                    // It has another name, too, and is told there or here.
                    CHECKED.with_borrow_mut(|checked| checked.insert(*id));
                }
            }
            false => drop(take(path, &|what| *what == What::Added, "added")),
        }
        if went.get(path).is_some_and(same) {
            went.remove(path);
        }
    }
    for path in went.keys() {
        take(path, &|what| *what == What::Deleted, "deleted");
    }
    for change in found {
        let What::Modified { content, metadata, xattrs } = change.what else {
            panic!("{change:?} has not happened\n{tell}");
        };
        let id = match &change.path[..] {
            b"." => new.root(),
            path => new.paths[path],
        };
        let [Some(was), Some(is)] = [old.files.get(&id), new.files.get(&id)] else {
            panic!("{change:?} is not on both sides\n{tell}");
        };
        assert!(content || was.content == is.content, "{change:?}\n{tell}");
        assert!(!content || was.mtime != is.mtime, "nobody wrote: {change:?}\n{tell}");
        let follows = content || relisted.contains(&id);
        let wanted = was.mode != is.mode || (was.mtime != is.mtime && !follows);
        assert_eq!((metadata, xattrs), (wanted, was.xattrs != is.xattrs), "{change:?}\n{tell}");
        checked(id);
    }
    // What is on both sides and not told is the same.
    for (id, is) in &new.files {
        let Some(was) = old.files.get(id) else { continue };
        let differs = (was.mode, &was.content, &was.xattrs) != (is.mode, &is.content, &is.xattrs);
        let told = CHECKED.with_borrow(|checked| checked.contains(id));
        assert!(!differs || told, "{id:?} is not told\n{tell}");
    }
    CHECKED.with_borrow_mut(BTreeSet::clear);
}

thread_local! {
    static CHECKED: std::cell::RefCell<BTreeSet<Id>> = const { std::cell::RefCell::new(BTreeSet::new()) };
}

fn checked(id: Id) {
    CHECKED.with_borrow_mut(|checked| checked.insert(id));
}

struct Player {
    rng: Xoshiro256PlusPlus,
    subvols: Vec<(SubvolId, bool)>,
    log: Vec<String>,
}

impl Player {
    fn below(&mut self, n: u64) -> u64 {
        self.rng.next_u64() % n
    }

    fn name(&mut self) -> Vec<u8> {
        format!("n{}", self.below(6)).into_bytes()
    }

    /// Some node of a writable subvolume, of this kind.
    async fn any(&mut self, fs: &Arc<Filesystem>, subvol: SubvolId, dir: bool) -> Option<NodeId> {
        let mut at = NodeId { subvol, ino: InodeNo::ROOT };
        for _ in 0..self.below(4) + u64::from(!dir) {
            let name = self.name();
            match fs.lookup(at, &name).await {
                Ok(found) if found.node.subvol != subvol || found.node.ino.0 >= 1 << 35 => break,
                Ok(found) if found.attr.kind == FileKind::Directory => at = found.node,
                Ok(found) if !dir => return Some(found.node),
                _ => {}
            }
        }
        dir.then_some(at)
    }

    async fn step(&mut self, fs: &Arc<Filesystem>) {
        let writable: Vec<SubvolId> =
            self.subvols.iter().filter(|(_, read_only)| !read_only).map(|(id, _)| *id).collect();
        let subvol = writable[self.below(writable.len() as u64) as usize];
        let by = Caller::ROOT;
        let Some(dir) = self.any(fs, subvol, true).await else { return };
        let name = self.name();
        let choice = self.below(100);
        self.log.push(format!("{subvol} {choice} {dir} {}", String::from_utf8_lossy(&name)));
        // What is not possible is refused, and nothing has happened.
        match choice {
            0..16 => {
                let made = fs.create(&by, dir, &name, 0o644, OpenFlags::READ_WRITE, true).await;
                if let Ok((entry, _)) = made {
                    let len = 1 + self.below(12_000) as usize;
                    write(fs, entry.node, 0, &pattern(self.below(256) as u8, len)).await;
                    fs.release(entry.node);
                }
            }
            16..24 => drop(fs.mkdir(&by, dir, &name, 0o755).await),
            24..27 => drop(fs.symlink(&by, dir, &name, b"target").await),
            27..34 => drop(fs.unlink(dir, &name).await),
            34..37 => drop(fs.rmdir(dir, &name).await),
            37..52 => {
                let Some(to) = self.any(fs, subvol, true).await else { return };
                let (new, exchange) = (self.name(), self.below(4) == 0);
                let flags = RenameFlags { exchange, ..RenameFlags::default() };
                drop(fs.rename(&by, dir, &name, to, &new, flags).await);
            }
            52..58 => {
                if let Some(file) = self.any(fs, subvol, false).await {
                    drop(fs.link(file, dir, &name).await);
                }
            }
            58..74 => {
                if let Some(file) = self.any(fs, subvol, false).await {
                    let (at, len) = (self.below(20_000), 1 + self.below(9000) as usize);
                    let data = pattern(self.below(256) as u8, len);
                    drop(fs.write(file, at, &data, Default::default()).await);
                }
            }
            74..80 => {
                if let Some(file) = self.any(fs, subvol, false).await {
                    let size = Some(self.below(20_000));
                    drop(fs.setattr(&by, file, &SetAttr { size, ..SetAttr::default() }).await);
                }
            }
            80..83 => {
                if let Some(file) = self.any(fs, subvol, false).await {
                    let (at, len) = (self.below(20_000), 1 + self.below(9000));
                    drop(fs.fallocate(file, at, len, FallocateMode::Punch).await);
                }
            }
            83..86 => {
                let (from, to) =
                    (self.any(fs, subvol, false).await, self.any(fs, subvol, false).await);
                if let (Some(from), Some(to)) = (from, to)
                    && from != to
                {
                    drop(fs.copy_file_range(from, 0, to, 0, 8192).await);
                }
            }
            86..90 => {
                let file = self.any(fs, subvol, false).await.unwrap_or(dir);
                let name = format!("user.{}", self.below(3)).into_bytes();
                let value = pattern(self.below(3) as u8, 10);
                match self.below(3) {
                    0 => drop(fs.remove_xattr(file, &name).await),
                    _ => drop(fs.set_xattr(&by, file, &name, &value, XattrSet::Any, false).await),
                }
            }
            90..94 => {
                let file = self.any(fs, subvol, false).await.unwrap_or(dir);
                let mode = Some(0o600 + self.below(0o100) as u32);
                let mtime = (self.below(2) == 0).then_some(SetTime::Now);
                drop(fs.setattr(&by, file, &SetAttr { mode, mtime, ..SetAttr::default() }).await);
            }
            94 => drop(fs.create_subvolume(&by, dir, &name, None).await),
            95 => fs.pool().flush_all().await.unwrap(),
            96 => fs.pool().settle(fs.scanned(subvol).unwrap().files()).await.unwrap(),
            97.. if self.subvols.len() < 6 => {
                let (n, read_only) = (self.subvols.len(), self.below(2) == 0);
                let name = format!("s{n}").into_bytes();
                let made = fs.snapshot(subvol, ROOT, &name, read_only, None).await.unwrap();
                self.log.push(format!("snapshot {made} of {subvol}"));
                self.subvols.push((made, read_only));
            }
            _ => fs.sync().await.unwrap(),
        }
        // Whatever is made later is younger.
        fs.pool().runtime().sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn what_changed_is_what_two_walks_tell() {
    for seed in seeds(40) {
        let world = World::new(seed, 16384);
        let fs = world.run(world.open());
        let rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut player = Player { rng, subvols: Vec::new(), log: vec![format!("seed {seed}")] };
        let first = world.run(fs.create_subvolume(&Caller::ROOT, ROOT, b"a", None)).unwrap();
        player.subvols.push((first, false));
        for n in 0..150 {
            world.run(player.step(&fs));
            if n % 30 == 29 {
                let most = 1 + player.below(60) as usize;
                let ids: Vec<SubvolId> = player.subvols.iter().map(|(id, _)| *id).collect();
                let walks = ids.iter().map(|id| (*id, world.run(Walked::of(&fs, *id))));
                let walks: BTreeMap<SubvolId, Walked> = walks.collect();
                for (one, old) in &walks {
                    for (two, new) in &walks {
                        let found = diff(&world, &fs, [*one, *two], most);
                        let tell = format!("{one} to {two}: {:#?}", player.log);
                        compare(old, new, &found, &tell);
                    }
                }
            }
        }
        world.run(world.close(fs));
    }
}

/// Reads of nodes from the device.
fn node_reads(fs: &Filesystem) -> u64 {
    let counters = fs.pool().devices().counters();
    [Purpose::Leaf, Purpose::Inner, Purpose::Layer]
        .map(|why| counters.purposes[why as usize].reads)
        .iter()
        .sum()
}

#[test]
fn comparing_reads_what_changed_and_the_directories_of_it() {
    let world = World::new(1, 65536);
    let fs = world.run(world.open());
    let [a, s] = world.run(async {
        let a = fs.create_subvolume(&Caller::ROOT, ROOT, b"a", None).await.unwrap();
        let root = NodeId { subvol: a, ino: InodeNo::ROOT };
        for d in 0..40 {
            let dir = mkdir(&fs, root, &format!("d{d}")).await;
            for n in 0..250 {
                let name = format!("a file with a name that is not short {n}");
                fs.mknod(&Caller::ROOT, dir, name.as_bytes(), 0o100644, 0).await.unwrap();
            }
        }
        let s = fs.snapshot(a, ROOT, b"s", true, None).await.unwrap();
        let dir = fs.lookup(root, b"d7").await.unwrap().node;
        let name = b"a file with a name that is not short 7";
        let file = fs.lookup(dir, name).await.unwrap().node;
        write(&fs, file, 0, &pattern(1, 5000)).await;
        for subvol in [a, s] {
            fs.pool().settle(fs.scanned(subvol).unwrap().files()).await.unwrap();
        }
        [a, s]
    });
    world.run(world.close(fs));
    let fs = world.run(world.open());
    let before = node_reads(&fs);
    let found = diff(&world, &fs, [s, a], 1000);
    assert_eq!(found.len(), 1, "{}", text(&found));
    assert_eq!(found[0].path, b"d7/a file with a name that is not short 7");
    let reads = node_reads(&fs) - before;
    let before = node_reads(&fs);
    let volume = fs.scanned(a).unwrap();
    let all = fs.volumes().range(&volume, Key::MIN, Key::MAX, usize::MAX);
    assert!(world.run(all).unwrap().len() > 20_000);
    let everything = node_reads(&fs) - before + reads;
    assert!(reads * 4 < everything, "{reads} of {everything} nodes");
    drop(volume);
    world.run(world.close(fs));
}

#[test]
fn a_file_whose_latest_name_is_gone_is_found_by_another() {
    let world = World::new(2, 16384);
    let fs = world.run(world.open());
    let pair = world.run(async {
        let a = fs.create_subvolume(&Caller::ROOT, ROOT, b"a", None).await.unwrap();
        let root = NodeId { subvol: a, ino: InodeNo::ROOT };
        let (one, two) = (mkdir(&fs, root, "one").await, mkdir(&fs, root, "two").await);
        let made = fs.create(&Caller::ROOT, one, b"f", 0o644, OpenFlags::READ_WRITE, true).await;
        let file = made.unwrap().0.node;
        fs.link(file, two, b"g").await.unwrap();
        fs.unlink(two, b"g").await.unwrap();
        let s = fs.snapshot(a, ROOT, b"s", true, None).await.unwrap();
        write(&fs, file, 0, b"x").await;
        [s, a]
    });
    let found = diff(&world, &fs, pair, 1000);
    assert_eq!(text(&found).lines().count(), 1);
    assert_eq!(found[0].path, b"one/f");
    let unrelated = world.run(fs.changes([SubvolId::ROOT, pair[1]], None, 10));
    assert!(matches!(unrelated, Err(FsError::Volume(_))), "{unrelated:?}");
    world.run(world.close(fs));
}
