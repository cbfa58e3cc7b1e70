//! The part of a file that is only in memory: its dirty blocks, and the size that they make.
//!
//! A block is dirty from the write that changes it until a batch that took it is installed. It can
//! be both taken and dirty again. After an fsync that sent it beside its batch it stays until that
//! is durable, and counts as memory in use: its bytes are not on the device before (P12).
//!
//! DIRTY-D1  A block that is dirty, taken or attached is in `blocks`, and is read from there
//!           (FILES-F2).
//! DIRTY-D2  `reserved` has a block for each dirty one that is not written in place; a batch takes
//!           its share with it (FILES-F3), and brings it back with the blocks that it could not
//!           write. Only where the pool has stopped there may be less.
//! DIRTY-D3  Bytes beyond the end of the file are zero in a dirty block.
//! DIRTY-D4  `covered` of a block: its logged content is right for a file of that size. The logged
//!           size goes no further than the first block that is not covered in full (FILES-F1).
//! DIRTY-D7  A file of which all is logged has no [`Unsettled`]: most files in memory are such.
//! DIRTY-D8  A file that was `emptied` while it is open for writing (O_TRUNC) is to be durable when
//!           it is closed, until something is written to it: a note beside the count of opens says
//!           so, too, and stays when the inode leaves memory. A batch that was taken before is
//!           *overtaken*: no block of it is current, and it logs neither the cut nor the times. The
//!           next one logs both, and fsync waits for that (R34).
//! DIRTY-D9  While a cut is pending, at most one batch is under way. So the cut is logged together
//!           with the first blocks that were written since: later ones alone would leave the file
//!           empty (R35).
//! DIRTY-D10  The transaction that logs a size that was set, or a cut, is not refused for space:
//!            the space that it adds to tables was reserved when the size was set (R21), and
//!            `room` holds that until both are logged.
//!
//! CUT-D5 and CUT-D6 say which blocks of the table do not count: see [`Cut`].

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut, Range};

use copyhold_types::{BLOCK_BYTES, Txg};

use super::cut::Cut;
use super::slot::Slot;
use crate::promise::Promise;

const BLOCK: u64 = BLOCK_BYTES as u64;

pub(crate) struct DirtyBlock {
    pub(crate) slot: Slot,
    /// Number of the change that made it dirty; `None` while nothing new is in it.
    pub(crate) since: Option<u64>,
    /// The batch that is writing an earlier or this content, and the `since` of that.
    pub(crate) taken: Option<u64>,
    taken_since: u64,
    /// Its new content has no reservation: it goes where preallocated space is.
    in_place: bool,
    /// Its content goes out with this txg.
    pub(crate) attached: Option<Txg>,
    /// DIRTY-D4.
    pub(crate) covered: u64,
    /// The batch writes content that is right for no larger size: the file was cut here since.
    taken_limit: u64,
}

impl DirtyBlock {
    /// [`Self::covered`], once the content that `batch` took is logged.
    fn covered_by(&self, batch: Taken) -> u64 {
        self.covered.max(batch.size.min(self.taken_limit))
    }
}

/// A batch under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    pub(crate) id: u64,
    /// The file's size when its blocks were taken.
    pub(crate) size: u64,
}

/// The result of [`FileData::take`].
pub(crate) struct Took {
    pub(crate) id: u64,
    pub(crate) blocks: Vec<(u64, Slot)>,
    pub(crate) in_place: bool,
}

#[derive(Default)]
pub(crate) struct FileData {
    /// Number of the last change of data, size or times.
    version: u64,
    last_batch: u64,
    /// DIRTY-D7: made by the first change, gone when there is nothing left in it.
    unsettled: Option<Box<Unsettled>>,
}

/// The part of a file that is not in the log, or only just.
#[derive(Default)]
pub(crate) struct Unsettled {
    pub(crate) blocks: BTreeMap<u64, DirtyBlock>,
    reserved: Option<Promise>,
    /// Blocks with `since`, but not `taken`.
    ready: usize,
    batches: BTreeSet<u64>,
    pub(crate) cut: Cut,
    /// DIRTY-D10.
    room: Option<Promise>,
    /// Number of the oldest change of size or times that is not logged. Where blocks delay the
    /// size (DIRTY-D4), of the last change when the times were logged: an earlier fsync has not to
    /// wait for later writes.
    unlogged_since: Option<u64>,
    /// The file is on the list of dirty ones.
    listed: bool,
    /// DIRTY-D8: the number of the truncation, and the last batch that was taken before.
    emptied: Option<u64>,
    overtaken: u64,
}

/// Of a file of which all is logged.
static NOTHING: Unsettled = Unsettled {
    blocks: BTreeMap::new(),
    reserved: None,
    ready: 0,
    batches: BTreeSet::new(),
    cut: Cut::NOTHING,
    room: None,
    unlogged_since: None,
    listed: false,
    emptied: None,
    overtaken: 0,
};

impl Unsettled {
    fn is_nothing(&self) -> bool {
        self.blocks.is_empty()
            && self.reserved.is_none()
            && self.batches.is_empty()
            && self.cut.is_nothing()
            && self.room.is_none()
            && self.unlogged_since.is_none()
            && !self.listed
            && self.emptied.is_none()
    }
}

impl Deref for FileData {
    type Target = Unsettled;

    fn deref(&self) -> &Unsettled {
        self.unsettled.as_deref().unwrap_or(&NOTHING)
    }
}

impl DerefMut for FileData {
    fn deref_mut(&mut self) -> &mut Unsettled {
        self.unsettled.get_or_insert_default()
    }
}

impl FileData {
    /// DIRTY-D7. Called after any block that may have been the last.
    fn let_go(&mut self) {
        match &mut self.unsettled {
            Some(unsettled) if unsettled.is_nothing() => self.unsettled = None,
            // An empty map keeps room for some.
            Some(unsettled) if unsettled.blocks.is_empty() => unsettled.blocks = BTreeMap::new(),
            _ => {}
        }
    }

    /// Puts the file on the list of dirty ones, or takes it off. Whether it was there.
    pub(crate) fn list(&mut self, listed: bool) -> bool {
        let was = self.listed;
        if was != listed {
            self.listed = listed;
            self.let_go();
        }
        was
    }

    pub(crate) fn is_clean(&self) -> bool {
        self.blocks.is_empty()
            && self.cut.size().is_none()
            && self.unlogged_since.is_none()
            && !self.listed
    }

    /// Nothing to write; perhaps something being written.
    pub(crate) fn is_settled(&self) -> bool {
        self.ready == 0 && self.cut.size().is_none() && self.unlogged_since.is_none()
    }

    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Blocks that a batch could take.
    pub(crate) fn ready(&self) -> usize {
        self.ready
    }

    /// Numbers a change of size or times that is not logged yet.
    pub(crate) fn note_change(&mut self) {
        self.version += 1;
        let version = self.version;
        self.unlogged_since.get_or_insert(version);
    }

    /// The times that are shown are logged, and the size, unless blocks hold it back (DIRTY-D4).
    pub(crate) fn change_is_logged(&mut self, with_size: bool) {
        let left = (!with_size).then_some(self.version);
        if self.unlogged_since != left {
            self.unlogged_since = left;
            self.give_room_back();
            self.let_go();
        }
    }

    /// The file is cut to nothing while it is open for writing (DIRTY-D8).
    pub(crate) fn empty(&mut self) {
        let (version, overtaken) = (self.version, self.last_batch);
        (self.emptied, self.overtaken) = (Some(version), overtaken);
    }

    /// Whether batch `id` was taken before the file was emptied (DIRTY-D8).
    pub(crate) fn is_overtaken(&self, id: u64) -> bool {
        id <= self.overtaken
    }

    /// Data was written, or no open of the file is left (DIRTY-D8). Says whether it was emptied.
    pub(crate) fn clear_emptied(&mut self) -> bool {
        let was_emptied = self.emptied.is_some();
        if was_emptied {
            self.emptied = None;
            self.let_go();
        }
        was_emptied
    }

    /// Blocks have to wait for the batch under way (DIRTY-D9).
    pub(crate) fn waits_for_cut(&self) -> bool {
        self.ready > 0 && self.is_cutting()
    }

    /// A batch is under way that logs a pending cut: no other is taken (DIRTY-D9).
    pub(crate) fn is_cutting(&self) -> bool {
        self.cut.size().is_some() && !self.batches.is_empty()
    }

    pub(crate) fn cut_is_logged(&mut self) {
        if self.cut.is_pending() {
            self.cut.is_logged();
            self.give_room_back();
            self.let_go();
        }
    }

    /// Keeps space for logging a size that was set (DIRTY-D10). Of several, the
    /// most is enough: one transaction logs the last size.
    pub(crate) fn keep_room(&mut self, room: Promise) {
        let held = self.room.as_ref().map_or(0, Promise::blocks);
        if self.wants_room() && room.blocks() > held {
            self.room = Some(room);
        }
    }

    /// Nothing will be logged of the file.
    pub(crate) fn drop_room(&mut self) {
        self.room = None;
    }

    fn wants_room(&self) -> bool {
        self.unlogged_since.is_some() || self.cut.size().is_some()
    }

    fn give_room_back(&mut self) {
        if !self.wants_room()
            && let Some(mut room) = self.room.take()
        {
            room.hold.spend_metadata();
        }
    }

    pub(crate) fn add_reserved(&mut self, more: Promise) {
        match &mut self.reserved {
            Some(reserved) => reserved.join(more),
            None => self.reserved = Some(more),
        }
    }

    /// `blocks` blocks of the reservation, or all of it.
    pub(crate) fn take_reserved(&mut self, blocks: u64) -> Option<Promise> {
        let unsettled = self.unsettled.as_mut()?;
        let reserved = unsettled.reserved.as_mut()?;
        let all = reserved.blocks();
        if all <= blocks { unsettled.reserved.take() } else { Some(reserved.split(blocks)) }
    }

    /// How many blocks, 0 or 1, must be reserved for this one to become dirty now.
    pub(crate) fn unreserved(&self, block: u64) -> u64 {
        u64::from(self.blocks.get(&block).is_none_or(|entry| entry.since.is_none()))
    }

    /// How many of these blocks, from the first on, can become dirty with `reserved` reservations.
    pub(crate) fn fitting(&self, slots: &[(u64, Slot)], reserved: u64) -> usize {
        let mut wanted = 0;
        let fits = |(block, _): &&(u64, Slot)| {
            wanted += self.unreserved(*block);
            wanted <= reserved
        };
        slots.iter().take_while(fits).count()
    }

    /// Puts `slot` in the place of a block. The reservation is already added; `logged` is the
    /// logged size. Whether the block was not in memory before.
    pub(crate) fn put(&mut self, block: u64, slot: Slot, logged: u64, in_place: bool) -> bool {
        self.version += 1;
        let version = self.version;
        let covered = self.cut.size().map_or(logged, |cut| cut.min(logged));
        let mut fresh = false;
        let unsettled = &mut **self;
        let entry = unsettled.blocks.entry(block).or_insert_with(|| {
            fresh = true;
            DirtyBlock {
                slot: slot.clone(),
                since: None,
                taken: None,
                taken_since: 0,
                attached: None,
                covered,
                in_place: false,
                taken_limit: u64::MAX,
            }
        });
        if !fresh {
            entry.slot = slot;
        }
        if entry.since.is_none() {
            entry.since = Some(version);
            entry.in_place = in_place;
            if entry.taken.is_none() {
                unsettled.ready += 1;
            }
        }
        entry.attached = None;
        fresh
    }

    /// Whether anything waits to be written into preallocated space, or is being written there.
    pub(crate) fn has_in_place(&self) -> bool {
        self.blocks.values().any(|entry| entry.in_place)
    }

    /// Drops blocks in any state. Returns their number.
    pub(crate) fn drop_blocks(&mut self, range: Range<u64>) -> usize {
        let gone: Vec<u64> = self.blocks.range(range).map(|(&block, _)| block).collect();
        let mut dirty = 0;
        for block in &gone {
            let entry = self.blocks.remove(block).expect("listed above");
            if entry.since.is_some() {
                dirty += u64::from(!entry.in_place);
                if entry.taken.is_none() {
                    self.ready -= 1;
                }
            }
        }
        drop(self.take_reserved(dirty));
        self.let_go();
        gone.len()
    }

    /// The file now ends at `size`, below its old end. Blocks forgotten.
    pub(crate) fn truncate(&mut self, size: u64, logged: u64, allocated: bool) -> usize {
        let gone = self.drop_blocks(size.div_ceil(BLOCK)..u64::MAX);
        for entry in self.blocks.values_mut() {
            entry.covered = entry.covered.min(size);
            entry.taken_limit = entry.taken_limit.min(size);
        }
        if let Some(tail) = self.blocks.get_mut(&(size / BLOCK)) {
            tail.slot.bytes_mut()[(size % BLOCK) as usize..].fill(0);
        }
        if self.cut.size().is_some() || allocated || logged > size {
            self.cut.lower(size);
        }
        gone
    }

    /// The largest size that may be logged (DIRTY-D4) with the blocks that `installing` names,
    /// which `batch` took: `size`, or the end of the blocks covered before it.
    pub(crate) fn loggable_size(
        &self,
        size: u64,
        logged: u64,
        batch: Taken,
        installing: &[u64],
    ) -> u64 {
        let logged = self.cut.size().map_or(logged, |cut| cut.min(logged));
        let uncovered = self.blocks.range(logged / BLOCK..).find_map(|(&block, entry)| {
            let now = installing.binary_search(&block).is_ok();
            let pending = entry.since.is_some() || (entry.taken.is_some() && !now);
            let covered = if now { entry.covered_by(batch) } else { entry.covered };
            (pending && covered < (block + 1) * BLOCK).then(|| covered.max(block * BLOCK))
        });
        uncovered.map_or(size, |limit| size.min(limit))
    }

    /// Starts a batch of ready blocks with `since` up to `version`, in order: at most `blocks_max`
    /// in at most `pieces_max` stretches that do not cross a multiple of `chunk` blocks. Blocks to
    /// be written in place have batches of their own.
    pub(crate) fn take(
        &mut self,
        version: u64,
        blocks_max: usize,
        pieces_max: usize,
        chunk: u64,
    ) -> Took {
        self.last_batch += 1;
        let id = self.last_batch;
        let nothing = Took { id, blocks: Vec::new(), in_place: false };
        let Some(unsettled) = &mut self.unsettled else { return nothing };
        let mut took = Vec::with_capacity(unsettled.ready.min(blocks_max));
        let mut pieces = 0;
        let mut next = None;
        let mut in_place = None;
        for (&block, entry) in &mut unsettled.blocks {
            if took.len() == blocks_max || unsettled.ready == 0 {
                break;
            }
            let ready = entry.since.filter(|since| *since <= version && entry.taken.is_none());
            let Some(since) = ready else { continue };
            if *in_place.get_or_insert(entry.in_place) != entry.in_place {
                continue;
            }
            if next != Some(block) || block % chunk == 0 {
                pieces += 1;
                if pieces > pieces_max {
                    break;
                }
            }
            next = Some(block + 1);
            entry.taken = Some(id);
            entry.taken_since = since;
            entry.taken_limit = u64::MAX;
            entry.since = None;
            unsettled.ready -= 1;
            took.push((block, entry.slot.clone()));
        }
        if !took.is_empty() {
            unsettled.batches.insert(id);
        }
        Took { id, blocks: took, in_place: in_place.unwrap_or(false) }
    }

    /// Starts a batch of no blocks: there are none, but size, times or a cut are to be logged. A
    /// writer of what was there up to `version` logs no later O_TRUNC alone (DIRTY-D8).
    pub(crate) fn take_nothing(&mut self, id: u64, version: u64) -> bool {
        let alone = self.ready == 0 && self.batches.is_empty();
        let is_wanted = (self.cut.size().is_some() || self.unlogged_since.is_some())
            && self.emptied.is_none_or(|at| at <= version);
        alone && is_wanted && self.batches.insert(id)
    }

    /// Whether the content that batch `id` took of `block` still is the file's.
    pub(crate) fn is_current(&self, block: u64, id: u64) -> bool {
        self.blocks.get(&block).is_some_and(|entry| entry.taken == Some(id))
    }

    /// The batch's content of `block` is installed. Whether the block has left memory.
    pub(crate) fn installed(&mut self, block: u64, batch: Taken, attached: Option<Txg>) -> bool {
        let Some(unsettled) = &mut self.unsettled else { return false };
        let of_batch = |entry: &&mut DirtyBlock| entry.taken == Some(batch.id);
        let Some(entry) = unsettled.blocks.get_mut(&block).filter(of_batch) else { return false };
        entry.taken = None;
        entry.covered = entry.covered_by(batch);
        if entry.since.is_some() {
            unsettled.ready += 1;
            return false;
        }
        entry.attached = attached;
        if attached.is_none() {
            unsettled.blocks.remove(&block);
        }
        attached.is_none()
    }

    /// If the batch's content of `block` could not be written, it is dirty as before. How many
    /// blocks, 0 or 1, it wants reserved again: where it was changed meanwhile it has another.
    pub(crate) fn failed(&mut self, block: u64, id: u64, in_place: bool) -> u64 {
        let Some(unsettled) = &mut self.unsettled else { return 0 };
        let of_batch = |entry: &&mut DirtyBlock| entry.taken == Some(id);
        let Some(entry) = unsettled.blocks.get_mut(&block).filter(of_batch) else { return 0 };
        entry.taken = None;
        unsettled.ready += 1;
        // In both cases the data accepted before is part of the data written since.
        if entry.since.replace(0).is_some() {
            return 0;
        }
        entry.in_place = in_place;
        u64::from(!in_place)
    }

    /// The batch is over.
    pub(crate) fn end_batch(&mut self, id: u64) {
        let Some(unsettled) = &mut self.unsettled else { return };
        unsettled.batches.remove(&id);
        if unsettled.batches.is_empty() {
            unsettled.batches = BTreeSet::new();
        }
        self.let_go();
    }

    /// Whether a batch up to `id` is under way.
    pub(crate) fn is_writing(&self, id: u64) -> bool {
        self.batches.first().is_some_and(|&first| first <= id)
    }

    pub(crate) fn last_batch(&self) -> u64 {
        self.last_batch
    }

    /// Whether a block that was changed up to `version` is in no batch yet.
    pub(crate) fn has_dirty_block(&self, version: u64) -> bool {
        self.blocks.values().any(|entry| entry.since.is_some_and(|since| since <= version))
    }

    /// Whether a batch that is under way has a block that was changed up to `version`.
    pub(crate) fn has_taken_block(&self, version: u64) -> bool {
        self.blocks.values().any(|entry| entry.taken.is_some() && entry.taken_since <= version)
    }

    /// Whether a block of the range is not installed as it is now.
    pub(crate) fn has_pending_block(&self, range: Range<u64>) -> bool {
        let pending = |entry: &DirtyBlock| entry.since.is_some() || entry.taken.is_some();
        !range.is_empty() && self.blocks.range(range).any(|(_, entry)| pending(entry))
    }

    /// Whether a change of size or times up to `version` is not logged.
    pub(crate) fn has_unlogged_change(&self, version: u64) -> bool {
        self.unlogged_since.is_some_and(|since| since <= version)
    }

    /// The last txg that carries blocks of this file.
    pub(crate) fn attached_txg(&self) -> Option<Txg> {
        self.blocks.values().filter_map(|entry| entry.attached).max()
    }

    /// Drops the blocks that have become durable. Returns their number.
    pub(crate) fn settle_attached(&mut self, durable: Txg) -> usize {
        let Some(unsettled) = &mut self.unsettled else { return 0 };
        let before = unsettled.blocks.len();
        unsettled.blocks.retain(|_, entry| entry.attached.is_none_or(|txg| txg > durable));
        let settled = before - unsettled.blocks.len();
        self.let_go();
        settled
    }
}

#[cfg(test)]
mod tests {
    use copyhold_types::Buf;

    use super::*;

    fn slot(byte: u8) -> Slot {
        Slot { buf: Buf::from_bytes(&[byte; BLOCK_BYTES]), index: 0 }
    }

    fn take_all(data: &mut FileData, size: u64) -> Taken {
        Taken { id: data.take(u64::MAX, 100, 100, 32).id, size }
    }

    #[test]
    fn of_a_file_of_which_all_is_logged_nothing_is_kept() {
        let mut data = FileData::default();
        data.list(true);
        data.note_change();
        data.put(7, slot(1), 0, false);
        let batch = take_all(&mut data, 8 * 4096);
        assert!(!data.installed(7, batch, Some(Txg::FIRST)));
        data.change_is_logged(true);
        data.end_batch(batch.id);
        assert!(!data.is_clean() && data.unsettled.is_some(), "attached, and on the list");
        assert_eq!(data.settle_attached(Txg::FIRST), 1);
        data.list(false);
        assert!(data.is_clean() && data.unsettled.is_none());
        assert_eq!((data.version(), data.last_batch()), (2, batch.id), "no number is given twice");
    }

    #[test]
    fn a_block_changed_while_it_is_written_stays_dirty() {
        let mut data = FileData::default();
        data.put(0, slot(1), 0, false);
        let batch = take_all(&mut data, 4096);
        data.put(0, slot(2), 0, false);
        assert_eq!(data.ready(), 0, "a block is in one batch at a time");
        assert!(!data.installed(0, batch, None));
        assert_eq!(data.ready(), 1);
        let took = data.take(u64::MAX, 100, 100, 32);
        assert_eq!(took.blocks[0].1.bytes()[0], 2);
    }

    #[test]
    fn the_logged_size_stops_before_what_is_not_installed() {
        let mut data = FileData::default();
        for block in 0..4 {
            data.put(block, slot(1), 0, false);
        }
        let id = data.take(u64::MAX, 2, 100, 32).id;
        let batch = Taken { id, size: 16_000 };
        assert_eq!(data.loggable_size(16_000, 0, batch, &[]), 0);
        assert_eq!(data.loggable_size(16_000, 0, batch, &[0]), 4096);
        assert_eq!(data.loggable_size(16_000, 0, batch, &[0, 1]), 8192);
        data.installed(0, batch, None);
        data.installed(1, batch, None);
        let rest = take_all(&mut data, 16_000);
        assert_eq!(data.loggable_size(16_000, 8192, rest, &[2, 3]), 16_000);
    }

    #[test]
    fn a_block_that_grew_while_it_was_written_is_covered_as_far_as_it_was() {
        let mut data = FileData::default();
        data.put(0, slot(1), 0, false);
        let batch = take_all(&mut data, 100);
        data.put(0, slot(2), 0, false);
        assert_eq!(data.loggable_size(3000, 0, batch, &[0]), 100);
    }

    #[test]
    fn overwritten_blocks_do_not_hold_the_size_back() {
        let mut data = FileData::default();
        data.put(0, slot(1), 50_000, false);
        let none = Taken { id: 0, size: 0 };
        assert_eq!(data.loggable_size(60_000, 50_000, none, &[]), 60_000);
    }

    #[test]
    fn a_cut_lowers_what_older_writes_have_covered() {
        let mut data = FileData::default();
        data.put(0, slot(0xff), 8192, false);
        let batch = take_all(&mut data, 8192);
        data.truncate(1000, 8192, true);
        // The batch still carries the bytes behind the cut; the size must not reach over them.
        data.put(0, slot(0), 8192, false);
        assert_eq!(data.cut.block(), 1);
        assert_eq!(data.loggable_size(6000, 8192, batch, &[0]), 1000);
    }

    #[test]
    fn truncating_forgets_blocks_and_zeroes_the_tail() {
        let mut data = FileData::default();
        for block in 0..3 {
            data.put(block, slot(7), 0, false);
        }
        assert_eq!(data.truncate(5000, 0, false), 1);
        assert_eq!(data.cut.size(), None, "nothing was stored");
        let tail = &data.blocks[&1];
        assert_eq!(tail.slot.bytes()[903], 7);
        assert!(tail.slot.bytes()[904..].iter().all(|byte| *byte == 0));
        assert_eq!(data.ready(), 2);
    }

    #[test]
    fn a_failed_batch_leaves_its_blocks_dirty() {
        let mut data = FileData::default();
        data.put(0, slot(1), 0, false);
        let batch = take_all(&mut data, 4096);
        assert!(data.is_writing(batch.id));
        data.failed(0, batch.id, false);
        data.end_batch(batch.id);
        assert_eq!((data.ready(), data.is_writing(batch.id)), (1, false));
    }

    /// R34: a waiter for the earlier content gets an error, or writes the later.
    #[test]
    fn a_block_rewritten_during_a_batch_that_fails_is_as_old_as_what_that_had() {
        let mut data = FileData::default();
        data.put(0, slot(1), 0, false);
        let (before, batch) = (data.version(), take_all(&mut data, 4096));
        data.put(0, slot(2), 0, false);
        assert!(data.has_taken_block(before) && !data.has_dirty_block(before));
        assert_eq!(data.failed(0, batch.id, false), 0, "the later content has a reservation");
        data.end_batch(batch.id);
        assert!(data.has_dirty_block(before) && !data.has_taken_block(u64::MAX));
    }
}
