//! Work that an earlier use of the pool has left undone in a subvolume.
//!
//! Problem.  A crash leaves files without a name (ORPHAN items), and blocks behind the logged size
//!           of a file (TRUNCATE items). The files go, and the blocks go before their file can grow
//!           over them. But a mount logs the same items for files in use: an unlinked file that is
//!           open, and accepted data whose size follows. Taken for leftovers, those would be lost.
//! Idea.     The lists are read while nothing of the subvolume can change. Files with leftover
//!           blocks are noted by number, and an inode is loaded with its cut pending, as if it had
//!           just been truncated: so later writes are ordered behind the cut. The reaper does the
//!           removals in the background.
//!
//! LEFTOVER-O1  This mount changes nothing of a subvolume before the leftovers are known. All
//!              callers await one reading of the lists. After an error reads continue,
//!              [`Leftovers::check`] refuses changes, and the next caller repeats the reading. On a
//!              read-only mount or subvolume the lists are not read: nothing can change there, and
//!              `make_writable` reads them.
//! LEFTOVER-O2  The lists are read at no other time: at the first visit, and when the subvolume
//!              ceases to be read-only. So a TRUNCATE item on them never announces accepted data.
//!              An ORPHAN item may belong to a file that is open since before the subvolume was set
//!              read-only; such a file stays until it is released.
//! LEFTOVER-O3  When the leftovers are known, each inode in memory that has leftover blocks has its
//!              cut pending. Others get it when they are loaded.
//! LEFTOVER-O4  The cut is at the logged size, for any size in the item: content is never cut.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use copyhold_format::item::{LISTS, ORPHAN, TRUNCATE};
use copyhold_runtime::{FifoMutex, FifoMutexGuard};
use copyhold_sync::{Mutex, of};
use copyhold_types::{InodeNo, Key};

use crate::inode::{Inode, InodeState};
use crate::sabotage::Sabotage;
use crate::subvol::Subvol;
use crate::{FileKind, Filesystem, FsError, Result};

/// Items of the lists that are read at a time.
const STEP: usize = 256;

#[derive(Default)]
pub(crate) struct Leftovers {
    known: AtomicBool,
    /// Held while the lists are read.
    reading: FifoMutex,
    noted: Mutex<Noted, of::Leftovers>,
}

#[derive(Default)]
struct Noted {
    /// Files with leftover blocks that are not in memory.
    cuts: BTreeSet<InodeNo>,
    /// How often the reading has failed, and the last error.
    failures: u64,
    failure: Option<FsError>,
}

impl Leftovers {
    pub(crate) fn are_known(&self) -> bool {
        self.known.load(Ordering::Acquire)
    }

    /// Fails while changes have to wait (LEFTOVER-O1).
    pub(crate) fn check(&self) -> Result<()> {
        if self.are_known() {
            return Ok(());
        }
        let failure = self.noted.lock().failure.clone();
        let unread = || FsError::ReadOnly { why: "the subvolume is becoming writable".into() };
        Err(failure.unwrap_or_else(unread))
    }

    /// Files with leftover blocks that are not in memory.
    pub(crate) fn cuts(&self) -> Vec<InodeNo> {
        self.noted.lock().cuts.iter().copied().collect()
    }

    fn take_cut(&self, ino: InodeNo) -> bool {
        self.noted.lock().cuts.remove(&ino)
    }

    fn failures(&self) -> u64 {
        self.noted.lock().failures
    }

    fn end_reading(&self, read: Result<()>) {
        let mut noted = self.noted.lock();
        match read {
            Ok(()) => {
                noted.failure = None;
                self.known.store(true, Ordering::Release);
            }
            Err(error) => {
                noted.failures += 1;
                noted.failure = Some(error);
            }
        }
    }
}

impl InodeState {
    /// Extents behind the logged size are to be removed (LEFTOVER-O4).
    fn cut_leftovers(&mut self) {
        let size = self.item.size;
        self.data.cut.resume(size);
    }
}

impl Filesystem {
    /// Reads the lists of leftovers, or awaits the caller that does (LEFTOVER-O1).
    pub(crate) async fn await_leftovers(&self, subvol: &Arc<Subvol>) {
        if subvol.leftovers.are_known() {
            return;
        }
        let failures = subvol.leftovers.failures();
        let reading = subvol.leftovers.reading.lock().await;
        if self.breaks(Sabotage::ChangeBeforeKnown) {
            subvol.leftovers.known.store(true, Ordering::Release);
            self.rt.sleep(Duration::from_micros(100)).await;
            return self.read_leftovers(subvol, &reading).await;
        }
        let is_done = subvol.leftovers.are_known() || subvol.leftovers.failures() != failures;
        if !is_done {
            self.read_leftovers(subvol, &reading).await;
        }
    }

    /// Makes all callers wait until the lists of a subvolume that becomes writable are read
    /// ([`Self::read_leftovers`]). If the guard is dropped before that, the next caller reads them.
    pub(crate) async fn invalidate_leftovers<'a>(&self, subvol: &'a Subvol) -> FifoMutexGuard<'a> {
        let reading = subvol.leftovers.reading.lock().await;
        subvol.leftovers.known.store(false, Ordering::Release);
        reading
    }

    pub(crate) async fn read_leftovers(&self, subvol: &Arc<Subvol>, _: &FifoMutexGuard<'_>) {
        let read = self.try_read_leftovers(subvol).await;
        if let Err(error) = &read
            && !matches!(error, FsError::Stale)
        {
            let id = subvol.id();
            tracing::warn!(%id, %error, "a subvolume is not writable until its lists are read");
        }
        subvol.leftovers.end_reading(read);
    }

    async fn try_read_leftovers(&self, subvol: &Arc<Subvol>) -> Result<()> {
        if self.writable().is_err() {
            return Ok(());
        }
        if self.volumes.is_outdated(&subvol.volume) {
            self.renew(&subvol.volume).await?;
        }
        if subvol.volume.is_read_only() {
            return Ok(());
        }
        let (mut orphans, cuts) = self.read_lists(subvol).await?;
        if self.breaks(Sabotage::KeepOrphans) {
            orphans.clear();
        }
        subvol.leftovers.noted.lock().cuts.extend(cuts.iter().copied());
        for &ino in &cuts {
            // A task that loads it now has not seen the note (LEFTOVER-O3).
            let _loading = self.inodes.loading(subvol.node(ino)).await;
            if let Some(inode) = self.inodes.get(subvol.node(ino))
                && subvol.leftovers.take_cut(ino)
            {
                self.cut_leftovers_of(&inode);
            }
        }
        let Some(me) = self.me.upgrade() else { return Ok(()) };
        for ino in orphans {
            match self.inodes.get(subvol.node(ino)) {
                Some(_) if self.breaks(Sabotage::ReplayInUse) => me.reap_later(subvol.node(ino)),
                Some(inode) => me.reap_if_unused(&inode),
                None => me.reap_later(subvol.node(ino)),
            }
        }
        cuts.into_iter().for_each(|ino| me.reap_later(subvol.node(ino)));
        Ok(())
    }

    /// The files on the two lists.
    async fn read_lists(&self, subvol: &Subvol) -> Result<(Vec<InodeNo>, Vec<InodeNo>)> {
        let mut from = Key::new(LISTS, ORPHAN, 0);
        let end = Key::new(LISTS, TRUNCATE, u64::MAX);
        let (mut orphans, mut cuts) = (Vec::new(), Vec::new());
        loop {
            let items = self.range(subvol, from, end, STEP).await?;
            let Some((last, _)) = items.last() else { return Ok((orphans, cuts)) };
            from = last.successor().expect("keys of lists have successors");
            for (key, _) in items {
                match key.kind {
                    ORPHAN => orphans.push(InodeNo(key.offset)),
                    TRUNCATE => cuts.push(InodeNo(key.offset)),
                    _ => {}
                }
            }
        }
    }

    /// An inode that is being loaded gets the cut that is noted for it, before a look-up can find
    /// it.
    pub(crate) fn take_leftovers(&self, inode: &Arc<Inode>) {
        if inode.subvol.leftovers.take_cut(inode.node.ino) {
            self.cut_leftovers_of(inode);
        }
    }

    fn cut_leftovers_of(&self, inode: &Arc<Inode>) {
        if inode.kind != FileKind::Regular {
            return;
        }
        inode.state().cut_leftovers();
        if let Some(me) = self.me.upgrade() {
            me.note_dirty(inode);
        }
    }
}
