//! A bucket of extended attributes: those of an inode whose names' hashes share a key.
//!
//! ```text
//! per attribute, by index:  index u8 · place u8 (0 here, 1 in pieces) · name length u8 · 0 u8 ·
//!                           value length u32 · name · value, if it is here
//! ```
//!
//! A value of more than [`XATTR_SHORT_MAX`] bytes is cut into items of [`XATTR_VALUE_PIECE`] bytes
//! under the same inode; [`xattr_piece`] computes their places.

use copyhold_types::{InodeNo, Key};

use super::XATTR_VALUE;
use crate::FormatError;
use crate::wire::Reader;

const WHAT: &str = "attribute bucket";

/// Longest name, with its namespace.
pub const XATTR_NAME_MAX: usize = 255;
/// Longest value, as Linux has it.
pub const XATTR_VALUE_MAX: usize = 65_536;
/// Longest value that is kept beside its name.
pub const XATTR_SHORT_MAX: usize = 1024;
/// Bytes in each piece of a longer one.
pub const XATTR_VALUE_PIECE: usize = 2048;
/// Bytes that a bucket may grow to.
pub const XATTR_BUCKET_MAX: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrValue<'a> {
    Here(&'a [u8]),
    /// In pieces; this many bytes.
    Pieces(usize),
}

impl XattrValue<'_> {
    pub fn len(&self) -> usize {
        match self {
            XattrValue::Here(bytes) => bytes.len(),
            XattrValue::Pieces(len) => *len,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many items hold the value, beside the bucket.
    pub fn pieces(&self) -> usize {
        match self {
            XattrValue::Here(_) => 0,
            XattrValue::Pieces(len) => len.div_ceil(XATTR_VALUE_PIECE),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Xattr<'a> {
    pub index: u8,
    pub name: &'a [u8],
    pub value: XattrValue<'a>,
}

/// A parsed bucket: its bytes are known to be good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XattrBucket<'a>(&'a [u8]);

/// The key of piece `n` of the long value of attribute `index` in `bucket`.
pub fn xattr_piece(ino: InodeNo, bucket: u64, index: u8, n: usize) -> Key {
    assert!(bucket & 0xffff == 0 && n < 256);
    Key::new(ino.0, XATTR_VALUE, bucket | u64::from(index) << 8 | n as u64)
}

impl<'a> XattrBucket<'a> {
    pub const EMPTY: XattrBucket<'static> = XattrBucket(&[]);

    pub fn parse(value: &'a [u8]) -> Result<XattrBucket<'a>, FormatError> {
        let mut reader = Reader::new(WHAT, value);
        let mut next = 0;
        while !reader.is_empty() {
            let entry = read(&mut reader)?;
            if u32::from(entry.index) < next {
                return Err(reader.bad("index", entry.index.into()));
            }
            next = u32::from(entry.index) + 1;
        }
        Ok(XattrBucket(value))
    }

    pub fn iter(&self) -> impl Iterator<Item = Xattr<'a>> + use<'a> {
        let mut reader = Reader::new(WHAT, self.0);
        std::iter::from_fn(move || {
            (!reader.is_empty()).then(|| read(&mut reader).expect("checked by parse"))
        })
    }

    pub fn find(&self, name: &[u8]) -> Option<Xattr<'a>> {
        self.iter().find(|entry| entry.name == name)
    }

    /// The bucket in which `name` has `value`, and the attribute's index; `None`: no room.
    pub fn with(&self, name: &[u8], value: XattrValue<'_>) -> Option<(Vec<u8>, u8)> {
        let index = match self.find(name) {
            Some(old) => old.index,
            None => (0..=u8::MAX).find(|free| self.iter().all(|entry| entry.index != *free))?,
        };
        let new = Xattr { index, name, value };
        let mut out = Vec::with_capacity(self.0.len() + 8 + name.len() + value.len());
        self.iter().filter(|entry| entry.index < index).for_each(|entry| append(&mut out, &entry));
        append(&mut out, &new);
        self.iter().filter(|entry| entry.index > index).for_each(|entry| append(&mut out, &entry));
        (out.len() <= XATTR_BUCKET_MAX).then_some((out, index))
    }

    /// The bucket without `name`.
    pub fn without(&self, name: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.0.len());
        self.iter().filter(|entry| entry.name != name).for_each(|entry| append(&mut out, &entry));
        out
    }
}

fn append(out: &mut Vec<u8>, entry: &Xattr<'_>) {
    assert!((1..=XATTR_NAME_MAX).contains(&entry.name.len()));
    let place = matches!(entry.value, XattrValue::Pieces(_)) as u8;
    out.extend_from_slice(&[entry.index, place, entry.name.len() as u8, 0]);
    out.extend_from_slice(&(entry.value.len() as u32).to_le_bytes());
    out.extend_from_slice(entry.name);
    if let XattrValue::Here(bytes) = entry.value {
        out.extend_from_slice(bytes);
    }
}

fn read<'a>(reader: &mut Reader<'a>) -> Result<Xattr<'a>, FormatError> {
    let (index, place, name_len, zero) = (reader.u8()?, reader.u8()?, reader.u8()?, reader.u8()?);
    let len = reader.u32()? as usize;
    let name = reader.bytes(name_len.into())?;
    if zero != 0 || name.is_empty() || name.contains(&0) {
        return Err(reader.bad("name", name_len.into()));
    }
    let value = match place {
        0 if len <= XATTR_SHORT_MAX => XattrValue::Here(reader.bytes(len)?),
        1 if (XATTR_SHORT_MAX + 1..=XATTR_VALUE_MAX).contains(&len) => XattrValue::Pieces(len),
        0 | 1 => return Err(reader.bad("length", len as u64)),
        _ => return Err(reader.bad("place", place.into())),
    };
    Ok(Xattr { index, name, value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_set_changed_and_removed() {
        let (one, first) = XattrBucket::EMPTY.with(b"user.a", XattrValue::Here(b"1")).unwrap();
        let bucket = XattrBucket::parse(&one).unwrap();
        let (two, second) = bucket.with(b"user.b", XattrValue::Pieces(5000)).unwrap();
        assert_eq!((first, second), (0, 1));
        let bucket = XattrBucket::parse(&two).unwrap();
        assert_eq!(bucket.find(b"user.b").unwrap().value.pieces(), 3);
        let (three, again) = bucket.with(b"user.a", XattrValue::Here(b"")).unwrap();
        assert_eq!(again, 0);
        let left = XattrBucket::parse(&three).unwrap().without(b"user.b");
        let left = XattrBucket::parse(&left).unwrap();
        assert_eq!(left.iter().count(), 1);
        assert_eq!(left.find(b"user.a").unwrap().value, XattrValue::Here(b""));
    }

    #[test]
    fn a_bucket_does_not_outgrow_its_item() {
        let value = XattrValue::Here(&[1; XATTR_SHORT_MAX]);
        let mut bytes = Vec::new();
        let mut taken = 0;
        while let Some((more, _)) =
            XattrBucket::parse(&bytes).unwrap().with(format!("user.{taken}").as_bytes(), value)
        {
            bytes = more;
            taken += 1;
        }
        assert_eq!(taken, 3);
    }
}
