//! Whether the data of the last batch exists (`docs/format.md`, 6.5).

use std::collections::BTreeMap;

use crate::batch::Batch;
use crate::damage::Damage;
use crate::extent::Extent;
use crate::key::EXTENT;
use crate::records::{self, Record};
use crate::source::{BLOCK, Source, read};

/// Each extent that the batch puts on blocks that it allocates matches its checksums: the last one
/// that is put at an address, if one of the allocations has all of it.
/// Fails if all that can be read matches, and something cannot be.
pub(crate) fn is_whole(source: &dyn Source, batch: &Batch) -> Result<bool, Damage> {
    let mut allocated: BTreeMap<u64, u64> = BTreeMap::new();
    let mut extents: BTreeMap<u64, Extent> = BTreeMap::new();
    for part in batch.records(source)? {
        let parsed = records::each(&part, |record| {
            match record {
                Record::Allocate { address, blocks } => {
                    let end = address.checked_add(blocks).ok_or("a run that has no end")?;
                    allocated.insert(address, end);
                }
                Record::Put { key, value, .. } if key.kind == EXTENT => {
                    let extent = Extent::parse(key.offset, value)?;
                    extents.insert(extent.address, extent);
                }
                _ => {}
            }
            Ok(())
        });
        parsed.map_err(|why| Damage::new(format!("txg {} of the log", batch.txg), why))?;
    }
    let is_new = |extent: &Extent| {
        let run = allocated.range(..=extent.address).next_back();
        run.is_some_and(|(_, end)| extent.address + extent.blocks <= *end)
    };
    let mut unreadable = None;
    for extent in extents.values().filter(|extent| !extent.unwritten && is_new(extent)) {
        let mut bytes = vec![0; extent.blocks as usize * BLOCK];
        let mut can_read = vec![true; extent.blocks as usize];
        for (nth, place) in bytes.chunks_mut(BLOCK).enumerate() {
            match read(source, extent.address + nth as u64, 1) {
                Ok(block) => place.copy_from_slice(&block),
                Err(damage) => {
                    can_read[nth] = false;
                    unreadable = Some(damage);
                }
            }
        }
        // Blocks with tuples were durable before the batch was written.
        let good = extent.verify(source, None, &bytes)?;
        if good.into_iter().zip(can_read).any(|(good, can_read)| can_read && !good) {
            return Ok(false);
        }
    }
    unreadable.map_or(Ok(true), Err)
}
