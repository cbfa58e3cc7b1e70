//! Columns: numbers of one fixed bit width each, read in place.
//!
//! A number is stored as its distance from the column's least, without the trailing zero bits that
//! all distances share (frame of reference), or, where that is smaller, as the place of its value
//! in a dictionary in front. A column in which all numbers are equal takes no bits at all.
//!
//! COLUMN-C1  Every read touches at most [`PAD_BYTES`] behind the column's last byte; a node keeps
//!            that many zeros behind its last column.

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::field;
use crate::FormatError;

/// Bytes that a node keeps behind its last column, so that numbers are read in whole words.
pub(super) const PAD_BYTES: usize = 16;

/// Dictionaries longer than this are slower to build than they are worth.
const DICT_MAX: usize = 32;

/// How a column is packed. On disk 12 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    base: u64,
    bits: u8,
    shift: u8,
    /// Entries of the dictionary; 0: frame of reference.
    dict: u8,
    /// Bytes of the field that the column holds.
    width: u8,
}

pub(super) const COLUMN_BYTES: usize = 12;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct ColumnDisk {
    base: U64,
    bits: u8,
    shift: u8,
    dict: u8,
    width: u8,
}
const _: () = assert!(size_of::<ColumnDisk>() == COLUMN_BYTES);

impl Shape {
    /// A frame of reference from 0 up to `max`.
    pub(super) fn up_to(max: u64, width: u8) -> Shape {
        Shape { base: 0, bits: bits_of(max), shift: 0, dict: 0, width }
    }

    /// Bytes of `n` packed numbers, dictionary included.
    pub(super) fn bytes(&self, n: usize) -> usize {
        usize::from(self.dict) * 8 + (n * usize::from(self.bits)).div_ceil(8)
    }

    /// Bytes of the field that the column holds.
    pub(super) fn width(&self) -> u8 {
        self.width
    }

    pub(super) fn disk(&self) -> ColumnDisk {
        let Shape { base, bits, shift, dict, width } = *self;
        ColumnDisk { base: base.into(), bits, shift, dict, width }
    }
}

/// Statistics of the numbers in a column so far; they give its exact size.
#[derive(Clone, Debug, Default)]
pub(super) struct Stats {
    first: u64,
    last: u64,
    min: u64,
    max: u64,
    /// All bits in which some number differs from the first.
    differ: u64,
    /// The widths that a frame of reference would take.
    bits: u8,
    shift: u8,
    /// The distinct numbers in order of appearance, unless they are too many.
    distinct: Vec<u64>,
}

impl Stats {
    pub(super) fn add(&mut self, number: u64) {
        if self.distinct.is_empty() {
            *self = Stats {
                first: number,
                last: number,
                min: number,
                max: number,
                distinct: vec![number],
                ..Stats::default()
            };
            return;
        }
        if number == self.last {
            return;
        }
        self.last = number;
        self.min = self.min.min(number);
        self.max = self.max.max(number);
        self.differ |= number ^ self.first;
        self.shift = self.differ.trailing_zeros() as u8;
        self.bits = bits_of((self.max - self.min) >> self.shift);
        if self.distinct.len() <= DICT_MAX && !self.distinct.contains(&number) {
            self.distinct.push(number);
        }
    }

    pub(super) fn clear(&mut self) {
        self.distinct.clear();
    }

    /// The smallest packing of these numbers, of which there are `n`.
    pub(super) fn shape(&self, n: usize, width: u8) -> Shape {
        let Stats { min, bits, shift, .. } = *self;
        let plain = Shape { base: min, bits, shift, dict: 0, width };
        let distinct = self.distinct.len();
        if distinct > DICT_MAX || usize::from(bits) * n <= distinct * 64 {
            return plain;
        }
        let bits = bits_of(distinct as u64 - 1);
        let dict = Shape { base: 0, bits, shift: 0, dict: distinct as u8, width };
        if dict.bytes(n) < plain.bytes(n) { dict } else { plain }
    }

    /// Appends the numbers, which are those that were added, packed by `shape`.
    pub(super) fn pack(
        &self,
        shape: &Shape,
        numbers: impl Iterator<Item = u64>,
        out: &mut Vec<u8>,
    ) {
        if shape.dict == 0 {
            return pack(shape, numbers, out);
        }
        for number in &self.distinct {
            out.extend_from_slice(&number.to_le_bytes());
        }
        let place = |number| self.distinct.iter().position(|&n| n == number).unwrap_or(0) as u64;
        pack_bits(shape.bits, numbers.map(place), out);
    }
}

/// Appends numbers packed in a frame of reference.
pub(super) fn pack(shape: &Shape, numbers: impl Iterator<Item = u64>, out: &mut Vec<u8>) {
    let Shape { base, bits, shift, .. } = *shape;
    pack_bits(bits, numbers.map(|number| (number - base) >> shift), out);
}

fn pack_bits(bits: u8, numbers: impl Iterator<Item = u64>, out: &mut Vec<u8>) {
    if bits == 0 {
        return;
    }
    let (mut word, mut filled) = (0u128, 0u32);
    for number in numbers {
        word |= u128::from(number) << filled;
        filled += u32::from(bits);
        if filled >= 64 {
            out.extend_from_slice(&(word as u64).to_le_bytes());
            word >>= 64;
            filled -= 64;
        }
    }
    out.extend_from_slice(&word.to_le_bytes()[..filled.div_ceil(8) as usize]);
}

fn bits_of(max: u64) -> u8 {
    (64 - max.leading_zeros()) as u8
}

/// A column in place in a node's bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    base: u64,
    dict_at: u32,
    bits_at: u32,
    bits: u8,
    shift: u8,
    dict: u8,
    width: u8,
}

impl Column {
    /// The column of `n` numbers whose bytes begin at `at`; moves `at` behind them. `end` is where
    /// the last column may end, [`PAD_BYTES`] before the end of the used bytes (COLUMN-C1).
    pub(super) fn parse(
        disk: &ColumnDisk,
        n: usize,
        at: &mut usize,
        end: usize,
    ) -> Result<Column, FormatError> {
        let ColumnDisk { ref base, bits, shift, dict, width } = *disk;
        if u32::from(bits) + u32::from(shift) > 64 || shift > 63 {
            return Err(field("bits of a column", bits.into()));
        }
        if !(1..=8).contains(&width) {
            return Err(field("width of a column", width.into()));
        }
        let shape = Shape { base: base.get(), bits, shift, dict, width };
        let begin = *at;
        *at += shape.bytes(n);
        if *at > end {
            return Err(field("end of a column", *at as u64));
        }
        Ok(Column {
            base: shape.base,
            dict_at: begin as u32,
            bits_at: (begin + usize::from(dict) * 8) as u32,
            bits,
            shift,
            dict,
            width,
        })
    }

    /// Bytes of the field that the column holds.
    pub(super) fn width(&self) -> usize {
        usize::from(self.width)
    }

    /// The `i`th number; `node` are the bytes that the column was parsed from, `i` is below its
    /// count.
    #[inline]
    pub(super) fn get(&self, node: &[u8], i: usize) -> u64 {
        let stored = self.stored(node, i);
        if self.dict == 0 {
            return self.base.wrapping_add(stored << self.shift);
        }
        let entry = (stored as usize).min(usize::from(self.dict) - 1);
        word(node, self.dict_at as usize + entry * 8)
    }

    #[inline]
    fn stored(&self, node: &[u8], i: usize) -> u64 {
        let bits = u32::from(self.bits);
        if bits == 0 {
            return 0;
        }
        let bit = i * self.bits as usize;
        let (at, skip) = (self.bits_at as usize + bit / 8, (bit % 8) as u32);
        let low = word(node, at) >> skip;
        if bits + skip <= 64 {
            return low & (u64::MAX >> (64 - bits));
        }
        let high = u64::from(node[at + 8]) << (64 - skip);
        (low | high) & (u64::MAX >> (64 - bits))
    }
}

#[inline]
fn word(node: &[u8], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&node[at..at + 8]);
    u64::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn round_trip(numbers: &[u64]) -> usize {
        let mut stats = Stats::default();
        numbers.iter().for_each(|&number| stats.add(number));
        let shape = stats.shape(numbers.len(), 8);
        let mut bytes = Vec::new();
        stats.pack(&shape, numbers.iter().copied(), &mut bytes);
        assert_eq!(bytes.len(), shape.bytes(numbers.len()));
        let (mut at, end) = (0, bytes.len());
        bytes.resize(end + PAD_BYTES, 0);
        let column = Column::parse(&shape.disk(), numbers.len(), &mut at, end).unwrap();
        let read: Vec<u64> = (0..numbers.len()).map(|i| column.get(&bytes, i)).collect();
        assert_eq!(read, numbers);
        end
    }

    #[test]
    fn what_does_not_vary_costs_nothing() {
        assert_eq!(round_trip(&[u64::MAX; 1000]), 0);
        assert_eq!(round_trip(&(0..256).map(|n| n * 4096).collect::<Vec<_>>()), 256);
    }

    #[test]
    fn a_few_far_numbers_become_a_dictionary() {
        let numbers: Vec<u64> = (0..1000).map(|n| [7, 1 << 50, u64::MAX][n % 3]).collect();
        assert_eq!(round_trip(&numbers), 3 * 8 + 250);
    }

    #[test]
    fn a_place_behind_the_dictionary_reads_its_last_entry() {
        let shape = Shape { base: 0, bits: 16, shift: 0, dict: 2, width: 8 };
        let mut bytes = [7u64, 9].map(u64::to_le_bytes).concat();
        bytes.extend([0xff; 2]);
        let (mut at, end) = (0, bytes.len());
        bytes.resize(end + PAD_BYTES, 0);
        let column = Column::parse(&shape.disk(), 1, &mut at, end).unwrap();
        assert_eq!(column.get(&bytes, 0), 9);
    }

    proptest! {
        #[test]
        fn any_numbers_come_back(
            numbers in proptest::collection::vec(any::<u64>(), 1..100),
            low in 0..64u32,
            high in 0..64u32,
        ) {
            let cut: Vec<u64> = numbers.iter().map(|n| n << low >> high).collect();
            round_trip(&cut);
        }
    }
}
