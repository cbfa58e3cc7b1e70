//! Running one workload, while the model keeps up with it.

use std::sync::Arc;
use std::time::Duration;

use copyhold_fs::{Caller, Filesystem, FsError, NodeId, OpenFlags, RenameFlags, SetAttr};
use copyhold_fs::{WriteFlags, XattrSet};
use copyhold_pool::PoolError;
use copyhold_types::InodeNo;
use parking_lot::{Mutex, MutexGuard};

use super::operation::{Effect, MODE, OWNER, Operation, XATTR, acl_of, appended};
use super::stage::{SEED, Stage};
use super::tape::{Moment, Pace, Recorder};
use super::workload::{Persistence, Workload};
use crate::fs_level::content::{Content, Versions};
use crate::fs_level::tree::{Dir, Kind, ObjectId, Tree};
use crate::fs_level::world::{Shared, World};
use crate::machine::Machine;

/// By then timers have made everything durable: data after 5 seconds, and a txg 5 seconds later.
const TIMERS: Duration = Duration::from_secs(12);

/// The part of a workload to examine.
pub(super) struct Recording {
    /// When the last operation began.
    pub(super) before: Moment,
    /// From then on.
    pub(super) moments: Vec<Moment>,
}

/// # Panics
/// An operation is refused, or the engine finds itself broken.
pub(super) fn record(stage: &Stage, workload: &Workload, pace: Pace) -> Recording {
    let machine = Machine::on(SEED, stage.image.clone());
    let shared = Arc::new(Shared { world: Mutex::new(stage.world.clone()) });
    let recorder = Recorder::new(&machine, pace, shared.clone());
    let done = machine.run(async {
        let device = stage.device_on(&machine, recorder.clone()).await.map_err(PoolError::from)?;
        let fs = stage.open(&machine, device).await?;
        let run = Run { fs, shared };
        let (last, known) = workload.steps.split_last().expect("a workload has a step");
        for step in known {
            run.step(&step.0, step.1).await?;
        }
        let before = recorder.now();
        recorder.start();
        run.step(&last.0, last.1).await?;
        Ok::<Moment, FsError>(before)
    });
    let before = done.expect("the power is on").unwrap_or_else(|error| panic!("refused: {error}"));
    let moments = recorder.end();
    machine.rest();
    Recording { before, moments }
}

struct Run {
    fs: Arc<Filesystem>,
    shared: Arc<Shared>,
}

impl Run {
    fn world(&self) -> MutexGuard<'_, World> {
        let mut world = self.shared.world.lock();
        world.now = self.fs.pool().runtime().wall_clock();
        world
    }

    fn node(&self, dir: Dir) -> NodeId {
        self.world().node(dir)
    }

    fn node_of(&self, id: ObjectId) -> NodeId {
        self.world().nodes[&id]
    }

    async fn step(&self, operation: &Operation, point: Persistence) -> Result<(), FsError> {
        let (tree, effect) = {
            let mut world = self.world();
            let tree = world.logs[0].now().clone();
            let effect = operation.effect(&tree, || world.new_object());
            (tree, effect)
        };
        let touched = operation.touches(&tree, effect.as_ref());
        let changes = match effect {
            Some(effect) => {
                self.change_tree(operation, &tree, effect).await?;
                true
            }
            None => self.change_content(operation).await?,
        };
        if changes {
            let mut world = self.world();
            // One behind the other: an fsync of one of them promises the operation, too.
            world.touch(0, &touched);
            world.touch_ends(0);
        }
        self.persist(point).await
    }

    // -- names and attributes -----------------------------------------------

    async fn change_tree(
        &self,
        operation: &Operation,
        before: &Tree,
        effect: Effect,
    ) -> Result<(), FsError> {
        let Effect { tree, made, copies, brings } = effect;
        let is_file = made.is_some_and(|id| tree.objects[&id].kind == Kind::File);
        {
            let mut world = self.world();
            for (old, new) in &copies {
                if let Some(data) = world.data.get(old).cloned() {
                    world.data.insert(*new, data);
                }
            }
            world.begin(0, operation.name(), tree);
            world.brings(0, &brings);
        }
        let node = self.do_to_tree(operation, before).await?;
        let mut world = self.world();
        if let Some(id) = made {
            world.born(id, node.expect("something is made"));
        }
        for (old, new) in copies {
            let subvol = node.expect("a snapshot is made").subvol;
            let node = NodeId { subvol, ..world.nodes[&old] };
            world.born(new, node);
        }
        world.end(0);
        if let Some(id) = made.filter(|_| is_file) {
            let born = world.logs[0].now().objects[&id].born;
            world.data.insert(id, Versions::of(Content::default(), born));
        }
        Ok(())
    }

    /// The object that it creates, if any.
    async fn do_to_tree(
        &self,
        operation: &Operation,
        before: &Tree,
    ) -> Result<Option<NodeId>, FsError> {
        let (fs, root) = (&self.fs, &Caller::ROOT);
        match operation {
            Operation::Create((dir, name)) => {
                let flags = OpenFlags::READ_WRITE;
                let (made, _) = fs.create(root, self.node(*dir), name, 0o644, flags, true).await?;
                fs.release(made.node);
                return Ok(Some(made.node));
            }
            Operation::Tmpfile((dir, name)) => {
                let dir = self.node(*dir);
                let made = fs.tmpfile(root, dir, 0o644).await?;
                fs.link(made.node, dir, name).await?;
                fs.release(made.node);
                return Ok(Some(made.node));
            }
            Operation::SetMode(id) => {
                let set = SetAttr { mode: Some(MODE), ..SetAttr::default() };
                fs.setattr(root, self.node_of(*id), &set).await?;
            }
            Operation::SetOwner(id) => {
                let (uid, gid) = (Some(OWNER.0), Some(OWNER.1));
                let set = SetAttr { uid, gid, ..SetAttr::default() };
                fs.setattr(root, self.node_of(*id), &set).await?;
            }
            Operation::SetAcl(id) => {
                let (name, acl) = acl_of(&before.objects[id]);
                let value = acl.encode();
                fs.set_xattr(root, self.node_of(*id), name, &value, XattrSet::Any, false).await?;
            }
            Operation::Mkdir((dir, name)) => {
                return Ok(Some(fs.mkdir(root, self.node(*dir), name, 0o755).await?.node));
            }
            Operation::Snapshot { source, to: (dir, name), read_only } => {
                let source = self.node_of(*source).subvol;
                let made = fs.snapshot(source, self.node(*dir), name, *read_only, None).await?;
                return Ok(Some(NodeId { subvol: made, ino: InodeNo::ROOT }));
            }
            Operation::Link(id, (dir, name)) => {
                fs.link(self.node_of(*id), self.node(*dir), name).await?;
            }
            Operation::Unlink((dir, name)) => fs.unlink(self.node(*dir), name).await?,
            Operation::Rmdir((dir, name)) => fs.rmdir(self.node(*dir), name).await?,
            Operation::Rename(from, to) | Operation::Exchange(from, to) => {
                let exchange = matches!(operation, Operation::Exchange(..));
                let no_replace = !before.entries.contains_key(to);
                let flags = RenameFlags { exchange, no_replace, ..RenameFlags::default() };
                let [from_dir, to_dir] = [from.0, to.0].map(|dir| self.node(dir));
                fs.rename(root, from_dir, &from.1, to_dir, &to.1, flags).await?;
            }
            Operation::SetXattr(id, xattr) => {
                let (name, value) = (xattr.name(), xattr.value());
                fs.set_xattr(root, self.node_of(*id), name, &value, XattrSet::Any, false).await?;
            }
            Operation::RemoveXattr(id) => {
                fs.remove_xattr(self.node_of(*id), XATTR).await?;
            }
            Operation::DeleteSubvolume((dir, name)) => {
                fs.delete_subvolume(self.node(*dir), name, None).await?;
            }
            Operation::Write(..)
            | Operation::Append(_)
            | Operation::Allocate(..)
            | Operation::Truncate(..)
            | Operation::OpenTruncate(_)
            | Operation::Reflink(..) => unreachable!("it changes content"),
        }
        Ok(None)
    }

    // -- content ------------------------------------------------------------

    /// Whether there was anything to change.
    async fn change_content(&self, operation: &Operation) -> Result<bool, FsError> {
        let (fs, root) = (&self.fs, &Caller::ROOT);
        match operation {
            Operation::Write(id, stretch) => {
                self.begin(operation, *id, None);
                let bytes = operation.bytes(*id, *stretch);
                let flags = WriteFlags::default();
                fs.write(self.node_of(*id), stretch.range().0, &bytes, flags).await?;
                self.end(*id);
            }
            Operation::Append(id) => {
                self.begin(operation, *id, None);
                let flags = WriteFlags { append: true, ..WriteFlags::default() };
                fs.write(self.node_of(*id), 0, &appended(*id), flags).await?;
                self.end(*id);
            }
            Operation::OpenTruncate(id) => {
                self.begin(operation, *id, None);
                let flags = OpenFlags { truncate: true, ..OpenFlags::READ_WRITE };
                fs.open_node(self.node_of(*id), flags).await?;
                fs.release(self.node_of(*id));
                self.end(*id);
            }
            Operation::Allocate(id, allocation) => {
                self.begin(operation, *id, None);
                let (offset, len) = allocation.range();
                fs.fallocate(self.node_of(*id), offset, len, allocation.mode()).await?;
                self.end(*id);
            }
            Operation::Truncate(id, size) => {
                self.begin(operation, *id, None);
                let set = SetAttr { size: Some(size.bytes()), ..SetAttr::default() };
                fs.setattr(root, self.node_of(*id), &set).await?;
                self.end(*id);
            }
            Operation::Reflink(source, id, part) => {
                let held = self.world().data[source].now().clone();
                self.begin(operation, *id, Some(&held));
                let (from, to, len) = part.of(&held);
                let (source, target) = (self.node_of(*source), self.node_of(*id));
                let copied = fs.copy_file_range(source, from, target, to, len).await?;
                assert_eq!(copied, len, "a copy is whole");
                if len == 0 {
                    let mut world = self.world();
                    world.data.get_mut(id).expect("a file has data").take_back();
                    return Ok(false);
                }
                self.end(*id);
            }
            _ => unreachable!("it changes the tree"),
        }
        Ok(true)
    }

    fn begin(&self, operation: &Operation, id: ObjectId, source: Option<&Content>) {
        let mut world = self.world();
        let mut content = world.data[&id].now().clone();
        operation.change(&mut content, source);
        world.begin_data(id, operation.name(), content);
    }

    fn end(&self, id: ObjectId) {
        self.world().end_data(id);
    }

    // -- making durable -----------------------------------------------------

    async fn persist(&self, point: Persistence) -> Result<(), FsError> {
        if let Persistence::Fsync(id) = point {
            return self.fsync(id).await;
        }
        if point == Persistence::Nothing {
            return Ok(());
        }
        let (moment, versions) = self.world().before_sync();
        match point {
            Persistence::Timers => self.fs.pool().runtime().sleep(TIMERS).await,
            Persistence::Close => {
                self.fs.close().await?;
                self.fs.pool().close().await?;
            }
            _ => self.fs.sync().await?,
        }
        self.world().after_sync(moment, &versions);
        if point == Persistence::Settle {
            self.fs.pool().flush_all().await?;
        }
        Ok(())
    }

    async fn fsync(&self, id: ObjectId) -> Result<(), FsError> {
        let (node, fsync) = {
            let world = self.world();
            (world.nodes[&id], world.before_fsync(id))
        };
        self.fs.fsync(node, false).await?;
        self.world().after_fsync(&fsync);
        Ok(())
    }
}
