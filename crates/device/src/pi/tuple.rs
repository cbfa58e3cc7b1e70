//! Tuples: their bytes, and the comparison of one with the tags of a command.
//!
//! A tuple comes from a medium or another host, so all bytes are possible: each sequence of the
//! right length is a tuple, and reading it cannot fail.
//!
//! TUPLE-T1  Bytes and tuple are the same information: encoding a tuple that was read gives the
//!           same bytes.
//! TUPLE-T2  An escape makes a device skip all checks; its content is arbitrary then.

use super::{Format, Type};

/// The application tag of an escape.
pub(super) const ESCAPE: u16 = u16::MAX;

/// The parsed protection information of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuple {
    pub guard: u64,
    pub app: u16,
    pub storage: u64,
    pub reference: u64,
}

/// Tags that a command gives. The reference tag is that of its first block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tags {
    pub app: u16,
    /// The bits of the application tag that are compared.
    pub app_mask: u16,
    pub storage: u64,
    pub reference: u64,
}

/// The comparisons that a command asks a device for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checks {
    pub guard: bool,
    pub app: bool,
    pub reference: bool,
    pub storage: bool,
}

/// The part of a tuple that does not match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mismatch {
    Guard,
    App,
    Reference,
    Storage,
}

impl Checks {
    pub const NONE: Checks = Checks { guard: false, app: false, reference: false, storage: false };

    /// All that a device with this format can compare.
    pub fn all(format: &Format) -> Checks {
        Checks {
            guard: true,
            app: true,
            reference: format.kind() != Type::Three,
            storage: format.storage_bits() > 0,
        }
    }
}

impl Tags {
    /// The tags of the block `nth` blocks behind the first one.
    pub fn at(&self, format: &Format, nth: u64) -> Tags {
        let reference = self.reference.wrapping_add(nth) & low(format.reference_bits());
        Tags { reference, ..*self }
    }

    /// The tuple of content with this guard; each tag is cut to its width.
    pub fn tuple(&self, format: &Format, guard: u64) -> Tuple {
        Tuple {
            guard: guard & low(format.guard().bits()),
            app: self.app,
            storage: self.storage & low(format.storage_bits()),
            reference: self.reference & low(format.reference_bits()),
        }
    }
}

impl Tuple {
    /// `bytes` begin with the tuple; missing bytes count as zeros.
    pub fn decode(format: &Format, bytes: &[u8]) -> Tuple {
        let guard_bytes = format.guard().bits() as usize / 8;
        let tuple_bytes = format.guard().tuple_bytes() as usize;
        let number = |range: std::ops::Range<usize>| {
            range.fold(0_u128, |sum, at| sum << 8 | u128::from(bytes.get(at).copied().unwrap_or(0)))
        };
        let field = number(guard_bytes + 2..tuple_bytes);
        let bits = format.reference_bits();
        Tuple {
            guard: number(0..guard_bytes) as u64,
            app: number(guard_bytes..guard_bytes + 2) as u16,
            storage: (field >> bits) as u64,
            reference: field as u64 & low(bits),
        }
    }

    /// Writes the tuple to the start of `bytes`, which have room for it.
    pub fn encode(&self, format: &Format, bytes: &mut [u8]) {
        let guard_bytes = format.guard().bits() as usize / 8;
        let tuple_bytes = format.guard().tuple_bytes() as usize;
        let bits = format.reference_bits();
        let field = u128::from(self.storage & low(format.storage_bits())) << bits
            | u128::from(self.reference & low(bits));
        let bytes = &mut bytes[..tuple_bytes];
        let (guard, rest) = bytes.split_at_mut(guard_bytes);
        let (app, both) = rest.split_at_mut(2);
        guard.copy_from_slice(&self.guard.to_be_bytes()[8 - guard_bytes..]);
        app.copy_from_slice(&self.app.to_be_bytes());
        let skipped = 16 - both.len();
        both.copy_from_slice(&field.to_be_bytes()[skipped..]);
    }

    /// Whether a device checks nothing of this block (TUPLE-T2).
    pub fn is_escape(&self, format: &Format) -> bool {
        let is_reference_full = self.reference == low(format.reference_bits());
        self.app == ESCAPE && (format.kind() != Type::Three || is_reference_full)
    }

    /// Compares the tuple with the guard of the content and the tags of its block, in the order
    /// guard, application, reference and storage tag. The guard is computed only where it counts.
    pub fn compare(
        &self,
        format: &Format,
        checks: Checks,
        tags: &Tags,
        guard: impl FnOnce() -> u64,
    ) -> Result<(), Mismatch> {
        let wanted = tags.tuple(format, 0);
        let fails = |is_checked: bool, is_equal: bool, what: Mismatch| match is_checked && !is_equal
        {
            true => Err(what),
            false => Ok(()),
        };
        fails(checks.guard, !checks.guard || self.guard == guard(), Mismatch::Guard)?;
        let is_same_app = (self.app ^ wanted.app) & tags.app_mask == 0;
        fails(checks.app, is_same_app, Mismatch::App)?;
        fails(checks.reference, self.reference == wanted.reference, Mismatch::Reference)?;
        fails(checks.storage, self.storage == wanted.storage, Mismatch::Storage)
    }
}

/// Ones in so many low bits.
pub(super) fn low(bits: u32) -> u64 {
    match bits {
        0 => 0,
        bits => u64::MAX >> 64_u32.saturating_sub(bits),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::format::tests::formats;
    use super::*;

    const ALL: Checks = Checks { guard: true, app: true, reference: true, storage: true };

    proptest! {
        #[test]
        fn any_bytes_are_a_tuple_and_its_bytes_again(
            format in formats(),
            bytes in prop::collection::vec(any::<u8>(), 0..32),
        ) {
            let tuple = Tuple::decode(&format, &bytes);
            let mut again = [0; 16];
            tuple.encode(&format, &mut again);
            let length = format.guard().tuple_bytes() as usize;
            let mut padded = bytes;
            padded.resize(16, 0);
            prop_assert_eq!(&again[..length], &padded[..length]);
        }

        #[test]
        fn a_tuple_matches_the_tags_that_it_was_made_of_and_no_others(
            format in formats(),
            guard in any::<u64>(),
            tags in (any::<u16>(), any::<u64>(), any::<u64>()),
            nth in any::<u64>(),
        ) {
            let (app, storage, reference) = tags;
            let tags = Tags { app, app_mask: u16::MAX, storage, reference };
            let tags = tags.at(&format, nth);
            let tuple = tags.tuple(&format, guard);
            let compare = |tuple: Tuple| tuple.compare(&format, ALL, &tags, || tuple.guard);
            prop_assert_eq!(compare(tuple), Ok(()));
            prop_assert_eq!(compare(Tuple { app: tuple.app ^ 0x100, ..tuple }), Err(Mismatch::App));
            if format.reference_bits() > 0 {
                let other = Tuple { reference: tuple.reference ^ 1, ..tuple };
                prop_assert_eq!(compare(other), Err(Mismatch::Reference));
            }
            if format.storage_bits() > 0 {
                let other = Tuple { storage: tuple.storage ^ 1, ..tuple };
                prop_assert_eq!(compare(other), Err(Mismatch::Storage));
            }
            let other = tuple.compare(&format, ALL, &tags, || tuple.guard ^ 1);
            prop_assert_eq!(other, Err(Mismatch::Guard));
        }
    }

    fn bytes_of(words: &str, tuple: Tuple) -> Vec<u8> {
        let format: Format = words.parse().unwrap();
        let mut bytes = vec![0; format.guard().tuple_bytes() as usize];
        tuple.encode(&format, &mut bytes);
        bytes
    }

    #[test]
    fn each_layout_is_big_endian_with_the_storage_tag_above_the_reference_tag() {
        let tuple = Tuple {
            guard: 0x1112_1314_1516_1718,
            app: 0x2122,
            storage: 0x0f,
            reference: 0x4142_4344_4546_4748,
        };
        assert_eq!(
            bytes_of("512+8:16b:sts=4", tuple),
            [0x17, 0x18, 0x21, 0x22, 0xf5, 0x46, 0x47, 0x48]
        );
        assert_eq!(
            bytes_of("4096+16:32b", tuple),
            [
                0x15, 0x16, 0x17, 0x18, 0x21, 0x22, 0, 0x0f, 0x41, 0x42, 0x43, 0x44, 0x45, 0x46,
                0x47, 0x48
            ]
        );
        assert_eq!(
            bytes_of("4096+16:64b", tuple),
            [
                0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x21, 0x22, 0x43, 0x44, 0x45, 0x46,
                0x47, 0x48
            ]
        );
    }

    #[test]
    fn types_differ_in_their_escape() {
        let escapes = |words: &str, app, reference| {
            let tuple = Tuple { guard: 1, app, storage: 0, reference };
            tuple.is_escape(&words.parse().unwrap())
        };
        for words in ["4096+8:16b:type1", "4096+8:16b:type2"] {
            assert!(escapes(words, 0xffff, 7), "{words}");
            assert!(!escapes(words, 0xfffe, u64::from(u32::MAX)), "{words}");
        }
        assert!(!escapes("4096+8:16b:type3", 0xffff, 7));
        assert!(escapes("4096+8:16b:type3", 0xffff, u64::from(u32::MAX)));
        assert!(escapes("4096+8:16b:type3:sts=8", 0xffff, 0x00ff_ffff));
    }

    #[test]
    fn reference_tags_wrap_in_their_width_and_masked_bits_do_not_count() {
        let format: Format = "4096+8:16b:type2:sts=8".parse().unwrap();
        let tags = Tags { app: 0x12ff, app_mask: 0x00ff, storage: 0, reference: 0x00ff_ffff };
        assert_eq!(tags.at(&format, 0).reference, 0x00ff_ffff);
        assert_eq!(tags.at(&format, 2).reference, 1);
        let tuple = Tuple { app: 0x34ff, ..tags.tuple(&format, 5) };
        assert_eq!(tuple.compare(&format, ALL, &tags, || 5), Ok(()));
        let tuple = Tuple { app: 0x34fe, ..tuple };
        assert_eq!(tuple.compare(&format, ALL, &tags, || 5), Err(Mismatch::App));
        assert_eq!(tuple.compare(&format, Checks::NONE, &tags, || 6), Ok(()));
    }
}
