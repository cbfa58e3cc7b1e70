//! The view of `debug extents`: the extents of one table, or of one file.

use std::path::Path;

use copyhold_format::item::{SubvolItem, subvol_key};
use copyhold_fs::NodeId;
use copyhold_pool::{Pool, PoolError};
use copyhold_serve::wire::Refusal;
use copyhold_types::{InodeNo, SubvolId, TableId};
use serde_json::{Value, json};

use super::Machine;
use crate::failure::Failure;

/// Extents, with checksum mode and birth. `number`: a file, as stat(2) numbers it; without `table`
/// in the table of its subvolume.
pub(crate) fn extents(
    pool: &Path,
    table: Option<u64>,
    number: Option<u64>,
) -> Result<Value, Failure> {
    let machine = Machine::start()?;
    let pool = machine.open_to_read(pool)?;
    let table = table.map(TableId);
    machine.run(async {
        let (table, inode) = match number {
            None => (table, None),
            Some(number) => {
                let (found, inode) = find(&pool, number).await?;
                (table.or(Some(found)), Some(inode))
            }
        };
        Ok(json!(copyhold_check::debug::extents(&pool, table, inode).await))
    })
}

/// The table and the inode of a file.
async fn find(pool: &Pool, number: u64) -> Result<(TableId, InodeNo), Failure> {
    let absent = || {
        let why = format!("the pool has no subvolume with a file of number {number}");
        Failure::refused(Refusal::new("ENOENT", why))
    };
    let NodeId { subvol, ino } = NodeId::from_raw(number).ok_or_else(absent)?;
    Ok((table_of(pool, subvol).await?.ok_or_else(absent)?, ino))
}

async fn table_of(pool: &Pool, subvol: SubvolId) -> Result<Option<TableId>, PoolError> {
    let Some(item) = pool.get(Pool::SYSTEM, subvol_key(subvol)).await? else { return Ok(None) };
    let parsed = SubvolItem::parse(&item);
    let damaged = |error| PoolError::Damaged { what: format!("{subvol:?}"), why: error };
    Ok(Some(parsed.map_err(|error| damaged(error.to_string()))?.table))
}
