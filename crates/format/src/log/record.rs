//! Records: the edits of transactions, one behind the other.
//!
//! A record is a tag, and the differences from the record before it in the same transaction: most
//! edits of one transaction are for one table and few objects. The first record of a transaction
//! assumes nothing, so transactions can be appended in any order.

use copyhold_types::{BlockAddr, Key, Kind, Run, TableId};

use crate::FormatError;
use crate::wire::{Reader, put_varint};

const WHAT: &str = "log record";
const PUT: u8 = 0;
const DELETE: u8 = 1;
const ALLOC: u8 = 2;
const FREE: u8 = 3;
const OPERATION: u8 = 0b11;
/// Table as in the record before.
const SAME_TABLE: u8 = 1 << 2;
/// Object as in the record before.
const SAME_OBJECT: u8 = 1 << 3;
/// First record of a transaction: the two flags above are not used.
const FIRST: u8 = 1 << 4;
const KNOWN: u8 = 0b1_1111;
/// No value is longer; a leaf must be able to hold it.
const VALUE_MAX: u64 = 1 << 20;

/// One edit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    Put { table: TableId, key: Key, value: &'a [u8] },
    Delete { table: TableId, key: Key },
    Alloc(Run),
    Free(Run),
}

#[derive(Clone, Copy, Default)]
struct Context {
    table: u64,
    object: u64,
}

/// Encodes the records of one transaction.
#[derive(Default)]
pub struct RecordWriter {
    out: Vec<u8>,
    before: Option<Context>,
}

impl RecordWriter {
    pub fn with_capacity(bytes: usize) -> RecordWriter {
        RecordWriter { out: Vec::with_capacity(bytes), before: None }
    }

    pub fn push(&mut self, record: Record<'_>) {
        match record {
            Record::Put { table, key, value } => {
                self.key(PUT, table, key);
                put_varint(&mut self.out, value.len() as u64);
                self.out.extend_from_slice(value);
            }
            Record::Delete { table, key } => self.key(DELETE, table, key),
            Record::Alloc(run) => self.run(ALLOC, run),
            Record::Free(run) => self.run(FREE, run),
        }
    }

    pub fn finish(self) -> Vec<u8> {
        self.out
    }

    fn first(&self) -> u8 {
        if self.before.is_none() { FIRST } else { 0 }
    }

    fn key(&mut self, operation: u8, table: TableId, key: Key) {
        let before = self.before.unwrap_or_default();
        let mut tag = operation | self.first();
        if self.before.is_some() {
            tag |= if before.table == table.0 { SAME_TABLE } else { 0 };
            tag |= if before.object == key.object { SAME_OBJECT } else { 0 };
        }
        self.out.push(tag);
        if tag & SAME_TABLE == 0 {
            put_varint(&mut self.out, table.0);
        }
        if tag & SAME_OBJECT == 0 {
            put_varint(&mut self.out, key.object);
        }
        self.out.push(key.kind.0);
        put_varint(&mut self.out, key.offset);
        self.before = Some(Context { table: table.0, object: key.object });
    }

    fn run(&mut self, operation: u8, run: Run) {
        self.out.push(operation | self.first());
        put_varint(&mut self.out, run.addr.raw());
        put_varint(&mut self.out, run.blocks.into());
        self.before = Some(self.before.unwrap_or_default());
    }
}

/// Decodes records; ends after the first error.
pub struct Records<'a> {
    reader: Reader<'a>,
    before: Context,
    failed: bool,
}

impl<'a> Records<'a> {
    pub fn new(bytes: &'a [u8]) -> Records<'a> {
        Records { reader: Reader::new(WHAT, bytes), before: Context::default(), failed: false }
    }

    fn record(&mut self) -> Result<Record<'a>, FormatError> {
        let r = &mut self.reader;
        let tag = r.u8()?;
        let first_and_same = tag & FIRST != 0 && tag & (SAME_TABLE | SAME_OBJECT) != 0;
        if tag & !KNOWN != 0 || first_and_same {
            return Err(r.bad("tag", tag.into()));
        }
        if tag & FIRST != 0 {
            self.before = Context::default();
        }
        match tag & OPERATION {
            ALLOC | FREE => {
                let addr = BlockAddr::from_raw(r.varint()?);
                let blocks = r.bounded("run", u32::MAX.into())?;
                if blocks == 0 || addr.block() + blocks > BlockAddr::MAX_BLOCK {
                    return Err(r.bad("run", blocks));
                }
                let run = Run::new(addr, blocks as u32);
                Ok(if tag & OPERATION == ALLOC { Record::Alloc(run) } else { Record::Free(run) })
            }
            operation => {
                let table = if tag & SAME_TABLE != 0 { self.before.table } else { r.varint()? };
                let object = if tag & SAME_OBJECT != 0 { self.before.object } else { r.varint()? };
                let kind = Kind(r.u8()?);
                let key = Key::new(object, kind, r.varint()?);
                self.before = Context { table, object };
                let table = TableId(table);
                if operation == DELETE {
                    return Ok(Record::Delete { table, key });
                }
                let len = r.bounded("value length", VALUE_MAX)?;
                Ok(Record::Put { table, key, value: r.bytes(len as usize)? })
            }
        }
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, FormatError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || self.reader.is_empty() {
            return None;
        }
        let record = self.record();
        self.failed = record.is_err();
        Some(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use copyhold_types::DeviceId;
    use proptest::prelude::*;

    fn arbitrary() -> impl Strategy<Value = (u8, u64, u64, u8, u64, Vec<u8>)> {
        (0..4u8, 0..4u64, any::<u64>(), any::<u8>(), any::<u64>(), any::<Vec<u8>>())
    }

    fn record<'a>(from: &'a (u8, u64, u64, u8, u64, Vec<u8>)) -> Record<'a> {
        let (operation, table, object, kind, offset, value) = from;
        let (table, key) = (TableId(*table), Key::new(*object, Kind(*kind), *offset));
        let run = Run::new(BlockAddr::new(DeviceId(1), object >> 20), (*offset as u32).max(1));
        match operation {
            0 => Record::Put { table, key, value },
            1 => Record::Delete { table, key },
            2 => Record::Alloc(run),
            _ => Record::Free(run),
        }
    }

    proptest! {
        #[test]
        fn transactions_come_back_in_order(
            transactions in prop::collection::vec(prop::collection::vec(arbitrary(), 1..6), 0..6)
        ) {
            let mut bytes = Vec::new();
            for transaction in &transactions {
                let mut writer = RecordWriter::default();
                transaction.iter().for_each(|from| writer.push(record(from)));
                bytes.extend(writer.finish());
            }
            let read: Vec<_> = Records::new(&bytes).map(Result::unwrap).collect();
            let wanted: Vec<_> = transactions.iter().flatten().map(record).collect();
            prop_assert_eq!(read, wanted);
        }

        #[test]
        fn any_bytes_give_an_answer_or_an_error(bytes: Vec<u8>) {
            Records::new(&bytes).for_each(|_| ());
        }
    }
}
