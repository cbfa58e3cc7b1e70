//! Bytes from a device, taken from the front: each step gives a number or an error.

use crate::damage::{Parse, demand};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Bytes<'a>(pub(crate) &'a [u8]);

impl<'a> Bytes<'a> {
    pub(crate) fn take(&mut self, count: usize) -> Parse<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(count).ok_or("it ends too early")?;
        self.0 = tail;
        Ok(head)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Parse<[u8; N]> {
        Ok(self.take(N)?.try_into().expect("as many bytes as were taken"))
    }

    pub(crate) fn u8(&mut self) -> Parse<u8> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    pub(crate) fn u16(&mut self) -> Parse<u16> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Parse<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Parse<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(crate) fn i64(&mut self) -> Parse<i64> {
        Ok(i64::from_le_bytes(self.array()?))
    }

    pub(crate) fn u128(&mut self) -> Parse<u128> {
        Ok(u128::from_le_bytes(self.array()?))
    }

    /// LEB128, at most ten bytes.
    pub(crate) fn varint(&mut self) -> Parse<u64> {
        let mut number = 0_u64;
        for shift in (0..70).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            demand(shift < 63 || bits <= 1, "a varint of more than 64 bits")?;
            number |= bits << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err("a varint of more than ten bytes".into())
    }

    pub(crate) fn magic(&mut self, magic: &[u8]) -> Parse<()> {
        demand(self.take(magic.len())? == magic, "its magic is missing")
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn end(&self) -> Parse<()> {
        demand(self.is_empty(), "bytes behind its end")
    }
}

/// `block` with the digest at `at` taken as zero, and whether that digest is the right one.
pub(crate) fn digest_fits(block: &[u8], at: usize, seed: u64) -> Parse<u128> {
    let stored = Bytes(block.get(at..).unwrap_or_default()).u128()?;
    let mut bytes = block.to_vec();
    bytes[at..at + 16].fill(0);
    let computed = xxhash_rust::xxh3::xxh3_128_with_seed(&bytes, seed);
    demand(computed == stored, "its digest does not match")?;
    Ok(stored)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_have_at_most_ten_bytes_and_64_bits() {
        let read = |bytes: &[u8]| Bytes(bytes).varint();
        assert_eq!(read(&[0x7f]), Ok(127));
        assert_eq!(read(&[0x80, 1]), Ok(128));
        let mut most = [0xff; 10];
        most[9] = 1;
        assert_eq!(read(&most), Ok(u64::MAX));
        most[9] = 2;
        assert!(read(&most).is_err());
        assert!(read(&[0x80; 11]).is_err());
        assert!(read(&[0x80]).is_err());
    }
}
