//! Contents of files against their checksums: those in the extents, or beside the blocks.
//!
//! The device compares tuples, and the host again if it made them; a block that is not as expected
//! is named by a read of it alone.

use copyhold_device::{DeviceError, DynDevice, Expect};
use copyhold_format::block_checksum;
use copyhold_format::item::ExtentState;
use copyhold_types::{BLOCK_BYTES, Purpose, Run};
use futures_util::stream::{self, StreamExt};

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
    pub(super) content: ExtentState,
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

type Stretch = (u32, u32, String);

/// Stretches of the extent that differ from the written data: first, how many, why.
async fn bad_blocks(device: &DynDevice, job: &DataJob) -> Vec<Stretch> {
    let run = job.run;
    let expect = match job.content {
        ExtentState::Guarded { birth } => Expect::Guard { birth },
        ExtentState::Offloaded { birth } => Expect::Offload { birth },
        _ => Expect::Plain,
    };
    let read =
        |run: Run| device.read_expecting(run.addr.block(), run.blocks, Purpose::Data, expect);
    let mut bad = Vec::new();
    match (read(run).await, &job.content) {
        (Ok(data), ExtentState::Written(sums)) => {
            for ((at, block), sum) in (0..).zip(data.chunks(BLOCK_BYTES)).zip(sums) {
                if block_checksum(block) != *sum {
                    note(&mut bad, at, "their checksums do not match".into());
                }
            }
        }
        (Ok(_), _) => {}
        (Err(_), ExtentState::Guarded { .. } | ExtentState::Offloaded { .. }) => {
            for at in 0..run.blocks {
                if let Err(error) = read(run.slice(at, 1)).await {
                    note(&mut bad, at, why(error));
                }
            }
        }
        (Err(error), _) => bad.push((0, run.blocks, error.to_string())),
    }
    bad
}

/// Without the place of one block: the stretch has its own.
fn why(error: DeviceError) -> String {
    match error {
        DeviceError::Integrity { kind, by, .. } => format!("{by} finds {kind}"),
        error => error.to_string(),
    }
}

/// Adds a block to the stretches; one that continues the last joins it.
fn note(bad: &mut Vec<Stretch>, at: u32, why: String) {
    match bad.last_mut() {
        Some((first, blocks, same)) if *first + *blocks == at && *same == why => *blocks += 1,
        _ => bad.push((at, 1, why)),
    }
}
