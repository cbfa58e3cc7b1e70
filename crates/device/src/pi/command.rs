//! The effect of one command on data and metadata, as a drive has it.
//!
//! A command covers blocks that follow each other. All of them are checked before anything is
//! stored, so a refused write leaves nothing. Everything here works on bytes in memory: the
//! emulated namespace gives them to a file, and a real drive does the same by itself.
//!
//! ```text
//!                    the tuple is the host's      the device's (PRACT)
//!   write            checked, stored              made; put into other metadata, if there are any
//!   read             checked, returned            checked, removed unless there are other metadata
//! ```

use super::tuple::Mismatch;
use super::{Checks, Format, Place, Tags, Tuple, Type};

/// The answer of a device that refuses a command. Codes are those of NVMe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The command lacks metadata that it must have.
    InvalidField,
    /// Its reference tag contradicts the type: an error of the host. The same command always
    /// fails.
    InvalidProtection,
    WriteFault,
    UnrecoveredRead,
    Guard,
    App,
    Reference,
    Storage,
    CompareFailure,
    Deallocated,
}

/// A refused command, and the block that it failed at, counted from its first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub status: Status,
    pub nth: u64,
}

/// The fields of a read or write that concern protection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// Whether the device makes or removes the tuples (PRACT).
    pub by_device: bool,
    pub checks: Checks,
    pub tags: Tags,
}

const STATUSES: [(Status, u16); 10] = [
    (Status::InvalidField, 0x002),
    (Status::InvalidProtection, 0x181),
    (Status::WriteFault, 0x280),
    (Status::UnrecoveredRead, 0x281),
    (Status::Guard, 0x282),
    (Status::App, 0x283),
    (Status::Reference, 0x284),
    (Status::CompareFailure, 0x285),
    (Status::Deallocated, 0x287),
    (Status::Storage, 0x288),
];

impl Status {
    /// Status code type and status code, as in `SCT << 8 | SC`.
    pub fn code(self) -> u16 {
        let found = STATUSES.iter().find(|(status, _)| *status == self);
        found.map_or(0, |(_, code)| *code)
    }

    /// The status of an answer. The bits above, such as Do Not Retry, do not count.
    pub fn of_code(code: u16) -> Option<Status> {
        let found = STATUSES.iter().find(|(_, known)| *known == code & 0x7ff);
        found.map(|(status, _)| *status)
    }
}

impl From<Mismatch> for Status {
    fn from(mismatch: Mismatch) -> Status {
        match mismatch {
            Mismatch::Guard => Status::Guard,
            Mismatch::App => Status::App,
            Mismatch::Reference => Status::Reference,
            Mismatch::Storage => Status::Storage,
        }
    }
}

impl Format {
    /// The guard of a block with this data and metadata.
    pub fn guard_of(&self, data: &[u8], metadata: &[u8]) -> u64 {
        let covered = match self.place() {
            Place::First => &[],
            Place::Last => &metadata[..self.tuple_range().start],
        };
        self.guard().of(data, covered)
    }

    /// Whether these are whole blocks, and the metadata of each.
    pub(super) fn is_whole(&self, data: &[u8], metadata: &[u8]) -> bool {
        let blocks = data.len() / self.data_bytes();
        data.len() == blocks * self.data_bytes() && metadata.len() == blocks * self.metadata_bytes()
    }

    /// Blocks of the device in these bytes.
    fn blocks<'d>(&self, data: &[&'d [u8]]) -> impl Iterator<Item = &'d [u8]> {
        data.iter().flat_map(|bytes| bytes.chunks_exact(self.data_bytes()))
    }
}

impl Command {
    /// The metadata that a write from `first` on stores. `data` are whole blocks, in one or more
    /// places; `metadata` are those that the host sends, if any.
    pub fn write(
        &self,
        format: &Format,
        first: u64,
        data: &[&[u8]],
        metadata: Option<&[u8]>,
    ) -> Result<Vec<u8>, Refusal> {
        self.check_type(format, first)?;
        let bytes = format.blocks(data).count() * format.metadata_bytes();
        let is_made = self.by_device && format.is_tuple_only();
        let mut stored = match metadata {
            _ if is_made => vec![0; bytes],
            Some(sent) if sent.len() == bytes => sent.to_vec(),
            _ => return Err(Refusal { status: Status::InvalidField, nth: 0 }),
        };
        if !self.by_device {
            self.check(format, data, &stored)?;
            return Ok(stored);
        }
        let places = stored.chunks_exact_mut(format.metadata_bytes());
        for (nth, (block, place)) in (0..).zip(format.blocks(data).zip(places)) {
            let guard = format.guard_of(block, place);
            let tuple = self.tags_of(format, nth).tuple(format, guard);
            tuple.encode(format, &mut place[format.tuple_range()]);
        }
        Ok(stored)
    }

    /// Whether a read from `first` on may return `data` and `metadata`, as they are stored.
    pub fn read(
        &self,
        format: &Format,
        first: u64,
        data: &[u8],
        metadata: &[u8],
    ) -> Result<(), Refusal> {
        self.check_type(format, first)?;
        if !format.is_whole(data, metadata) {
            return Err(Refusal { status: Status::InvalidField, nth: 0 });
        }
        self.check(format, &[data], metadata)
    }

    /// Whether a read or write transfers metadata.
    pub fn transfers_metadata(&self, format: &Format) -> bool {
        !(self.by_device && format.is_tuple_only())
    }

    /// The tags that the drive has for a block: it counts reference tags up, but not those of type
    /// 3, which mean nothing to it.
    fn tags_of(&self, format: &Format, nth: u64) -> Tags {
        match format.kind() {
            Type::One | Type::Two => self.tags.at(format, nth),
            Type::Three => self.tags.at(format, 0),
        }
    }

    fn check_type(&self, format: &Format, first: u64) -> Result<(), Refusal> {
        let is_possible = match format.kind() {
            _ if !self.checks.reference => true,
            Type::One => self.tags.tuple(format, 0).reference == Tags::of_place(format, first),
            Type::Two => true,
            Type::Three => false,
        };
        match is_possible {
            true => Ok(()),
            false => Err(Refusal { status: Status::InvalidProtection, nth: 0 }),
        }
    }

    fn check(&self, format: &Format, data: &[&[u8]], metadata: &[u8]) -> Result<(), Refusal> {
        if self.checks == Checks::NONE {
            return Ok(());
        }
        let metadata = metadata.chunks_exact(format.metadata_bytes());
        for (nth, (block, metadata)) in (0..).zip(format.blocks(data).zip(metadata)) {
            let tuple = Tuple::decode(format, &metadata[format.tuple_range()]);
            if tuple.is_escape(format) {
                continue;
            }
            let tags = self.tags_of(format, nth);
            let guard = || format.guard_of(block, metadata);
            let compared = tuple.compare(format, self.checks, &tags, guard);
            compared.map_err(|what| Refusal { status: what.into(), nth })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::format::tests::formats;
    use super::*;

    const FIRST: u64 = 0x1_0000_0102;

    fn format(words: &str) -> Format {
        words.parse().unwrap()
    }

    fn content(format: &Format, blocks: usize) -> Vec<u8> {
        (0..blocks * format.data_bytes()).map(|n| ((n * 7) >> 4) as u8).collect()
    }

    fn tags(format: &Format) -> Tags {
        let reference = Tags::of_place(format, FIRST);
        Tags { app: 0x1234, app_mask: u16::MAX, storage: 0, reference }
    }

    /// A command with all checks that the format allows.
    fn command(format: &Format, by_device: bool) -> Command {
        Command { by_device, checks: Checks::all(format), tags: tags(format) }
    }

    /// Three blocks, and the metadata that the device makes of them.
    fn made(format: &Format) -> (Vec<u8>, Vec<u8>) {
        let data = content(format, 3);
        let sent = vec![0x5a; 3 * format.metadata_bytes()];
        let sent = (!format.is_tuple_only()).then_some(&sent[..]);
        let stored = command(format, true).write(format, FIRST, &[&data], sent).unwrap();
        (data, stored)
    }

    fn code(answer: Result<(), Refusal>) -> Option<(u16, u64)> {
        answer.err().map(|refusal| (refusal.status.code(), refusal.nth))
    }

    proptest! {
        #[test]
        fn tuples_that_the_device_makes_pass_its_checks_and_a_flipped_bit_does_not(
            format in formats(),
            at in any::<prop::sample::Index>(),
            is_data in any::<bool>(),
        ) {
            let (mut data, mut stored) = made(&format);
            let read = command(&format, true);
            prop_assert_eq!(read.read(&format, FIRST, &data, &stored), Ok(()));
            let host = command(&format, false);
            let sent = host.write(&format, FIRST, &[&data], Some(&stored));
            prop_assert_eq!(sent.as_ref(), Ok(&stored));

            let damaged = if is_data { &mut data } else { &mut stored };
            let bit = at.index(damaged.len() * 8);
            damaged[bit / 8] ^= 1 << (bit % 8);
            let per_block = if is_data { format.data_bytes() } else { format.metadata_bytes() };
            let (nth, offset) = (bit / 8 / per_block, bit / 8 % per_block);
            let tuple = format.tuple_range();
            let is_covered = is_data || match format.place() {
                Place::First => tuple.contains(&offset),
                Place::Last => true,
            };
            let tag_bytes = format.reference_bits() as usize / 8;
            let is_unchecked = format.kind() == Type::Three
                && !is_data
                && (tuple.end - tag_bytes - 1..tuple.end).contains(&offset);
            let answer = read.read(&format, FIRST, &data, &stored);
            if is_covered && !is_unchecked {
                prop_assert_eq!(answer.map_err(|refusal| refusal.nth), Err(nth as u64));
            }
            let write = host.write(&format, FIRST, &[&data], Some(&stored));
            prop_assert_eq!(write.map(drop), answer);
        }
    }

    #[test]
    fn each_part_of_a_tuple_has_its_status() {
        for words in ["512+8:16b", "4096+16:32b:type1", "4096+64:64b:type1:sts=8", "4096+16:64b"] {
            let format = format(words);
            let (data, stored) = made(&format);
            let read = command(&format, false);
            let answer = |change: &dyn Fn(&mut Tuple)| {
                let mut stored = stored.clone();
                let place = &mut stored[format.metadata_bytes()..][format.tuple_range()];
                let mut tuple = Tuple::decode(&format, place);
                change(&mut tuple);
                tuple.encode(&format, place);
                code(read.read(&format, FIRST, &data, &stored))
            };
            assert_eq!(answer(&|tuple| tuple.guard ^= 0x80), Some((0x282, 1)), "{words}");
            assert_eq!(answer(&|tuple| tuple.app ^= 1), Some((0x283, 1)), "{words}");
            assert_eq!(answer(&|tuple| tuple.reference ^= 1), Some((0x284, 1)), "{words}");
            let of_storage = (format.storage_bits() > 0).then_some((0x288, 1));
            assert_eq!(answer(&|tuple| tuple.storage ^= 1), of_storage, "{words}");
            let escape = |tuple: &mut Tuple| {
                *tuple = Tuple { guard: 0, app: 0xffff, storage: 1, reference: 0 };
            };
            assert_eq!(answer(&escape), None, "TUPLE-T2 with {words}");
        }
    }

    #[test]
    fn a_check_that_a_command_does_not_want_is_not_made() {
        let format = format("4096+8:16b:type1");
        let (mut data, stored) = made(&format);
        data[0] ^= 1;
        let mut read = command(&format, true);
        read.checks.guard = false;
        assert_eq!(read.read(&format, FIRST, &data, &stored), Ok(()));
        read.tags.app ^= 0x0f00;
        assert_eq!(code(read.read(&format, FIRST, &data, &stored)), Some((0x283, 0)));
        read.tags.app_mask = 0xf0ff;
        assert_eq!(read.read(&format, FIRST, &data, &stored), Ok(()));
    }

    #[test]
    fn types_differ_in_the_first_reference_tag_that_they_accept() {
        for (words, other_first, reference_check) in [
            ("4096+8:16b:type1", Some((0x181, 0)), None),
            ("4096+8:16b:type2", Some((0x284, 0)), None),
            ("4096+8:16b:type3", None, Some((0x181, 0))),
        ] {
            let format = format(words);
            let (data, stored) = made(&format);
            let mut read = command(&format, true);
            read.tags.reference += 7;
            assert_eq!(code(read.read(&format, FIRST, &data, &stored)), other_first, "{words}");
            let mut read = command(&format, true);
            read.checks.reference = true;
            let answer = read.read(&format, FIRST, &data, &stored);
            assert_eq!(code(answer), reference_check, "{words}");
            let write = read.write(&format, FIRST, &[&data], None);
            assert_eq!(code(write.map(drop)), reference_check, "{words}");
            read.checks.reference = false;
            read.tags.reference = 0;
            assert_eq!(read.read(&format, FIRST, &data, &stored), Ok(()), "{words}");
        }
    }

    /// As `hw/nvme/dif.c` of QEMU.
    #[test]
    fn a_device_counts_reference_tags_up_unless_they_have_type_3() {
        for (words, is_counted) in
            [("4096+8:16b:type1", 1), ("512+16:64b:type2", 1), ("4096+8:16b:type3", 0)]
        {
            let format = format(words);
            let (_, stored) = made(&format);
            let of = |nth: usize| {
                let metadata = &stored[nth * format.metadata_bytes()..];
                Tuple::decode(&format, &metadata[format.tuple_range()]).reference
            };
            assert_eq!([of(1), of(2)], [1, 2].map(|nth| of(0) + nth * is_counted), "{words}");
        }
    }

    #[test]
    fn a_device_puts_its_tuple_into_the_metadata_that_the_host_sends() {
        for place in ["first", "last"] {
            let format = format(&format!("4096+64:64b:type1:{place}"));
            let (_, stored) = made(&format);
            for block in stored.chunks(64) {
                let kept = block.iter().enumerate();
                let kept = kept.filter(|(at, _)| !format.tuple_range().contains(at));
                assert!(kept.clone().all(|(_, byte)| *byte == 0x5a));
                assert_eq!(kept.count(), 48);
            }
            let data = content(&format, 3);
            let absent = command(&format, true).write(&format, FIRST, &[&data], None);
            assert_eq!(code(absent.map(drop)), Some((0x002, 0)));
            assert!(command(&format, true).transfers_metadata(&format));
        }
        assert!(!command(&format("4096+16:64b"), true).transfers_metadata(&format("4096+16:64b")));
        let short = command(&format("4096+16:64b"), false);
        let answer = short.read(&format("4096+16:64b"), FIRST, &[0; 8192], &[0; 16]);
        assert_eq!(code(answer), Some((0x002, 0)), "each block has metadata");
        let answer = short.write(&format("4096+16:64b"), FIRST, &[&[0; 8192]], Some(&[0; 16]));
        assert_eq!(code(answer.map(drop)), Some((0x002, 0)));
    }

    #[test]
    fn codes_and_statuses_are_the_same_information() {
        for (status, code) in STATUSES {
            assert_eq!((status.code(), Status::of_code(code)), (code, Some(status)));
            assert_eq!(Status::of_code(code | 0x4000), Some(status));
        }
        assert_eq!(Status::of_code(0x286), None);
    }
}
