//! Tree nodes and space maps: cached, read from either copy, repaired. `node_writer` writes them.
//!
//! NODEIO-N1  A node is found by its address and digest together (rule R3): a reused block never
//!            passes for its previous content. A read looks at one copy, and at the other only if
//!            that is bad. Which comes first depends on the node and on the mount, so that the
//!            next mount looks at the copy that this one skips: a bad copy is repaired by every
//!            second mount that reads the node from the device.
//! NODEIO-N2  A bad copy is written again only from a good one, and only while the caller's pin
//!            prevents a reallocation of the blocks (rule R3).

use std::sync::Arc;

use copyhold_format::digest;
use copyhold_format::node::{Fragment, Node, parse_fragments, pieces_of};
use copyhold_runtime::{Rt, finishing};
use copyhold_sync::{Mutex, of};
use copyhold_table::{NodeCache, NodeFuture, NodeSource, TableError};
use copyhold_types::{Buf, NodePtr, Purpose, Run};
use futures_util::future::join_all;

use crate::PoolError;
use crate::devices::Devices;
use crate::fragments::{Copied, Copies, Pieces, fragmented, join, named_by};
use crate::pins::Pins;

/// Parts of the node cache, each under a lock of its own.
const CACHE_SHARDS: usize = 8;
/// Nodes that each part has room for, or else there is one part.
const SHARD_NODES: usize = 64;
/// Nodes that are kept for any configured cache size, on a pool of tenants: the nodes for one
/// release of a pointer must be cached at once, or it would stay pending for ever.
pub(crate) const CACHE_NODES_MIN: usize = 32;

/// Copies of each node on a pool of one device.
pub(crate) const COPIES: u64 = 2;

/// Reads nodes. The table layer's [`NodeSource`].
pub(crate) struct NodeStore {
    devices: Devices,
    pub(crate) cache: NodeCache,
    /// The pieces of fragmented maps in use (FRAGMENT-P1).
    maps: Mutex<Pieces, of::MapPieces>,
    repair: Option<Repair>,
    /// Drawn at each mount: decides which copy is read first.
    turn: u64,
}

/// The means to write bad copies again.
pub(crate) struct Repair {
    pub(crate) rt: Rt,
    pub(crate) pins: Pins,
}

impl NodeStore {
    /// Without `repair` bad copies stay as they are. `turn`: drawn anew for each mount.
    pub(crate) fn new(
        devices: Devices,
        cache_bytes: usize,
        node_bytes: usize,
        repair: Option<Repair>,
        turn: u64,
    ) -> NodeStore {
        let shards = (cache_bytes / (SHARD_NODES * node_bytes)).clamp(1, CACHE_SHARDS);
        let cache = NodeCache::new(cache_bytes, shards);
        NodeStore { devices, cache, maps: Mutex::default(), repair, turn }
    }

    pub(crate) fn cached_bytes(&self) -> usize {
        self.cache.stats().bytes
    }

    /// The bytes behind `ptr` from a copy that matches its digest.
    pub(crate) async fn read_verified(&self, ptr: NodePtr, why: Purpose) -> Result<Buf, PoolError> {
        let is_good = |buf: &Buf| match digest(buf) == ptr.digest {
            true => Ok(()),
            false => Err("digest does not match".to_owned()),
        };
        let copies = match ptr.fragmented {
            false => named_by(&ptr),
            true => fragmented(&self.fragments(&ptr, why).await?),
        };
        Ok(self.read_good(&ptr, copies, why, is_good).await?.0)
    }

    /// Where the content of a fragmented node is.
    async fn fragments(&self, ptr: &NodePtr, why: Purpose) -> Result<Vec<Fragment>, PoolError> {
        let parse = |buf: &Buf| parse_fragments(buf, ptr).map_err(|error| error.to_string());
        Ok(self.read_good(ptr, named_by(ptr), why, parse).await?.1)
    }

    /// All that a pointer has allocated, as pointers to nodes that lie in one run: itself, or, of a
    /// fragmented node, the list and each fragment.
    pub(crate) async fn pieces(&self, ptr: NodePtr) -> Result<Vec<NodePtr>, PoolError> {
        if !ptr.fragmented {
            return Ok(vec![ptr]);
        }
        if let Some(pieces) = self.maps.lock().get(&ptr) {
            return Ok(pieces.clone());
        }
        Ok(pieces_of(&ptr, &self.fragments(&ptr, Purpose::Inner).await?))
    }

    /// The bytes of a map that is in use from now on.
    pub(crate) async fn read_map(&self, ptr: NodePtr) -> Result<Buf, PoolError> {
        let bytes = self.read_verified(ptr, Purpose::Map).await?;
        let pieces = self.pieces(ptr).await?;
        self.replace_map(None, Some(ptr), &Pieces::from([(ptr, pieces)]));
        Ok(bytes)
    }

    /// A map has taken the place of another; `pieces`: of the new one.
    pub(crate) fn replace_map(&self, old: Option<NodePtr>, new: Option<NodePtr>, pieces: &Pieces) {
        let mut maps = self.maps.lock();
        old.and_then(|old| maps.remove(&old));
        if let Some(new) = new.filter(|new| new.fragmented)
            && let Some(pieces) = pieces.get(&new)
        {
            maps.insert(new, pieces.clone());
        }
    }

    /// The first good one of these copies, and the findings for `check`; the copy whose turn it is
    /// comes first.
    async fn read_good<T>(
        &self,
        ptr: &NodePtr,
        mut copies: Copies,
        why: Purpose,
        check: impl Fn(&Buf) -> Result<T, String>,
    ) -> Result<(Buf, T), PoolError> {
        if (ptr.digest.0 as u64).wrapping_add(self.turn) % 2 == 1 {
            copies.reverse();
        }
        let mut bad: Vec<(&Copied, String)> = Vec::new();
        for copy in copies.iter().flatten() {
            let read = self.read_copy(copy, why).await;
            match read.and_then(|buf| Ok((check(&buf)?, buf))) {
                Ok((found, buf)) => {
                    self.mend(&bad, &buf, why).await;
                    return Ok((buf, found));
                }
                Err(problem) => bad.push((copy, problem)),
            }
        }
        let why: Vec<String> = bad.iter().map(|(copy, why)| format!("{copy:?}: {why}")).collect();
        Err(PoolError::damaged(format!("{ptr:?}"), why.join("; ")))
    }

    async fn read_copy(&self, copy: &Copied, why: Purpose) -> Result<Buf, String> {
        let read = |run: &Run| self.devices.read(*run, why);
        let runs = match copy {
            Copied::Whole(run) => return read(run).await.map_err(|error| error.to_string()),
            Copied::Fragments(runs) => runs,
        };
        let mut parts = Vec::with_capacity(runs.len());
        for part in join_all(runs.iter().map(read)).await {
            parts.push(part.map_err(|error| error.to_string())?);
        }
        Ok(join(&parts))
    }

    /// Writes good content over bad copies (NODEIO-N2). That failing is no failure of the read.
    async fn mend(&self, bad: &[(&Copied, String)], good: &Buf, why: Purpose) {
        for (copy, problem) in bad {
            tracing::warn!("{why:?} {copy:?}: {problem}; the other copy is good");
            for (run, content) in copy.cut(good) {
                self.mend_run(run, content, why).await;
            }
        }
    }

    async fn mend_run(&self, run: Run, good: Buf, why: Purpose) {
        let Some(Repair { rt, pins }) = &self.repair else { return };
        // A pin of its own: the caller, and its pin, may be gone before the device is done.
        let pin = pins.pin_oldest();
        let write = self.devices.write(run, good.into(), why);
        let written = finishing(rt, async move { (write.await, pin) });
        if let (Err(error), _) = written.await {
            tracing::warn!("{run:?} could not be repaired: {error}");
        }
    }
}

impl NodeSource for NodeStore {
    fn cached(&self, ptr: &NodePtr) -> Option<Arc<Node>> {
        self.cache.get(ptr)
    }

    fn read(&self, ptr: NodePtr, why: Purpose) -> NodeFuture<'_, Arc<Node>> {
        Box::pin(async move {
            let unreadable =
                |error: PoolError| TableError::Unreadable { ptr, source: Arc::new(error) };
            let buf = self.read_verified(ptr, why).await.map_err(unreadable)?;
            let node = Node::parse(buf).map_err(|source| TableError::Damaged { ptr, source })?;
            let node = Arc::new(node);
            self.cache.insert(&ptr, node.clone());
            Ok(node)
        })
    }
}
