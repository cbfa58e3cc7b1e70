//! Commands of NVMe: their fields, and the seam to a drive.
//!
//! The fields are those of the NVM Command Set specification: the block in double words 10 and 11,
//! the number of blocks and the checks in 12, the first storage and reference tag in 14, 3 and 2,
//! the application tag and its mask in 15.

use std::io;

use crate::pi::{Checks, Command, Format};

/// Bytes of each page of Identify.
pub const PAGE_BYTES: usize = 4096;
const FLUSH: u8 = 0x00;
const WRITE: u8 = 0x01;
const READ: u8 = 0x02;
const IDENTIFY: u8 = 0x06;
const DATASET_MANAGEMENT: u8 = 0x09;

/// The queue that a command goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    Admin,
    Io,
}

/// The fields of a command that are not the same in all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Fields {
    pub(super) opcode: u8,
    pub(super) namespace: u32,
    /// Double words 2 and 3.
    pub(super) low: [u32; 2],
    /// Double words 10 to 15.
    pub(super) high: [u32; 6],
}

/// The bytes that go with a command. Metadata may be empty: then none are transferred.
pub(super) enum Transfer<'b> {
    None,
    ToHost { data: &'b mut [u8], metadata: &'b mut [u8] },
    ToDrive { data: &'b [u8], metadata: &'b [u8] },
}

/// A drive, or the way to one.
pub(super) trait Commands: Send + Sync {
    /// Carries out one command once, and waits for its end: its status code type and status code,
    /// as in `SCT << 8 | SC` (the bits above are hints, such as Do Not Retry), or 0. An error if
    /// the drive has not answered. After EINTR, which is a reset of the controller, the command
    /// may have been carried out.
    fn execute(&self, queue: Queue, fields: &Fields, transfer: Transfer<'_>) -> io::Result<u16>;

    /// Waits before a command is repeated.
    fn pause(&self);
}

impl Transfer<'_> {
    /// The same bytes, for one of several commands.
    pub(super) fn again(&mut self) -> Transfer<'_> {
        match self {
            Transfer::None => Transfer::None,
            Transfer::ToHost { data, metadata } => Transfer::ToHost { data, metadata },
            Transfer::ToDrive { data, metadata } => Transfer::ToDrive { data, metadata },
        }
    }
}

impl Fields {
    /// Of a page of Identify: `what` is its number (CNS), `set` the command set that it is of.
    pub(super) fn identify(namespace: u32, what: u8, set: u8) -> Fields {
        let high = [what.into(), u32::from(set) << 24, 0, 0, 0, 0];
        Fields { opcode: IDENTIFY, namespace, high, ..Fields::default() }
    }

    pub(super) fn flush(namespace: u32) -> Fields {
        Fields { opcode: FLUSH, namespace, ..Fields::default() }
    }

    /// Deallocates one range, which [`deallocated_range`] describes.
    pub(super) fn deallocate(namespace: u32) -> Fields {
        let high = [0, 1 << 2, 0, 0, 0, 0];
        Fields { opcode: DATASET_MANAGEMENT, namespace, high, ..Fields::default() }
    }

    /// Reads `blocks` of the drive's blocks from `first` on.
    pub(super) fn read(
        namespace: u32,
        (first, blocks): (u64, u32),
        format: &Format,
        command: &Command,
    ) -> Fields {
        Fields::of_blocks(READ, namespace, (first, blocks), format, command)
    }

    /// Writes `blocks` of the drive's blocks from `first` on.
    pub(super) fn write(
        namespace: u32,
        (first, blocks): (u64, u32),
        format: &Format,
        command: &Command,
    ) -> Fields {
        Fields::of_blocks(WRITE, namespace, (first, blocks), format, command)
    }

    fn of_blocks(
        opcode: u8,
        namespace: u32,
        (first, blocks): (u64, u32),
        format: &Format,
        command: &Command,
    ) -> Fields {
        assert!((1..=1 << 16).contains(&blocks), "a command covers {blocks} blocks");
        let tuple = command.tags.tuple(format, 0);
        // Storage and reference tag together, in the width that the guard leaves.
        let field =
            u128::from(tuple.storage) << format.reference_bits() | u128::from(tuple.reference);
        let word = |nth: u32| (field >> (32 * nth)) as u32;
        let tags = u32::from(command.tags.app_mask) << 16 | u32::from(tuple.app);
        Fields {
            opcode,
            namespace,
            low: [word(2), word(1)],
            high: [
                first as u32,
                (first >> 32) as u32,
                protection_bits(command) | (blocks - 1),
                0,
                word(0),
                tags,
            ],
        }
    }
}

/// The maker of the tuple and the comparisons of the drive: in double word 12.
fn protection_bits(command: &Command) -> u32 {
    let Checks { guard, app, reference, storage } = command.checks;
    [(storage, 24), (reference, 26), (app, 27), (guard, 28), (command.by_device, 29)]
        .into_iter()
        .map(|(is_set, bit)| u32::from(is_set) << bit)
        .sum()
}

/// The data of a command that deallocates one range of the drive's blocks.
pub(super) fn deallocated_range(first: u64, blocks: u32) -> [u8; 16] {
    let mut range = [0; 16];
    range[4..8].copy_from_slice(&blocks.to_le_bytes());
    range[8..].copy_from_slice(&first.to_le_bytes());
    range
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pi::Tags;

    const ALL: Checks = Checks { guard: true, app: true, reference: true, storage: true };

    fn fields(format: &str, storage: u64, reference: u64) -> Fields {
        let format = format.parse().unwrap();
        let tags = Tags { app: 0x1234, app_mask: 0xfff0, storage, reference };
        let command = Command { by_device: false, checks: ALL, tags };
        Fields::read(7, (0x1_2345_6789, 0x101), &format, &command)
    }

    #[test]
    fn the_block_the_checks_and_the_application_tag_have_their_places() {
        let fields = fields("4096+8:16b", 0, 0x8765_4321);
        assert_eq!((fields.opcode, fields.namespace, fields.low), (0x02, 7, [0, 0]));
        let words = [0x2345_6789, 1, 0x1d00_0100, 0, 0x8765_4321, 0xfff0_1234];
        assert_eq!(fields.high, words);
        let by_device = Command {
            by_device: true,
            checks: Checks::NONE,
            tags: Tags { app: 0, app_mask: 0, storage: 0, reference: 0 },
        };
        let format = "4096+8:16b".parse().unwrap();
        let write = Fields::write(1, (9, 1), &format, &by_device);
        assert_eq!((write.opcode, write.high), (0x01, [9, 0, 0x2000_0000, 0, 0, 0]));
    }

    #[test]
    fn storage_and_reference_tag_share_a_field_of_the_width_that_the_guard_leaves() {
        let place = |fields: Fields| (fields.high[4], fields.low);
        let of_64 = fields("4096+16:64b", 0, 0xfedc_8765_4321);
        assert_eq!(place(of_64), (0x8765_4321, [0, 0xfedc]));
        let shared = fields("4096+16:64b:sts=16", 0xabcd, 0xfedc_8765_4321);
        assert_eq!(place(shared), (0x8765_4321, [0, 0xabcd]));
        let of_32 = fields("4096+16:32b:sts=16", 0xabcd, 0x1234_5678_9abc_def0);
        assert_eq!(place(of_32), (0x9abc_def0, [0xabcd, 0x1234_5678]));
        let of_16 = fields("4096+8:16b:sts=8", 0xcd, 0x12_3456);
        assert_eq!(place(of_16), (0xcd12_3456, [0, 0]));
    }

    #[test]
    fn a_range_is_little_endian() {
        let range = deallocated_range(0x0102_0304_0506, 0x0a0b_0c0d);
        assert_eq!(range, [0, 0, 0, 0, 0xd, 0xc, 0xb, 0xa, 6, 5, 4, 3, 2, 1, 0, 0]);
    }
}
