//! The required state of a filesystem after every recovery.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use copyhold_format::item::{ChecksumMode, Extent, LISTS, ORPHAN};
use copyhold_fs::{Attr, FileKind, Filesystem, FsError, NodeId, checksum_mode_of};
use copyhold_memory::GroupLimits;
use copyhold_types::{InodeNo, Key, SubvolId};
use copyhold_volume::Subvol;

use super::content::{Content, Versions};
use super::modes::extents;
use super::span::Span;
use super::tree::{Dir, Kind, ObjectId, Path, SHARED_DIRS, Tree, shared_name};
use super::usage::Shown;
use super::world::{Log, Moment, Step, World};

/// Something that is found under a name.
pub(crate) struct Found {
    pub(super) attr: Attr,
    pub(super) target: Vec<u8>,
    pub(super) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(super) bytes: Vec<u8>,
    /// Of a subvolume's root.
    pub(super) read_only: bool,
    pub(super) memory: GroupLimits,
    pub(super) checksum_mode: ChecksumMode,
}

pub(crate) type Names = BTreeMap<Path, Found>;

/// Everything there is.
pub(crate) async fn look(fs: &Arc<Filesystem>) -> Result<Names, FsError> {
    let mut names = Names::new();
    let mut dirs = vec![(Path::new(), fs.root())];
    while let Some((path, dir)) = dirs.pop() {
        for name in list(fs, dir).await? {
            let entry = fs.lookup(dir, &name).await?;
            let mut path = path.clone();
            path.push(name);
            if entry.attr.kind == FileKind::Directory {
                dirs.push((path.clone(), entry.node));
            }
            names.insert(path, look_at(fs, entry.node).await?);
            fs.forget(entry.node, 1);
        }
    }
    Ok(names)
}

pub(super) async fn list(fs: &Filesystem, dir: NodeId) -> Result<Vec<Vec<u8>>, FsError> {
    let mut names = Vec::new();
    let mut take = |entry: &copyhold_fs::DirEntry<'_>| {
        names.push(entry.name.to_vec());
        true
    };
    fs.readdir(dir, 0, &mut take).await?;
    names.retain(|name| name != b"." && name != b"..");
    Ok(names)
}

/// A file or directory.
pub(crate) async fn look_at(fs: &Filesystem, node: NodeId) -> Result<Found, FsError> {
    let attr = fs.getattr(node).await?;
    let (target, xattrs, bytes) = (Vec::new(), BTreeMap::new(), Vec::new());
    let memory = GroupLimits::default();
    let checksum_mode = checksum_mode_of(fs, node).await?;
    let mut found = Found { attr, target, xattrs, bytes, read_only: false, memory, checksum_mode };
    if node.ino == InodeNo::ROOT {
        let subvols = fs.subvolumes();
        let subvol = subvols.iter().find(|subvol| subvol.id == node.subvol);
        found.read_only = subvol.is_some_and(|subvol| subvol.read_only);
        let subvol = fs.volumes().subvol(node.subvol);
        found.memory = subvol.map(|subvol| subvol.owner().limits()).unwrap_or_default();
    }
    if attr.kind == FileKind::Symlink {
        found.target = fs.readlink(node).await?;
    }
    if attr.kind == FileKind::Regular {
        found.bytes = fs.read(node, 0, attr.size as usize).await?.to_vec();
        assert_eq!(found.bytes.len() as u64, attr.size, "a read of a whole file");
    }
    for name in fs.list_xattr(node).await?.split(|byte| *byte == 0).filter(|name| !name.is_empty())
    {
        found.xattrs.insert(name.to_vec(), fs.get_xattr(node, name).await?);
    }
    Ok(found)
}

/// When no client has a look-up any more, every inode has a name, except in read-only subvolumes,
/// and no node counts as looked up (R34, R38).
pub(crate) async fn check_leaks(fs: &Arc<Filesystem>) -> Result<(), FsError> {
    fs.sync().await?;
    // Files without a name are removed when their subvolume is looked at.
    look(fs).await?;
    fs.reaper_idle().await;
    let (_, held) = fs.inodes_and_lookups();
    assert_eq!(held, 0, "nodes are held, though all were given back");
    for subvol in fs.volumes().list() {
        if subvol.is_dying() || subvol.is_read_only() {
            continue;
        }
        let left = nameless(fs, &subvol).await?;
        assert!(left.is_empty(), "R38: inodes {left:?} of {} have no name", subvol.id());
    }
    Ok(())
}

/// Inodes without a name that a subvolume has.
async fn nameless(fs: &Filesystem, subvol: &Subvol) -> Result<Vec<u64>, FsError> {
    let (from, to) = (Key::new(LISTS, ORPHAN, 0), Key::new(LISTS, ORPHAN, u64::MAX));
    let rows = fs.volumes().range(subvol, from, to, 1 << 20).await?;
    Ok(rows.iter().map(|(key, _)| key.offset).collect())
}

/// How many files without a name each read-only subvolume has: they are left there.
pub(super) async fn nameless_in_read_only(
    fs: &Filesystem,
) -> Result<BTreeMap<SubvolId, u64>, FsError> {
    let mut counts = BTreeMap::new();
    for subvol in fs.volumes().list().iter().filter(|subvol| subvol.is_read_only()) {
        counts.insert(subvol.id(), nameless(fs, subvol).await?.len() as u64);
    }
    Ok(counts)
}

/// Each extent of all files has a mode that its file has had. Returns those that have one.
///
/// # Errors
/// A file cannot be read.
///
/// # Panics
/// One has another.
pub(crate) async fn check_extents(
    fs: &Arc<Filesystem>,
    world: &World,
) -> Result<Vec<Extent>, FsError> {
    let has_tuples = fs.pool().devices().protection().is_some();
    let mut all = Vec::new();
    for id in world.files() {
        for (block, extent) in extents(fs, world.nodes[&id]).await? {
            let Some(found) = extent.state.checksum_mode() else { continue };
            assert!(
                world.modes.allows(id, found, has_tuples),
                "object {id} has {found} from block {block} on"
            );
            all.push(extent);
        }
    }
    Ok(all)
}

/// Finds how far each client had come, checks the rest, and makes that the world.
pub(crate) fn settle(world: &mut World, names: &Names, shown: &Shown) {
    let mut own: Vec<BTreeMap<&Path, &Found>> = vec![BTreeMap::new(); world.logs.len()];
    for (path, found) in names {
        if let Some(client) = owner(path) {
            own[client].insert(path, found);
        }
    }
    let candidates = (0..own.len()).map(|client| matching(world, client, &own[client], shown));
    let candidates: Vec<Vec<usize>> = candidates.collect();
    let taken = consistent(&world.logs, candidates);
    let trees: Vec<Tree> =
        world.logs.iter().zip(&taken).map(|(log, n)| log.after(*n).clone()).collect();
    check_shared(names, &trees);
    forget_the_rest(world, trees, &own, shown);
}

/// The client whose name is the first in a path that is not everybody's.
fn owner(path: &Path) -> Option<usize> {
    let name = path.iter().find(|name| !name.starts_with(b"shared"))?;
    let text = String::from_utf8_lossy(name);
    let number = text.strip_prefix('c').and_then(|rest| rest.split('-').next());
    Some(number.and_then(|number| number.parse().ok()).expect("a client's name"))
}

/// The numbers of steps, not fewer than the synced ones, after which the client has these names,
/// these promises, and files of this content. Turning quotas on or off has its place in the order
/// of all changes: if the turning is there, so is every change that had ended before it began; if
/// not, no change is there that began after it had ended.
fn matching(
    world: &World,
    client: usize,
    own: &BTreeMap<&Path, &Found>,
    shown: &Shown,
) -> Vec<usize> {
    let log = &world.logs[client];
    let eras = &world.usage.eras;
    let turned = eras.next_since(shown.on, shown.generation).unwrap_or(Moment::MAX);
    let difference = |n: usize| {
        let tree = log.after(n);
        let is_late = log.steps[..n].last().is_some_and(|step| step.begun > turned);
        let late = is_late.then(|| "quotas had been turned".to_string());
        late.or_else(|| difference(world, tree, own))
            .or_else(|| promised_otherwise(client, tree, own, shown))
            .or_else(|| other_content(world, &log.steps[..n], tree, own))
    };
    let before = eras.begun(shown.on, shown.generation).unwrap_or(0);
    let least = log.least(world.synced).max(log.ended_before(before));
    let mut differences = Vec::new();
    let mut matching = Vec::new();
    for n in (least..=log.steps.len()).rev() {
        match difference(n) {
            None => matching.push(n),
            Some(difference) => differences.push(format!("after {n}: {difference}")),
        }
    }
    if matching.is_empty() {
        let early = (0..least).rev().find(|n| difference(*n).is_none());
        let names: Vec<_> = log.steps.iter().map(|step| step.name).collect();
        panic!(
            "not a prefix: {least} of {} steps were synced; it is as after {early:?}; {}; {names:?}",
            log.steps.len(),
            differences.join("; ")
        );
    }
    matching
}

fn difference(world: &World, tree: &Tree, own: &BTreeMap<&Path, &Found>) -> Option<String> {
    let paths = tree.paths();
    let show = |path: &Path| String::from_utf8_lossy(&path.join(&b'/')).into_owned();
    if let Some(extra) = own.keys().find(|path| !paths.contains_key(**path)) {
        return Some(format!("there should be no {}", show(extra)));
    }
    let mut nodes: BTreeMap<NodeId, ObjectId> = BTreeMap::new();
    for (path, id) in &paths {
        let Some(found) = own.get(path) else { return Some(format!("{} is missing", show(path))) };
        // A number that something has had is nothing else's.
        let known = world.object(found.attr.node).is_some_and(|known| known != *id);
        let other = world.nodes.get(id).is_some_and(|node| *node != found.attr.node);
        if other || (known && tree.objects[id].kind != Kind::Placeholder) {
            return Some(format!("{} leads to another file", show(path)));
        }
        // Those that stand for one subvolume in a snapshot are one.
        let is_placeholder = tree.objects[id].kind == Kind::Placeholder;
        if !is_placeholder && *nodes.entry(found.attr.node).or_insert(*id) != *id {
            return Some(format!("{} is another file's name", show(path)));
        }
        let why = differs(tree, *id, found);
        let why = why.or_else(|| is_of_another_time(world, tree, *id, &found.attr));
        if let Some(why) = why {
            return Some(format!("{}: {why}", show(path)));
        }
    }
    let objects: BTreeSet<_> = nodes.values().collect();
    (objects.len() != nodes.len()).then(|| "two names of one file are two files".into())
}

/// Whether limits, reserves and groups are others than this client has promised.
fn promised_otherwise(
    client: usize,
    tree: &Tree,
    own: &BTreeMap<&Path, &Found>,
    shown: &Shown,
) -> Option<String> {
    let paths = tree.paths().into_iter();
    let subvols = paths.filter(|(_, id)| tree.objects[id].kind == Kind::Subvol);
    let subvols = subvols.map(|(path, id)| (id, own[&path].attr.node.subvol)).collect();
    tree.promises.difference(client, &subvols, shown)
}

/// The error in a client's view of its own objects.
pub(crate) fn is_otherwise(
    world: &World,
    tree: &Tree,
    id: ObjectId,
    attr: &Attr,
) -> Option<String> {
    let data = world.data.get(&id).filter(|_| tree.objects[&id].kind == Kind::File);
    if let Some(data) = data {
        let (size, time) = (data.now().size(), data.time());
        if attr.size != size || !time.holds(attr.mtime) {
            let (found, mtime) = (attr.size, attr.mtime);
            return Some(format!("{found} bytes, mtime {mtime:?}, not {size}, {time:?}"));
        }
    }
    differs_in_attributes(tree, id, attr).or_else(|| is_of_another_time(world, tree, id, attr))
}

fn differs(tree: &Tree, id: ObjectId, found: &Found) -> Option<String> {
    let object = &tree.objects[&id];
    let differs = differs_in_attributes(tree, id, &found.attr);
    if differs.is_some() || object.kind == Kind::Placeholder {
        return differs;
    }
    if found.read_only != tree.read_only.contains(&id) {
        return Some(format!("read-only: {}", found.read_only));
    }
    let memory = tree.memory.get(&id).copied().unwrap_or_default();
    if found.memory != memory {
        return Some(format!("LIMITS-M1: {:?}, not {memory:?}", found.memory));
    }
    if found.checksum_mode != object.checksum_mode {
        return Some(format!(
            "checksum mode {}, not {}",
            found.checksum_mode, object.checksum_mode
        ));
    }
    if found.xattrs != object.xattrs {
        return Some("other attributes".into());
    }
    match &object.kind {
        Kind::Symlink(target) if found.target != *target => Some("another target".into()),
        _ => None,
    }
}

fn differs_in_attributes(tree: &Tree, id: ObjectId, attr: &Attr) -> Option<String> {
    let object = &tree.objects[&id];
    let (kind, nlink) = match &object.kind {
        Kind::File => (FileKind::Regular, tree.links(id)),
        Kind::Dir | Kind::Subvol => (FileKind::Directory, 2 + tree.subdirs(Dir::Own(id))),
        Kind::Placeholder => (FileKind::Directory, 2),
        Kind::Fifo => (FileKind::Fifo, tree.links(id)),
        Kind::Symlink(_) => (FileKind::Symlink, tree.links(id)),
    };
    if attr.kind != kind {
        return Some(format!("a {:?}, not a {kind:?}", attr.kind));
    }
    if object.kind == Kind::Placeholder {
        return (attr.nlink != nlink || attr.size > 0).then(|| "no placeholder".into());
    }
    if attr.mode != object.mode {
        return Some(format!("mode {:o}, not {:o}", attr.mode, object.mode));
    }
    if (attr.uid, attr.gid) != (object.uid, object.gid) {
        let (uid, gid) = (object.uid, object.gid);
        return Some(format!("of {}:{}, not of {uid}:{gid}", attr.uid, attr.gid));
    }
    if attr.flags.0 != object.flags {
        return Some(format!("flags {:x}, not {:x}", attr.flags.0, object.flags));
    }
    if attr.nlink != nlink {
        return Some(format!("{} links, not {nlink}", attr.nlink));
    }
    match &object.kind {
        Kind::Dir | Kind::Subvol if attr.size != tree.count_in(Dir::Own(id)) => {
            Some(format!("{} entries counted", attr.size))
        }
        _ => None,
    }
}

/// The error in an object's times. The times of other objects than files are in the order of all
/// changes; the times of a file change with the data that they describe.
pub(crate) fn is_of_another_time(
    world: &World,
    tree: &Tree,
    id: ObjectId,
    attr: &Attr,
) -> Option<String> {
    let object = &tree.objects[&id];
    if object.kind == Kind::Placeholder {
        return None;
    }
    if !object.born.holds(attr.btime) {
        return Some(format!("born at {:?}, not {:?}", attr.btime, object.born));
    }
    let wrong = |what: &str, at, spans: &[Span]| {
        let is_one = spans.iter().any(|span| span.holds(at));
        (!is_one).then(|| format!("{what} {at:?}, not {spans:?}"))
    };
    let Some(data) = world.data.get(&id).filter(|_| object.kind == Kind::File) else {
        let changed = object.kind.is_dir().then(|| wrong("mtime", attr.mtime, &[object.mtime]));
        return changed.flatten().or_else(|| wrong("ctime", attr.ctime, &[object.ctime]));
    };
    let spans = data.times(0);
    let changed = [spans, &[object.ctime]].concat();
    if object.ctime.is_behind(attr.ctime) {
        return Some(format!("ctime {:?}, before {:?}", attr.ctime, object.ctime));
    }
    wrong("mtime", attr.mtime, spans).or_else(|| wrong("ctime", attr.ctime, &changed))
}

/// The most of each client's steps such that what had ended before one of them began is there.
fn consistent(logs: &[Log], mut candidates: Vec<Vec<usize>>) -> Vec<usize> {
    loop {
        let taken: Vec<usize> = candidates.iter().map(|of| of[0]).collect();
        let begun = logs.iter().zip(&taken).map(|(log, n)| log.steps[..*n].last());
        let begun: Vec<u64> = begun.map(|step| step.map_or(0, |step| step.begun)).collect();
        let mut changed = false;
        for (other, log) in logs.iter().enumerate() {
            // The first step of another client that is not there; nothing that began after its
            // end can be.
            let Some(missing) = log.steps.get(taken[other]).and_then(|step| step.ended) else {
                continue;
            };
            for client in (0..logs.len()).filter(|client| begun[*client] > missing) {
                candidates[client].remove(0);
                changed = true;
                assert!(
                    !candidates[client].is_empty(),
                    "not a prefix: client {client} has a step that began after one ended that \
                     client {other} does not have ({})",
                    log.steps[taken[other]].name
                );
            }
            if changed {
                break;
            }
        }
        if !changed {
            return taken;
        }
    }
}

/// Shared directories count what all clients have in them.
fn check_shared(names: &Names, trees: &[Tree]) {
    for n in 1..SHARED_DIRS {
        let found = &names[&vec![shared_name(n)]];
        let dir = Dir::Shared(n);
        let subdirs: u32 = trees.iter().map(|tree| tree.subdirs(dir)).sum();
        let entries: u64 = trees.iter().map(|tree| tree.count_in(dir)).sum();
        assert_eq!(found.attr.nlink, 2 + subdirs, "links of shared directory {n}");
        assert_eq!(found.attr.size, entries, "entries of shared directory {n}");
    }
}

/// The error in the content of a client's files, after these steps: each has at least the data of
/// one of them.
fn other_content(
    world: &World,
    steps: &[Step],
    tree: &Tree,
    own: &BTreeMap<&Path, &Found>,
) -> Option<String> {
    let mut least: BTreeMap<ObjectId, usize> = BTreeMap::new();
    for (id, version) in steps.iter().flat_map(|step| &step.brings) {
        let least = least.entry(*id).or_default();
        *least = (*least).max(*version);
    }
    let nothing = Versions::of(Content::default(), Span::Any);
    tree.paths().into_iter().find_map(|(path, id)| {
        let found = own[&path];
        if found.attr.kind != FileKind::Regular {
            return None;
        }
        let versions = world.data.get(&id).unwrap_or(&nothing);
        let problem = versions.problem(&found.bytes, least.get(&id).copied().unwrap_or(0))?;
        let path = String::from_utf8_lossy(&path.join(&b'/')).into_owned();
        Some(format!("{path} (object {id}, {}): {problem}", found.attr.node))
    })
}

/// Reduces the model to the recovered state.
fn forget_the_rest(
    world: &mut World,
    trees: Vec<Tree>,
    own: &[BTreeMap<&Path, &Found>],
    shown: &Shown,
) {
    world.forget_objects();
    for (client, mut tree) in trees.into_iter().enumerate() {
        tree.promises.retain(shown);
        for (path, id) in tree.paths() {
            let found = &own[client][&path];
            world.found(id, found.attr.node);
            let content = Content::from_bytes(&found.bytes);
            world.data.insert(id, Versions::of(content, Span::At(found.attr.mtime)));
            tree.objects.get_mut(&id).expect("it has a name").is_found(&found.attr);
        }
        world.logs[client] = Log::of(tree);
    }
    world.forget_touches();
    world.troubled = false;
}
