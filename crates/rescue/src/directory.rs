//! Entries of directories and attributes of files (`docs/format.md`, 9.3 and 9.4).

use std::collections::VecDeque;

use crate::bytes::Bytes;
use crate::damage::{Damage, Parse, demand};
use crate::files::Files;
use crate::key::{ENTRIES, Key, XATTR_PIECE, XATTRS};
use crate::tables::Found;

/// The type of an entry that leads to a subvolume, by its number.
const TO_SUBVOLUME: u8 = 13;
const VALUE_MAX: usize = 64 << 10;
const PIECE: usize = 2048;

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) name: Vec<u8>,
    pub(crate) to: Target,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Inode(u64),
    Subvolume(u64),
}

/// Whether a name can be one of a file: a name of a damaged image may be "..".
fn is_name(name: &[u8]) -> bool {
    let plain = !name.is_empty() && !name.contains(&0) && !name.contains(&b'/');
    plain && name != b"." && name != b".."
}

fn entries(value: &[u8]) -> Parse<Vec<Entry>> {
    let mut bytes = Bytes(value);
    let mut entries = Vec::new();
    while !bytes.is_empty() {
        let (_index, kind, length, _) = (bytes.u8()?, bytes.u8()?, bytes.u8()?, bytes.u8()?);
        let number = bytes.u64()?;
        let name = bytes.take(length.into())?.to_vec();
        demand(is_name(&name), "a name that no file can have")?;
        let to = if kind == TO_SUBVOLUME { Target::Subvolume } else { Target::Inode };
        entries.push(Entry { name, to: to(number) });
    }
    Ok(entries)
}

/// Goes through a directory, a window of its table at a time.
#[derive(Debug)]
pub(crate) struct Listing {
    directory: u64,
    from: Option<Key>,
    ready: VecDeque<Entry>,
    pub(crate) damage: VecDeque<Damage>,
}

impl Listing {
    pub(crate) fn of(directory: u64) -> Listing {
        let from = Some(Key::new(directory, ENTRIES, 0));
        Listing { directory, from, ready: VecDeque::new(), damage: VecDeque::new() }
    }

    pub(crate) fn next(&mut self, files: &Files<'_>) -> Option<Entry> {
        let last = Key::new(self.directory, ENTRIES, u64::MAX);
        while self.ready.is_empty() {
            let first = self.from.filter(|first| *first <= last)?;
            let window = files.window(first, last);
            self.from = window.last.next();
            let wrong = |why| Damage::new("names", why);
            for (_, value) in &window.items {
                match entries(value) {
                    Ok(found) => self.ready.extend(found),
                    Err(why) => self.damage.push_back(wrong(why)),
                }
            }
            self.damage.extend(window.damage.map(|damage| wrong(damage.to_string())));
        }
        self.ready.pop_front()
    }
}

/// An attribute of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attribute {
    pub name: Vec<u8>,
    pub value: Vec<u8>,
}

/// Attributes in the order of their hashes, and the damage.
pub(crate) fn attributes(files: &Files<'_>, inode: u64) -> (Vec<Attribute>, Vec<Damage>) {
    let (mut found, mut damage) = (Vec::new(), Vec::new());
    let (first, last) = (Key::new(inode, XATTRS, 0), Key::new(inode, XATTRS, u64::MAX));
    let mut buckets = Vec::new();
    files.scan(first, last, |item| match item {
        Found::Item(key, value) => buckets.push((key.offset, value.to_vec())),
        Found::Lost { damage: lost, .. } => {
            damage.push(Damage::new("attributes", lost));
        }
    });
    for (bucket, value) in buckets {
        let mut bytes = Bytes(&value);
        while !bytes.is_empty() {
            match attribute(files, inode, bucket, &mut bytes) {
                Ok(attribute) => found.push(attribute),
                Err(why) => {
                    damage.push(Damage::new("attributes", why));
                    break;
                }
            }
        }
    }
    (found, damage)
}

fn attribute(
    files: &Files<'_>,
    inode: u64,
    bucket: u64,
    bytes: &mut Bytes<'_>,
) -> Parse<Attribute> {
    let (index, place, length, _) = (bytes.u8()?, bytes.u8()?, bytes.u8()?, bytes.u8()?);
    let size = bytes.u32()? as usize;
    demand(size <= VALUE_MAX, "a value that is too long")?;
    demand(place <= 1, "a value that is nowhere")?;
    let name = bytes.take(length.into())?.to_vec();
    demand(!name.is_empty() && !name.contains(&0), "a name that no attribute can have")?;
    if place == 0 {
        return Ok(Attribute { name, value: bytes.take(size)?.to_vec() });
    }
    let mut value = Vec::new();
    let first = bucket.saturating_add(256 * u64::from(index));
    for nth in 0..size.div_ceil(PIECE) as u64 {
        let piece = files.get(Key::new(inode, XATTR_PIECE, first.saturating_add(nth)));
        let piece = piece.map_err(|damage| damage.to_string())?.ok_or("a piece is missing")?;
        value.extend_from_slice(&piece);
    }
    demand(value.len() == size, "a value of another length")?;
    Ok(Attribute { name, value })
}
