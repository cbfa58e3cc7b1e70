//! Tree nodes and space maps: cached, read from either copy, repaired, written twice.
//!
//! N1  A node is found by its address and digest together (rule R3): a reused block never answers
//!     for what stood there before.
//!     A read looks at one copy, and at the other only if that is bad. Which comes first depends on
//!     the node and on the mount, so that what one mount does not look at the next one does: a bad
//!     copy is repaired by every second mount that reads the node from the device.
//! N2  A bad copy is written again only from a good one, and only while the caller's pin keeps the
//!     blocks from being anybody else's (rule R3).

use std::sync::Arc;

use copyhold_device::DynDevice;
use copyhold_format::digest;
use copyhold_format::node::Node;
use copyhold_runtime::{BoxFuture, Rt, finishing};
use copyhold_space::{Claim, Lane, LaneClass, Reservation};
use copyhold_sync::{Mutex, of};
use copyhold_table::{NodeCache, NodeFuture, NodeSink, NodeSource, TableError};
use copyhold_types::{Buf, EpochId, NodePtr, Purpose, Run};

use crate::pins::Pins;
use crate::{Pool, PoolError};

/// Parts of the node cache, each under a lock of its own.
const CACHE_SHARDS: usize = 8;
/// Nodes that each part has room for, or else there is one part.
const SHARD_NODES: usize = 64;
/// Nodes that are kept however small the cache is said to be, on a pool of tenants: what one
/// release of a pointer looks up has to be there at once, or it would stay pending for ever.
pub(crate) const CACHE_NODES_MIN: usize = 32;

/// Copies of each node on a pool of one device.
pub(crate) const COPIES: u64 = 2;

/// Reads nodes. The table layer's [`NodeSource`].
pub(crate) struct NodeStore {
    device: DynDevice,
    cache: NodeCache,
    repair: Option<Repair>,
    /// Counts mounts.
    turn: u64,
}

/// What writing bad copies again takes.
pub(crate) struct Repair {
    pub(crate) rt: Rt,
    pub(crate) pins: Pins,
}

impl NodeStore {
    /// Without `repair` bad copies stay as they are. `turn`: another number for each mount.
    pub(crate) fn new(
        device: DynDevice,
        cache_bytes: usize,
        node_bytes: usize,
        repair: Option<Repair>,
        turn: u64,
    ) -> NodeStore {
        let shards = (cache_bytes / (SHARD_NODES * node_bytes)).clamp(1, CACHE_SHARDS);
        NodeStore { device, cache: NodeCache::new(cache_bytes, shards), repair, turn }
    }

    pub(crate) fn cached_bytes(&self) -> usize {
        self.cache.stats().bytes
    }

    /// The bytes behind `ptr` from a copy that matches its digest.
    pub(crate) async fn read_verified(&self, ptr: NodePtr, why: Purpose) -> Result<Buf, PoolError> {
        let mut bad: Vec<(Run, String)> = Vec::new();
        for run in self.in_turn(&ptr) {
            match self.read_copy(run, ptr, why).await {
                Ok(buf) => {
                    self.mend(&bad, &buf, why).await;
                    return Ok(buf);
                }
                Err(problem) => bad.push((run, problem)),
            }
        }
        let why: Vec<String> = bad.iter().map(|(run, why)| format!("{run:?}: {why}")).collect();
        Err(PoolError::damaged(format!("{ptr:?}"), why.join("; ")))
    }

    /// The copies of a node, first the one whose turn it is.
    fn in_turn(&self, ptr: &NodePtr) -> impl Iterator<Item = Run> + use<> {
        let [first, second] = ptr.copies;
        let swapped = (ptr.digest.0 as u64).wrapping_add(self.turn) % 2 == 1;
        let copies = if swapped { [second, first] } else { [first, second] };
        NodePtr { copies, ..*ptr }.runs()
    }

    async fn read_copy(&self, run: Run, ptr: NodePtr, why: Purpose) -> Result<Buf, String> {
        let read = self.device.read(run.addr.block(), run.blocks, why).await;
        let buf = read.map_err(|error| error.to_string())?;
        if digest(&buf) == ptr.digest { Ok(buf) } else { Err("digest does not match".into()) }
    }

    /// Writes good content over bad copies (N2). That failing is no failure of the read.
    async fn mend(&self, bad: &[(Run, String)], good: &Buf, why: Purpose) {
        for (run, problem) in bad {
            tracing::warn!("{why:?} {run:?}: {problem}; the other copy is good");
            let Some(Repair { rt, pins }) = &self.repair else { continue };
            // A pin of its own: the caller, and its pin, may be gone before the device is done.
            let pin = pins.pin_oldest();
            let write = self.device.write(run.addr.block(), vec![good.clone()], why);
            let written = finishing(rt, async move { (write.await, pin) });
            if let (Err(error), _) = written.await {
                tracing::warn!("{run:?} could not be repaired: {error}");
            }
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

/// Places and writes what a flush makes. The writes go on in the background until
/// [`NodeWriter::finish`], and so long its claims are held, also those of what was given up: space
/// is nobody else's while a write to it is under way. So a round of flushing is always finished.
pub(crate) struct NodeWriter {
    pool: Arc<Pool>,
    lane: Lane,
    reservation: Reservation,
    /// The nodes' pointers carry it.
    pub(crate) epoch: EpochId,
    claims: Vec<Claim>,
    given_up: Vec<Claim>,
    writes: Mutex<Vec<BoxFuture<'static, Result<(), PoolError>>>, of::NodeWrites>,
}

impl NodeWriter {
    /// `reservation`: space for all nodes and their copies.
    pub(crate) fn new(pool: Arc<Pool>, reservation: Reservation) -> Self {
        NodeWriter {
            lane: Lane { cpu: pool.rt.current_cpu(), class: LaneClass::Node },
            pool,
            reservation,
            epoch: EpochId::POOL,
            claims: Vec::new(),
            given_up: Vec::new(),
            writes: Mutex::default(),
        }
    }

    /// Starts writing `buf` to new places, and tells its pointer.
    pub(crate) fn place(&mut self, buf: Buf, why: Purpose) -> Result<NodePtr, PoolError> {
        let buf = self.pool.limits.scribbled(why, buf);
        let blocks = buf.blocks() as u32;
        let wanted = u64::from(blocks) * COPIES;
        let space = &self.pool.space;
        if self.reservation.blocks() < wanted {
            let more = space.reserve(wanted, copyhold_space::Tier::Internal)?;
            self.reservation.join(more);
        }
        let mut copies = [None; 2];
        for copy in &mut copies {
            let claim = space.claim_run(self.lane, blocks, &mut self.reservation)?;
            let run = claim.run();
            *copy = Some(run.addr);
            self.writes.get_mut().push(self.pool.begin_write(run, vec![buf.clone()], why));
            self.claims.push(claim);
        }
        Ok(NodePtr { copies, blocks, epoch: self.epoch, digest: digest(&buf) })
    }

    /// Where the claims of the next unit begin.
    pub(crate) fn mark(&self) -> usize {
        self.claims.len()
    }

    /// Nothing will point to what was placed since the mark.
    pub(crate) fn give_up(&mut self, mark: usize) {
        self.given_up.extend(self.claims.drain(mark..));
    }

    /// Waits for all writes; gives the claims, to be logged with the pointers.
    pub(crate) async fn finish(self) -> Result<Vec<Claim>, PoolError> {
        for result in futures_util::future::join_all(self.writes.into_inner()).await {
            result?;
        }
        Ok(self.claims)
    }
}

impl NodeSink for NodeWriter {
    fn write(&mut self, why: Purpose, node: Buf) -> NodeFuture<'_, NodePtr> {
        let bytes = node.len();
        let placed = self
            .place(node.clone(), why)
            .map_err(|error| TableError::Unwritable { bytes, source: Arc::new(error) });
        // A node that was written will be read: the cache keeps it, and no read fetches it back.
        if let (Ok(ptr), Ok(node)) = (&placed, Node::parse(node)) {
            self.pool.nodes.cache.insert(ptr, Arc::new(node));
        }
        Box::pin(std::future::ready(placed))
    }
}
