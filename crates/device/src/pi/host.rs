//! The host's side: tags that bind a block's place and birth, and the verification at a read.
//!
//! Problem.  A tuple travels with its block, so an old block agrees with its old tuple: a write
//!           that was lost, or went elsewhere, does not show (rule R8).
//! Idea.     The tags name the place of the block and its birth, the transaction group that was
//!           open when it was written. A reader knows both before it reads.
//!
//! PITAG-B1  Two births have different tags in the same place if they are less than 65534 apart.
//!           With 48 bits of reference tag of types 2 and 3, or 16 bits of storage tag, they have
//!           if they are less than 2^32 - 2^17 apart.
//! PITAG-B2  No block that the host writes has an escape, and no birth has the application tag 0,
//!           which blocks without birth have.
//! PITAG-B3  An escape that is read is a mismatch: devices return it for content that is gone.
//!
//! Births 0 and 65534 have the same upper half and the same remainder, so the quotient, and not the
//! upper half, completes the remainder in the application tag.

use std::fmt;

use smallvec::SmallVec;

use super::tuple::{Mismatch, low};
use super::{Checks, Format, Tags, Tuple, Type};

/// Guards of consecutive blocks of a device.
pub type Guards = SmallVec<[u64; 4]>;

/// Births with different application tags.
const BIRTHS: u32 = 65_534;

/// The part of a tuple by which verification fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The content differs from the guard.
    Guard,
    /// The content was written at another time.
    App,
    /// The content belongs to another place, or was written at another time.
    Reference,
    Storage,
    /// The device has no content there: none was written, or it was deallocated.
    Escape,
    /// The system does not say.
    Unknown,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Guard => "another guard than that of the data",
            Kind::App => "the application tag of another birth",
            Kind::Reference => "the reference tag of another place or birth",
            Kind::Storage => "another storage tag",
            Kind::Escape => "no content: none was written there, or it was deallocated",
            Kind::Unknown => "a mismatch with their protection information",
        })
    }
}

impl From<Mismatch> for Kind {
    fn from(mismatch: Mismatch) -> Kind {
        match mismatch {
            Mismatch::Guard => Kind::Guard,
            Mismatch::App => Kind::App,
            Mismatch::Reference => Kind::Reference,
            Mismatch::Storage => Kind::Storage,
        }
    }
}

impl Tags {
    /// The reference tag of type 1.
    pub(super) fn of_place(format: &Format, block: u64) -> u64 {
        block & low(format.reference_bits())
    }

    /// Of blocks from `first` on that were written at `birth`; `None` for blocks without birth.
    pub fn of_birth(format: &Format, first: u64, birth: Option<u32>) -> Tags {
        let (turn, app) = match birth {
            Some(birth) => (u64::from(birth / BIRTHS), 1 + (birth % BIRTHS) as u16),
            None => (0, 0),
        };
        let bound = match format.kind() {
            Type::One => first,
            Type::Two | Type::Three => first.wrapping_add(turn << 32),
        };
        Tags {
            app,
            app_mask: u16::MAX,
            storage: turn & low(format.storage_bits()),
            reference: bound & low(format.reference_bits()),
        }
    }
}

impl Format {
    /// The guards that a host gives for `data`: other metadata of its blocks are zeros.
    pub fn guards(&self, data: &[u8]) -> Guards {
        let metadata = [0; 64];
        let blocks = data.chunks_exact(self.data_bytes());
        blocks.map(|block| self.guard_of(block, &metadata[..self.metadata_bytes()])).collect()
    }

    /// The metadata of blocks with these guards.
    pub(super) fn metadata(&self, tags: &Tags, guards: &[u64]) -> Vec<u8> {
        let mut metadata = vec![0; guards.len() * self.metadata_bytes()];
        let places = metadata.chunks_exact_mut(self.metadata_bytes());
        for (nth, (place, guard)) in (0..).zip(places.zip(guards)) {
            let tuple = tags.at(self, nth).tuple(self, *guard);
            tuple.encode(self, &mut place[self.tuple_range()]);
        }
        metadata
    }

    /// Verifies whole blocks whose tags begin with `tags`; else the first bad one, and why.
    pub fn verify(&self, tags: &Tags, data: &[u8], metadata: &[u8]) -> Result<(), (u64, Kind)> {
        if !self.is_whole(data, metadata) {
            return Err((0, Kind::Unknown)); // A part without a tuple cannot be verified.
        }
        let has_storage = self.storage_bits() > 0;
        let checks = Checks { guard: true, app: true, reference: true, storage: has_storage };
        let metadata = metadata.chunks_exact(self.metadata_bytes());
        let blocks = data.chunks_exact(self.data_bytes());
        for (nth, (block, metadata)) in (0..).zip(blocks.zip(metadata)) {
            let tuple = Tuple::decode(self, &metadata[self.tuple_range()]);
            if tuple.is_escape(self) {
                return Err((nth, Kind::Escape)); // PITAG-B3
            }
            let guard = || self.guard_of(block, metadata);
            let compared = tuple.compare(self, checks, &tags.at(self, nth), guard);
            compared.map_err(|what| (nth, what.into()))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::format::tests::formats;
    use super::*;

    fn format(words: &str) -> Format {
        words.parse().unwrap()
    }

    /// The distance between births below which tags differ.
    fn period(format: &Format) -> u64 {
        let is_wide = format.kind() != Type::One && format.reference_bits() >= 48;
        match is_wide || format.storage_bits() >= 16 {
            true => (1 << 32) - (1 << 17),
            false => u64::from(BIRTHS),
        }
    }

    proptest! {
        #[test]
        fn two_births_have_different_tags(
            format in formats(),
            first in any::<u64>(),
            birth in any::<u32>(),
            apart in prop_oneof![1..200_000_u32, any::<u32>()],
        ) {
            let (one, other) = (birth, birth.wrapping_add(apart));
            let distance = u64::from(one.abs_diff(other));
            let of = |birth| Tags::of_birth(&format, first, Some(birth));
            prop_assert!(of(one).app != 0 && of(one).app != 0xffff);
            if distance > 0 && distance < period(&format) {
                prop_assert_ne!(of(one), of(other));
            }
        }

        #[test]
        fn content_is_verified_at_its_own_place_and_birth_only(
            format in formats(),
            first in 0..1_u64 << 40,
            birth in any::<u32>(),
        ) {
            let data = vec![0x37; 2 * format.data_bytes()];
            let tags = Tags::of_birth(&format, first, Some(birth));
            let metadata = format.metadata(&tags, &format.guards(&data));
            prop_assert_eq!(format.verify(&tags, &data, &metadata), Ok(()));
            // A later part alone has the tags of its own place.
            let later = Tags::of_birth(&format, first + 1, Some(birth));
            let half = (&data[format.data_bytes()..], &metadata[format.metadata_bytes()..]);
            prop_assert_eq!(format.verify(&later, half.0, half.1), Ok(()));

            let stale = Tags::of_birth(&format, first, Some(birth.wrapping_add(1)));
            let stale = format.verify(&stale, &data, &metadata);
            prop_assert_eq!(stale, Err((0, Kind::App)));
            if format.reference_bits() > 0 {
                let elsewhere = Tags::of_birth(&format, first + 1, Some(birth));
                let elsewhere = format.verify(&elsewhere, &data, &metadata);
                prop_assert_eq!(elsewhere, Err((0, Kind::Reference)));
            }
            let plain = Tags::of_birth(&format, first, None);
            let plain = format.verify(&plain, &data, &metadata);
            prop_assert_eq!(plain, Err((0, Kind::App)));
        }
    }

    #[test]
    fn births_with_the_same_remainder_differ_where_there_is_room() {
        let tags = |words, birth| Tags::of_birth(&format(words), 9, Some(birth));
        for words in ["4096+16:64b", "4096+16:64b:type1:sts=16", "4096+16:32b"] {
            assert_ne!(tags(words, 0), tags(words, BIRTHS), "{words}");
            assert_eq!(tags(words, 0).app, tags(words, BIRTHS).app, "{words}");
        }
        for words in ["4096+8:16b:type2", "4096+16:64b:type1"] {
            assert_eq!(tags(words, 0), tags(words, BIRTHS), "{words}");
        }
    }

    #[test]
    fn an_escape_is_a_mismatch_for_the_host() {
        for words in ["512+8:16b", "4096+16:64b", "4096+64:64b:type3", "4096+16:32b:type3"] {
            let format = format(words);
            let (data, gone) = (vec![0; 4096], vec![0xff; format.entry_bytes()]);
            let tags = Tags::of_birth(&format, 4, Some(5));
            assert_eq!(format.verify(&tags, &data, &gone), Err((0, Kind::Escape)), "{words}");
        }
    }

    #[test]
    fn a_block_without_a_tuple_is_not_verified() {
        let format = format("4096+16:64b");
        let tags = Tags::of_birth(&format, 4, Some(5));
        let data = [1; 2 * 4096];
        let metadata = format.metadata(&tags, &format.guards(&data));
        for (data, metadata) in [
            (&data[..], &metadata[..16]),
            (&data[..4096 + 8], &metadata[..]),
            (&data[..4096], &metadata[..]),
            (&data[..], &metadata[..31]),
        ] {
            assert_eq!(format.verify(&tags, data, metadata), Err((0, Kind::Unknown)));
        }
    }

    #[test]
    fn a_zeroed_block_with_a_zeroed_tuple_is_found() {
        for (words, kind) in [("4096+8:16b:type1", Kind::App), ("4096+16:64b", Kind::Guard)] {
            let format = format(words);
            let tags = Tags::of_birth(&format, 0, Some(0));
            let zeros = vec![0; format.entry_bytes()];
            assert_eq!(format.verify(&tags, &[0; 4096], &zeros), Err((0, kind)), "{words}");
        }
    }
}
