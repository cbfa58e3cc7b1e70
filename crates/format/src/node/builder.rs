//! Building a leaf: items in key order in, packed columns out.
//!
//! The builder knows at every moment how large the leaf would be, to the byte, because columns keep
//! running statistics (`column::Stats`). So a merge fills a leaf exactly to its limit. An item that
//! is too large for the limit gets a leaf of its own, as large as it needs.
//!
//! Items with the same object and kind are a *group*; items of the same kind and any object are a
//! *section*, which has the columns. `leaf` draws the layout.

use copyhold_types::{Buf, Key, Kind, TableId, Txg};
use zerocopy::IntoBytes;

use super::column::{COLUMN_BYTES, PAD_BYTES, Shape, Stats, pack};
use super::leaf::{GROUP_COLUMNS, SECTION_BYTES, SectionDisk};
use super::schema::Schema;
use super::{HEADER_BYTES, Header, Level};

/// Items of a leaf, children of an inner node: the maximum of a count of sixteen bits.
pub const ITEMS_MAX: usize = u16::MAX as usize;

/// The writer of a node, and the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeOrigin {
    pub table: TableId,
    /// The txg that is open while the node is written.
    pub birth: Txg,
}

/// A leaf being filled.
#[derive(Debug)]
pub struct LeafBuilder {
    bytes_max: usize,
    items: usize,
    first: Key,
    last: Key,
    groups: Vec<Group>,
    objects: Stats,
    /// Bytes of the leaf for the columns of the groups.
    group_bytes: usize,
    /// Ordered by kind.
    sections: Vec<Section>,
    section_bytes: usize,
}

/// Items with one object and kind.
#[derive(Clone, Copy, Debug)]
struct Group {
    object: u64,
    kind: Kind,
    /// Index of its first item in the leaf.
    start: usize,
    /// Index of its first item in the section.
    rank: usize,
}

impl LeafBuilder {
    /// A leaf of at most `bytes_max` bytes, unless its first item alone is larger.
    pub fn new(bytes_max: usize) -> LeafBuilder {
        LeafBuilder {
            bytes_max,
            items: 0,
            first: Key::MIN,
            last: Key::MIN,
            groups: Vec::new(),
            objects: Stats::default(),
            group_bytes: 0,
            sections: Vec::new(),
            section_bytes: 0,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.items == 0
    }

    pub fn items(&self) -> usize {
        self.items
    }

    /// First key in the leaf, which is not empty.
    pub fn first(&self) -> Key {
        assert!(self.items > 0, "NODE-N1: an empty leaf has no first key");
        self.first
    }

    /// Bytes that the leaf takes now, before rounding up to whole blocks.
    pub fn bytes(&self) -> usize {
        HEADER_BYTES + self.group_bytes + self.section_bytes + PAD_BYTES
    }

    /// Appends an item; keys come in ascending order. `false`: it does not fit, the builder is
    /// as it was.
    #[must_use]
    pub fn push(&mut self, key: Key, value: &[u8]) -> bool {
        assert!(self.items == 0 || self.last < key, "NODE-N1: {key} behind {}", self.last);
        if self.items == ITEMS_MAX {
            return false;
        }
        let at = self.section_of(key.kind);
        let section = &mut self.sections[at];
        self.section_bytes -= section.bytes;
        let same_group =
            self.groups.last().is_some_and(|g| (g.object, g.kind) == (key.object, key.kind));
        if !same_group {
            let rank = section.len();
            self.groups.push(Group { object: key.object, kind: key.kind, start: self.items, rank });
            self.objects.add(key.object);
        }
        section.push(key.offset, value);
        self.section_bytes += section.bytes;
        if !same_group {
            self.group_bytes = self.measure_groups();
        }
        let last = std::mem::replace(&mut self.last, key);
        self.items += 1;
        if self.items == 1 {
            self.first = key;
        } else if self.bytes() > self.bytes_max {
            self.pop(at, !same_group);
            self.last = last;
            return false;
        }
        true
    }

    /// Visits the items in order.
    pub fn for_each(&self, mut visit: impl FnMut(Key, &[u8])) {
        for (n, group) in self.groups.iter().enumerate() {
            let end = self.groups.get(n + 1).map_or(self.items, |next| next.start);
            let section = &self.sections[self.find_section(group.kind).expect("it has items")];
            for rank in group.rank..group.rank + (end - group.start) {
                let key = Key::new(group.object, group.kind, section.offsets[rank]);
                visit(key, section.value(rank));
            }
        }
    }

    /// The leaf in whole blocks. It has at least one item.
    pub fn finish(&self, origin: NodeOrigin) -> Buf {
        let mut out = Vec::with_capacity(self.bytes());
        out.resize(HEADER_BYTES, 0);
        let group_shapes = self.group_shapes();
        group_shapes.iter().for_each(|shape| out.extend_from_slice(shape.disk().as_bytes()));
        self.sections.iter().for_each(|section| section.describe(&mut out));
        self.pack_groups(&group_shapes, &mut out);
        self.sections.iter().for_each(|section| section.pack(&mut out));
        out.resize(out.len() + PAD_BYTES, 0);
        assert_eq!(out.len(), self.bytes(), "the builder knows the size of the leaf");
        let header = Header {
            level: Level::Leaf,
            birth: origin.birth,
            table: origin.table,
            used: out.len(),
            items: self.items,
            first: self.first(),
            last: self.last,
            groups: self.groups.len(),
            sections: self.sections.len(),
        };
        header.write(&mut out);
        Buf::from_bytes(&out)
    }

    fn find_section(&self, kind: Kind) -> Result<usize, usize> {
        self.sections.binary_search_by_key(&kind, |section| section.kind)
    }

    fn section_of(&mut self, kind: Kind) -> usize {
        self.find_section(kind).unwrap_or_else(|at| {
            self.sections.insert(at, Section::new(kind));
            at
        })
    }

    /// Takes back the last item, of section `at`.
    fn pop(&mut self, at: usize, its_group: bool) {
        self.items -= 1;
        if its_group {
            self.groups.pop();
            self.objects.clear();
            self.groups.iter().for_each(|group| self.objects.add(group.object));
        }
        self.section_bytes -= self.sections[at].bytes;
        self.sections[at].pop();
        self.section_bytes += self.sections[at].bytes;
        if self.sections[at].len() == 0 {
            self.sections.remove(at);
        }
        self.group_bytes = self.measure_groups();
    }

    /// Object, section, first item and first rank of each group.
    fn group_shapes(&self) -> [Shape; GROUP_COLUMNS] {
        let last = self.groups.last().map_or(0, |group| group.start) as u64;
        let sections = self.sections.len().saturating_sub(1) as u64;
        [
            self.objects.shape(self.groups.len(), 8),
            Shape::up_to(sections, 1),
            Shape::up_to(last, 2),
            Shape::up_to(last, 2),
        ]
    }

    fn measure_groups(&self) -> usize {
        let packed = self.group_shapes().map(|shape| shape.bytes(self.groups.len()));
        GROUP_COLUMNS * COLUMN_BYTES + packed.iter().sum::<usize>()
    }

    fn pack_groups(&self, shapes: &[Shape; GROUP_COLUMNS], out: &mut Vec<u8>) {
        let groups = || self.groups.iter();
        let section = |g: &Group| self.find_section(g.kind).expect("it has items") as u64;
        self.objects.pack(&shapes[0], groups().map(|g| g.object), out);
        pack(&shapes[1], groups().map(section), out);
        pack(&shapes[2], groups().map(|g| g.start as u64), out);
        pack(&shapes[3], groups().map(|g| g.rank as u64), out);
    }
}

/// Items of one kind.
#[derive(Debug)]
struct Section {
    kind: Kind,
    schema: Schema,
    offsets: Vec<u64>,
    /// The values, one behind the other, and where each ends.
    values: Vec<u8>,
    ends: Vec<u32>,
    shortest: usize,
    /// How many leading fields every value has in full, and their bytes.
    fields: usize,
    fixed: usize,
    offset_stats: Stats,
    field_stats: Vec<Stats>,
    /// Bytes of the leaf for the section.
    bytes: usize,
}

impl Section {
    fn new(kind: Kind) -> Section {
        let schema = Schema::of(kind);
        Section {
            kind,
            schema,
            offsets: Vec::new(),
            values: Vec::new(),
            ends: Vec::new(),
            shortest: usize::MAX,
            fields: 0,
            fixed: 0,
            offset_stats: Stats::default(),
            field_stats: vec![Stats::default(); schema.fields.len()],
            bytes: 0,
        }
    }

    fn len(&self) -> usize {
        self.offsets.len()
    }

    fn value(&self, rank: usize) -> &[u8] {
        let start = if rank == 0 { 0 } else { self.ends[rank - 1] as usize };
        &self.values[start..self.ends[rank] as usize]
    }

    fn push(&mut self, offset: u64, value: &[u8]) {
        self.offsets.push(offset);
        self.values.extend_from_slice(value);
        let end = u32::try_from(self.values.len()).expect("a leaf is far below 4 GiB");
        self.ends.push(end);
        self.learn(offset, value.len(), self.values.len() - value.len());
        self.bytes = self.measure();
    }

    /// Counts in the statistics the value of `len` bytes at `at`.
    fn learn(&mut self, offset: u64, len: usize, mut at: usize) {
        if len < self.shortest {
            self.shortest = len;
            (self.fields, self.fixed) = self.schema.prefix(len);
        }
        self.offset_stats.add(offset);
        let widths = &self.schema.fields[..self.fields];
        for (&width, stats) in widths.iter().zip(&mut self.field_stats) {
            stats.add(number(&self.values[at..], width));
            at += usize::from(width);
        }
    }

    fn pop(&mut self) {
        self.offsets.pop();
        self.ends.pop();
        self.values.truncate(self.ends.last().map_or(0, |&end| end as usize));
        self.shortest = usize::MAX;
        self.offset_stats.clear();
        self.field_stats.iter_mut().for_each(Stats::clear);
        let mut start = 0;
        for rank in 0..self.len() {
            let end = self.ends[rank] as usize;
            self.learn(self.offsets[rank], end - start, start);
            start = end;
        }
        self.bytes = if self.len() > 0 { self.measure() } else { 0 };
    }

    /// Bytes of all tails.
    fn heap_bytes(&self) -> usize {
        self.values.len() - self.len() * self.fixed
    }

    /// Every tail is at least as long.
    fn tail_min(&self) -> usize {
        self.shortest - self.fixed
    }

    /// Ends of tails are stored as differences from the ends that the shortest tails would have.
    fn tail_shape(&self) -> Shape {
        Shape::up_to((self.heap_bytes() - self.len() * self.tail_min()) as u64, 4)
    }

    fn field_shapes(&self) -> impl Iterator<Item = (Shape, &Stats)> {
        let n = self.len();
        self.schema.fields[..self.fields]
            .iter()
            .zip(&self.field_stats)
            .map(move |(&width, stats)| (stats.shape(n, width), stats))
    }

    fn measure(&self) -> usize {
        let n = self.len();
        let columns = 2 + self.fields;
        let fields: usize = self.field_shapes().map(|(shape, _)| shape.bytes(n)).sum();
        SECTION_BYTES
            + columns * COLUMN_BYTES
            + self.offset_stats.shape(n, 8).bytes(n)
            + self.tail_shape().bytes(n)
            + fields
            + self.heap_bytes()
    }

    fn describe(&self, out: &mut Vec<u8>) {
        let head = SectionDisk {
            kind: self.kind.0,
            fields: self.fields as u8,
            items: (self.len() as u16).into(),
            tail_min: (self.tail_min() as u32).into(),
            heap_bytes: (self.heap_bytes() as u32).into(),
        };
        out.extend_from_slice(head.as_bytes());
        out.extend_from_slice(self.offset_stats.shape(self.len(), 8).disk().as_bytes());
        out.extend_from_slice(self.tail_shape().disk().as_bytes());
        for (shape, _) in self.field_shapes() {
            out.extend_from_slice(shape.disk().as_bytes());
        }
    }

    fn pack(&self, out: &mut Vec<u8>) {
        let n = self.len();
        let offsets = self.offsets.iter().copied();
        self.offset_stats.pack(&self.offset_stats.shape(n, 8), offsets, out);
        let least = self.fixed + self.tail_min();
        let beyond = self.ends.iter().enumerate().map(|(i, &end)| end as usize - (i + 1) * least);
        pack(&self.tail_shape(), beyond.map(|end| end as u64), out);
        let mut skip = 0;
        for (shape, stats) in self.field_shapes() {
            let read = |rank| number(&self.value(rank)[skip..], shape.width());
            stats.pack(&shape, (0..n).map(read), out);
            skip += usize::from(shape.width());
        }
        (0..n).for_each(|rank| out.extend_from_slice(&self.value(rank)[self.fixed..]));
    }
}

/// The little-endian number in the first `width` bytes.
fn number(bytes: &[u8], width: u8) -> u64 {
    let width = usize::from(width);
    let mut word = [0; 8];
    word[..width].copy_from_slice(&bytes[..width]);
    u64::from_le_bytes(word)
}
