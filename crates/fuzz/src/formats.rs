//! Structures of the disk, each by itself: a parsed structure is encoded again to the same bytes.
//!
//! Inputs to begin with are what stands in the pool that `base` makes.

mod begin;
mod identify;
mod nodes;
mod protection;

use copyhold_format::digest;
use copyhold_format::item::{
    Acl, DeadItem, DirBucket, EpochItem, Extent, GroupId, GroupItem, InodeItem, InodesItem, MEMORY,
    MemoryItem, PendingItem, QuotaItem, ShareItem, SubvolItem, UsageItem, XattrBucket, dead_key,
    encode_acl, encode_heir, epoch_key, memory_key, parse_heir, parse_inline, parse_symlink,
    parse_truncate, share_key,
};
use copyhold_format::label::Label;
use copyhold_format::log::{Batch, Frame, Record, RecordWriter, Records};
use copyhold_format::node::{
    PartitionDescriptor, decode_ptr, encode_fragments, encode_ptr, parse_fragments,
};
use copyhold_format::space_map::{Change, Descriptor, MapDelta, SpaceMap};
use copyhold_format::uberblock::Uberblock;
use copyhold_types::{BlockAddr, DeviceId, Digest, EpochId, InodeNo, Key, NodePtr, PoolId, Txg};
use xxhash_rust::xxh3::xxh3_64;

pub(crate) use begin::*;
pub(crate) use identify::{identify, identities};
pub(crate) use nodes::node;
pub(crate) use protection::{protection, protections};

/// Where labels and uberblocks have their digest.
const DIGEST_AT: usize = 32;

/// One block that begins with `data`.
fn block(data: &[u8]) -> Vec<u8> {
    let mut block = data[..data.len().min(4096)].to_vec();
    block.resize(4096, 0);
    block
}

/// Makes the digest of a label or an uberblock right, so that an input gets behind it.
pub(crate) fn set_digest(block: &mut [u8]) {
    block[DIGEST_AT..DIGEST_AT + 16].fill(0);
    let sum = digest(block);
    block[DIGEST_AT..DIGEST_AT + 16].copy_from_slice(&sum.0.to_le_bytes());
}

/// A block of the label area, as it is and with its digest set right.
pub(crate) fn label(data: &[u8]) {
    let _ = Label::parse(data);
    let mut block = block(data);
    set_digest(&mut block);
    if let Ok(label) = Label::parse(&block) {
        assert_eq!(Label::parse(&label.encode()), Ok(label));
    }
}

pub(crate) fn uberblock(data: &[u8]) {
    let pool =
        |bytes: &[u8]| PoolId(std::array::from_fn(|n| bytes.get(16 + n).copied().unwrap_or(0)));
    let _ = Uberblock::parse(data, pool(data));
    let mut block = block(data);
    set_digest(&mut block);
    if let Ok(uberblock) = Uberblock::parse(&block, pool(&block)) {
        assert_eq!(Uberblock::parse(&uberblock.encode(), pool(&block)), Ok(uberblock));
    }
}

/// A frame of the log as read.
pub(crate) fn frame(data: &[u8]) {
    let pool = PoolId(std::array::from_fn(|n| data.get(8 + n).copied().unwrap_or(0)));
    let position = data.get(48..56).map_or(0, |at| u64::from_le_bytes(at.try_into().unwrap()));
    let claimed = Frame::claim(data, pool, position);
    if let Ok(frame) = Frame::parse(data, pool, 0, position) {
        assert_eq!(claimed, Some(frame.blocks));
    }
}

/// The payload of a batch's frame, and its records, as replay reads them.
pub(crate) fn batch(data: &[u8]) {
    let position = data.get(48..56).map_or(0, |at| u64::from_le_bytes(at.try_into().unwrap()));
    let txg = Txg::new(1 + position % 1000).unwrap();
    if let Ok(batch) = Batch::parse(data, txg) {
        assert_eq!(Batch::parse(&batch.encode(), txg).as_ref(), Ok(&batch));
        Records::new(&batch.records).for_each(|_| ());
    }
}

pub(crate) fn records(data: &[u8]) {
    let records: Vec<Record<'_>> = Records::new(data).map_while(Result::ok).collect();
    let mut writer = RecordWriter::default();
    records.iter().for_each(|record| writer.push(*record));
    let bytes = writer.finish();
    let again: Vec<_> = Records::new(&bytes).map(Result::unwrap).collect();
    assert_eq!(records, again);
}

/// Descriptors of partitions and metaslabs, and node pointers.
pub(crate) fn descriptors(data: &[u8]) {
    if let Ok(Some(ptr)) = decode_ptr(data) {
        assert_eq!(decode_ptr(&encode_ptr(&ptr)), Ok(Some(ptr)));
    }
    if let Ok(descriptor) = PartitionDescriptor::parse(data) {
        assert_eq!(PartitionDescriptor::parse(&descriptor.encode()), Ok(descriptor));
    }
    if let Ok(descriptor) = Descriptor::parse(data) {
        assert_eq!(descriptor.encode(), data);
    }
}

/// A list of fragments with its check set right, read by pointers that it may belong to.
pub(crate) fn fragments(data: &[u8]) {
    let mut block = block(data);
    let check = xxh3_64(&block[16..]);
    block[8..16].copy_from_slice(&check.to_le_bytes());
    let digest = Digest(u128::from_le_bytes(block[16..32].try_into().unwrap()));
    let blocks = u32::from_le_bytes(block[36..40].try_into().unwrap());
    let at = |block| Some(BlockAddr::new(DeviceId(0), block));
    for copies in [[at(1), at(2)], [at(1), None]] {
        let ptr = NodePtr { copies, blocks, fragmented: true, epoch: EpochId::POOL, digest };
        let Ok(fragments) = parse_fragments(&block, &ptr) else { continue };
        let sum: u64 = fragments.iter().map(|fragment| u64::from(fragment.blocks)).sum();
        assert_eq!(sum, u64::from(blocks));
        let presence = |copies: [Option<BlockAddr>; 2]| copies.map(|copy| copy.is_some());
        assert!(fragments.iter().all(|of| presence(of.copies) == presence(copies)));
        let again = encode_fragments(digest, &fragments);
        assert_eq!(parse_fragments(&again, &ptr), Ok(fragments));
    }
}

/// Counts hold, no run leaves the metaslab.
pub(crate) fn space_map(data: &[u8]) {
    let Ok(map) = SpaceMap::parse(data) else { return };
    let sum: u32 = map.runs().map(|(_, blocks)| blocks).sum();
    assert_eq!(sum, map.allocated());
    assert!(map.runs().all(|(at, blocks)| at + blocks <= map.place().blocks));
    assert!(map.longest_free() <= map.place().blocks);
    assert_eq!(SpaceMap::parse(&map.encode()), Ok(map));
}

/// Changes are in order and in the metaslab; over the map that they fit, they give the count that
/// the delta says, and over any other map an error.
pub(crate) fn map_delta(data: &[u8]) {
    let Ok(delta) = MapDelta::parse(data) else { return };
    assert_eq!(MapDelta::parse(&delta.encode()), Ok(delta.clone()));
    let place = delta.place();
    let mut words = vec![0; place.blocks.div_ceil(64) as usize];
    let mut end = 0;
    for &Change { first, blocks, allocated } in delta.changes() {
        assert!(first >= end && blocks > 0);
        end = first + blocks;
        assert!(end <= place.blocks);
        let freed = (first..end).filter(|_| !allocated);
        freed.for_each(|block| words[block as usize / 64] |= 1 << (block % 64));
    }
    for words in [vec![0; words.len()], words] {
        let map = SpaceMap::new(place, Txg::FIRST, words);
        if let Ok(map) = map.with(&delta) {
            assert_eq!(
                (map.allocated(), map.complete_to()),
                (delta.allocated(), delta.complete_to())
            );
        }
    }
}

/// Items of files.
pub(crate) fn items(data: &[u8]) {
    if let Ok(item) = InodeItem::parse(data) {
        assert_eq!(item.encode(), data);
    }
    if let Ok(item) = Extent::parse(data) {
        assert_eq!(&item.encode()[..], data);
    }
    if let Ok(item) = SubvolItem::parse(data) {
        assert_eq!(item.encode(), data);
    }
    if let Ok(bucket) = DirBucket::parse(data) {
        bucket.iter().for_each(|entry| assert!(bucket.find(entry.name).is_some()));
        let _ = bucket.find(b"name").is_none().then(|| bucket.with(8, InodeNo(5), b"name"));
    }
    if let Ok(bucket) = XattrBucket::parse(data) {
        bucket.iter().for_each(|entry| assert!(bucket.find(entry.name).is_some()));
        bucket.iter().for_each(|entry| drop(bucket.without(entry.name)));
    }
    if let Ok(acl) = Acl::parse(data) {
        assert_eq!(Acl::parse(&encode_acl(acl.entries())), Ok(acl));
    }
    let _ = (parse_inline(data), parse_symlink(data), parse_truncate(data));
}

/// Records of epochs, limits of memory, deadlists, shares and pending releases, under any key.
pub(crate) fn families(data: &[u8]) {
    let Some((object, rest)) = data.split_first_chunk() else { return };
    let Some((offset, value)) = rest.split_first_chunk() else { return };
    let epoch = EpochId(u64::from_le_bytes(*object));
    let addr = BlockAddr::from_raw(u64::from_le_bytes(*offset));
    if let Ok(item) = EpochItem::parse(epoch_key(epoch), value) {
        assert_eq!(item.encode(), value);
    }
    let key = Key::new(epoch.0, MEMORY, addr.raw());
    if let Ok((subvol, item)) = MemoryItem::parse(key, value) {
        assert_eq!((memory_key(subvol), &item.encode()[..]), (key, value));
    }
    if let Ok(item) = DeadItem::parse(dead_key(epoch, addr), value) {
        assert_eq!(item.encode(), value);
    }
    if let Ok(item) = ShareItem::parse(share_key(addr), value) {
        assert_eq!(item.encode(), value);
    }
    if let Ok(item) = PendingItem::parse(value) {
        assert_eq!(item.encode(), value);
    }
}

/// Records of quotas.
pub(crate) fn quota(data: &[u8]) {
    if let Ok(item) = QuotaItem::parse(data) {
        assert_eq!(&item.encode()[..], data);
    }
    if let Ok(item) = UsageItem::parse(data) {
        assert_eq!(&item.encode()[..], data);
    }
    if let Ok(item) = GroupItem::parse(data) {
        assert_eq!(&item.encode()[..], data);
    }
    if let Ok(item) = InodesItem::parse(data) {
        assert_eq!(&item.encode()[..], data);
    }
    if let Ok(heir) = parse_heir(data) {
        assert_eq!(&encode_heir(heir)[..], data);
    }
    if let Ok(Ok(id)) = std::str::from_utf8(data).map(str::parse::<GroupId>) {
        assert_eq!(id.to_string().parse(), Ok(id));
    }
}
