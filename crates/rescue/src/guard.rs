//! Guards: the checksums of tuples (`docs/integrity.md`, 2), from tables of one byte each.
//!
//! The engine computes them with a crate for vector units. A fault there would look right to it, so
//! this reader does not use it.

/// The checksum, and with it the layout of a tuple.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guard {
    /// CRC-16/T10-DIF: the first bit is the highest.
    Crc16,
    /// CRC-32C: the first bit is the lowest.
    Crc32,
    /// CRC-64/NVME, likewise.
    Crc64,
}

const POLYNOMIAL_16: u16 = 0x8bb7;
/// With its bits in the other order, as the next one.
const POLYNOMIAL_32: u64 = 0x82f6_3b78;
const POLYNOMIAL_64: u64 = 0x9a6c_9329_ac4b_c9b5;

static TABLE_16: [u16; 256] = high_first(POLYNOMIAL_16);
static TABLE_32: [u64; 256] = low_first(POLYNOMIAL_32);
static TABLE_64: [u64; 256] = low_first(POLYNOMIAL_64);

const fn high_first(polynomial: u16) -> [u16; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut sum = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            sum = if sum >> 15 == 1 { sum << 1 ^ polynomial } else { sum << 1 };
            bit += 1;
        }
        table[byte] = sum;
        byte += 1;
    }
    table
}

const fn low_first(polynomial: u64) -> [u64; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut sum = byte as u64;
        let mut bit = 0;
        while bit < 8 {
            sum = if sum & 1 == 1 { sum >> 1 ^ polynomial } else { sum >> 1 };
            bit += 1;
        }
        table[byte] = sum;
        byte += 1;
    }
    table
}

impl Guard {
    pub(crate) fn of_bits(bits: u8) -> Option<Guard> {
        match bits {
            16 => Some(Guard::Crc16),
            32 => Some(Guard::Crc32),
            64 => Some(Guard::Crc64),
            _ => None,
        }
    }

    /// Bytes of the guard, and of the whole tuple.
    pub(crate) fn bytes(self) -> (usize, usize) {
        match self {
            Guard::Crc16 => (2, 8),
            Guard::Crc32 => (4, 16),
            Guard::Crc64 => (8, 16),
        }
    }

    /// The guard of `data`, and of `more` behind it.
    pub(crate) fn of(self, data: &[u8], more: &[u8]) -> u64 {
        let bytes = data.iter().chain(more);
        let reflected = |table: &[u64; 256], ones: u64| {
            let step = |sum: u64, byte: &u8| sum >> 8 ^ table[usize::from(sum as u8 ^ byte)];
            bytes.clone().fold(ones, step) ^ ones
        };
        match self {
            Guard::Crc16 => bytes
                .fold(0, |sum: u16, byte| sum << 8 ^ TABLE_16[usize::from((sum >> 8) as u8 ^ byte)])
                .into(),
            Guard::Crc32 => reflected(&TABLE_32, u32::MAX.into()),
            Guard::Crc64 => reflected(&TABLE_64, u64::MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_vectors_hold() {
        let (zeros, ones) = ([0; 4096], [0xff; 4096]);
        let vectors = [
            (Guard::Crc16, [0xd0db, 0, 0x8b5d]),
            (Guard::Crc32, [0xe306_9283, 0x98f9_4189, 0x25c1_fe13]),
            (Guard::Crc64, [0xae8b_1486_0a79_9888, 0x6482_d367_eb22_b64e, 0xc0dd_ba73_02ec_a3ac]),
        ];
        for (guard, sums) in vectors {
            assert_eq!(guard.of(b"12345", b"6789"), sums[0], "{guard:?}");
            assert_eq!(guard.of(&zeros, b""), sums[1], "{guard:?}");
            assert_eq!(guard.of(b"", &ones), sums[2], "{guard:?}");
        }
    }
}
