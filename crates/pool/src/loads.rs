//! Reading space maps when they are needed, and evicting them (`copyhold_space`, AWAY).
//!
//! Problem.  Allocation does not wait, but the map that it needs may be on disk.
//! Idea.     Waiting calls load maps before the synchronous ones need them: a reservation that
//!           finds too little in loaded maps, a round before it begins, and the flusher after each
//!           commit, so that there is a stock, and requests seldom wait for a read.
//!
//! LOADS-M1  One map is read at a time. A read allocates nothing and waits for no commit or round,
//!           so a round may wait for it. While a device delays a read, so do rounds and requests
//!           that need maps; an error ends the wait, and sets the metaslab aside.
//! LOADS-M2  Rounds begin each unit with the part of the reserve loaded that it needs, whatever
//!           memory that takes. Beyond it the limit of memory counts. Maps that have been loaded
//!           for a request stay until it has reserved (BUDGET-B5), so it ends after as many reads
//!           as there are maps.
//! LOADS-M3  A pool is full only by the figures of all its metaslabs, whether loaded or not.
//! LOADS-M4  An idle pool comes to rest: a map that is not needed at once is loaded only if it fits
//!           into the limit, so it is not evicted again.
//! LOADS-M5  Beyond the limit of memory a round loads few maps to write them whole: none can be
//!           evicted before the round ends. The other metaslabs wait for the next round.
//! LOADS-M6  A round may add a delta to a map that is being read (STORED-D4). Then the map is read
//!           again.
//!
//! A map that cannot be read is `maps`' subject.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use copyhold_format::FormatError;
use copyhold_format::space_map::SpaceMap;
use copyhold_runtime::{FifoMutex, Rt};
use copyhold_space::{Loading, MapView, MetaslabId, SpaceError, StoredMap, Tier, Wanted};
use copyhold_types::{BLOCK_BYTES, Buf, NodePtr};

use crate::{Pool, PoolError, Sabotage};

/// Reads before something counts as unreadable, and the time between them.
const TRIES: usize = 3;
const PAUSE: Duration = Duration::from_millis(100);
/// Maps beyond the limit of memory that one round loads: about 20 MB, with what it writes.
const LOADS_PER_ROUND: usize = 8;

/// The state of reading maps.
#[derive(Debug, Default)]
pub(crate) struct Loads {
    turn: FifoMutex,
    count: AtomicU64,
    /// A task reads again the maps that could not be read.
    pub(crate) retrying: AtomicBool,
    wholes: AtomicU64,
    deltas: AtomicU64,
    written: AtomicU64,
}

impl Loads {
    /// A flush has written a map or a delta.
    pub(crate) fn note_written(&self, is_delta: bool, ptr: &NodePtr) {
        let count = if is_delta { &self.deltas } else { &self.wholes };
        count.fetch_add(1, Relaxed);
        let bytes = ptr.runs().count() as u64 * u64::from(ptr.blocks) * BLOCK_BYTES as u64;
        self.written.fetch_add(bytes, Relaxed);
    }
}

/// The space maps of an open pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapUse {
    /// Memory of maps and of the edits that are beside maps on disk, and its limit.
    pub bytes: u64,
    pub bytes_max: u64,
    pub loaded: u64,
    /// Maps that were loaded since the pool was opened.
    pub loads: u64,
    /// Maps that were written whole since then, deltas of maps, and the bytes of all their copies;
    /// those of flushes that were given up, too.
    pub wholes: u64,
    pub deltas: u64,
    pub bytes_written: u64,
}

pub fn map_use(pool: &Pool) -> MapUse {
    MapUse {
        bytes: pool.space.maps_bytes(),
        bytes_max: pool.limits.maps_bytes,
        loaded: pool.space.loaded_maps(),
        loads: pool.nodes.loads.count.load(Relaxed),
        wholes: pool.nodes.loads.wholes.load(Relaxed),
        deltas: pool.nodes.loads.deltas.load(Relaxed),
        bytes_written: pool.nodes.loads.written.load(Relaxed),
    }
}

/// Tries several times to read something: an error may pass.
pub(crate) async fn patiently<T, F: Future<Output = Result<T, PoolError>>>(
    rt: &Rt,
    read: impl Fn() -> F,
) -> Result<T, PoolError> {
    for _ in 1..TRIES {
        if let Ok(found) = read().await {
            return Ok(found);
        }
        rt.sleep(PAUSE).await;
    }
    read().await
}

async fn read(pool: &Pool, map: Option<&StoredMap>) -> Result<Option<SpaceMap>, PoolError> {
    let Some(map) = map else { return Ok(None) };
    let parts = patiently(&pool.rt, || pool.nodes.read_map(map)).await?;
    let parsed = parse(&parts);
    parsed.map(Some).map_err(|error| PoolError::damaged(format!("{map:?}"), error))
}

/// The map of these parts, as [`crate::nodes::NodeStore::read_map`] reads them.
pub(crate) fn parse(parts: &[Buf]) -> Result<SpaceMap, FormatError> {
    let (base, deltas) = parts.split_first().expect("a map has a base");
    SpaceMap::parse_parts(base, deltas)
}

/// Loads the map of a metaslab, if it is cold. If it cannot be read, the metaslab is set aside.
pub(crate) async fn load(pool: &Arc<Pool>, id: MetaslabId) {
    if pool.space.cold_map(id).is_none() {
        return;
    }
    let _turn = pool.nodes.loads.turn.lock().await;
    load_in_turn(pool, id).await;
}

async fn load_in_turn(pool: &Arc<Pool>, id: MetaslabId) {
    let load = |map: Option<&SpaceMap>| {
        if pool.sabotaged(Sabotage::ForgetNotedFrees) {
            pool.space.forget_noted_frees(id);
        }
        pool.space.load(id, map)
    };
    if with_map(pool, id, load).await.is_some() {
        pool.nodes.loads.count.fetch_add(1, Relaxed);
    }
}

/// Reads the map of a metaslab that is cold, and uses it. None: it is not cold, or is set aside
/// now, since the map cannot be used.
async fn with_map<T>(
    pool: &Arc<Pool>,
    id: MetaslabId,
    uses: impl Fn(Option<&SpaceMap>) -> Result<T, SpaceError>,
) -> Option<T> {
    while let Some(stored) = pool.space.cold_map(id) {
        let used = match read(pool, stored.as_ref()).await {
            Ok(map) => uses(map.as_ref()).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        match used {
            Ok(used) => return Some(used),
            Err(_) if pool.space.cold_map(id) != Some(stored) => {} // LOADS-M6
            Err(error) => give_up(pool, id, &error),
        }
    }
    None
}

fn give_up(pool: &Arc<Pool>, id: MetaslabId, error: &str) {
    tracing::error!(
        "the space map of {id} cannot be used: nothing is allocated there until the map can be \
         read or `copyhold check --repair` has rebuilt it; {error}"
    );
    pool.space.set_unreadable(id);
}

/// Loads maps until the loaded ones have room for a reservation, no other has free blocks, or the
/// pool is stopped. They stay until the result is dropped, so the caller reserves before.
pub(crate) async fn load_for(pool: &Arc<Pool>, wanted: Wanted, tier: Tier) -> Option<Loading> {
    let wants_map = || pool.space.wants_map(wanted, tier);
    let loading = wants_map().then(|| pool.space.begin_loads(wanted.blocks))?;
    while wants_map() && pool.check_writable().is_ok() {
        let _turn = pool.nodes.loads.turn.lock().await;
        let Some(best) = pool.space.best_cold() else { break };
        if wants_map() {
            load_in_turn(pool, best).await;
        }
    }
    Some(loading)
}

/// Whether there is room for so many blocks in the pool as a whole (LOADS-M3). Reserves nothing,
/// and loads nothing: for what is not worth a wait, or is placed by rounds.
///
/// # Errors
/// There is not.
pub fn expect_room(pool: &Pool, blocks: u64, tier: Tier) -> Result<(), PoolError> {
    pool.check_writable()?;
    match pool.space.missing(blocks, pool.tier(tier)) {
        0 => Ok(()),
        _ => Err(pool.space.no_space(blocks).into()),
    }
}

/// Loads and evicts maps until the loaded ones have the stock of free blocks and take no more
/// memory than they may.
pub(crate) async fn keep_stock(pool: &Arc<Pool>) {
    fill_stock(pool).await;
    pool.space.evict(pool.limits.maps_bytes);
}

/// Loads maps until the loaded ones have the stock of free blocks.
pub(crate) async fn fill_stock(pool: &Arc<Pool>) {
    let limit = pool.limits.maps_bytes;
    if pool.sabotaged(Sabotage::GrantUnloaded) {
        return;
    }
    let mut seen = BTreeSet::new();
    while pool.check_writable().is_ok() && pool.space.next_for_stock(limit).is_some() {
        let _turn = pool.nodes.loads.turn.lock().await;
        // LOADS-M4: a map that was evicted for a better one does not come back.
        let Some(best) = pool.space.next_for_stock(limit).filter(|id| seen.insert(*id)) else {
            break;
        };
        load_in_turn(pool, best).await;
    }
}

/// The maps that one round loads to write them whole (LOADS-M5).
#[derive(Debug, Default)]
pub(crate) struct LoadsOfRound(usize);

impl LoadsOfRound {
    /// Whether the round may load the map of a metaslab.
    pub(crate) fn admit(&mut self, pool: &Pool, id: MetaslabId) -> bool {
        let admits = self.0 < LOADS_PER_ROUND || pool.space.fits(id, pool.limits.maps_bytes);
        self.0 += usize::from(admits);
        admits
    }
}

/// The allocated and free runs of a metaslab; its map is read if it is cold, and stays so. If it
/// cannot be read, the metaslab is set aside, and has none.
pub async fn metaslab_view(pool: &Arc<Pool>, id: MetaslabId) -> MapView {
    // While it is not loaded, no round frees a part of the map.
    let _turn = pool.nodes.loads.turn.lock().await;
    let viewed = with_map(pool, id, |map| pool.space.view_with(id, map)).await;
    viewed.unwrap_or_else(|| pool.space.view(id))
}
