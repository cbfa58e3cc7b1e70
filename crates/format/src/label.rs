//! Labels: the identity of a device, and its layout. One at each end.
//!
//! ```text
//!   block 0        1..16     16..48           48..64   64 …            … end-64 … end
//!   label          zero      uberblock ring   zero     log copy 0 … log copy 1, label again
//! ```
//!
//! A label is written when a pool is created and when its configuration changes, never by a commit.
//! Its digest covers the whole block, the digest field taken as zero.
//!
//! LABEL-B1  The two labels of a device differ only in their block number.
//! LABEL-B2  Only labels and uberblocks are ever written to the label areas.

use copyhold_types::{BLOCK_BYTES, BlockAddr, DeviceId, Digest, PoolId, Timestamp};
use zerocopy::little_endian::{I64, U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::node::FRAGMENTS_MAX;
use crate::{FormatError, digest};

/// First bytes of a label.
pub const MAGIC: [u8; 8] = *b"COPYHOLD";
/// Raised when old programs must not touch a pool at all. Before 1.0 it may rise at any time.
pub const VERSION: u32 = 2;
/// Blocks at each end of a device that hold label and uberblocks.
pub const AREA_BLOCKS: u64 = 64;
/// First uberblock slot and number of slots, in blocks from the start of the area.
pub const RING_START: u64 = 16;
pub const RING_SLOTS: u64 = 32;
/// Most bytes of a leaf: a list has room for its blocks, were each a fragment.
pub const NODE_BYTES_MAX: u32 = 512 << 10;
const _: () = assert!(NODE_BYTES_MAX as usize / BLOCK_BYTES <= FRAGMENTS_MAX);
/// Most metaslabs of a pool: each takes memory and a descriptor, even if it is empty.
pub const METASLABS_MAX: u64 = 1 << 18;
/// Longest name of a pool, in bytes.
pub const NAME_MAX: usize = 64;

/// Features of a pool. Programs that do not know a bit of the second open it read-only, of the
/// third not at all; bits of the first they may ignore.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    pub compat: u64,
    pub ro_compat: u64,
    pub incompat: u64,
}

impl Features {
    /// Compat: all of the device was allocated when the pool was made, and stays so: nothing is
    /// discarded.
    pub const PREALLOCATED: u64 = 1 << 0;
    /// Incompat: nodes and maps may lie in fragments. A program that may write sets it before it
    /// writes anything else.
    pub const FRAGMENTS: u64 = 1 << 0;
    /// Incompat: extents may have their checksums beside their blocks, or none. It is set before
    /// the first file is to have such extents.
    pub const CHECKSUM_MODES: u64 = 1 << 1;
    /// Incompat: blocks may have protection information, and the label names its format
    /// ([`Label::namespace`]). A program that does not know it would use the device without, or
    /// another one.
    pub const PROTECTED: u64 = 1 << 2;
    /// Incompat: space maps may have deltas. A program that may write sets it before it writes.
    pub const MAP_DELTAS: u64 = 1 << 3;
    /// Ro-compat: groups may have limits of memory. A program that does not know their records
    /// would leave those of subvolumes that it deletes. It is set before the first record.
    pub const MEMORY_LIMITS: u64 = 1 << 0;
    /// The features that this program knows. Version 2 is the base that features are added to.
    pub const KNOWN: Features = Features {
        compat: Features::PREALLOCATED,
        ro_compat: Features::MEMORY_LIMITS,
        incompat: Features::FRAGMENTS
            | Features::CHECKSUM_MODES
            | Features::PROTECTED
            | Features::MAP_DELTAS,
    };

    pub fn preallocated(&self) -> bool {
        self.compat & Features::PREALLOCATED != 0
    }

    /// With these features, too.
    pub fn with(self, more: Features) -> Features {
        Features {
            compat: self.compat | more.compat,
            ro_compat: self.ro_compat | more.ro_compat,
            incompat: self.incompat | more.incompat,
        }
    }

    /// With the features that this program may use as soon as it writes.
    pub fn in_use(self) -> Features {
        let incompat = self.incompat | Features::FRAGMENTS | Features::MAP_DELTAS;
        Features { incompat, ..self }
    }

    /// Whether a pool with these features may be written by this program.
    pub fn writable(&self) -> bool {
        self.ro_compat & !Self::KNOWN.ro_compat == 0
    }
}

/// The namespace with protection information that a pool needs as its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeededNamespace {
    /// Its format, as a namespace has it.
    pub format: [u8; 8],
    /// The identity of the namespace; zeros, if it has none.
    pub identity: [u8; 16],
}

/// A parsed label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    pub pool: PoolId,
    /// Seeds the digests of log frames, so that stored bytes cannot pass for a frame.
    pub secret: u64,
    pub device: DeviceId,
    /// Devices in the pool.
    pub devices: u16,
    /// Raised whenever the set of devices or their states changes (rule R7).
    pub generation: u64,
    pub features: Features,
    pub created: Timestamp,
    /// Blocks of the pool. The device may have more.
    pub blocks: u64,
    /// First blocks of the two copies of the log ring.
    pub log: [u64; 2],
    /// Size of one copy of the ring, in blocks.
    pub log_blocks: u64,
    /// Size of a metaslab in blocks; a power of two.
    pub metaslab_blocks: u64,
    /// Most bytes of a tree node, and most leaves under one partition.
    pub node_bytes: u32,
    pub partition_leaves: u32,
    /// The administrator's name for the pool; may be empty.
    pub name: String,
    /// That of the device when the pool began to use it ([`Features::PROTECTED`]).
    pub namespace: Option<NeededNamespace>,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct LabelDisk {
    magic: [u8; 8],
    version: U32,
    device: U16,
    devices: U16,
    pool: [u8; 16],
    digest: U128,
    secret: U64,
    generation: U64,
    compat: U64,
    ro_compat: U64,
    incompat: U64,
    created_secs: I64,
    created_nanos: U32,
    node_bytes: U32,
    blocks: U64,
    log: [U64; 2],
    log_blocks: U64,
    metaslab_blocks: U64,
    partition_leaves: U32,
    name_len: U32,
    name: [u8; NAME_MAX],
    /// Zeros without [`Features::PROTECTED`].
    format: [u8; 8],
    identity: [u8; 16],
}
const _: () = assert!(size_of::<LabelDisk>() == 240);
const DIGEST_AT: usize = 32;

const WHAT: &str = "label";

/// `block` with the sixteen bytes of its digest taken as zero.
pub(crate) fn digest_without(block: &[u8], digest_at: usize) -> Digest {
    let mut copy = block.to_vec();
    copy[digest_at..digest_at + 16].fill(0);
    digest(&copy)
}

impl Label {
    /// One block, ready to be written.
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.name.len() <= NAME_MAX, "names of pools are limited before they get here");
        let mut name = [0; NAME_MAX];
        name[..self.name.len()].copy_from_slice(self.name.as_bytes());
        let namespace =
            self.namespace.unwrap_or(NeededNamespace { format: [0; 8], identity: [0; 16] });
        let disk = LabelDisk {
            magic: MAGIC,
            version: VERSION.into(),
            device: self.device.0.into(),
            devices: self.devices.into(),
            pool: self.pool.0,
            digest: 0.into(),
            secret: self.secret.into(),
            generation: self.generation.into(),
            compat: self.features.compat.into(),
            ro_compat: self.features.ro_compat.into(),
            incompat: self.features.incompat.into(),
            created_secs: self.created.secs.into(),
            created_nanos: self.created.nanos.into(),
            node_bytes: self.node_bytes.into(),
            blocks: self.blocks.into(),
            log: self.log.map(U64::from),
            log_blocks: self.log_blocks.into(),
            metaslab_blocks: self.metaslab_blocks.into(),
            partition_leaves: self.partition_leaves.into(),
            name_len: (self.name.len() as u32).into(),
            name,
            format: namespace.format,
            identity: namespace.identity,
        };
        let mut block = vec![0; BLOCK_BYTES];
        block[..size_of::<LabelDisk>()].copy_from_slice(disk.as_bytes());
        let sum = digest(&block);
        block[DIGEST_AT..DIGEST_AT + 16].copy_from_slice(&sum.0.to_le_bytes());
        block
    }

    /// `block`: one block as read. Version and features are judged before anything else, so that a
    /// newer pool is distinguished from a damaged one.
    pub fn parse(block: &[u8]) -> Result<Label, FormatError> {
        let (disk, _) = LabelDisk::ref_from_prefix(block)
            .map_err(|_| FormatError::Short { what: WHAT, len: block.len() })?;
        if disk.magic != MAGIC {
            return Err(FormatError::Magic { what: WHAT });
        }
        if disk.version.get() != VERSION {
            return Err(FormatError::Version { found: disk.version.get(), supported: VERSION });
        }
        if digest_without(block, DIGEST_AT).0 != disk.digest.get() {
            return Err(FormatError::Digest { what: WHAT });
        }
        let unknown = disk.incompat.get() & !Features::KNOWN.incompat;
        if unknown != 0 {
            return Err(FormatError::Features { bits: unknown });
        }
        let label = Label::from_disk(disk)?;
        label.check()?;
        Ok(label)
    }

    fn from_disk(disk: &LabelDisk) -> Result<Label, FormatError> {
        let name = disk
            .name
            .get(..disk.name_len.get() as usize)
            .and_then(|bytes| std::str::from_utf8(bytes).ok().map(str::to_owned));
        Ok(Label {
            pool: PoolId(disk.pool),
            secret: disk.secret.get(),
            device: DeviceId(disk.device.get()),
            devices: disk.devices.get(),
            generation: disk.generation.get(),
            features: Features {
                compat: disk.compat.get(),
                ro_compat: disk.ro_compat.get(),
                incompat: disk.incompat.get(),
            },
            created: Timestamp { secs: disk.created_secs.get(), nanos: disk.created_nanos.get() },
            blocks: disk.blocks.get(),
            log: disk.log.map(U64::get),
            log_blocks: disk.log_blocks.get(),
            metaslab_blocks: disk.metaslab_blocks.get(),
            node_bytes: disk.node_bytes.get(),
            partition_leaves: disk.partition_leaves.get(),
            name: name.ok_or(bad("name length", disk.name_len.get().into()))?,
            namespace: (disk.incompat.get() & Features::PROTECTED != 0)
                .then_some(NeededNamespace { format: disk.format, identity: disk.identity }),
        })
    }

    /// The geometry must be possible, for any writer.
    pub fn check(&self) -> Result<(), FormatError> {
        let end = self.blocks.checked_sub(AREA_BLOCKS).ok_or(bad("blocks", self.blocks))?;
        for start in self.log {
            let fits = start >= AREA_BLOCKS
                && start.checked_add(self.log_blocks).is_some_and(|behind| behind <= end);
            if !fits {
                return Err(bad("log", start));
            }
        }
        if self.log[0].abs_diff(self.log[1]) < self.log_blocks || self.log_blocks < 16 {
            return Err(bad("log blocks", self.log_blocks));
        }
        if !self.metaslab_blocks.is_power_of_two()
            || !(256..=1 << 22).contains(&self.metaslab_blocks)
        {
            return Err(bad("metaslab blocks", self.metaslab_blocks));
        }
        if self.blocks > self.blocks_max() {
            return Err(bad("blocks", self.blocks));
        }
        let node = u64::from(self.node_bytes);
        if !(BLOCK_BYTES as u64..=NODE_BYTES_MAX.into()).contains(&node) || !node.is_power_of_two()
        {
            return Err(bad("bytes of a leaf (4 KiB to 512 KiB, a power of two)", node));
        }
        if !(2..=4096).contains(&self.partition_leaves) {
            return Err(bad("partition leaves", self.partition_leaves.into()));
        }
        if self.devices != 1 || self.device != DeviceId(0) {
            return Err(bad("devices", self.devices.into()));
        }
        if self.created.nanos >= 1_000_000_000 {
            return Err(bad("created", self.created.nanos.into()));
        }
        Ok(())
    }

    /// The most blocks of a pool with metaslabs of this size.
    pub fn blocks_max(&self) -> u64 {
        (METASLABS_MAX * self.metaslab_blocks).min(BlockAddr::MAX_BLOCK)
    }

    /// Of a pool that needs this namespace, and with the feature that says so.
    pub fn needing(self, namespace: NeededNamespace) -> Label {
        let incompat = self.features.incompat | Features::PROTECTED;
        let features = Features { incompat, ..self.features };
        Label { features, namespace: Some(namespace), ..self }
    }

    /// First blocks of the two label areas of a device of `blocks` blocks.
    pub fn areas(blocks: u64) -> [u64; 2] {
        [0, blocks - AREA_BLOCKS]
    }
}

fn bad(field: &'static str, value: u64) -> FormatError {
    FormatError::Field { what: WHAT, field, value }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label() -> Label {
        Label {
            pool: PoolId([7; 16]),
            secret: 99,
            device: DeviceId(0),
            devices: 1,
            generation: 1,
            features: Features::default(),
            created: Timestamp { secs: 1_700_000_000, nanos: 5 },
            blocks: 100_000,
            log: [64, 90_000],
            log_blocks: 1024,
            metaslab_blocks: 4096,
            node_bytes: 32 << 10,
            partition_leaves: 256,
            name: "pool".into(),
            namespace: None,
        }
    }

    #[test]
    fn a_label_comes_back() {
        assert_eq!(Label::parse(&label().encode()).unwrap(), label());
    }

    #[test]
    fn a_label_names_the_namespace_that_its_pool_needs() {
        let namespace = NeededNamespace { format: [8, 7, 6, 5, 4, 3, 2, 1], identity: [9; 16] };
        let needing = label().needing(namespace);
        let found = Label::parse(&needing.encode()).unwrap();
        assert_eq!((found.namespace, &found), (Some(namespace), &needing));
        let unused = Label { features: Features::default(), ..needing };
        assert_eq!(Label::parse(&unused.encode()).unwrap(), label());
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let good = label().encode();
        for at in 0..good.len() * 8 {
            let mut block = good.clone();
            block[at / 8] ^= 1 << (at % 8);
            assert!(Label::parse(&block).is_err(), "bit {at}");
        }
    }

    #[test]
    fn another_version_is_named_even_if_the_rest_means_nothing_to_us() {
        for found in [VERSION - 1, VERSION + 1] {
            let mut block = label().encode();
            block[8] = found as u8;
            let supported = VERSION;
            assert_eq!(Label::parse(&block), Err(FormatError::Version { found, supported }));
        }
    }

    #[test]
    fn a_pool_may_have_as_many_metaslabs_as_there_may_be() {
        let mut label = label();
        label.blocks = METASLABS_MAX * label.metaslab_blocks;
        assert_eq!(Label::parse(&label.encode()).unwrap(), label);
    }

    #[test]
    fn impossible_geometry_is_refused_although_the_digest_is_right() {
        for break_it in [
            |l: &mut Label| l.blocks = 10,
            |l: &mut Label| l.log = [64, 65],
            |l: &mut Label| l.log[1] = u64::MAX,
            |l: &mut Label| l.metaslab_blocks = 100,
            |l: &mut Label| l.blocks = METASLABS_MAX * l.metaslab_blocks + 1,
            |l: &mut Label| (l.blocks, l.metaslab_blocks) = (u64::MAX, 1 << 22),
            |l: &mut Label| l.node_bytes = 12,
            |l: &mut Label| l.node_bytes = 2 * NODE_BYTES_MAX,
            |l: &mut Label| l.partition_leaves = 0,
        ] {
            let mut label = label();
            break_it(&mut label);
            assert!(Label::parse(&label.encode()).is_err(), "{label:?}");
        }
    }
}
