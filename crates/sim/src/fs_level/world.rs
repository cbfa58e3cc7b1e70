//! The external knowledge of a filesystem.

use std::collections::{BTreeMap, BTreeSet};

use copyhold_fs::NodeId;
use copyhold_types::{SubvolId, Timestamp};
use parking_lot::Mutex;

use super::content::{Content, Versions};
use super::counts::{self, Count};
use super::modes::Modes;
use super::span::Span;
use super::tree::{Dir, Kind, ObjectId, SHARED_DIRS, Tree};
use super::usage::Usage;

/// A moment: the count of what has begun or ended.
pub(crate) type Moment = u64;

/// One operation of a client that changes metadata, and what it makes of the client's tree.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) begun: Moment,
    /// Nothing while it is under way.
    pub(crate) ended: Option<Moment>,
    pub(crate) tree: Tree,
    /// Data that is there if this is: of which file, and since which version (rule R35).
    pub(crate) brings: Vec<(ObjectId, usize)>,
}

/// All that a client did since the last recovery.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    pub(crate) base: Tree,
    pub(crate) steps: Vec<Step>,
    /// How many steps an fsync of what the last of them changed made durable.
    synced: usize,
}

impl Log {
    /// After the first `n` steps.
    pub(crate) fn after(&self, n: usize) -> &Tree {
        n.checked_sub(1).map_or(&self.base, |last| &self.steps[last].tree)
    }

    pub(crate) fn now(&self) -> &Tree {
        self.after(self.steps.len())
    }

    /// Of a client that begins anew.
    pub(crate) fn of(base: Tree) -> Log {
        Log { base, ..Log::default() }
    }

    /// How many steps were acknowledged as durable, if all that had ended before a moment was.
    pub(crate) fn least(&self, synced: Moment) -> usize {
        self.ended_before(synced).max(self.synced)
    }

    /// How many steps had ended before a moment.
    pub(crate) fn ended_before(&self, moment: Moment) -> usize {
        let ended = |step: &&Step| step.ended.is_some_and(|ended| ended < moment);
        self.steps.iter().take_while(ended).count()
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct World {
    moment: Moment,
    /// The last reading of the clock.
    pub(crate) now: Timestamp,
    pub(crate) logs: Vec<Log>,
    pub(crate) data: BTreeMap<ObjectId, Versions>,
    pub(crate) nodes: BTreeMap<ObjectId, NodeId>,
    /// Every number that was ever given to something (R9).
    given: BTreeSet<NodeId>,
    /// The objects that had each number since the last recovery.
    objects: BTreeMap<NodeId, ObjectId>,
    pub(crate) shared: [Option<NodeId>; SHARED_DIRS],
    /// All changes that ended before this moment are durable.
    pub(crate) synced: Moment,
    next_object: ObjectId,
    /// When the last operation on an object began that has ended.
    touched: BTreeMap<ObjectId, Moment>,
    /// Behind how many steps of which client an object was as its last step left it.
    changed: BTreeMap<ObjectId, (usize, usize)>,
    /// The objects of each client's operation that is under way.
    touching: BTreeMap<usize, (Moment, Vec<ObjectId>)>,
    /// Files that are being made without a name; or their making was refused.
    nameless: BTreeSet<ObjectId>,
    /// An operation returned an error: from now on a success proves less.
    pub(crate) troubled: bool,
    pub(crate) usage: Usage,
    pub(crate) modes: Modes,
}

impl World {
    pub(crate) fn new(clients: usize) -> World {
        World { logs: vec![Log::default(); clients], ..World::default() }
    }

    pub(crate) fn tick(&mut self) -> Moment {
        self.moment += 1;
        self.moment
    }

    pub(crate) fn new_object(&mut self) -> ObjectId {
        self.next_object += 1;
        self.next_object
    }

    /// A file is being made without a name.
    pub(crate) fn make_nameless(&mut self) -> ObjectId {
        let id = self.new_object();
        self.nameless.insert(id);
        self.usage.eras.make(id);
        id
    }

    /// An object has been made, and has this number.
    pub(crate) fn born(&mut self, id: ObjectId, node: NodeId) {
        assert!(self.given.insert(node), "R9: {node} was something else before");
        assert_eq!(self.nodes.insert(id, node), None);
        self.objects.insert(node, id);
        self.nameless.remove(&id);
    }

    /// An object has been found, with this number.
    pub(crate) fn found(&mut self, id: ObjectId, node: NodeId) {
        self.given.insert(node);
        self.nodes.insert(id, node);
        self.objects.insert(node, id);
    }

    /// The object that has, or had, this number.
    pub(crate) fn object(&self, node: NodeId) -> Option<ObjectId> {
        self.objects.get(&node).copied()
    }

    /// Before all that there is has been found.
    pub(crate) fn forget_objects(&mut self) {
        self.data.clear();
        self.nodes.clear();
        self.objects.clear();
    }

    pub(crate) fn node(&self, dir: Dir) -> NodeId {
        match dir {
            Dir::Shared(n) => self.shared[n].expect("made at the beginning"),
            Dir::Own(id) => self.nodes[&id],
        }
    }

    /// The content of a file will be this.
    pub(crate) fn begin_data(&mut self, id: ObjectId, name: &'static str, content: Content) {
        let since = Span::Since(self.now);
        self.data.get_mut(&id).expect("a file has data").begin(name, content, since);
    }

    /// The file has this content since an unknown time.
    pub(crate) fn found_data(&mut self, id: ObjectId, content: Content) {
        self.data.get_mut(&id).expect("a file has data").begin("found", content, Span::Any);
    }

    /// It is.
    pub(crate) fn end_data(&mut self, id: ObjectId) {
        let now = self.now;
        self.data.get_mut(&id).expect("a file has data").end(now);
    }

    /// The times of a file will be this.
    pub(crate) fn begin_times(&mut self, id: ObjectId, time: Timestamp) {
        let versions = self.data.get_mut(&id).expect("a file has data");
        let content = versions.now().clone();
        versions.begin("utimes", content, Span::At(time));
    }

    /// They are, or it was refused.
    pub(crate) fn end_times(&mut self, id: ObjectId, done: bool) {
        let now = self.now;
        let versions = self.data.get_mut(&id).expect("a file has data");
        if done { versions.end(now) } else { versions.take_back() }
    }

    /// Every file that has a name, whose data is known.
    pub(crate) fn files(&self) -> Vec<ObjectId> {
        let objects = self.logs.iter().flat_map(|log| &log.now().objects);
        let files = objects.filter(|(_, object)| object.kind == Kind::File).map(|(id, _)| *id);
        files.filter(|id| self.data.contains_key(id)).collect()
    }

    /// The counts of inodes and snapshots for each subvolume; `nameless` are the files without a
    /// name that remain in some.
    pub(crate) fn counts(&self, nameless: &BTreeMap<SubvolId, u64>) -> BTreeMap<SubvolId, Count> {
        let mut sums: BTreeMap<SubvolId, Count> = BTreeMap::new();
        let left = |id| self.nodes.get(&id).and_then(|node: &NodeId| nameless.get(&node.subvol));
        let left = |id| left(id).copied().unwrap_or(0);
        let of = |log: &Log| counts::of(log.now(), &self.usage, left);
        for (subvol, count) in self.logs.iter().flat_map(of) {
            let node = subvol.map(|id| self.nodes.get(&id));
            // An object that is being created has no number yet.
            let Some(subvol) = node.map_or(Some(SubvolId::ROOT), |node| Some(node?.subvol)) else {
                continue;
            };
            sums.entry(subvol).or_default().add(count);
        }
        sums
    }

    /// Begins to turn quotas, unless a client turns them or depends on them; returns whether to
    /// turn them on.
    pub(crate) fn begin_turn(&mut self) -> Option<bool> {
        let eras = &self.usage.eras;
        if eras.is_turning() || eras.promising > 0 {
            return None;
        }
        let on = !eras.is_on();
        let generation = eras.now().generation + u64::from(on);
        let (begun, coming) = (self.tick(), self.coming());
        self.usage.eras.begin_turn(begun, (on, generation), coming);
        Some(on)
    }

    /// The objects that are being created now.
    fn coming(&self) -> Vec<ObjectId> {
        let mut coming: Vec<ObjectId> = self.nameless.iter().copied().collect();
        for log in &self.logs {
            let Some(step) = log.steps.last().filter(|step| step.ended.is_none()) else { continue };
            if step.name.starts_with("make") {
                let before = &log.after(log.steps.len() - 1).objects;
                let objects = step.tree.objects.keys();
                coming.extend(objects.filter(|id| !before.contains_key(id)));
            }
        }
        coming
    }

    /// A step of a client begins.
    pub(crate) fn begin(&mut self, client: usize, name: &'static str, mut tree: Tree) {
        let begun = self.tick();
        tree.begin(self.now);
        self.modes.note(tree.file_modes());
        self.logs[client].steps.push(Step { name, begun, ended: None, tree, brings: vec![] });
    }

    pub(crate) fn end(&mut self, client: usize) {
        let ended = Some(self.tick());
        let steps = &mut self.logs[client].steps;
        let last = steps.last_mut().expect("it has begun");
        last.ended = ended;
        last.tree.end(self.now);
        let behind = (client, steps.len());
        let objects = self.touching.get(&client).map_or(&[][..], |(_, objects)| objects);
        self.changed.extend(objects.iter().map(|id| (*id, behind)));
        self.touch_ends(client);
    }

    /// The step under way was refused, and changed nothing.
    pub(crate) fn take_back(&mut self, client: usize) {
        let step = self.logs[client].steps.pop().expect("it has begun");
        assert_eq!(step.ended, None);
        self.touch_fails(client);
    }

    /// An operation of a client begins that will be logged with these objects.
    pub(crate) fn touch(&mut self, client: usize, objects: &[ObjectId]) {
        let moment = self.tick();
        self.touching.insert(client, (moment, objects.to_vec()));
    }

    /// It has ended.
    pub(crate) fn touch_ends(&mut self, client: usize) {
        if let Some((moment, objects)) = self.touching.remove(&client) {
            self.touched.extend(objects.into_iter().map(|id| (id, moment)));
        }
    }

    /// It was refused: nothing is logged with them.
    pub(crate) fn touch_fails(&mut self, client: usize) {
        self.touching.remove(&client);
    }

    /// The operations under way have ended with the life.
    pub(crate) fn forget_touches(&mut self) {
        self.touching.clear();
        self.changed.clear();
    }

    /// Changes of an object that were to be logged may be lost.
    pub(crate) fn forget_touch(&mut self, id: ObjectId) {
        self.touched.remove(&id);
    }

    /// The changes that an fsync beginning now makes durable: the object's data; its own last
    /// change, with all earlier changes of its client; and the changes of others that ended before
    /// that change began.
    pub(crate) fn before_fsync(&self, id: ObjectId) -> Fsync {
        Fsync {
            id,
            moment: self.touched.get(&id).copied().unwrap_or(0),
            behind: self.changed.get(&id).copied(),
            version: self.data.get(&id).map(Versions::done),
        }
    }

    pub(crate) fn after_fsync(&mut self, fsync: &Fsync) {
        if self.troubled {
            return;
        }
        self.sync(fsync.moment);
        if let Some((client, steps)) = fsync.behind {
            let log = &mut self.logs[client];
            log.synced = log.synced.max(steps);
        }
        if let (Some(data), Some(version)) = (self.data.get_mut(&fsync.id), fsync.version) {
            data.synced(version);
        }
    }

    /// A close of an emptied file has returned, of which this version was there before (DIRTY-D8).
    pub(crate) fn after_close(&mut self, id: ObjectId, version: usize) {
        if let Some(data) = self.data.get_mut(&id).filter(|_| !self.troubled) {
            data.closed(version);
        }
    }

    /// The step that has just begun brings all data that these objects have (rule R35).
    pub(crate) fn brings(&mut self, client: usize, objects: &[ObjectId]) {
        let versions = objects.iter().filter_map(|id| Some((*id, self.data.get(id)?.done())));
        let versions = versions.collect();
        self.logs[client].steps.last_mut().expect("it has begun").brings = versions;
    }

    /// The changes that a sync beginning now makes durable.
    pub(crate) fn before_sync(&mut self) -> (Moment, Vec<(ObjectId, usize)>) {
        let versions = self.data.iter().map(|(id, data)| (*id, data.done())).collect();
        (self.tick(), versions)
    }

    pub(crate) fn after_sync(&mut self, moment: Moment, versions: &[(ObjectId, usize)]) {
        self.sync(moment);
        if !self.troubled {
            self.usage.eras.installed(moment);
        }
        for (id, version) in versions.iter().filter(|_| !self.troubled) {
            if let Some(data) = self.data.get_mut(id) {
                data.synced(*version);
            }
        }
    }

    /// The changes acknowledged as durable: the number of each client's steps, and the version of
    /// each file.
    pub(crate) fn promised(&self) -> Vec<usize> {
        let steps = self.logs.iter().map(|log| log.least(self.synced));
        steps.chain(self.data.values().map(Versions::least)).collect()
    }

    /// Everything that had ended at `moment` was acknowledged as durable.
    pub(crate) fn sync(&mut self, moment: Moment) {
        if !self.troubled {
            self.synced = self.synced.max(moment);
        }
    }
}

/// See [`World::before_fsync`].
pub(crate) struct Fsync {
    id: ObjectId,
    moment: Moment,
    behind: Option<(usize, usize)>,
    version: Option<usize>,
}

#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub(crate) world: Mutex<World>,
}
