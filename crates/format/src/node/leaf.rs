//! Leaves: packed columns, searched where they are.
//!
//! Items with one object and kind form a group; items of one kind form a section. A search goes
//! over the groups, then over the offsets of the group's stretch of its section.
//!
//! ```text
//! header              128 bytes
//! 4 column heads      of the groups: object, section, first item, first rank in the section
//! per section         kind u8 · fields u8 · items u16 · shortest tail u32 · heap bytes u32
//!                     column heads: offset, end of tail, then the fields
//! data of the groups' columns
//! per section         data of its columns, then the tails, one behind the other
//! 16 zeros
//! ```
//!
//! A column head is 12 bytes: base u64, bits, shift, dictionary entries, width of the field. Its
//! data: the dictionary, 8 bytes an entry, then the packed bits, up to a whole byte. The end of the
//! tail of item i of a section is stored less (i + 1) times the shortest, so that tails of one
//! length cost nothing.
//!
//! LEAF-N3  Groups ascend by object and kind, each has items; ranks count the items of its section.
//! LEAF-N4  Tails lie in the heap in order, none overlaps another, none reaches past it.

use copyhold_types::{Buf, Key, Kind};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::column::{COLUMN_BYTES, Column, ColumnDisk, PAD_BYTES};
use super::schema::FIELDS_MAX;
use super::{HEADER_BYTES, Header, Level, disorder, field};
use crate::FormatError;

pub(super) const GROUP_COLUMNS: usize = 4;
pub(super) const SECTION_BYTES: usize = 12;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct SectionDisk {
    pub(super) kind: u8,
    pub(super) fields: u8,
    pub(super) items: U16,
    pub(super) tail_min: U32,
    pub(super) heap_bytes: U32,
}
const _: () = assert!(size_of::<SectionDisk>() == SECTION_BYTES);

/// A leaf as it is on disk, validated.
#[derive(Debug)]
pub struct LeafView {
    buf: Buf,
    header: Header,
    /// Object, section, first item, first rank.
    groups: [Column; GROUP_COLUMNS],
    sections: Vec<Section>,
    /// The field columns of all sections.
    fields: Vec<Column>,
}

/// Items of one kind.
#[derive(Debug)]
struct Section {
    kind: Kind,
    items: usize,
    offsets: Column,
    tail_ends: Column,
    tail_min: usize,
    heap_at: usize,
    heap_bytes: usize,
    /// Bytes of all fields of one value.
    fixed: usize,
    /// Where its columns are in [`LeafView::fields`].
    fields: (usize, usize),
}

/// The place of an item in one leaf; it has no meaning in another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafPosition {
    /// Index of the item in key order.
    pub item: usize,
    group: usize,
    /// Items of the group are [start, end).
    start: usize,
    end: usize,
    section: usize,
    rank: usize,
    object: u64,
}

/// A value that is still in columns.
#[derive(Clone, Copy, Debug)]
pub struct ValueRef<'a> {
    leaf: &'a LeafView,
    section: &'a Section,
    rank: usize,
    tail: &'a [u8],
    /// At most the length of fields and tail; the rest is cut off.
    len: usize,
}

impl LeafView {
    pub fn parse(buf: Buf) -> Result<LeafView, FormatError> {
        let header = Header::parse(&buf)?;
        if header.level != Level::Leaf {
            return Err(field("level", 1));
        }
        let heads = Heads::read(&buf, &header)?;
        let view = heads.locate(&buf, header)?;
        view.check_groups()?;
        view.sections.iter().try_for_each(|section| view.check_tails(section))?;
        Ok(view)
    }

    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Items, at least one.
    pub fn items(&self) -> usize {
        self.header.items
    }

    pub fn bytes(&self) -> &Buf {
        &self.buf
    }

    pub fn memory_bytes(&self) -> usize {
        size_of::<LeafView>()
            + self.buf.len()
            + self.sections.capacity() * size_of::<Section>()
            + self.fields.capacity() * size_of::<Column>()
    }

    /// The place of `key`, if it is here.
    pub fn find(&self, key: Key) -> Option<LeafPosition> {
        let place = self.lower_bound(key)?;
        (self.key(&place) == key).then_some(place)
    }

    /// The first item whose key is not below `key`.
    pub fn lower_bound(&self, key: Key) -> Option<LeafPosition> {
        let wanted = (key.object, key.kind);
        let group = partition_point(0, self.header.groups, |g| self.group_name(g) < wanted);
        if group == self.header.groups {
            return None;
        }
        let first = self.place_of_group(group);
        if self.group_name(group) != wanted {
            return Some(first);
        }
        let (node, offsets) = (&self.buf[..], &self.sections[first.section].offsets);
        let ranks = (first.rank, first.rank + (first.end - first.start));
        let below = |rank| offsets.get(node, rank) < key.offset;
        let rank = partition_point(ranks.0, ranks.1, below);
        if rank == ranks.1 {
            return (group + 1 < self.header.groups).then(|| self.place_of_group(group + 1));
        }
        Some(LeafPosition { item: first.start + (rank - first.rank), rank, ..first })
    }

    pub fn first(&self) -> LeafPosition {
        self.place_of_group(0)
    }

    pub fn last(&self) -> LeafPosition {
        self.last_of_group(self.header.groups - 1)
    }

    /// The place behind `place`.
    pub fn next(&self, place: &LeafPosition) -> Option<LeafPosition> {
        if place.item + 1 < place.end {
            return Some(LeafPosition { item: place.item + 1, rank: place.rank + 1, ..*place });
        }
        (place.group + 1 < self.header.groups).then(|| self.place_of_group(place.group + 1))
    }

    /// The place before `place`.
    pub fn previous(&self, place: &LeafPosition) -> Option<LeafPosition> {
        if place.item > place.start {
            return Some(LeafPosition { item: place.item - 1, rank: place.rank - 1, ..*place });
        }
        place.group.checked_sub(1).map(|group| self.last_of_group(group))
    }

    pub fn key(&self, place: &LeafPosition) -> Key {
        let section = &self.sections[place.section];
        Key::new(place.object, section.kind, section.offsets.get(&self.buf, place.rank))
    }

    pub fn value(&self, place: &LeafPosition) -> ValueRef<'_> {
        let section = &self.sections[place.section];
        let (from, to) = self.tail(section, place.rank);
        let heap = &self.buf[section.heap_at..section.heap_at + section.heap_bytes];
        let (tail, len) = (&heap[from..to], section.fixed + to - from);
        ValueRef { leaf: self, section, rank: place.rank, tail, len }
    }

    /// All items in order.
    pub fn iter(&self) -> impl Iterator<Item = (Key, ValueRef<'_>)> {
        std::iter::successors(Some(self.first()), |place| self.next(place))
            .map(|place| (self.key(&place), self.value(&place)))
    }

    fn group_name(&self, group: usize) -> (u64, Kind) {
        let section = self.groups[1].get(&self.buf, group) as usize;
        (self.groups[0].get(&self.buf, group), self.sections[section].kind)
    }

    fn group_start(&self, group: usize) -> usize {
        if group == self.header.groups {
            return self.header.items;
        }
        self.groups[2].get(&self.buf, group) as usize
    }

    fn place_of_group(&self, group: usize) -> LeafPosition {
        let start = self.group_start(group);
        LeafPosition {
            item: start,
            group,
            start,
            end: self.group_start(group + 1),
            section: self.groups[1].get(&self.buf, group) as usize,
            rank: self.groups[3].get(&self.buf, group) as usize,
            object: self.groups[0].get(&self.buf, group),
        }
    }

    fn last_of_group(&self, group: usize) -> LeafPosition {
        let first = self.place_of_group(group);
        let more = first.end - first.start - 1;
        LeafPosition { item: first.item + more, rank: first.rank + more, ..first }
    }

    /// Where in the section's heap the tail begins and ends.
    fn tail(&self, section: &Section, rank: usize) -> (usize, usize) {
        let end = |rank: usize| {
            let beyond = section.tail_ends.get(&self.buf, rank) as usize;
            beyond.saturating_add((rank + 1) * section.tail_min)
        };
        (rank.checked_sub(1).map_or(0, end), end(rank))
    }

    /// NODE-N1, LEAF-N3: that groups and the keys in them are in order and name items that exist.
    fn check_groups(&self) -> Result<(), FormatError> {
        let mut counted = vec![0; self.sections.len()];
        let mut before = None;
        let mut items = 0;
        for group in 0..self.header.groups {
            let section = self.groups[1].get(&self.buf, group);
            let Some(counted) = counted.get_mut(section as usize) else {
                return Err(field("section of a group", section));
            };
            let place = self.place_of_group(group);
            if place.start != items || place.end <= items || place.end > self.header.items {
                return Err(field("first item of a group", place.start as u64));
            }
            items = place.end;
            if place.rank != *counted {
                return Err(field("first rank of a group", place.rank as u64));
            }
            *counted += place.end - place.start;
            if *counted > self.sections[place.section].items {
                return Err(field("items of a section", *counted as u64));
            }
            let name = Some((place.object, place.section));
            if before >= name {
                return Err(disorder(format!("object {} stands twice", place.object)));
            }
            before = name;
            self.check_offsets(&place)?;
        }
        if items != self.header.items {
            return Err(field("items", items as u64));
        }
        if self.sections.iter().zip(&counted).any(|(section, &counted)| section.items != counted) {
            return Err(disorder("a section has items that no group names"));
        }
        let ends = (self.key(&self.first()), self.key(&self.last()));
        if ends != (self.header.first, self.header.last) {
            return Err(disorder("its header names other keys than its items have"));
        }
        Ok(())
    }

    fn check_offsets(&self, first: &LeafPosition) -> Result<(), FormatError> {
        let (node, offsets) = (&self.buf[..], &self.sections[first.section].offsets);
        let mut before = offsets.get(node, first.rank);
        for rank in first.rank + 1..first.rank + (first.end - first.start) {
            let offset = offsets.get(node, rank);
            if offset <= before {
                return Err(disorder(format!("offset {offset} stands behind {before}")));
            }
            before = offset;
        }
        Ok(())
    }

    /// LEAF-N4.
    fn check_tails(&self, section: &Section) -> Result<(), FormatError> {
        let mut at = 0;
        for rank in 0..section.items {
            let (from, to) = self.tail(section, rank);
            if from != at || to < from || to > section.heap_bytes {
                return Err(field("end of a tail", to as u64));
            }
            at = to;
        }
        if at != section.heap_bytes {
            return Err(field("bytes of tails", at as u64));
        }
        Ok(())
    }
}

impl<'a> ValueRef<'a> {
    #[expect(clippy::len_without_is_empty, reason = "the length is a size, not a count")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Writes the value into `out`, which has exactly its length.
    pub fn copy_to(&self, out: &mut [u8]) {
        assert_eq!(out.len(), self.len(), "room for the value");
        let mut at = 0;
        for column in self.columns() {
            let width = column.width().min(self.len - at);
            let number = column.get(&self.leaf.buf, self.rank).to_le_bytes();
            out[at..at + width].copy_from_slice(&number[..width]);
            at += width;
        }
        out[at..].copy_from_slice(&self.tail[..self.len - at]);
    }

    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        self.copy_to(&mut bytes);
        bytes
    }

    /// The value without its last byte, and that byte.
    pub(super) fn split_last(self) -> Option<(ValueRef<'a>, u8)> {
        let last = match self.len.checked_sub(self.section.fixed + 1) {
            Some(at) => self.tail[at],
            None => *self.to_vec().last()?,
        };
        Some((ValueRef { len: self.len - 1, ..self }, last))
    }

    fn columns(&self) -> &'a [Column] {
        let (from, to) = self.section.fields;
        &self.leaf.fields[from..to]
    }
}

/// The heads of columns and sections, read but not yet given their place.
struct Heads<'a> {
    groups: &'a [ColumnDisk],
    sections: Vec<(&'a SectionDisk, &'a [ColumnDisk])>,
    /// Where the data begins.
    end: usize,
}

impl<'a> Heads<'a> {
    fn read(bytes: &'a [u8], header: &Header) -> Result<Heads<'a>, FormatError> {
        let used = &bytes[..header.used];
        if header.groups == 0 || header.groups > header.items {
            return Err(field("groups", header.groups as u64));
        }
        if header.sections == 0 || header.sections > 256 {
            return Err(field("sections", header.sections as u64));
        }
        let mut at = HEADER_BYTES;
        let groups = columns(used, &mut at, GROUP_COLUMNS)?;
        let mut sections = Vec::with_capacity(header.sections);
        for _ in 0..header.sections {
            let head = take(used, &mut at, SECTION_BYTES)?;
            let section = SectionDisk::ref_from_bytes(head).map_err(|_| short(used))?;
            if usize::from(section.fields) > FIELDS_MAX {
                return Err(field("fields of a section", section.fields.into()));
            }
            let heads = columns(used, &mut at, 2 + usize::from(section.fields))?;
            sections.push((section, heads));
        }
        if !sections.is_sorted_by(|a, b| a.0.kind < b.0.kind) {
            return Err(disorder("its sections do not ascend by kind"));
        }
        Ok(Heads { groups, sections, end: at })
    }

    /// Gives each column its place; `buf` are the bytes that the heads were read from.
    fn locate(&self, buf: &Buf, header: Header) -> Result<LeafView, FormatError> {
        let mut at = self.end;
        let end = header.used.saturating_sub(PAD_BYTES);
        let mut group = |n: usize| Column::parse(&self.groups[n], header.groups, &mut at, end);
        let groups = [group(0)?, group(1)?, group(2)?, group(3)?];
        let mut sections = Vec::with_capacity(self.sections.len());
        let mut fields = Vec::with_capacity(self.sections.iter().map(|s| s.1.len() - 2).sum());
        for (head, columns) in &self.sections {
            let items = usize::from(head.items.get());
            if items == 0 {
                return Err(field("items of a section", 0));
            }
            let mut next = |n: usize| Column::parse(&columns[n], items, &mut at, end);
            let (offsets, tail_ends) = (next(0)?, next(1)?);
            let first_field = fields.len();
            for n in 2..columns.len() {
                fields.push(next(n)?);
            }
            let fixed = fields[first_field..].iter().map(Column::width).sum();
            let heap_bytes = head.heap_bytes.get() as usize;
            let heap_at = at;
            at += heap_bytes;
            if at > end {
                return Err(field("end of a heap", at as u64));
            }
            sections.push(Section {
                kind: Kind(head.kind),
                items,
                offsets,
                tail_ends,
                tail_min: head.tail_min.get() as usize,
                heap_at,
                heap_bytes,
                fixed,
                fields: (first_field, fields.len()),
            });
        }
        Ok(LeafView { buf: buf.clone(), header, groups, sections, fields })
    }
}

fn columns<'a>(
    used: &'a [u8],
    at: &mut usize,
    count: usize,
) -> Result<&'a [ColumnDisk], FormatError> {
    let bytes = take(used, at, count * COLUMN_BYTES)?;
    <[ColumnDisk]>::ref_from_bytes(bytes).map_err(|_| short(used))
}

fn take<'a>(used: &'a [u8], at: &mut usize, len: usize) -> Result<&'a [u8], FormatError> {
    let bytes = used.get(*at..*at + len).ok_or_else(|| short(used))?;
    *at += len;
    Ok(bytes)
}

fn short(used: &[u8]) -> FormatError {
    FormatError::Short { what: "leaf", len: used.len() }
}

/// The first of [from, to) for which `below` no longer holds.
fn partition_point(mut from: usize, mut to: usize, below: impl Fn(usize) -> bool) -> usize {
    while from < to {
        let middle = from + (to - from) / 2;
        match below(middle) {
            true => from = middle + 1,
            false => to = middle,
        }
    }
    from
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use copyhold_types::{TableId, Txg};
    use proptest::prelude::*;

    use super::super::{LeafBuilder, Node, NodeOrigin, is_whole};
    use super::*;

    const ORIGIN: NodeOrigin = NodeOrigin { table: TableId(3), birth: Txg::FIRST };
    const EXTENT: Kind = Kind(16);

    type Items = BTreeMap<Key, Vec<u8>>;

    fn leaf(items: &Items) -> Buf {
        let mut builder = LeafBuilder::new(usize::MAX);
        items.iter().for_each(|(&key, value)| assert!(builder.push(key, value)));
        builder.finish(ORIGIN)
    }

    fn keys() -> impl Strategy<Value = Key> {
        let object = prop_oneof![0..4u64, any::<u64>()];
        let offset = prop_oneof![0..40u64, any::<u64>(), (0..64u64).prop_map(|n| n << 12)];
        (object, prop_oneof![Just(16u8), 0..4u8], offset)
            .prop_map(|(object, kind, offset)| Key::new(object, Kind(kind), offset))
    }

    fn values() -> impl Strategy<Value = Vec<u8>> {
        let bytes = proptest::collection::vec(any::<u8>(), 0..60);
        let like_extents = (proptest::collection::vec(0..3u8, 34), 0..3usize)
            .prop_map(|(head, more)| [head, vec![9; more * 4]].concat());
        prop_oneof![bytes, like_extents]
    }

    fn items() -> impl Strategy<Value = Items> {
        proptest::collection::btree_map(keys(), values(), 1..80)
    }

    #[test]
    fn a_random_extent_of_one_block_costs_at_most_twelve_bytes() {
        let mut state = 1u64;
        let mut random = move || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            state >> 24
        };
        let items: Items = (0..2_900u64)
            .map(|block| {
                let addr = random() % (64 << 30 >> 12);
                let mut value = addr.to_le_bytes().to_vec();
                value.extend_from_slice(&[0, 0]);
                value.extend_from_slice(&(900 + random() % 4).to_le_bytes());
                value.extend_from_slice(&[0; 12]);
                value.extend_from_slice(&(random() as u32).to_le_bytes());
                assert_eq!(value.len(), 34);
                (Key::new(270, EXTENT, block * 4096), value)
            })
            .collect();
        let view = LeafView::parse(leaf(&items)).unwrap();
        let per_item = view.header().used as f64 / 2_900.0;
        assert!(per_item <= 12.0, "{per_item:.2} bytes an item");
        assert!(view.bytes().len() <= 32 * 1024);
    }

    #[test]
    fn a_full_builder_refuses_the_next_item_and_stays_whole() {
        let mut builder = LeafBuilder::new(4096);
        let mut pushed = 0u64;
        while builder.push(Key::new(pushed / 7, Kind(5), pushed), &[pushed as u8; 20]) {
            pushed += 1;
        }
        assert!(builder.bytes() <= 4096);
        assert!(!builder.push(Key::new(u64::MAX, EXTENT, 0), &[1; 200]));
        let view = LeafView::parse(builder.finish(ORIGIN)).unwrap();
        assert_eq!(view.items() as u64, pushed);
        let mut n = 0;
        builder.for_each(|key, value| {
            assert_eq!((key.offset, value), (n, &[n as u8; 20][..]));
            n += 1;
        });
        assert_eq!(n, pushed);
    }

    #[test]
    fn an_item_larger_than_a_leaf_has_a_leaf_of_its_own() {
        let mut builder = LeafBuilder::new(4096);
        assert!(builder.push(Key::MIN, &[7; 70_000]));
        assert!(!builder.push(Key::MAX, &[]));
        let view = LeafView::parse(builder.finish(ORIGIN)).unwrap();
        assert_eq!(view.value(&view.first()).to_vec(), [7; 70_000]);
    }

    #[test]
    fn a_node_tells_whether_it_is_whole() {
        let mut buf = leaf(&Items::from([(Key::MIN, vec![1, 2, 3])]));
        assert!(is_whole(&buf));
        let at = LeafView::parse(buf.clone()).unwrap().header().used - PAD_BYTES - 1;
        buf.make_mut()[at] ^= 1;
        assert!(!is_whole(&buf));
        assert!(!is_whole(&[0; 4096]));
    }

    /// Groups, sections, dictionaries and tails of all lengths; each bit of it changed.
    #[test]
    fn any_changed_bit_gives_an_answer_or_an_error() {
        let mut items = Items::new();
        for n in 0..24u64 {
            let far = [5, 1 << 44, 1 << 60][n as usize % 3];
            let mut extent = vec![0; 34 + n as usize % 3 * 4];
            extent[..8].copy_from_slice(&(n * 977).to_le_bytes());
            extent[10..18].copy_from_slice(&u64::to_le_bytes(far));
            items.insert(Key::new(far, EXTENT, n * 8), extent);
            items.insert(Key::new(far, Kind(3), n), vec![n as u8; n as usize % 5]);
        }
        let buf = leaf(&items);
        let used = LeafView::parse(buf.clone()).unwrap().header().used;
        let probes: Vec<Key> = items.keys().copied().collect();
        for bit in 0..used * 8 {
            let mut changed = buf.clone();
            changed.make_mut()[bit / 8] ^= 1 << (bit % 8);
            exercise(changed, &probes);
        }
    }

    proptest! {
        #[test]
        fn a_leaf_gives_back_what_was_put(
            items in items(),
            probes in proptest::collection::vec(keys(), 20),
        ) {
            let view = LeafView::parse(leaf(&items)).unwrap();
            let read: Items = view.iter().map(|(key, value)| (key, value.to_vec())).collect();
            prop_assert_eq!(&read, &items);
            prop_assert_eq!(view.items(), items.len());
            for probe in probes.into_iter().chain(items.keys().copied()) {
                let found = view.find(probe).map(|place| view.value(&place).to_vec());
                prop_assert_eq!(found.as_ref(), items.get(&probe));
                let above = view.lower_bound(probe).map(|place| view.key(&place));
                prop_assert_eq!(above, items.range(probe..).next().map(|(&key, _)| key));
            }
            let mut backwards = vec![view.last()];
            while let Some(place) = view.previous(&backwards[backwards.len() - 1]) {
                backwards.push(place);
            }
            let walked: Vec<Key> = backwards.iter().rev().map(|place| view.key(place)).collect();
            prop_assert_eq!(walked, items.keys().copied().collect::<Vec<_>>());
        }

        #[test]
        fn a_leaf_never_outgrows_its_limit(items in items(), limit in 300..3000usize) {
            let mut builder = LeafBuilder::new(limit);
            let fits: Items =
                items.into_iter().filter(|(key, value)| builder.push(*key, value)).collect();
            prop_assert!(builder.bytes() <= limit || builder.items() == 1);
            let view = LeafView::parse(builder.finish(ORIGIN)).unwrap();
            let read: Items = view.iter().map(|(key, value)| (key, value.to_vec())).collect();
            prop_assert_eq!(read, fits);
        }

        #[test]
        fn changed_bytes_give_an_answer_or_an_error(
            items in items(),
            changes in proptest::collection::vec((0..1500usize, any::<u8>()), 1..5),
            probes in proptest::collection::vec(keys(), 5),
        ) {
            let mut buf = leaf(&items);
            for (at, byte) in changes {
                let at = at % buf.len();
                buf.make_mut()[at] = byte;
            }
            exercise(buf, &probes);
        }

        #[test]
        fn any_bytes_behind_a_header_give_an_answer_or_an_error(
            bytes in proptest::collection::vec(prop_oneof![Just(0), Just(1), any::<u8>()], 400),
            counts in (1..9u32, 1..4u32, 1..3u32),
        ) {
            let mut buf = leaf(&Items::from([(Key::MIN, vec![0; 300])]));
            let node = buf.make_mut();
            node[HEADER_BYTES..HEADER_BYTES + 400].copy_from_slice(&bytes);
            node[36..40].copy_from_slice(&counts.0.to_le_bytes());
            node[88..92].copy_from_slice(&counts.1.to_le_bytes());
            node[92..96].copy_from_slice(&counts.2.to_le_bytes());
            exercise(buf, &[Key::MIN, Key::MAX]);
        }
    }

    fn exercise(buf: Buf, probes: &[Key]) {
        let Ok(Node::Leaf(view)) = Node::parse(buf) else { return };
        assert_eq!(view.iter().count(), view.items());
        assert!(view.iter().is_sorted_by(|a, b| a.0 < b.0), "NODE-N1");
        view.iter().for_each(|(_, value)| assert_eq!(value.to_vec().len(), value.len()));
        for probe in probes {
            let _ = view.find(*probe).map(|place| view.value(&place).to_vec());
        }
    }
}
