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

use super::modes::{ByMode, extents};
use crate::dice::Dice;
use crate::machine::Machine;

const NAME: &[u8] = b"on a bad drive";
/// More than travels with an fsync.
const BLOCKS: usize = 24;
/// So many that a crowded pool gives the file the same space again.
const ROUNDS: u64 = 12;

/// Blocks that reads have refused.
#[derive(Default)]
pub(super) struct Refused {
    /// Those that were lost, by the checksum mode of their extent.
    pub(super) lost_writes: ByMode,
    pub(super) forgotten: u64,
}

/// Plays the faults, and removes the file. Without room for it nothing more is played.
///
/// # Panics
/// A read returns other bytes than the file has, or the filesystem fails otherwise.
pub(super) fn play_faults(machine: &Machine, fs: &Arc<Filesystem>, dice: &mut Dice) -> Refused {
    let mut refused = Refused::default();
    let played = machine.run(async {
        let flags = OpenFlags::READ_WRITE;
        let made = fs.create(&Caller::ROOT, fs.root(), NAME, 0o600, flags, true).await?;
        let node = made.0.node;
        let mut player = Player { machine, fs, node, dice, refused: &mut refused };
        let played = player.play().await;
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
    refused
}

struct Player<'a> {
    machine: &'a Machine,
    fs: &'a Arc<Filesystem>,
    node: NodeId,
    dice: &'a mut Dice,
    refused: &'a mut Refused,
}

impl Player<'_> {
    async fn play(&mut self) -> Result<(), FsError> {
        let guard = ChecksumMode::Guard;
        set_checksum_mode(self.fs, &Caller::ROOT, self.node, guard).await?;
        for _ in 0..ROUNDS {
            self.lose_a_write().await?;
        }
        self.forget_a_block().await
    }

    async fn lose_a_write(&mut self) -> Result<(), FsError> {
        let namespace = self.machine.namespace().expect("the device is a namespace");
        namespace.arm(Purpose::Data, 0, DriveFault::LoseWrite);
        let content = self.overwrite().await?;
        for (first, extent) in extents(self.fs, self.node).await? {
            let blocks = u64::from(extent.pointer.run.blocks);
            for nth in first..first + blocks {
                let expected = &content[nth as usize * BLOCK_BYTES..][..BLOCK_BYTES];
                let had = extent.state.checksum_mode().expect("its data is written");
                let Some(found) = self.read(nth).await else {
                    self.refused.lost_writes[usize::from(had.code())] += 1;
                    continue;
                };
                assert!(
                    found == expected,
                    "block {nth} of a lost write is read as if it were there"
                );
            }
        }
        Ok(())
    }

    async fn forget_a_block(&mut self) -> Result<(), FsError> {
        self.overwrite().await?;
        let found = extents(self.fs, self.node).await?;
        let guarded =
            found.iter().filter(|(_, of)| of.state.checksum_mode() == Some(ChecksumMode::Guard));
        let guarded: Vec<_> = guarded.collect();
        if guarded.is_empty() {
            return Ok(());
        }
        let (block, extent) = self.dice.pick_ref(&guarded);
        let at = extent.pointer.run.addr.block();
        self.machine.damage(at, |data| data.fill(0), |metadata| metadata.fill(0xff));
        let read = self.read(*block).await;
        assert!(read.is_none(), "block {block}, which the drive has forgotten, is read");
        self.refused.forgotten += 1;
        Ok(())
    }

    /// Nothing if it is refused.
    async fn read(&self, block: u64) -> Option<Vec<u8>> {
        let found = self.fs.read(self.node, block * BLOCK_BYTES as u64, BLOCK_BYTES).await;
        found.ok().map(|found| found.to_vec())
    }

    /// New content of the whole file, which is durable as far as the drive does not lose it.
    async fn overwrite(&mut self) -> Result<Vec<u8>, FsError> {
        let content = self.dice.bytes(BLOCKS * BLOCK_BYTES);
        self.fs.write(self.node, 0, &content, WriteFlags::default()).await?;
        self.fs.fsync(self.node, false).await?;
        Ok(content)
    }
}
