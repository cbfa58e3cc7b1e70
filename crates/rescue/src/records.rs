//! Records of the log (`docs/format.md`, 5.3), one behind the other.

use crate::bytes::Bytes;
use crate::damage::{Parse, demand};
use crate::key::Key;

const VALUE_MAX: u64 = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Record<'a> {
    Put { table: u64, key: Key, value: &'a [u8] },
    Delete { table: u64, key: Key },
    Allocate { address: u64, blocks: u64 },
    Free,
}

/// Gives each record to `take`.
pub(crate) fn each(records: &[u8], mut take: impl FnMut(Record<'_>) -> Parse<()>) -> Parse<()> {
    let mut bytes = Bytes(records);
    let (mut table, mut object) = (0, 0);
    while !bytes.is_empty() {
        let tag = bytes.u8()?;
        demand(tag >> 5 == 0, "a tag that does not exist")?;
        if tag & 1 << 4 != 0 {
            demand(tag & 0b1100 == 0, "the first record of a transaction, like none before it")?;
            (table, object) = (0, 0);
        }
        if tag & 2 != 0 {
            let (address, blocks) = (bytes.varint()?, bytes.varint()?);
            demand(blocks > 0, "a run of no blocks")?;
            take(if tag & 1 == 0 { Record::Allocate { address, blocks } } else { Record::Free })?;
            continue;
        }
        if tag & 1 << 2 == 0 {
            table = bytes.varint()?;
        }
        if tag & 1 << 3 == 0 {
            object = bytes.varint()?;
        }
        let kind = bytes.u8()?;
        let key = Key { object, kind, offset: bytes.varint()? };
        if tag & 1 == 1 {
            take(Record::Delete { table, key })?;
            continue;
        }
        let length = bytes.varint()?;
        demand(length <= VALUE_MAX, "a value that is too long")?;
        take(Record::Put { table, key, value: bytes.take(length as usize)? })?;
    }
    Ok(())
}
