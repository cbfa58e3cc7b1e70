//! Pools that are erased before their file or disk gets another one.
//!
//! Problem.  A new pool may have a namespace with protection information where an older one had
//!           none, or the other way round, or a namespace of another size. Its labels then lie
//!           elsewhere than those of the older pool, and its log or its tuples are written over
//!           data of the older one long before its labels are. If the power fails between, the
//!           older pool is found with a part of it gone.
//! Idea.     The labels of every pool that can be found go first, then the headers.
//!
//! ERASE-E1  Before anything else is written to a file or disk, no pool can be found there, and
//!           no headers can be made anew, also after a crash.
//! ERASE-E2  A crash on the way leaves a whole pool or none: blocks that a pool needs beside its
//!           labels are written over when those are gone durably.

use copyhold_device::{DynDevice, pi};
use copyhold_format::label::AREA_BLOCKS;

use crate::{PoolError, labels};

/// Erases the pools of a file or disk that are to be lost: ERASE-E1, ERASE-E2.
pub async fn erase_pools(below: &DynDevice) -> Result<(), PoolError> {
    let all = below.geometry().blocks;
    // A header leads to the pool of its namespace. Without one, the size leads to a pool.
    let sizes = pi::sizes_by_headers(below).await.into_iter().chain([all]);
    for blocks in sizes.filter(|blocks| (AREA_BLOCKS..=all).contains(blocks)) {
        labels::erase(below, blocks).await?;
        below.flush().await?;
    }
    Ok(pi::erase_headers(below).await?)
}
