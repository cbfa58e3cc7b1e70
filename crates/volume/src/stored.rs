//! Look-ups of deadlists and shares in the tables of a pool, without waiting; and reads of nodes
//! so that the next look-up need not wait.

use std::collections::BTreeSet;
use std::sync::Arc;

use copyhold_format::item::{DeadItem, ShareItem, WINDOW_BLOCKS, dead_key, share_key};
use copyhold_pool::{Cached, KeptNodes, Pool, Value};
use copyhold_sync::MutexGuard;
use copyhold_types::{BlockAddr, Key, Run, TableId};

use crate::error::Result;
use crate::release::{Damage, Dead, DeadWindow, EditTable, Lookup, Missing};
use crate::segment::Segment;

/// A window in a table: from this key, up to that one.
pub(crate) fn keys(first: Key) -> (Key, Key) {
    (first, Key { offset: first.offset + u64::from(WINDOW_BLOCKS), ..first })
}

pub(crate) struct Stored<'a> {
    pub(crate) pool: &'a Pool,
    /// Whether any block may be shared. Read once: the first reflink may come at any time.
    pub(crate) sharing: bool,
    /// Locks the table of shares while a decision reads it. `None`: nothing is shared, or the
    /// caller decides nothing.
    pub(crate) _shares_lock: Option<MutexGuard<'a, ()>>,
    /// The nodes that [`fetch`] has read before.
    pub(crate) kept: Option<&'a KeptNodes>,
}

impl<'a> Stored<'a> {
    /// With the nodes read for earlier tries.
    pub(crate) fn with(self, kept: &'a KeptNodes) -> Stored<'a> {
        Stored { kept: Some(kept), ..self }
    }

    fn segments<M>(
        &self,
        table: TableId,
        first: Key,
        parse: impl Fn(Key, &Value) -> std::result::Result<Segment<M>, Damage>,
    ) -> std::result::Result<Cached<Vec<Segment<M>>>, Damage> {
        let (range, limit) = (keys(first), WINDOW_BLOCKS as usize);
        let items = match self.kept {
            Some(kept) => kept.range_cached(self.pool, table, range, limit),
            None => self.pool.range_cached(table, range.0, range.1, limit),
        };
        match items {
            Cached::Unknown => Ok(Cached::Unknown),
            Cached::Known(items) => {
                let segments = items.iter().map(|(key, value)| parse(*key, value));
                segments.collect::<std::result::Result<_, _>>().map(Cached::Known)
            }
        }
    }
}

impl Lookup for Stored<'_> {
    fn dead(&self, at: DeadWindow) -> std::result::Result<Cached<Vec<Segment<Dead>>>, Damage> {
        self.segments(at.set, dead_key(at.epoch, at.window), |key, value| {
            dead_segment(at.set, key, value)
        })
    }

    fn shares(&self, window: BlockAddr) -> std::result::Result<Cached<Vec<Segment<u32>>>, Damage> {
        self.segments(Pool::SHARES, share_key(window), |key, value| share_segment(key, value))
    }

    fn nothing_is_shared(&self) -> bool {
        !self.sharing
    }
}

/// A segment of a deadlist as it is stored.
pub(crate) fn dead_segment(
    set: TableId,
    key: Key,
    value: &[u8],
) -> std::result::Result<Segment<Dead>, Damage> {
    let damage = |source| Damage::Item { place: EditTable::Deadlist(set), key, source };
    let DeadItem { blocks, content, count, origin } =
        DeadItem::parse(key, value).map_err(damage)?;
    let run = Run::new(BlockAddr::from_raw(key.offset), blocks);
    Ok(Segment { run, mark: Dead { content, count, origin } })
}

/// A segment of the shares as it is stored.
pub(crate) fn share_segment(key: Key, value: &[u8]) -> std::result::Result<Segment<u32>, Damage> {
    let damage = |source| Damage::Item { place: EditTable::Shares, key, source };
    let item = ShareItem::parse(key, value).map_err(damage)?;
    let run = Run::new(BlockAddr::from_raw(key.offset), item.blocks);
    Ok(Segment { run, mark: item.count })
}

/// Reads the nodes that were missing, and keeps them.
pub(crate) async fn fetch(
    pool: &Arc<Pool>,
    missing: &BTreeSet<Missing>,
    kept: &KeptNodes,
) -> Result<()> {
    for missing in missing {
        let (table, range) = match missing {
            Missing::Dead(at) => (at.set, keys(dead_key(at.epoch, at.window))),
            Missing::Shares(window) => (Pool::SHARES, keys(share_key(*window))),
        };
        kept.range(pool, table, range, WINDOW_BLOCKS as usize).await?;
    }
    Ok(())
}
