//! Nodes of tables (`docs/format.md`, 7.1 to 7.3): pointers, headers, inner nodes, leaves.
//!
//! A node counts only if its bytes have the digest that is in its pointer; of two copies one is
//! enough. A leaf's columns are unpacked at once into items in the order of their keys.

use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use crate::bytes::Bytes;
use crate::damage::{Damage, Parse, demand};
use crate::key::Key;
use crate::source::{BLOCK, Source, read};

const HEADER: usize = 128;
/// In the blocks of a pointer: it names a list of fragments.
const FRAGMENTED: u32 = 1 << 31;
/// More than the largest inner node, and than a leaf with one item of the longest value.
const NODE_BYTES_MAX: u64 = 8 << 20;
/// Most that a leaf can hold when it is unpacked: constant columns take no space.
const UNPACKED_MAX: usize = 64 << 20;

/// Where a node is, and how it is known to be the right one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pointer {
    copies: [u64; 2],
    digest: u128,
    blocks: u64,
    fragmented: bool,
}

/// Consecutive blocks of a node's content, in each copy.
struct Fragment {
    copies: [u64; 2],
    blocks: u64,
}

impl Pointer {
    pub(crate) fn parse(bytes: &mut Bytes<'_>) -> Parse<Pointer> {
        let copies = [bytes.u64()?, bytes.u64()?];
        bytes.u64()?; // whose it is matters for space only
        let (digest, size) = (bytes.u128()?, bytes.u32()?);
        let (blocks, fragmented) = (u64::from(size & !FRAGMENTED), size & FRAGMENTED != 0);
        demand(copies != [0, 0], "a pointer to nowhere")?;
        demand((1..=65536).contains(&blocks), "a node of no size")?;
        Ok(Pointer { copies, digest, blocks, fragmented })
    }

    /// A name for the node that no other has.
    pub(crate) fn id(&self) -> u128 {
        self.digest
    }

    /// The bytes of the copy that verifies.
    fn read(&self, source: &dyn Source) -> Result<Vec<u8>, Damage> {
        let what = || format!("the node in blocks {:?}", self.copies);
        let large = self.blocks * BLOCK as u64 > NODE_BYTES_MAX;
        demand(!large, "larger than any node").map_err(|why| Damage::new(what(), why))?;
        let mut why = "no copy".to_owned();
        let fragments = match self.fragmented {
            false => vec![Fragment { copies: self.copies, blocks: self.blocks }],
            true => self.fragments(source)?,
        };
        for copy in (0..2).filter(|copy| self.copies[*copy] != 0) {
            let parts = fragments.iter().map(|part| read(source, part.copies[copy], part.blocks));
            match parts.collect::<Result<Vec<_>, _>>().map(|parts| parts.concat()) {
                Ok(bytes) if xxh3_128(&bytes) == self.digest => return Ok(bytes),
                Ok(_) => why = "its digest does not match".into(),
                Err(damage) => why = damage.to_string(),
            }
        }
        Err(Damage::new(what(), why))
    }

    /// Where the content is, from a list that verifies.
    fn fragments(&self, source: &dyn Source) -> Result<Vec<Fragment>, Damage> {
        let mut why = Damage::new(format!("the list in blocks {:?}", self.copies), "no copy");
        for copy in self.copies.into_iter().filter(|copy| *copy != 0) {
            let wrong = |why| Damage::new(format!("the list of fragments in block {copy}"), why);
            match read(source, copy, 1).and_then(|list| self.parse_list(&list).map_err(wrong)) {
                Ok(fragments) => return Ok(fragments),
                Err(damage) => why = damage,
            }
        }
        Err(why)
    }

    fn parse_list(&self, block: &[u8]) -> Parse<Vec<Fragment>> {
        let mut bytes = Bytes(block);
        bytes.magic(b"CHfragms")?;
        demand(bytes.u64()? == xxh3_64(&block[16..]), "its check does not match")?;
        demand(bytes.u128()? == self.digest, "it is another node's")?;
        let (count, blocks) = (bytes.u32()?, u64::from(bytes.u32()?));
        bytes.take(24)?;
        let mut fragments = Vec::new();
        for _ in 0..count {
            let copies = [bytes.u64()?, bytes.u64()?];
            fragments.push(Fragment { copies, blocks: bytes.u32()?.into() });
        }
        let sum: u64 = fragments.iter().map(|fragment| fragment.blocks).sum();
        demand(sum == self.blocks && blocks == sum, "another number of blocks")?;
        Ok(fragments)
    }
}

/// A key with its value.
pub(crate) type Item = (Key, Box<[u8]>);

#[derive(Debug)]
pub(crate) enum Node {
    Leaf(Vec<Item>),
    /// The first key of each child.
    Inner(Vec<(Key, Pointer)>),
}

impl Node {
    pub(crate) fn load(source: &dyn Source, pointer: &Pointer) -> Result<Node, Damage> {
        let bytes = pointer.read(source)?;
        Node::parse(&bytes)
            .map_err(|why| Damage::new(format!("the node in blocks {:?}", pointer.copies), why))
    }

    /// The memory that it takes, about.
    pub(crate) fn cost(&self) -> usize {
        match self {
            Node::Leaf(items) => items.iter().map(|(_, value)| value.len() + 48).sum(),
            Node::Inner(children) => children.len() * 96,
        }
    }

    fn parse(block: &[u8]) -> Parse<Node> {
        let mut bytes = Bytes(block);
        bytes.magic(b"CHnd")?;
        demand(bytes.u16()? == 1, "a version that this program does not know")?;
        let level = bytes.u8()?;
        bytes.take(25)?;
        let (used, items) = (bytes.u32()? as usize, bytes.u32()?);
        bytes.take(48)?;
        let (groups, sections) = (bytes.u32()?, bytes.u32()?);
        demand((HEADER..=block.len()).contains(&used), "an invalid length")?;
        demand((1..=65535).contains(&items), "no number of items")?;
        let body = Bytes(&block[HEADER..used]);
        match level {
            0 => leaf(body, items as usize, groups, sections).map(Node::Leaf),
            1 => inner(body, items).map(Node::Inner),
            _ => Err("a level that does not exist".into()),
        }
    }
}

fn inner(mut bytes: Bytes<'_>, count: u32) -> Parse<Vec<(Key, Pointer)>> {
    let mut children: Vec<(Key, Pointer)> = Vec::new();
    for _ in 0..count {
        let key = Key::parse(&mut bytes)?;
        bytes.take(3)?;
        let child = Pointer::parse(&mut bytes)?;
        demand(children.last().is_none_or(|(last, _)| *last < key), "children out of order")?;
        children.push((key, child));
    }
    Ok(children)
}

/// The head of a column.
struct Column {
    base: u64,
    bits: u32,
    shift: u32,
    entries: usize,
    width: usize,
}

/// A column's numbers.
struct Numbers<'a> {
    head: Column,
    dictionary: &'a [u8],
    packed: &'a [u8],
}

impl Column {
    fn parse(bytes: &mut Bytes<'_>) -> Parse<Column> {
        let base = bytes.u64()?;
        let (bits, shift) = (u32::from(bytes.u8()?), u32::from(bytes.u8()?));
        let (entries, width) = (usize::from(bytes.u8()?), usize::from(bytes.u8()?));
        demand(bits + shift <= 64, "a column of more than 64 bits")?;
        demand(width <= 8, "a column of more than 8 bytes")?;
        Ok(Column { base, bits, shift, entries, width })
    }

    fn numbers<'a>(self, bytes: &mut Bytes<'a>, count: usize) -> Parse<Numbers<'a>> {
        let dictionary = bytes.take(self.entries * 8)?;
        let packed = bytes.take((count * self.bits as usize).div_ceil(8))?;
        Ok(Numbers { head: self, dictionary, packed })
    }
}

impl Numbers<'_> {
    fn get(&self, nth: usize) -> Parse<u64> {
        let Column { base, bits, shift, entries, .. } = self.head;
        let first = nth * bits as usize;
        let end = (first + bits as usize).div_ceil(8);
        let bytes = self.packed.get(first / 8..end).ok_or("a number behind its column")?;
        let mut wide = [0; 16];
        wide[..bytes.len()].copy_from_slice(bytes);
        let stored = (u128::from_le_bytes(wide) >> (first % 8)) & ((1 << bits) - 1);
        let stored = stored as u64;
        if entries == 0 {
            let shifted = if shift == 64 { 0 } else { stored << shift };
            return Ok(base.wrapping_add(shifted));
        }
        let entry = usize::try_from(stored).ok().and_then(|entry| entry.checked_mul(8));
        let tail = entry.and_then(|entry| self.dictionary.get(entry..));
        Bytes(tail.ok_or("no such entry of a dictionary")?).u64()
    }
}

/// The items of one kind in a leaf.
struct Section<'a> {
    kind: u8,
    items: usize,
    shortest: u64,
    offsets: Numbers<'a>,
    tails: Numbers<'a>,
    fields: Vec<Numbers<'a>>,
    heap: &'a [u8],
}

/// The fields of a section's head.
struct SectionHead {
    kind: u8,
    items: usize,
    shortest: u64,
    heap: usize,
    offsets: Column,
    tails: Column,
    fields: Vec<Column>,
}

impl SectionHead {
    fn parse(bytes: &mut Bytes<'_>) -> Parse<SectionHead> {
        let (kind, fields, items) = (bytes.u8()?, bytes.u8()?, usize::from(bytes.u16()?));
        let (shortest, heap) = (u64::from(bytes.u32()?), bytes.u32()? as usize);
        let (offsets, tails) = (Column::parse(bytes)?, Column::parse(bytes)?);
        let fields = (0..fields).map(|_| Column::parse(bytes)).collect::<Parse<_>>()?;
        Ok(SectionHead { kind, items, shortest, heap, offsets, tails, fields })
    }

    fn section<'a>(self, bytes: &mut Bytes<'a>) -> Parse<Section<'a>> {
        let SectionHead { kind, items, shortest, heap, offsets, tails, fields } = self;
        let (offsets, tails) = (offsets.numbers(bytes, items)?, tails.numbers(bytes, items)?);
        let fields = fields.into_iter().map(|field| field.numbers(bytes, items));
        let fields = fields.collect::<Parse<_>>()?;
        Ok(Section { kind, items, shortest, offsets, tails, fields, heap: bytes.take(heap)? })
    }
}

impl Section<'_> {
    fn tail_end(&self, rank: usize) -> Parse<usize> {
        let least = self.shortest.checked_mul(rank as u64 + 1).ok_or("a tail without an end")?;
        let end = self.tails.get(rank)?.checked_add(least).ok_or("a tail without an end")?;
        usize::try_from(end).map_err(|_| "a tail without an end".into())
    }

    fn value(&self, rank: usize) -> Parse<Box<[u8]>> {
        let start = if rank == 0 { 0 } else { self.tail_end(rank - 1)? };
        let tail = self.heap.get(start..self.tail_end(rank)?).ok_or("a tail behind its heap")?;
        let mut value = Vec::new();
        for field in &self.fields {
            value.extend_from_slice(&field.get(rank)?.to_le_bytes()[..field.head.width]);
        }
        value.extend_from_slice(tail);
        Ok(value.into())
    }
}

fn leaf(mut bytes: Bytes<'_>, items: usize, groups: u32, sections: u32) -> Parse<Vec<Item>> {
    let groups = groups as usize;
    demand(groups <= items && sections as usize <= items, "more parts than items")?;
    let bytes = &mut bytes;
    let mut heads = Vec::new();
    for _ in 0..4 {
        heads.push(Column::parse(bytes)?);
    }
    let section_heads =
        (0..sections).map(|_| SectionHead::parse(bytes)).collect::<Parse<Vec<_>>>()?;
    let columns = heads.into_iter().map(|head| head.numbers(bytes, groups));
    let columns = columns.collect::<Parse<Vec<_>>>()?;
    let sections = section_heads.into_iter().map(|head| head.section(bytes));
    let sections = sections.collect::<Parse<Vec<_>>>()?;
    let [objects, section_of, firsts, ranks] = &columns[..] else { unreachable!("four columns") };
    let mut found: Vec<Item> = Vec::with_capacity(items);
    let mut unpacked = 0;
    for group in 0..groups {
        let object = objects.get(group)?;
        let section = usize::try_from(section_of.get(group)?).ok();
        let section = section.and_then(|nth| sections.get(nth)).ok_or("no such section")?;
        let first = firsts.get(group)?;
        let end = if group + 1 < groups { firsts.get(group + 1)? } else { items as u64 };
        demand(first == found.len() as u64 && end <= items as u64, "groups out of order")?;
        let rank = ranks.get(group)?;
        for nth in 0..end.saturating_sub(first) {
            let rank = rank.checked_add(nth).and_then(|rank| usize::try_from(rank).ok());
            let rank = rank.filter(|rank| *rank < section.items).ok_or("no such item")?;
            let key = Key::new(object, section.kind, section.offsets.get(rank)?);
            demand(found.last().is_none_or(|(last, _)| *last < key), "items out of order")?;
            let value = section.value(rank)?;
            unpacked += value.len();
            demand(unpacked <= UNPACKED_MAX, "more than a leaf can hold")?;
            found.push((key, value));
        }
    }
    demand(found.len() == items, "another number of items")?;
    Ok(found)
}
