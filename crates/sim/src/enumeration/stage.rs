//! The pool that every workload begins with: a small tree, durable and settled, quotas on.

use std::collections::BTreeSet;
use std::sync::Arc;

use copyhold_device::pi::{self, Format};
use copyhold_device::sim::SimImage;
use copyhold_device::{DeviceError, DynDevice, OpenMode};
use copyhold_format::item::{ChecksumMode, Extent};
use copyhold_fs::{
    Caller, Filesystem, FsError, NodeId, OpenFlags, Options, WriteFlags, XattrSet,
    set_checksum_mode,
};
use copyhold_pool::{CreateOptions, Limits, OpenOptions, Pool};
use copyhold_types::{BlockAddr, InodeNo, PoolId};

use super::operation::FILE_BYTES;
use super::workload;
use crate::Sabotage;
use crate::dice::Dice;
use crate::fs_level::content::{Content, Versions};
use crate::fs_level::span::Span;
use crate::fs_level::tree::{Kind, ObjectId, Place, SHARED_DIRS, Tree, shared_name};
use crate::fs_level::verify;
use crate::fs_level::world::World;
use crate::machine::{Machine, blank};

/// Latencies and keys: the same for all, so that workloads that begin alike write alike.
pub(super) const SEED: u64 = 0x100;
const POOL_BLOCKS: u64 = 2048;

pub(super) struct Stage {
    pub(super) image: SimImage,
    pub(super) world: World,
    /// Where the extents of its files begin.
    places: BTreeSet<BlockAddr>,
    protection: Option<Format>,
    mode: ChecksumMode,
    broken: Option<Sabotage>,
}

impl Stage {
    /// # Panics
    /// The pool cannot be made.
    pub(super) fn set(
        broken: Option<Sabotage>,
        protection: Option<Format>,
        mode: ChecksumMode,
    ) -> Stage {
        let machine = Machine::on(SEED, blank(POOL_BLOCKS, protection));
        let mut world = World::new(1);
        let create = CreateOptions {
            id: Some(PoolId([7; 16])),
            name: "enumerated".into(),
            log_bytes: Some(128 << 10),
            metaslab_blocks: Some(256),
            node_bytes: Some(16 << 10),
            ..CreateOptions::default()
        };
        let made = machine.run(async {
            Pool::create(&machine.rt(), &machine.device(), &create).await?;
            let pool = Pool::open(machine.rt(), machine.device(), open_options(None)).await?;
            Filesystem::format(&pool, &Caller::ROOT, 0o755).await?;
            let fs = Filesystem::open(pool.clone(), options(mode)).await?;
            fs.enable_quotas().await?;
            fill(&fs, &mut world, mode).await?;
            let found = verify::check_extents(&fs, &world).await?;
            fs.close().await?;
            pool.close().await?;
            Ok::<_, FsError>(found.iter().map(|extent| extent.pointer.run.addr).collect())
        });
        let places = made.expect("the power is on").expect("the stage is set");
        Stage { image: machine.rest(), world, places, protection, mode, broken }
    }

    /// Its place is not one of those with which the workload begins.
    pub(super) fn is_new(&self, extent: &Extent) -> bool {
        !self.places.contains(&extent.pointer.run.addr)
    }

    /// The device of the pool, on the disk of a machine or on one that stands before it.
    pub(super) async fn device_on(
        &self,
        machine: &Machine,
        disk: DynDevice,
    ) -> Result<DynDevice, DeviceError> {
        match self.protection {
            Some(_) => pi::open(machine.rt(), disk, OpenMode::ReadWrite).await,
            None => Ok(disk),
        }
    }

    /// Mounts what a device of a machine holds.
    pub(super) async fn open(
        &self,
        machine: &Machine,
        device: DynDevice,
    ) -> Result<Arc<Filesystem>, FsError> {
        let pool = Pool::open(machine.rt(), device, open_options(self.broken)).await?;
        let sabotage = self.broken.and_then(Sabotage::of_fs);
        let fs = Filesystem::open(pool, Options { sabotage, ..options(self.mode) }).await?;
        if let Some(rule) = self.broken.and_then(Sabotage::of_volume) {
            fs.volumes().break_rule(rule);
        }
        Ok(fs)
    }
}

/// As a mount has them. Attached data has its checksums in the item, so none is attached if all
/// files have another mode.
fn options(mode: ChecksumMode) -> Options {
    let options = Options { count_lookups: false, ..Options::default() };
    match mode {
        ChecksumMode::Item => options,
        _ => Options { attach_bytes_max: 0, ..options },
    }
}

fn open_options(broken: Option<Sabotage>) -> OpenOptions {
    let limits = Limits { sabotage: broken.and_then(Sabotage::of_pool), ..Limits::default() };
    OpenOptions { tenants: true, limits, ..OpenOptions::default() }
}

/// Makes what the model's tree has, and tells the model.
async fn fill(fs: &Arc<Filesystem>, world: &mut World, mode: ChecksumMode) -> Result<(), FsError> {
    world.shared[0] = Some(fs.root());
    for n in 1..SHARED_DIRS {
        let made = fs.mkdir(&Caller::ROOT, fs.root(), &shared_name(n), 0o755).await?;
        world.shared[n] = Some(made.node);
    }
    let mut tree = workload::stage();
    tree.objects.values_mut().for_each(|object| object.checksum_mode = mode);
    let mut places: Vec<(&Place, ObjectId)> =
        tree.entries.iter().map(|(place, id)| (place, *id)).collect();
    places.sort_by_key(|(_, id)| *id);
    for (place, id) in places {
        assert_eq!(world.new_object(), id, "they are numbered in the order in which they are made");
        let node = make(fs, world, &tree, place, id).await?;
        world.born(id, node);
    }
    world.modes.note(tree.file_modes());
    for (id, object) in &mut tree.objects {
        object.is_found(&fs.getattr(world.nodes[id]).await?);
    }
    world.logs[0].base = tree;
    fs.sync().await
}

async fn make(
    fs: &Arc<Filesystem>,
    world: &mut World,
    tree: &Tree,
    place: &Place,
    id: ObjectId,
) -> Result<NodeId, FsError> {
    let (root, object) = (&Caller::ROOT, &tree.objects[&id]);
    let (parent, name) = (world.node(place.0), &place.1);
    let node = match object.kind {
        Kind::Subvol => {
            let subvol = fs.create_subvolume(root, parent, name, None).await?;
            NodeId { subvol, ino: InodeNo::ROOT }
        }
        Kind::Dir => {
            let node = fs.mkdir(root, parent, name, object.mode).await?.node;
            // All others are below the first, and inherit its mode.
            set_checksum_mode(fs, root, node, object.checksum_mode).await?;
            node
        }
        _ => {
            let flags = OpenFlags::READ_WRITE;
            let (made, _) = fs.create(root, parent, name, object.mode, flags, true).await?;
            let bytes = Dice::new(id).bytes(FILE_BYTES as usize);
            fs.write(made.node, 0, &bytes, WriteFlags::default()).await?;
            fs.release(made.node);
            world.data.insert(id, Versions::of(Content::from_bytes(&bytes), Span::Any));
            made.node
        }
    };
    for (name, value) in &object.xattrs {
        fs.set_xattr(root, node, name, value, XattrSet::Any, false).await?;
    }
    Ok(node)
}
