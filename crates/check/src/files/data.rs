//! Contents of files against the checksums in their extents.

use copyhold_device::DynDevice;
use copyhold_format::block_checksum;
use copyhold_types::{BLOCK_BYTES, Purpose, Run};
use futures_util::stream::{self, StreamExt};
use smallvec::SmallVec;

use crate::checker::Checker;
use crate::problem::{FileId, Problem};

/// Extents that are read at the same time.
const READS: usize = 16;

/// An extent to be verified.
pub(super) struct DataJob {
    pub(super) file: FileId,
    /// File block of its first.
    pub(super) block: u64,
    pub(super) run: Run,
    pub(super) sums: SmallVec<[u32; 4]>,
}

pub(super) async fn verify(checker: &mut Checker, jobs: Vec<DataJob>) {
    let device = checker.pool.device().clone();
    let size = device.geometry().blocks;
    let inside =
        jobs.iter().filter(|job| job.run.end() <= size && job.run.addr.device() == device.id());
    let mut reads = stream::iter(inside)
        .map(|job| {
            let device = &device;
            async move { (job, bad_blocks(device, job).await) }
        })
        .buffered(READS);
    while let Some((job, bad)) = reads.next().await {
        checker.report.verified.data_blocks += u64::from(job.run.blocks);
        for (skip, blocks, why) in bad {
            checker.report.add(Problem::Data {
                file: job.file,
                block: job.block + u64::from(skip),
                blocks,
                run: job.run.slice(skip, blocks),
                why,
            });
        }
    }
}

/// Stretches of the extent that differ from the written data: first, how many, why.
async fn bad_blocks(device: &DynDevice, job: &DataJob) -> Vec<(u32, u32, String)> {
    let run = job.run;
    let data = match device.read(run.addr.block(), run.blocks, Purpose::Data).await {
        Ok(data) => data,
        Err(error) => return vec![(0, run.blocks, error.to_string())],
    };
    let mut bad: Vec<(u32, u32, String)> = Vec::new();
    for ((at, block), sum) in (0..).zip(data.chunks(BLOCK_BYTES)).zip(&job.sums) {
        if block_checksum(block) == *sum {
            continue;
        }
        match bad.last_mut() {
            Some((first, blocks, _)) if *first + *blocks == at => *blocks += 1,
            _ => bad.push((at, 1, "their checksums do not match".into())),
        }
    }
    bad
}
