//! Data that a transaction carries, until the device has it.
//!
//! Small synchronous data is written by the commit of its transaction, beside the batch (P12). But
//! the pointers to it are in the tables as soon as the transaction is applied: a snapshot, rollback
//! or reflink made at once can read them. So the pool keeps the bytes of each attached run, and
//! `DataStore` takes them from here.
//!
//! ATTACH-B1  A run is here before a table names it, and until the commit of its txg has been
//!            flushed. So a reader that found a pointer in a table reads data that matches the
//!            pointer's checksums: from here, or, when the run is gone from here, from the device.
//! ATTACH-B2  Runs that are here do not overlap: space that a txg frees is used again after its
//!            commit.
//! ATTACH-B3  When a commit fails, the pool stops and the data stays: reads continue.
//!
//! The open txg, and at most one that is being committed, have something here. A read that finds
//! nothing attached at all costs one load.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use copyhold_sync::{Mutex, of};
use copyhold_types::{BLOCK_BYTES, Buf, Bufs, Run, Txg};

/// The buffers of a run, in order.
pub(crate) type Data = (Run, Bufs);

/// Runs by the address of their first block.
type Runs = BTreeMap<u64, Data>;

/// Blocks of a read that are attached: where in the read they begin, and their bytes.
pub(crate) type Found = Vec<(usize, Buf)>;

#[derive(Debug, Default)]
pub(crate) struct Attached {
    /// How many txgs have something here.
    count: AtomicUsize,
    /// By txg.
    txgs: Mutex<VecDeque<(Txg, Runs)>, of::Attached>,
}

impl Attached {
    /// Keeps the attached data of a transaction of the open txg. The transaction has joined, and
    /// its edits are not applied yet (ATTACH-B1).
    pub(crate) fn add(&self, txg: Txg, attached: Vec<Data>) {
        if attached.is_empty() {
            return;
        }
        let mut txgs = self.txgs.lock();
        if txgs.back().is_none_or(|(last, _)| *last != txg) {
            txgs.push_back((txg, Runs::new()));
            self.count.store(txgs.len(), Ordering::Release);
        }
        let (_, runs) = txgs.back_mut().expect("added above");
        for (run, data) in attached {
            debug_assert_eq!(data.iter().map(Buf::blocks).sum::<usize>(), run.blocks as usize);
            runs.insert(run.addr.raw(), (run, data));
        }
    }

    /// The writes of the commit of `txg`, in the order of the device: adjacent runs joined, up to
    /// `blocks_max` blocks.
    pub(crate) fn of(&self, txg: Txg, blocks_max: usize) -> Vec<Data> {
        let mut writes: Vec<Data> = Vec::new();
        let txgs = self.txgs.lock();
        let Some((_, runs)) = txgs.iter().find(|(of, _)| *of == txg) else { return writes };
        for (run, data) in runs.values() {
            match writes.last_mut() {
                Some((joined, bufs))
                    if joined.addr.offset(joined.blocks.into()) == run.addr
                        && (joined.blocks + run.blocks) as usize <= blocks_max =>
                {
                    *joined = Run::new(joined.addr, joined.blocks + run.blocks);
                    bufs.extend(data.iter().cloned());
                }
                _ => writes.push((*run, data.clone())),
            }
        }
        writes
    }

    /// Forgets the data that is on the device now.
    pub(crate) fn forget(&self, durable: Txg) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        // The buffers are freed without the lock.
        while self.take_durable(durable).is_some() {}
    }

    fn take_durable(&self, durable: Txg) -> Option<Runs> {
        let mut txgs = self.txgs.lock();
        if txgs.front()?.0 > durable {
            return None;
        }
        let (_, gone) = txgs.pop_front()?;
        self.count.store(txgs.len(), Ordering::Release);
        Some(gone)
    }

    /// The blocks of `run` that are attached, in order.
    pub(crate) fn find(&self, run: Run) -> Found {
        let mut found = Found::new();
        if self.count.load(Ordering::Acquire) == 0 {
            return found;
        }
        let wanted = raw(run);
        for (_, runs) in &*self.txgs.lock() {
            let before = runs.range(..wanted.end).rev();
            for (_, (attached, bufs)) in
                before.take_while(|(_, (it, _))| raw(*it).end > wanted.start)
            {
                let mut at = attached.addr.raw();
                for buf in bufs {
                    let end = at + buf.blocks() as u64;
                    let (from, to) = (at.max(wanted.start), end.min(wanted.end));
                    if from < to {
                        let first = (from - wanted.start) as usize;
                        let skip = (from - at) as usize;
                        found.push((first, part(buf, skip, (to - from) as usize)));
                    }
                    at = end;
                }
            }
        }
        found.sort_unstable_by_key(|(first, _)| *first);
        found
    }
}

/// Addresses of a run's blocks, with their device.
fn raw(run: Run) -> Range<u64> {
    run.addr.raw()..run.addr.raw() + u64::from(run.blocks)
}

/// `blocks` blocks of a buffer from block `skip` on; all of it is not copied.
fn part(buf: &Buf, skip: usize, blocks: usize) -> Buf {
    match blocks == buf.blocks() {
        true => buf.clone(),
        false => Buf::from_bytes(&buf[skip * BLOCK_BYTES..(skip + blocks) * BLOCK_BYTES]),
    }
}

/// Whether `found` is all of `blocks` blocks.
pub(crate) fn is_all(found: &Found, blocks: u32) -> bool {
    found.iter().map(|(_, buf)| buf.blocks()).sum::<usize>() == blocks as usize
}

/// One buffer of `blocks` blocks out of parts that are all of it.
pub(crate) fn join(mut found: Found, blocks: u32) -> Buf {
    if found.len() == 1 {
        return found.remove(0).1;
    }
    overlay(Buf::scratch(blocks as usize), &found)
}

/// Puts the found data over the data of the device.
pub(crate) fn overlay(mut buf: Buf, found: &Found) -> Buf {
    for (first, part) in found {
        let at = first * BLOCK_BYTES;
        buf.make_mut()[at..at + part.len()].copy_from_slice(part);
    }
    buf
}

#[cfg(test)]
mod tests {
    use copyhold_types::BlockAddr;

    use super::*;

    fn run(block: u64, blocks: u32) -> Run {
        Run::new(BlockAddr::new(copyhold_types::DeviceId(0), block), blocks)
    }

    fn block(byte: u8) -> Buf {
        Buf::from_bytes(&[byte; BLOCK_BYTES])
    }

    fn bytes(found: &Found) -> Vec<(usize, Vec<u8>)> {
        let first_bytes = |buf: &Buf| buf.chunks(BLOCK_BYTES).map(|block| block[0]).collect();
        found.iter().map(|(at, buf)| (*at, first_bytes(buf))).collect()
    }

    #[test]
    fn a_read_finds_the_blocks_that_it_shares_with_attached_runs() {
        let attached = Attached::default();
        let two = Buf::from_bytes(&[[3; BLOCK_BYTES], [4; BLOCK_BYTES]].concat());
        attached.add(Txg::FIRST, vec![(run(10, 2), Bufs::from([block(1), block(2)]))]);
        attached
            .add(Txg::FIRST.next(), vec![(run(12, 2), two.into()), (run(20, 1), block(5).into())]);
        assert_eq!(bytes(&attached.find(run(0, 10))), []);
        assert_eq!(bytes(&attached.find(run(11, 1))), [(0, vec![2])]);
        assert_eq!(bytes(&attached.find(run(13, 5))), [(0, vec![4])]);
        let all = attached.find(run(10, 4));
        assert_eq!(bytes(&all), [(0, vec![1]), (1, vec![2]), (2, vec![3, 4])]);
        assert!(is_all(&all, 4) && !is_all(&all, 5));
        let joined = join(all, 4);
        assert_eq!(joined.chunks(BLOCK_BYTES).map(|b| b[0]).collect::<Vec<_>>(), [1, 2, 3, 4]);
        let over = overlay(Buf::zeroed(3), &attached.find(run(19, 3)));
        assert_eq!(over.chunks(BLOCK_BYTES).map(|b| b[0]).collect::<Vec<_>>(), [0, 5, 0]);
    }

    #[test]
    fn what_is_durable_is_forgotten_and_what_is_not_stays() {
        let attached = Attached::default();
        let (one, two) = (Txg::FIRST, Txg::FIRST.next());
        attached.add(one, vec![(run(7, 1), block(7).into())]);
        attached.add(two, vec![(run(3, 1), block(3).into()), (run(1, 1), block(1).into())]);
        assert_eq!(attached.of(one, 1).len(), 1);
        let order: Vec<u64> = attached.of(two, 1).iter().map(|(run, _)| run.addr.block()).collect();
        assert_eq!(order, [1, 3], "in the order of the device");
        attached.forget(one);
        assert!(attached.find(run(7, 1)).is_empty() && attached.of(one, 1).is_empty());
        assert_eq!(attached.find(run(3, 1)).len(), 1);
        attached.forget(two.next());
        assert!(attached.find(run(3, 1)).is_empty());
    }
}
