//! Guards: the checksums of protection information.
//!
//! `crc-fast` computes all three with the vector units of the CPU, some 40 GB/s each
//! (`examples/guard_speed.rs`): a tenth of a microsecond for 4 KiB. The format of the pool uses it
//! for its own checksums, so it brings no code that was not there. Tests compare it with the
//! vectors that are published, and with a checksum bit by bit.

use std::fmt;
use std::str::FromStr;

use crc_fast::{CrcAlgorithm, Digest, checksum};

use super::FormatError;

/// The checksum, and with it the layout of a tuple.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// CRC-16/T10-DIF.
    Crc16,
    /// CRC-32C.
    Crc32,
    /// CRC-64/NVME.
    Crc64,
}

impl Guard {
    pub const ALL: [Guard; 3] = [Guard::Crc16, Guard::Crc32, Guard::Crc64];

    pub fn bits(self) -> u32 {
        match self {
            Guard::Crc16 => 16,
            Guard::Crc32 => 32,
            Guard::Crc64 => 64,
        }
    }

    pub fn of_bits(bits: u32) -> Result<Guard, FormatError> {
        let guard = Guard::ALL.into_iter().find(|guard| guard.bits() == bits);
        guard.ok_or_else(|| FormatError::Guard(format!("{bits}b")))
    }

    /// Bytes of a tuple with this guard.
    pub fn tuple_bytes(self) -> u32 {
        match self {
            Guard::Crc16 => 8,
            Guard::Crc32 | Guard::Crc64 => 16,
        }
    }

    /// Bits of storage and reference tag together: behind guard and application tag.
    pub fn field_bits(self) -> u32 {
        self.tuple_bytes() * 8 - self.bits() - 16
    }

    /// Least and most bits of the storage tag.
    pub fn storage_bits(self) -> (u32, u32) {
        match self {
            Guard::Crc16 => (0, 32),
            Guard::Crc32 => (16, 64),
            Guard::Crc64 => (0, 48),
        }
    }

    /// The guard of these bytes, and of `more` behind them.
    pub fn of(self, data: &[u8], more: &[u8]) -> u64 {
        if more.is_empty() {
            return checksum(self.algorithm(), data);
        }
        let mut digest = Digest::new(self.algorithm());
        digest.update(data);
        digest.update(more);
        digest.finalize()
    }

    fn algorithm(self) -> CrcAlgorithm {
        match self {
            Guard::Crc16 => CrcAlgorithm::Crc16T10Dif,
            Guard::Crc32 => CrcAlgorithm::Crc32Iscsi,
            Guard::Crc64 => CrcAlgorithm::Crc64Nvme,
        }
    }
}

impl fmt::Display for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}b", self.bits())
    }
}

impl FromStr for Guard {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<Guard, FormatError> {
        let guard = Guard::ALL.into_iter().find(|guard| guard.to_string() == text);
        guard.ok_or_else(|| FormatError::Guard(text.into()))
    }
}

#[cfg(test)]
mod tests {
    use copyhold_types::BLOCK_BYTES;
    use proptest::prelude::*;

    use super::*;

    /// As the standards state them: polynomial, start and end, and whether bits are reflected.
    fn bit_by_bit(guard: Guard, bytes: &[u8]) -> u64 {
        let (polynomial, is_reflected) = match guard {
            Guard::Crc16 => (0x8bb7, false),
            Guard::Crc32 => (0x1edc_6f41, true),
            Guard::Crc64 => (0xad93_d235_94c9_3659, true),
        };
        let bits = guard.bits();
        let mask = u64::MAX >> (64 - bits);
        let ends = if is_reflected { mask } else { 0 };
        let mut sum: u64 = ends;
        for byte in bytes {
            let byte = if is_reflected { byte.reverse_bits() } else { *byte };
            sum ^= u64::from(byte) << (bits - 8);
            for _ in 0..8 {
                let carry = sum >> (bits - 1) & 1;
                sum = (sum << 1 & mask) ^ (carry * polynomial);
            }
        }
        let sum = if is_reflected { sum.reverse_bits() >> (64 - bits) } else { sum };
        sum ^ ends
    }

    #[test]
    fn published_vectors_hold() {
        let up: Vec<u8> = (0..BLOCK_BYTES).map(|n| n as u8).collect();
        let down: Vec<u8> = up.iter().map(|byte| !byte).collect();
        let inputs: [&[u8]; 5] =
            [b"123456789", &[0; BLOCK_BYTES], &[0xff; BLOCK_BYTES], &up, &down];
        let wanted = [
            (Guard::Crc16, [0xd0db, 0, 0x8b5d, 0x8f6d, 0x0430]),
            (Guard::Crc32, [0xe306_9283, 0x98f9_4189, 0x25c1_fe13, 0x9c71_fe32, 0x2149_41a8]),
            (
                Guard::Crc64,
                [
                    0xae8b_1486_0a79_9888,
                    0x6482_d367_eb22_b64e,
                    0xc0dd_ba73_02ec_a3ac,
                    0x3e72_9f5f_6750_449c,
                    0x9a2d_f64b_8e9e_517e,
                ],
            ),
        ];
        for (guard, sums) in wanted {
            for (input, sum) in inputs.iter().zip(sums) {
                assert_eq!(guard.of(input, &[]), sum, "{guard} of {:?}", &input[..9]);
                assert_eq!(bit_by_bit(guard, input), sum, "{guard} of {:?}", &input[..9]);
            }
        }
    }

    proptest! {
        #[test]
        fn a_guard_is_the_checksum_bit_by_bit(
            bytes in prop::collection::vec(any::<u8>(), 0..600),
            cut in any::<prop::sample::Index>(),
        ) {
            let (data, more) = bytes.split_at(cut.index(bytes.len() + 1));
            for guard in Guard::ALL {
                prop_assert_eq!(guard.of(data, more), bit_by_bit(guard, &bytes));
            }
        }
    }
}
