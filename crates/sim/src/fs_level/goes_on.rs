//! Liveness: after any history of a filesystem, a file can be deleted, the freed space can be
//! written again, all of it can be flushed, and none of this takes long (R21).

use std::sync::Arc;
use std::time::Duration;

use copyhold_fs::{Caller, Filesystem, FsError, NodeId, OpenFlags, WriteFlags};

use super::tree::{SHARED_DIRS, shared_name};
use crate::machine::Machine;

/// Of simulated time, for all that is done here.
const WITHIN: Duration = Duration::from_secs(300);
/// A file of fewer bytes frees nothing that could be told from what its deletion takes.
const BYTES_MIN: u64 = 128 << 10;
/// More than any of these pools has.
const BYTES_MAX: u64 = 64 << 20;

/// Fills the filesystem, deletes what fills it, and writes half of that again. Whether there was
/// enough to delete: snapshots may have all of the space, or limits refuse it.
pub(super) fn goes_on(machine: &Machine, fs: &Arc<Filesystem>) -> bool {
    let since = machine.rt.now();
    let done = machine.run(delete_and_write(fs)).expect("the power is on");
    let refilled =
        done.unwrap_or_else(|error| panic!("R21: deleting, writing and flushing: {error}"));
    let took = Duration::from_nanos(machine.rt.now() - since);
    assert!(took < WITHIN, "R21: a deletion and a write took {took:?}");
    refilled
}

async fn delete_and_write(fs: &Arc<Filesystem>) -> Result<bool, FsError> {
    // Blocks that fill a pool may be in snapshots, too, and their deletion then frees nothing.
    match delete(fs, &shared_name(SHARED_DIRS)).await {
        Ok(()) | Err(FsError::NotFound) => {}
        Err(error) => return Err(error),
    }
    let Ok(ballast) = create(fs, b"ballast").await else { return Ok(false) };
    let freed = fill(fs, ballast, BYTES_MAX).await?;
    // The next write comes at once: it waits for what is being freed itself (R22).
    fs.unlink(fs.root(), b"ballast").await?;
    if freed < BYTES_MIN {
        return Ok(false);
    }
    let again = create(fs, b"again").await?;
    let written = fill(fs, again, freed / 2).await?;
    assert!(written >= freed / 2, "{freed} bytes are freed, and {written} can be written");
    delete(fs, b"again").await.map(|()| true)
}

/// Deletes a file of the root directory, until its space is free.
async fn delete(fs: &Arc<Filesystem>, name: &[u8]) -> Result<(), FsError> {
    fs.unlink(fs.root(), name).await?;
    fs.reaper_idle().await;
    fs.sync().await?;
    fs.pool().flush_all().await.map_err(FsError::from)
}

async fn create(fs: &Arc<Filesystem>, name: &[u8]) -> Result<NodeId, FsError> {
    let flags = OpenFlags::READ_WRITE;
    let made = fs.create(&Caller::ROOT, fs.root(), name, 0o600, flags, true).await;
    made.map(|(made, _)| made.node)
}

/// Writes as much as is taken, and at most `most`, to a new file that is open; how many bytes that
/// was. Closes the file.
async fn fill(fs: &Arc<Filesystem>, node: NodeId, most: u64) -> Result<u64, FsError> {
    let mut at = 0;
    for len in [64 << 10, 4096] {
        let data = vec![1; len];
        while at < most && fs.write(node, at, &data, WriteFlags::default()).await.is_ok() {
            at += len as u64;
        }
    }
    let synced = fs.fsync(node, false).await;
    fs.release(node);
    synced.map(|()| at)
}
