//! Varints and fixed integers, for structures without a fixed shape.
//!
//! Varints are LEB128: seven bits a byte, low bits first, at most ten bytes.

use crate::FormatError;

pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Reads from untrusted bytes; every step may find them cut short.
pub struct Reader<'a> {
    what: &'static str,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// The parameter `what` names the structure in errors.
    pub fn new(what: &'static str, bytes: &'a [u8]) -> Reader<'a> {
        Reader { what, rest: bytes }
    }

    /// All that has not been read.
    pub fn rest(self) -> &'a [u8] {
        self.rest
    }

    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8], FormatError> {
        if len > self.rest.len() {
            return Err(FormatError::Short { what: self.what, len: self.rest.len() });
        }
        let (head, tail) = self.rest.split_at(len);
        self.rest = tail;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        Ok(self.bytes(N)?.try_into().expect("bytes gives as many as asked"))
    }

    pub fn u8(&mut self) -> Result<u8, FormatError> {
        Ok(self.array::<1>()?[0])
    }

    pub fn u32(&mut self) -> Result<u32, FormatError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub fn u64(&mut self) -> Result<u64, FormatError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub fn u128(&mut self) -> Result<u128, FormatError> {
        Ok(u128::from_le_bytes(self.array()?))
    }

    pub fn varint(&mut self) -> Result<u64, FormatError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(FormatError::Field { what: self.what, field: "varint", value })
    }

    /// A varint that must not exceed `most`.
    pub fn bounded(&mut self, field: &'static str, most: u64) -> Result<u64, FormatError> {
        let value = self.varint()?;
        if value > most {
            return Err(FormatError::Field { what: self.what, field, value });
        }
        Ok(value)
    }

    /// The error for a field with a value that cannot be.
    pub fn bad(&self, field: &'static str, value: u64) -> FormatError {
        FormatError::Field { what: self.what, field, value }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_come_back_and_overlong_ones_do_not() {
        for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX] {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            assert_eq!(Reader::new("test", &out).varint().unwrap(), value);
        }
        assert!(Reader::new("test", &[0xff; 10]).varint().is_err());
        assert!(Reader::new("test", &[0x80]).varint().is_err());
    }
}
