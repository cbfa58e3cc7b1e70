//! The header of a device with tuples, and the layout of a tuple (`docs/integrity.md`, 2, 3 and 5).
//!
//! A host that has made a guard compares everything, and an escape is a mismatch. Tuples that the
//! device has made are compared as the device would: an escape stops all comparisons (but of a
//! label, which shows where tuples are), and reference tags of type 3 mean nothing.

use crate::bytes::{Bytes, digest_fits};
use crate::damage::{Parse, demand};
use crate::guard::Guard;
use crate::source::{BLOCK, Source, read};

/// Copies of the header, in the last blocks.
const HEADERS: u64 = 2;
/// Births with different application tags.
const BIRTHS: u32 = 65_534;
/// The application tag of an escape.
const ESCAPE: u64 = 0xffff;

/// The protection information that a label names, and a device has: format and identity.
pub(crate) type Named = ([u8; 8], [u8; 16]);

/// The side that made the tuples of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Maker {
    Host,
    Device,
}

/// The parsed header of a device with tuples behind its data.
pub(crate) struct Header {
    pub(crate) format: [u8; 8],
    pub(crate) identity: [u8; 16],
    pub(crate) data_blocks: u64,
}

impl Header {
    /// The first good one of a source, if it is of a device of this size.
    pub(crate) fn find(source: &dyn Source) -> Option<Header> {
        let size = source.blocks();
        let mut places = size.checked_sub(HEADERS)?..size;
        places.find_map(|block| Header::parse(&read(source, block, 1).ok()?, size).ok())
    }

    fn parse(block: &[u8], size: u64) -> Parse<Header> {
        let mut bytes = Bytes(block);
        bytes.magic(b"CPYHLDPI")?;
        demand(bytes.u32()? == 1, "a version that this program does not know")?;
        digest_fits(block, 32, 0)?;
        bytes.take(4)?;
        let identity = bytes.array()?;
        bytes.take(16 + 16)?; // The digest; compat and ro-compat: it is only read.
        demand(bytes.u64()? == 0, "features that this program does not know")?;
        demand(bytes.u64()? == size, "a device of another size")?;
        let data_blocks = bytes.u64()?;
        let format = bytes.array()?;
        let room = Format::parse(format)?.room(size);
        demand(room == Some(data_blocks), "room for other data")?;
        Ok(Header { format, identity, data_blocks })
    }
}

/// The layout of blocks and tuples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Format {
    data: usize,
    metadata: usize,
    guard: Guard,
    kind: u8,
    is_last: bool,
    storage_bits: u32,
}

impl Format {
    pub(crate) fn parse(bytes: [u8; 8]) -> Parse<Format> {
        let [low, high, metadata, guard, kind, place, storage, zero] = bytes;
        let data = usize::from(u16::from_le_bytes([low, high]));
        demand(matches!(data, 512 | 4096), "no size of a block")?;
        let guard = Guard::of_bits(guard).ok_or("no guard")?;
        demand(metadata.is_multiple_of(8) && metadata <= 64, "no size of metadata")?;
        demand(usize::from(metadata) >= guard.bytes().1, "no room for a tuple")?;
        demand((1..=3).contains(&kind) && place <= 1 && zero == 0, "no type or place of tuples")?;
        let possible = match guard {
            Guard::Crc16 => 0..=32,
            Guard::Crc32 => 16..=64,
            Guard::Crc64 => 0..=48,
        };
        demand(possible.contains(&storage), "no size of a storage tag")?;
        let (metadata, storage_bits) = (metadata.into(), storage.into());
        let format = Format { data, metadata, guard, kind, is_last: place == 1, storage_bits };
        demand(kind == 3 || format.reference_bits() > 0, "no room for a reference tag")?;
        Ok(format)
    }

    /// Blocks of the device in 4 KiB.
    fn parts(&self) -> usize {
        BLOCK / self.data
    }

    /// Bytes of metadata of 4 KiB.
    pub(crate) fn entry(&self) -> usize {
        self.metadata * self.parts()
    }

    /// Blocks of data of a device of this size that has the tuples behind them.
    pub(crate) fn room(&self, size: u64) -> Option<u64> {
        let rest = size.checked_sub(HEADERS)?;
        let per_block = (BLOCK / self.entry()) as u64;
        Some(rest - rest.div_ceil(per_block + 1)).filter(|blocks| *blocks > 0)
    }

    /// Bits of the reference tag.
    fn reference_bits(&self) -> u32 {
        let (guard, tuple) = self.guard.bytes();
        (tuple - guard - 2) as u32 * 8 - self.storage_bits
    }

    /// Whether these are the metadata of the 4 KiB `block` at `at`, written at `birth`.
    pub(crate) fn fits(
        &self,
        at: u64,
        birth: Option<u32>,
        maker: Maker,
        block: &[u8],
        metadata: &[u8],
    ) -> bool {
        let parts = block.chunks_exact(self.data).zip(metadata.chunks_exact(self.metadata));
        let first = at.wrapping_mul(self.parts() as u64);
        let mut numbers = first..;
        parts.into_iter().all(|(data, metadata)| {
            let number = numbers.next().unwrap_or_default();
            self.fits_part(number, birth, maker, data, metadata)
        })
    }

    fn fits_part(
        &self,
        number: u64,
        birth: Option<u32>,
        maker: Maker,
        data: &[u8],
        metadata: &[u8],
    ) -> bool {
        let (guard_bytes, tuple_bytes) = self.guard.bytes();
        let at = if self.is_last { self.metadata - tuple_bytes } else { 0 };
        let tuple = &metadata[at..at + tuple_bytes];
        let number_of = |bytes: &[u8]| bytes.iter().fold(0, |sum, b| sum << 8 | u128::from(*b));
        let guard = number_of(&tuple[..guard_bytes]);
        let app = number_of(&tuple[guard_bytes..guard_bytes + 2]);
        let both = number_of(&tuple[guard_bytes + 2..]);
        let bits = self.reference_bits();
        let ones = |bits: u32| u128::MAX.checked_shr(128 - bits).unwrap_or(0);
        let (storage, reference) = (both >> bits, both & ones(bits));

        let is_escape = app == ESCAPE.into() && (self.kind != 3 || reference == ones(bits));
        if is_escape {
            return maker == Maker::Device && birth.is_some();
        }
        let turn = birth.map_or(0, |birth| u128::from(birth / BIRTHS));
        let wanted_app = birth.map_or(0, |birth| 1 + u128::from(birth % BIRTHS));
        let bound = if self.kind == 1 { 0 } else { turn << 32 };
        let wanted_reference = (u128::from(number) + bound) & ones(bits);
        let has_reference = self.kind != 3 || maker == Maker::Host;
        // In front of the tuple.
        let covered = if self.is_last { &metadata[..at] } else { &[] };
        guard == self.guard.of(data, covered).into()
            && app == wanted_app
            && storage == turn & ones(self.storage_bits)
            && (!has_reference || reference == wanted_reference)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tuple as the page draws it, in metadata of 16 bytes.
    fn metadata(guard: u64, app: u16, reference: u64) -> Vec<u8> {
        let mut bytes = guard.to_be_bytes().to_vec();
        bytes.extend(app.to_be_bytes());
        bytes.extend(&reference.to_be_bytes()[2..]);
        bytes
    }

    const WIDE: [u8; 8] = [0, 16, 16, 64, 2, 1, 0, 0];
    /// Of 4096 zeros.
    const OF_ZEROS: u64 = 0x6482_d367_eb22_b64e;

    fn fits(format: [u8; 8], maker: Maker, metadata: &[u8]) -> bool {
        let format = Format::parse(format).unwrap();
        format.fits(9, Some(65_534 + 4), maker, &[0; BLOCK], metadata)
    }

    #[test]
    fn a_tuple_has_the_guard_the_birth_and_the_place_of_its_block() {
        let good = (OF_ZEROS, 5, 1 << 32 | 9);
        let check =
            |guard, app, reference| fits(WIDE, Maker::Host, &metadata(guard, app, reference));
        assert!(check(good.0, good.1, good.2));
        assert!(!check(good.0 ^ 1, good.1, good.2), "another content");
        assert!(!check(good.0, 6, good.2), "another birth");
        assert!(!check(good.0, good.1, 9), "a birth of an earlier turn");
        assert!(!check(good.0, good.1, 1 << 32 | 8), "another place");
    }

    #[test]
    fn an_escape_is_content_for_a_device_alone() {
        for kind in [1, 2, 3] {
            let format = [0, 16, 16, 64, kind, 1, 0, 0];
            assert!(!fits(format, Maker::Host, &[0xff; 16]), "type {kind}");
            assert!(fits(format, Maker::Device, &[0xff; 16]), "type {kind}");
        }
    }

    #[test]
    fn reference_tags_of_type_3_count_for_a_host_alone() {
        let format = [0, 16, 16, 64, 3, 1, 0, 0];
        let other = metadata(OF_ZEROS, 5, 77);
        assert!(!fits(format, Maker::Host, &other));
        assert!(fits(format, Maker::Device, &other));
    }

    #[test]
    fn a_guard_covers_the_metadata_before_it() {
        let mut bytes = vec![7; 8];
        let guard = Guard::Crc16.of(&[0; BLOCK], &bytes);
        bytes.extend((guard as u16).to_be_bytes());
        bytes.extend(5_u16.to_be_bytes());
        bytes.extend(9_u32.to_be_bytes());
        let format = [0, 16, 16, 16, 1, 1, 0, 0];
        assert!(fits(format, Maker::Host, &bytes));
        bytes[3] ^= 1;
        assert!(!fits(format, Maker::Host, &bytes));
    }

    #[test]
    fn bytes_that_are_no_format_are_refused() {
        assert!(Format::parse(WIDE).is_ok());
        for (at, byte) in
            [(0, 1), (2, 8), (2, 72), (3, 48), (4, 0), (4, 4), (5, 2), (6, 49), (7, 1)]
        {
            let mut bytes = WIDE;
            bytes[at] = byte;
            assert!(Format::parse(bytes).is_err(), "byte {at} is {byte}");
        }
    }

    #[test]
    fn data_and_tuples_share_the_blocks_of_a_device() {
        let format = Format::parse(WIDE).unwrap();
        // 256 tuples in a block.
        let rooms = [(2, None), (3, None), (4, Some(1)), (259, Some(256)), (260, Some(256))];
        for (size, room) in rooms {
            assert_eq!(format.room(size), room, "{size} blocks");
        }
        assert_eq!(format.room(261), Some(257));
    }
}
