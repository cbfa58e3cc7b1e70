//! A bucket of directory entries: the names of a directory whose hashes share a key.
//!
//! ```text
//! per entry, by index:  index u8 · type u8 (DT_*, 13: subvolume) · name length u8 · 0 u8 ·
//!                       inode u64 · name
//! ```
//!
//! An entry keeps its index while it lives; a new one takes the lowest that is free (R41).

use copyhold_types::{InodeNo, SubvolId};

use crate::FormatError;
use crate::wire::Reader;

const WHAT: &str = "directory bucket";

/// The type of an entry that leads to another subvolume; its number is in the place of the
/// inode's.
pub const DIRENT_SUBVOL: u8 = 13;
/// Longest name, in bytes.
pub const NAME_MAX: usize = 255;
/// Entries that a bucket can hold.
pub const DIRENT_BUCKET_MAX: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dirent<'a> {
    pub index: u8,
    /// `DT_*`, one of the seven that exist, or [`DIRENT_SUBVOL`].
    pub kind: u8,
    pub ino: InodeNo,
    /// 1 to [`NAME_MAX`] bytes, neither "/" nor zero among them.
    pub name: &'a [u8],
}

/// A parsed bucket: its bytes are known to be good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirBucket<'a>(&'a [u8]);

impl<'a> DirBucket<'a> {
    pub const EMPTY: DirBucket<'static> = DirBucket(&[]);

    pub fn parse(value: &'a [u8]) -> Result<DirBucket<'a>, FormatError> {
        let mut reader = Reader::new(WHAT, value);
        let mut next = 0;
        while !reader.is_empty() {
            let entry = read(&mut reader)?;
            if u32::from(entry.index) < next {
                return Err(reader.bad("index", entry.index.into()));
            }
            next = u32::from(entry.index) + 1;
        }
        Ok(DirBucket(value))
    }

    pub fn iter(&self) -> impl Iterator<Item = Dirent<'a>> + use<'a> {
        let mut reader = Reader::new(WHAT, self.0);
        std::iter::from_fn(move || {
            (!reader.is_empty()).then(|| read(&mut reader).expect("checked by parse"))
        })
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn find(&self, name: &[u8]) -> Option<Dirent<'a>> {
        self.iter().find(|entry| entry.name == name)
    }

    /// The bucket with another entry, which is not in it yet; its index is chosen here. `None`:
    /// full.
    pub fn with(&self, kind: u8, ino: InodeNo, name: &[u8]) -> Option<Vec<u8>> {
        debug_assert!(self.find(name).is_none());
        let mut out = Vec::with_capacity(self.0.len() + 12 + name.len());
        let mut free = Some(0u8);
        let mut placed = false;
        for entry in self.iter() {
            if !placed && Some(entry.index) != free {
                append(&mut out, &Dirent { index: free?, kind, ino, name });
                placed = true;
            }
            free = entry.index.checked_add(1);
            append(&mut out, &entry);
        }
        if !placed {
            append(&mut out, &Dirent { index: free?, kind, ino, name });
        }
        Some(out)
    }

    /// The bucket without `name`.
    pub fn without(&self, name: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.0.len());
        self.iter().filter(|entry| entry.name != name).for_each(|entry| append(&mut out, &entry));
        out
    }

    /// The bucket in which `name` leads elsewhere; its cookie stays.
    pub fn replaced(&self, name: &[u8], kind: u8, ino: InodeNo) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.0.len());
        for entry in self.iter() {
            let entry = if entry.name == name { Dirent { kind, ino, ..entry } } else { entry };
            append(&mut out, &entry);
        }
        out
    }
}

fn append(out: &mut Vec<u8>, entry: &Dirent<'_>) {
    assert!((1..=NAME_MAX).contains(&entry.name.len()), "name of {} bytes", entry.name.len());
    out.extend_from_slice(&[entry.index, entry.kind, entry.name.len() as u8, 0]);
    out.extend_from_slice(&entry.ino.0.to_le_bytes());
    out.extend_from_slice(entry.name);
}

fn read<'a>(reader: &mut Reader<'a>) -> Result<Dirent<'a>, FormatError> {
    let (index, kind, len, zero) = (reader.u8()?, reader.u8()?, reader.u8()?, reader.u8()?);
    let ino = reader.u64()?;
    let name = reader.bytes(len.into())?;
    if !matches!(kind, 1 | 2 | 4 | 6 | 8 | 10 | 12 | DIRENT_SUBVOL) {
        return Err(reader.bad("type", kind.into()));
    }
    let bits = if kind == DIRENT_SUBVOL { SubvolId::BITS } else { InodeNo::BITS };
    if ino == 0 || ino >> bits != 0 {
        return Err(reader.bad("inode", ino));
    }
    if zero != 0 || name.is_empty() || name.iter().any(|&byte| byte == 0 || byte == b'/') {
        return Err(reader.bad("name", len.into()));
    }
    Ok(Dirent { index, kind, ino: InodeNo(ino), name })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FILE: u8 = 8;

    #[test]
    fn an_index_stays_while_the_entry_lives_and_is_taken_again_after() {
        let one = DirBucket::EMPTY.with(FILE, InodeNo(10), b"a").unwrap();
        let two = DirBucket::parse(&one).unwrap().with(FILE, InodeNo(11), b"b").unwrap();
        let less = DirBucket::parse(&two).unwrap().without(b"a");
        let less = DirBucket::parse(&less).unwrap();
        assert_eq!(less.find(b"b").unwrap().index, 1);
        let more = less.with(4, InodeNo(12), b"c").unwrap();
        let more = DirBucket::parse(&more).unwrap();
        assert_eq!(more.find(b"c").unwrap().index, 0);
        assert_eq!(more.find(b"b").unwrap().index, 1);
    }

    #[test]
    fn a_full_bucket_says_so() {
        let mut bytes = Vec::new();
        for n in 0..DIRENT_BUCKET_MAX {
            let name = n.to_string();
            bytes =
                DirBucket::parse(&bytes).unwrap().with(FILE, InodeNo(2), name.as_bytes()).unwrap();
        }
        assert_eq!(DirBucket::parse(&bytes).unwrap().with(FILE, InodeNo(2), b"x"), None);
    }

    proptest! {
        #[test]
        fn a_bucket_is_a_map_of_names(ops in proptest::collection::vec((0u8..3, 0u8..12, 1u64..100), 0..60)) {
            let mut bytes = Vec::new();
            let mut model = std::collections::BTreeMap::new();
            for (op, name, ino) in ops {
                let name = vec![b'a' + name];
                let bucket = DirBucket::parse(&bytes).unwrap();
                let next = match (op, bucket.find(&name).is_some()) {
                    (0, false) => {
                        model.insert(name.clone(), ino);
                        bucket.with(FILE, InodeNo(ino), &name).unwrap()
                    }
                    (1, true) => {
                        model.insert(name.clone(), ino);
                        bucket.replaced(&name, FILE, InodeNo(ino))
                    }
                    _ => {
                        model.remove(&name);
                        bucket.without(&name)
                    }
                };
                bytes = next;
                let bucket = DirBucket::parse(&bytes).unwrap();
                let found: std::collections::BTreeMap<_, _> =
                    bucket.iter().map(|entry| (entry.name.to_vec(), entry.ino.0)).collect();
                prop_assert_eq!(&found, &model);
            }
        }
    }
}
