//! Places and writes the result of a flush: nodes and space maps, in two copies.
//!
//! WRITER-W1  A node for which free space has no run is written in fragments, down to single
//!            blocks. So a flush needs blocks, never runs, and a count of blocks suffices (R21).
//!            That costs a block a copy, for the list of the fragments.
//! WRITER-W2  No block is allocated before the transaction that adds the pointers (R19).

use copyhold_format::digest;
use copyhold_format::node::{FRAGMENTS_MAX, Fragment, Node, encode_fragments, pieces_of};
use copyhold_runtime::BoxFuture;
use copyhold_space::{Claim, Lane, LaneClass, Reservation, Tier};
use copyhold_sync::{Mutex, of};
use copyhold_table::{NodeFuture, NodeSink, Table, TableError};
use copyhold_types::{BLOCK_BYTES, Buf, EpochId, NodePtr, Purpose};
use futures_util::future::join_all;
use std::sync::Arc;

use crate::births::BlockMode;
use crate::copies::cut;
use crate::fragments::Pieces;
use crate::nodes::COPIES;
use crate::{Pool, PoolError, Sabotage};

/// Most blocks that a node of `bytes` bytes takes, in all copies.
pub(crate) fn blocks_max(bytes: u64) -> u64 {
    let blocks = bytes.div_ceil(BLOCK_BYTES as u64);
    (blocks + u64::from(blocks > 1)) * COPIES
}

/// Places and writes the nodes of a flush. The writes continue in the background until
/// [`NodeWriter::finish`], and so long its claims are held, also those of discarded nodes: blocks
/// are not reallocated while a write to them is under way. So a round of flushing is always
/// finished.
pub(crate) struct NodeWriter {
    pool: Arc<Pool>,
    lane: Lane,
    reservation: Reservation,
    /// The nodes' pointers carry it.
    pub(crate) epoch: EpochId,
    /// Its owner pays for them.
    pub(crate) table: Option<Arc<Table>>,
    claims: Vec<Claim>,
    given_up: Vec<Claim>,
    pieces: Pieces,
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
            table: None,
            claims: Vec::new(),
            given_up: Vec::new(),
            pieces: Pieces::new(),
            writes: Mutex::default(),
        }
    }

    /// Starts writing `buf` to new places, and returns its pointer.
    pub(crate) fn place(&mut self, buf: Buf, why: Purpose) -> Result<NodePtr, PoolError> {
        let buf = self.pool.limits.scribbled(why, buf);
        let (blocks, epoch, digest) = (buf.blocks() as u32, self.epoch, digest(&buf));
        let ptr = |copies, fragmented| NodePtr { copies, blocks, fragmented, epoch, digest };
        match self.claim_whole(blocks) {
            Ok(claims) => {
                let copies = claims.each_ref().map(|claim| Some(claim.run().addr));
                claims.into_iter().for_each(|claim| self.write(claim, buf.clone(), why));
                Ok(ptr(copies, false))
            }
            Err(full) if blocks == 1 || self.pool.sabotaged(Sabotage::WholeNodes) => Err(full),
            Err(_) => {
                let fragments = self.place_fragments(&buf, why)?;
                let list = encode_fragments(digest, &fragments);
                let ptr = ptr(self.place(list, why)?.copies, true);
                self.pieces.insert(ptr, pieces_of(&ptr, &fragments));
                Ok(ptr)
            }
        }
    }

    /// Starts writing `buf` wherever there are blocks.
    fn place_fragments(&mut self, buf: &Buf, why: Purpose) -> Result<Vec<Fragment>, PoolError> {
        let mut rest = Vec::new();
        for _ in 0..COPIES {
            self.promise(buf.blocks() as u64)?;
            let claims =
                self.pool.space.claim(self.lane, buf.blocks() as u64, &mut self.reservation)?;
            // The first one last.
            rest.push(claims.into_iter().rev().collect::<Vec<Claim>>());
        }
        let mut rows: Vec<[Claim; COPIES as usize]> = Vec::new();
        while let [Some(a), Some(b)] = [rest[0].pop(), rest[1].pop()] {
            let blocks = a.run().blocks.min(b.run().blocks);
            let mut head = |claim: Claim, copy: usize| {
                if claim.run().blocks == blocks {
                    return claim;
                }
                let (head, tail) = claim.split(blocks);
                rest[copy].push(tail);
                head
            };
            rows.push([head(a, 0), head(b, 1)]);
        }
        if rows.len() > FRAGMENTS_MAX {
            let wanted = buf.blocks() as u64 * COPIES;
            return Err(self.pool.space.no_space(wanted).into());
        }
        let fragment = |claims: &[Claim; 2]| Fragment {
            copies: claims.each_ref().map(|claim| Some(claim.run().addr)),
            blocks: claims[0].run().blocks,
        };
        let fragments: Vec<Fragment> = rows.iter().map(fragment).collect();
        let contents = cut(buf, fragments.iter().map(|fragment| fragment.blocks));
        for (claims, content) in rows.into_iter().zip(contents) {
            claims.into_iter().for_each(|claim| self.write(claim, content.clone(), why));
        }
        Ok(fragments)
    }

    /// A run of `blocks` for each copy.
    fn claim_whole(&mut self, blocks: u32) -> Result<[Claim; COPIES as usize], PoolError> {
        self.promise(u64::from(blocks) * COPIES)?;
        let space = &self.pool.space;
        let first = space.claim_run(self.lane, blocks, &mut self.reservation)?;
        match space.claim_run(self.lane, blocks, &mut self.reservation) {
            Ok(second) => Ok([first, second]),
            Err(full) => {
                first.cancel_into(&mut self.reservation);
                Err(full.into())
            }
        }
    }

    /// Has at least `blocks` reserved.
    fn promise(&mut self, blocks: u64) -> Result<(), PoolError> {
        if self.reservation.blocks() < blocks {
            self.reservation.join(self.pool.space.reserve(blocks, Tier::Internal)?);
        }
        Ok(())
    }

    fn write(&mut self, claim: Claim, content: Buf, why: Purpose) {
        self.writes.get_mut().push(self.pool.begin_write(
            claim.run(),
            content.into(),
            why,
            BlockMode::PLAIN,
        ));
        self.claims.push(claim);
    }

    /// Where the claims of the next unit begin.
    pub(crate) fn mark(&self) -> usize {
        self.claims.len()
    }

    /// No pointer will refer to the nodes placed since the mark.
    pub(crate) fn give_up(&mut self, mark: usize) {
        self.given_up.extend(self.claims.drain(mark..));
    }

    /// Waits for all writes; returns the claims, to be logged with the pointers, and the pieces of
    /// the fragmented nodes among these.
    pub(crate) async fn finish(self) -> Result<(Vec<Claim>, Pieces), PoolError> {
        for result in join_all(self.writes.into_inner()).await {
            result?;
        }
        Ok((self.claims, self.pieces))
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
            let owner = self.table.as_ref().and_then(|table| table.owner_of(ptr));
            self.pool.nodes.keep(ptr, Arc::new(node), owner.as_ref());
        }
        Box::pin(std::future::ready(placed))
    }
}
