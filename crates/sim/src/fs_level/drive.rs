//! The end of a history on a namespace: a drive that loses writes, and forgets a block.
//!
//! Problem.  The disk of a history hits data and tuples each by itself. A drive that loses a write
//!           keeps an old block with its old tuple: only the birth in the tag differs. One that
//!           forgets a block returns zeros, and the tuple that makes it skip all checks. The data
//!           is lost then, and a read reports that, which no client expects.
//! Idea.     So these faults come last. A file with guards is overwritten again and again, and the
//!           drive loses a request of each round. A read of a block returns its content or an
//!           error, a read of the forgotten block an error. The births, and the stale blocks in
//!           the space that the file gets, are those of the history.

use std::sync::Arc;

use copyhold_device::pi::DriveFault;
use copyhold_format::item::ChecksumMode;
use copyhold_fs::{Caller, Filesystem, FsError, NodeId, OpenFlags, WriteFlags, set_checksum_mode};
use copyhold_types::{BLOCK_BYTES, Purpose};

use super::modes::extents;
use crate::dice::Dice;
use crate::machine::Machine;

const NAME: &[u8] = b"on a bad drive";
/// More than travels with an fsync.
const BLOCKS: usize = 24;
/// So many that a crowded pool gives the file the same space again.
const ROUNDS: u64 = 12;

/// Plays both faults, and removes the file. Without room for it nothing is played.
///
/// # Panics
/// A read returns other bytes than the file has, or the filesystem fails otherwise.
pub(super) fn play_faults(machine: &Machine, fs: &Arc<Filesystem>, dice: &mut Dice) {
    let played = machine.run(async {
        let flags = OpenFlags::READ_WRITE;
        let made = fs.create(&Caller::ROOT, fs.root(), NAME, 0o600, flags, true).await?;
        let node = made.0.node;
        let played = play(machine, fs, node, dice).await;
        fs.release(node);
        fs.unlink(fs.root(), NAME).await?;
        fs.reaper_idle().await;
        fs.sync().await?;
        played
    });
    match played.expect("the power is on") {
        Ok(()) | Err(FsError::NoSpace(_) | FsError::Quota(_) | FsError::Kept { .. }) => {}
        Err(error) => panic!("on a bad drive: {error}"),
    }
}

async fn play(
    machine: &Machine,
    fs: &Arc<Filesystem>,
    node: NodeId,
    dice: &mut Dice,
) -> Result<(), FsError> {
    let namespace = machine.namespace().expect("the device is a namespace");
    set_checksum_mode(fs, &Caller::ROOT, node, ChecksumMode::Guard).await?;
    for _ in 0..ROUNDS {
        namespace.arm(Purpose::Data, 0, DriveFault::LoseWrite);
        let content = overwrite(fs, node, dice).await?;
        for (nth, expected) in content.chunks(BLOCK_BYTES).enumerate() {
            let found = fs.read(node, (nth * BLOCK_BYTES) as u64, BLOCK_BYTES).await;
            let is_other = found.is_ok_and(|found| found.to_vec() != expected);
            assert!(!is_other, "block {nth} of a lost write is read as if it were there");
        }
    }
    overwrite(fs, node, dice).await?;
    let found = extents(fs, node).await?;
    let guarded =
        found.iter().filter(|(_, of)| of.state.checksum_mode() == Some(ChecksumMode::Guard));
    let guarded: Vec<_> = guarded.collect();
    if guarded.is_empty() {
        return Ok(());
    }
    let (block, extent) = dice.pick_ref(&guarded);
    let at = extent.pointer.run.addr.block();
    machine.damage(at, |data| data.fill(0), |metadata| metadata.fill(0xff));
    let read = fs.read(node, block * BLOCK_BYTES as u64, BLOCK_BYTES).await;
    assert!(read.is_err(), "block {block}, which the drive has forgotten, is read");
    Ok(())
}

/// New content of the whole file, which is durable as far as the drive does not lose it.
async fn overwrite(
    fs: &Arc<Filesystem>,
    node: NodeId,
    dice: &mut Dice,
) -> Result<Vec<u8>, FsError> {
    let content = dice.bytes(BLOCKS * BLOCK_BYTES);
    fs.write(node, 0, &content, WriteFlags::default()).await?;
    fs.fsync(node, false).await?;
    Ok(content)
}
