//! The small dirty parts of many files, sent together.
//!
//! A hundred tenants that write here and there leave thousands of files with one dirty block each.
//! A request for each would cost the device more than the bytes do. Claims that follow each other
//! are next to each other on the device most of the time, so the batches of a group are claimed one
//! after the other and go out in few requests; each is installed by a transaction of its own.
//!
//! If a request fails, each file with blocks in it repeats its part alone, to the same blocks
//! (GUARD-G1): so only files with an error report one. A file of which blocks changed in memory
//! does not: new guards would vouch for the change.

use std::collections::VecDeque;
use std::sync::Arc;

use copyhold_pool::{BlockMode, Claim, PoolError};
use copyhold_runtime::finishing;
use copyhold_types::{BlockAddr, Bufs, Purpose, Run};
use futures_util::future::{join, join_all};

use super::batch::{Placed, REQUEST_BLOCKS_MAX, WritebackJob, gather};
use crate::flight::Flying;
use crate::inode::InodeRef;
use crate::writers::WriterTask;
use crate::{Filesystem, Result};

/// A batch with its place, not sent yet.
struct Ready {
    batch: WritebackJob,
    placed: Vec<Placed>,
    claims: VecDeque<Claim>,
}

/// The fate of a member's blocks.
enum Sent {
    All,
    /// Some may be missing: it writes them again, alone.
    Again,
    /// Some are no longer those that were accepted.
    Changed(PoolError),
}

impl Filesystem {
    /// Writes the blocks of the files that are dirty at the call. Each file keeps its own error,
    /// the caller gets the first.
    pub(crate) async fn write_together(
        self: &Arc<Self>,
        files: &[InodeRef],
        task: &WriterTask,
    ) -> Result<()> {
        let versions: Vec<u64> = files.iter().map(|file| file.state().data.version()).collect();
        let ready = files.iter().map(|file| file.state().data.ready()).sum();
        let flying = task.take_room(self, ready).await;
        let (mut batches, mut left) = (Vec::with_capacity(files.len()), flying.blocks());
        for (file, version) in files.iter().zip(&versions) {
            let taken = WritebackJob::take(self, file, *version, false, left, task.lane());
            let Some(batch) = taken else { continue };
            left -= batch.took.len();
            batches.push(batch);
        }
        let fs = self.clone();
        let write = async move { fs.write_batches(batches, flying).await };
        let mut result = finishing(&self.rt, write).await;
        for (file, version) in files.iter().zip(versions) {
            // More than one batch takes, or than there was room for.
            if file.state().data.has_dirty_block(version) {
                result = result.and(task.write_out(self, file, version).await);
            }
        }
        result
    }

    async fn write_batches(&self, batches: Vec<WritebackJob>, mut flying: Flying) -> Result<()> {
        let (placed, others): (Vec<_>, Vec<_>) =
            batches.into_iter().partition(WritebackJob::is_placed);
        flying.keep_blocks(placed.iter().map(|batch| batch.took.len()).sum());
        // The others wait for locks, and have no room meanwhile (FLIGHT-L5).
        let (group, others) = join(self.write_group(placed, flying), write_each(others)).await;
        group.and(others)
    }

    async fn write_group(&self, placed: Vec<WritebackJob>, flying: Flying) -> Result<()> {
        let mut group = Vec::with_capacity(placed.len());
        let mut first = Ok(());
        for mut batch in placed {
            match batch.claim().await {
                Ok(claims) => {
                    let placed = batch.place(&claims);
                    group.push(Ready { batch, placed, claims });
                }
                Err(error) => first = first.and(batch.record(Err(error))),
            }
        }
        let sent = self.send_together(&group).await;
        drop(flying);
        for (ready, sent) in group.into_iter().zip(sent) {
            let Ready { mut batch, placed, mut claims } = ready;
            let written = match sent {
                Sent::All => batch.install_placed(&placed, &mut claims).await,
                Sent::Again => batch.send_and_install(&placed, &mut claims).await,
                Sent::Changed(error) => Err(error.into()),
            };
            batch.unclaim(claims, &written);
            first = first.and(batch.record(written));
        }
        first
    }

    async fn send_together(&self, group: &[Ready]) -> Vec<Sent> {
        let mut requests: Vec<(Run, Bufs, BlockMode, usize, usize)> = Vec::new();
        for (member, ready) in group.iter().enumerate() {
            for placed in &ready.placed {
                let run = placed.run;
                let mode = placed.mode;
                let slots = &ready.batch.took[placed.first..placed.first + run.blocks as usize];
                match requests.last_mut() {
                    Some((last, bufs, same, _, to))
                        if last.addr.device() == run.addr.device()
                            && last.end() == run.addr.block()
                            && *same == mode
                            && last.blocks + run.blocks <= REQUEST_BLOCKS_MAX =>
                    {
                        last.blocks += run.blocks;
                        bufs.extend(gather(slots));
                        *to = member;
                    }
                    _ => requests.push((run, gather(slots), mode, member, member)),
                }
            }
        }
        let writes = requests.into_iter().map(|(run, data, mode, from, to)| async move {
            (self.pool.write(run, data, Purpose::Data, mode).await, run, from..=to)
        });
        let mut sent: Vec<Sent> = group.iter().map(|_| Sent::All).collect();
        for (written, run, members) in join_all(writes).await {
            let Err(error) = written else { continue };
            if error.is_refused_guard() {
                tracing::warn!("{error}: each file of the request is written again, alone");
            }
            for (ready, sent) in group[members.clone()].iter().zip(&mut sent[members]) {
                let blocks = error.changed_blocks().iter();
                let mut changed = blocks.map(|nth| run.addr.offset(u64::from(*nth)));
                if changed.any(|addr| ready.has(addr)) {
                    *sent = Sent::Changed(error.clone());
                } else if matches!(sent, Sent::All) {
                    *sent = Sent::Again;
                }
            }
        }
        sent
    }
}

impl Ready {
    fn has(&self, addr: BlockAddr) -> bool {
        self.placed.iter().any(|placed| placed.run.contains(addr))
    }
}

async fn write_each(batches: Vec<WritebackJob>) -> Result<()> {
    let mut first = Ok(());
    for mut batch in batches {
        let written = batch.write().await;
        first = first.and(batch.record(written));
    }
    first
}

impl WritebackJob {
    /// The file keeps an error, before the batch has ended: an fsync that waits for that asks for
    /// errors then.
    fn record(self, result: Result<()>) -> Result<()> {
        self.inode.record_error(result.clone());
        result
    }
}
