//! The edits of the log (`docs/format.md`, 6.6): the last edit of each key, with its txg.
//!
//! Edits are the only data that is in memory as a whole: a pool's ring bounds them, and so does
//! [`EDIT_BYTES_MAX`] for any damaged image.

use std::collections::BTreeMap;

use crate::chain::Chain;
use crate::damage::{Damage, demand};
use crate::key::Key;
use crate::records::{self, Record};
use crate::source::Source;

/// Most bytes of edits, each with its cost in memory.
const EDIT_BYTES_MAX: u64 = 4 << 30;
const EDIT_COST: u64 = 128;

/// The result of an edit for a key: a value, or nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Edit {
    pub(crate) txg: u64,
    pub(crate) value: Option<Box<[u8]>>,
}

pub(crate) type Edits = BTreeMap<Key, Edit>;

/// The edits of all tables.
#[derive(Debug, Default)]
pub(crate) struct Replay {
    pub(crate) tables: BTreeMap<u64, Edits>,
    /// The damage that ended the replay before the end of the chain.
    pub(crate) damage: Vec<Damage>,
}

impl Replay {
    pub(crate) fn of(source: &dyn Source, chain: &Chain) -> Replay {
        let mut replay = Replay::default();
        let mut bytes = 0;
        for batch in &chain.batches {
            if let Err(damage) = replay.add(batch.txg, batch.records(source), &mut bytes) {
                // Later batches may rest on a missing one.
                replay.damage.push(damage);
                break;
            }
        }
        replay
    }

    fn add(
        &mut self,
        txg: u64,
        records: Result<Vec<Vec<u8>>, Damage>,
        bytes: &mut u64,
    ) -> Result<(), Damage> {
        for part in records? {
            let parsed = records::each(&part, |record| {
                let (table, key, value) = match record {
                    Record::Put { table, key, value } => (table, key, Some(value.into())),
                    Record::Delete { table, key } => (table, key, None),
                    Record::Allocate { .. } | Record::Free => return Ok(()),
                };
                *bytes += EDIT_COST + value.as_deref().map_or(0, <[u8]>::len) as u64;
                demand(*bytes <= EDIT_BYTES_MAX, "more edits than a log can have")?;
                self.tables.entry(table).or_default().insert(key, Edit { txg, value });
                Ok(())
            });
            parsed.map_err(|why| Damage::new(format!("txg {txg} of the log"), why))?;
        }
        Ok(())
    }
}
