//! Formats of protection information, and their names in words.
//!
//! A format is possible or it does not exist: [`Format::new`] is the only way to make one, for a
//! user's words, for a header and for the answer of a drive alike. Each impossible combination has
//! an error of its own.

use std::fmt;
use std::str::FromStr;

use copyhold_types::BLOCK_BYTES;

use super::Guard;

/// Bytes of metadata that a block may have.
const METADATA_BYTES: std::ops::RangeInclusive<u32> = 8..=64;
/// Reference tags of this width bind a number of a block and all of a birth.
const WIDE_REFERENCE: u32 = 48;

/// The use that a device makes of reference tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// They begin with the number of the first block.
    One,
    /// They begin with any value of the host's.
    Two,
    /// They are the host's; the device does not check them.
    Three,
}

/// The place of the tuple in the metadata of its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    First,
    Last,
}

/// The blocks and tuples of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    data_bytes: u32,
    metadata_bytes: u32,
    guard: Guard,
    kind: Type,
    place: Place,
    storage_bits: u32,
}

/// A combination that no device has, or words that name no format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    #[error(
        "`{0}` is no format of protection information; an example is 4096+16:64b, followed by \
         :type1 to :type3, :first or :last, and :sts=BITS where wanted"
    )]
    Words(String),
    #[error("`{part}` is no part of a format; parts are type1 to type3, first, last and sts=BITS")]
    Part { part: String },
    #[error("a format has one {what}, and `{part}` names a second")]
    Twice { what: &'static str, part: String },
    #[error("a block with protection information has 512 or 4096 bytes of data, not {0}")]
    Data(u32),
    #[error("a block has 8 to 64 bytes of metadata, a multiple of 8, not {0}")]
    Metadata(u32),
    #[error("a guard has 16, 32 or 64 bits (16b, 32b, 64b), not {0}")]
    Guard(String),
    #[error(
        "a tuple with a guard of {guard} has {needed} bytes; {metadata} bytes of metadata \
             have no room for it"
    )]
    NoRoom { guard: Guard, needed: u32, metadata: u32 },
    #[error("a type of protection information is 1, 2 or 3, not {0}")]
    Type(u32),
    #[error("with a guard of {guard} a storage tag has {least} to {most} bits, not {bits}")]
    StorageTag { guard: Guard, least: u32, most: u32, bits: u32 },
    #[error(
        "a storage tag of {bits} bits leaves no reference tag, which type {kind} has; use type3"
    )]
    NoReference { bits: u32, kind: u32 },
    #[error("{0:#018x} is the number of no format")]
    Bytes(u64),
}

impl Type {
    pub fn number(self) -> u32 {
        match self {
            Type::One => 1,
            Type::Two => 2,
            Type::Three => 3,
        }
    }

    pub fn of_number(number: u32) -> Result<Type, FormatError> {
        match number {
            1 => Ok(Type::One),
            2 => Ok(Type::Two),
            3 => Ok(Type::Three),
            other => Err(FormatError::Type(other)),
        }
    }
}

impl Format {
    pub fn new(
        (data_bytes, metadata_bytes): (u32, u32),
        guard: Guard,
        kind: Type,
        place: Place,
        storage_bits: u32,
    ) -> Result<Format, FormatError> {
        if !matches!(data_bytes, 512 | 4096) {
            return Err(FormatError::Data(data_bytes));
        }
        if !METADATA_BYTES.contains(&metadata_bytes) || !metadata_bytes.is_multiple_of(8) {
            return Err(FormatError::Metadata(metadata_bytes));
        }
        let needed = guard.tuple_bytes();
        if metadata_bytes < needed {
            return Err(FormatError::NoRoom { guard, needed, metadata: metadata_bytes });
        }
        let (least, most) = guard.storage_bits();
        if !(least..=most).contains(&storage_bits) {
            return Err(FormatError::StorageTag { guard, least, most, bits: storage_bits });
        }
        if storage_bits == guard.field_bits() && kind != Type::Three {
            return Err(FormatError::NoReference { bits: storage_bits, kind: kind.number() });
        }
        Ok(Format { data_bytes, metadata_bytes, guard, kind, place, storage_bits })
    }

    /// Its bytes in headers and labels: bytes of data (2, little-endian), bytes of metadata, bits
    /// of the guard, type, place of the tuple (0 first, 1 last), bits of the storage tag, zero.
    pub fn to_bytes(&self) -> [u8; 8] {
        let data = (self.data_bytes as u16).to_le_bytes();
        let place = u8::from(self.place == Place::Last);
        let (guard, kind) = (self.guard.bits() as u8, self.kind.number() as u8);
        let storage = self.storage_bits as u8;
        [data[0], data[1], self.metadata_bytes as u8, guard, kind, place, storage, 0]
    }

    /// The format with these bytes.
    pub fn of_bytes(bytes: [u8; 8]) -> Result<Format, FormatError> {
        let [low, high, metadata, guard, kind, place, storage, zero] = bytes;
        if place > 1 || zero != 0 {
            return Err(FormatError::Bytes(u64::from_le_bytes(bytes)));
        }
        Format::new(
            (u16::from_le_bytes([low, high]).into(), metadata.into()),
            Guard::of_bits(guard.into())?,
            Type::of_number(kind.into())?,
            if place == 0 { Place::First } else { Place::Last },
            storage.into(),
        )
    }

    /// Bytes of data of one block of the device.
    pub fn data_bytes(&self) -> usize {
        self.data_bytes as usize
    }

    /// Bytes of metadata of one block of the device.
    pub fn metadata_bytes(&self) -> usize {
        self.metadata_bytes as usize
    }

    pub fn guard(&self) -> Guard {
        self.guard
    }

    pub fn kind(&self) -> Type {
        self.kind
    }

    pub fn place(&self) -> Place {
        self.place
    }

    pub fn storage_bits(&self) -> u32 {
        self.storage_bits
    }

    pub fn reference_bits(&self) -> u32 {
        self.guard.field_bits() - self.storage_bits
    }

    /// Blocks of the device in 4 KiB.
    pub fn parts(&self) -> usize {
        BLOCK_BYTES / self.data_bytes()
    }

    /// Bytes of metadata of 4 KiB of data.
    pub fn entry_bytes(&self) -> usize {
        self.parts() * self.metadata_bytes()
    }

    /// The bytes of the tuple in the metadata of its block.
    pub fn tuple_range(&self) -> std::ops::Range<usize> {
        let (metadata, tuple) = (self.metadata_bytes(), self.guard.tuple_bytes() as usize);
        match self.place {
            Place::First => 0..tuple,
            Place::Last => metadata - tuple..metadata,
        }
    }

    /// Whether the tuple is all of the metadata.
    pub fn is_tuple_only(&self) -> bool {
        self.metadata_bytes == self.guard.tuple_bytes()
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.place == Place::First { "first" } else { "last" };
        let (data, metadata, guard) = (self.data_bytes, self.metadata_bytes, self.guard);
        write!(f, "{data}+{metadata}:{guard}:type{}:{place}", self.kind.number())?;
        match self.storage_bits {
            0 => Ok(()),
            bits => write!(f, ":sts={bits}"),
        }
    }
}

/// The parts of a format's name behind the guard.
#[derive(Default)]
struct Parts {
    kind: Option<Type>,
    place: Option<Place>,
    storage_bits: Option<u32>,
}

impl Parts {
    fn add(&mut self, part: &str) -> Result<(), FormatError> {
        let unknown = || FormatError::Part { part: part.into() };
        let is_second = if let Some(bits) = part.strip_prefix("sts=") {
            let bits = number(bits).ok_or_else(unknown)?;
            ("storage tag", self.storage_bits.replace(bits).is_some())
        } else if let Some(kind) = part.strip_prefix("type") {
            let kind = Type::of_number(number(kind).ok_or_else(unknown)?)?;
            ("type", self.kind.replace(kind).is_some())
        } else {
            let place = match part {
                "first" => Place::First,
                "last" => Place::Last,
                _ => return Err(unknown()),
            };
            ("place of the tuple", self.place.replace(place).is_some())
        };
        match is_second {
            (_, false) => Ok(()),
            (what, true) => Err(FormatError::Twice { what, part: part.into() }),
        }
    }
}

/// A number in digits alone.
fn number(text: &str) -> Option<u32> {
    let is_digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_digits)
}

impl FromStr for Format {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<Format, FormatError> {
        let words = || FormatError::Words(text.into());
        let mut parts = text.split(':');
        let sizes = parts.next().and_then(|sizes| sizes.split_once('+')).ok_or_else(words)?;
        let data = number(sizes.0).ok_or_else(words)?;
        let metadata = number(sizes.1).ok_or_else(words)?;
        let guard: Guard = parts.next().ok_or_else(words)?.parse()?;
        let mut given = Parts::default();
        parts.try_for_each(|part| given.add(part))?;

        let storage_bits = given.storage_bits.unwrap_or(guard.storage_bits().0);
        let reference_bits = guard.field_bits().saturating_sub(storage_bits);
        let usual = if reference_bits >= WIDE_REFERENCE { Type::Two } else { Type::One };
        let (kind, place) = (given.kind.unwrap_or(usual), given.place.unwrap_or(Place::Last));
        Format::new((data, metadata), guard, kind, place, storage_bits)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Any possible format.
    pub(crate) fn formats() -> impl Strategy<Value = Format> {
        let guard = prop::sample::select(Guard::ALL.to_vec());
        let kind = prop::sample::select(vec![Type::One, Type::Two, Type::Three]);
        let place = prop::sample::select(vec![Place::First, Place::Last]);
        let data = prop::sample::select(vec![512, 4096]);
        (data, 1..=8_u32, guard, kind, place, 0..=64_u32).prop_map(
            |(data, eighths, guard, kind, place, bits)| {
                let metadata = (eighths * 8).max(guard.tuple_bytes());
                let (least, most) = guard.storage_bits();
                let most =
                    if kind == Type::Three { most } else { most.min(guard.field_bits() - 1) };
                let bits = bits.clamp(least, most);
                Format::new((data, metadata), guard, kind, place, bits).unwrap()
            },
        )
    }

    proptest! {
        #[test]
        fn a_format_is_read_from_its_own_words(format in formats()) {
            prop_assert_eq!(format.to_string().parse(), Ok(format));
        }

        #[test]
        fn a_format_is_read_from_its_own_bytes(format in formats()) {
            prop_assert_eq!(Format::of_bytes(format.to_bytes()), Ok(format));
        }

        #[test]
        fn any_bytes_are_a_format_or_an_error(bytes in any::<[u8; 8]>()) {
            if let Ok(format) = Format::of_bytes(bytes) {
                prop_assert_eq!(format.to_bytes(), bytes);
            }
        }

        #[test]
        fn any_words_name_a_format_or_are_an_error(text in "[0-9+:bteypfirsla=]{0,24}") {
            if let Ok(format) = text.parse::<Format>() {
                prop_assert_eq!(format.to_string().parse(), Ok(format));
            }
        }

        #[test]
        fn the_tuple_lies_in_the_metadata(format in formats()) {
            let range = format.tuple_range();
            prop_assert!(range.end <= format.metadata_bytes());
            prop_assert_eq!(range.len(), format.guard().tuple_bytes() as usize);
            prop_assert_eq!(format.is_tuple_only(), range == (0..format.metadata_bytes()));
            prop_assert!(format.entry_bytes() <= BLOCK_BYTES);
        }
    }

    fn full(words: &str) -> String {
        words.parse::<Format>().unwrap().to_string()
    }

    #[test]
    fn absent_parts_have_their_defaults() {
        assert_eq!(full("4096+16:64b"), "4096+16:64b:type2:last");
        assert_eq!(full("4096+16:64b:sts=1"), "4096+16:64b:type1:last:sts=1");
        assert_eq!(full("512+8:16b"), "512+8:16b:type1:last");
        assert_eq!(full("4096+24:32b"), "4096+24:32b:type2:last:sts=16");
        assert_eq!(full("4096+64:64b:sts=48:first:type3"), "4096+64:64b:type3:first:sts=48");
    }

    #[test]
    fn each_impossible_combination_has_its_own_message() {
        let cases = [
            ("", "`` is no format"),
            ("4096", "`4096` is no format"),
            ("4096+16", "`4096+16` is no format"),
            ("4096+:64b", "is no format"),
            ("+4096+16:64b", "is no format"),
            ("1024+8:16b", "512 or 4096 bytes of data, not 1024"),
            ("4096+4:16b", "8 to 64 bytes of metadata, a multiple of 8, not 4"),
            ("4096+12:16b", "not 12"),
            ("4096+72:64b", "not 72"),
            ("4096+16:48b", "16, 32 or 64 bits (16b, 32b, 64b), not 48b"),
            ("4096+8:64b", "of 64b has 16 bytes; 8 bytes of metadata have no room"),
            ("4096+8:32b", "of 32b has 16 bytes"),
            ("4096+8:16b:type0", "1, 2 or 3, not 0"),
            ("4096+8:16b:type", "`type` is no part"),
            ("4096+8:16b:middle", "`middle` is no part"),
            ("4096+8:16b:", "`` is no part"),
            ("4096+8:16b:sts=+1", "`sts=+1` is no part"),
            ("4096+8:16b:type1:type2", "one type, and `type2` names a second"),
            ("4096+8:16b:first:last", "one place of the tuple, and `last`"),
            ("4096+8:16b:sts=1:sts=1", "one storage tag, and `sts=1`"),
            ("4096+8:16b:sts=33", "16b a storage tag has 0 to 32 bits, not 33"),
            ("4096+16:32b:sts=15", "32b a storage tag has 16 to 64 bits, not 15"),
            ("4096+16:64b:sts=49", "64b a storage tag has 0 to 48 bits, not 49"),
            ("4096+8:16b:sts=32", "leaves no reference tag, which type 1 has; use type3"),
            ("4096+16:64b:type2:sts=48", "leaves no reference tag, which type 2 has"),
            ("4294967296+8:16b", "is no format"),
        ];
        for (words, message) in cases {
            let error = words.parse::<Format>().unwrap_err().to_string();
            assert!(error.contains(message), "{words}: {error}");
        }
    }
}
