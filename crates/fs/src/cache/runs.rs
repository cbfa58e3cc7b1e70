//! Look-ups that come in the order of a listing.
//!
//! Problem.  Archivers, `rsync` and many others list the names of a directory first, and ask for
//!           the attributes of each file then, in the same order. The call that listed the names
//!           has ended, and each look-up waits for the leaf with its inode.
//! Idea.     A look-up of an entry shortly behind the last one that was looked up in this directory
//!           goes on with a *run* of look-ups. Each one in a run gives credit for two entries whose
//!           inodes are read ahead (`ahead`): so windows of a run that takes every entry double, up
//!           to the largest one, and a run that skips most entries has small ones. Threads that
//!           take names from one list send them a little out of order: a look-up shortly before the
//!           last one changes nothing.
//! In core.  The last look-up and the credit of some directories, each in a place by a hash of its
//!           number, where another directory may take over: then the run begins anew.
//!
//! INORDER-O1  Only look-ups whose inodes are not in memory count, and only those take a lock here.
//! INORDER-O2  For each look-up of a run at most two entries are read ahead, and [`WINDOW_MAX`] at
//!             once. So at most about twice as much is read in vain as look-ups need, and a window.
//! INORDER-O3  A run begins with [`WINDOW_MIN`] / 2 look-ups. After a window that found no room in
//!             memory, [`PAUSE`] look-ups give none.

use copyhold_sync::{Mutex, of};

use crate::NodeId;

/// Directories with runs at the same time.
const PLACES: u64 = 64;
/// Entries behind the last look-up among which the next one is in order: most entries between may
/// be skipped, or in memory. By chance, one of so many look-ups in a large directory is there.
const NEAR: u64 = 16;
/// Entries of a window.
const WINDOW_MIN: i32 = 8;
const WINDOW_MAX: i32 = 256;
/// Entries for each look-up.
const CREDIT: i32 = 2;
const PAUSE: i32 = 64;

/// The places of a directory: hashes, which are below.
const PLACES_END: u64 = 1 << 63;

/// The runs of look-ups.
#[derive(Debug)]
pub(crate) struct Runs(Vec<Mutex<Run, of::LookUpRuns>>);

/// Look-ups in one directory, in the order of its entries.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    /// [`NodeId::raw`]; 0: none yet.
    dir: u64,
    /// The place of the last look-up.
    last: u64,
    /// The end of the last window.
    until: u64,
    credit: i32,
}

impl Run {
    /// A look-up at this place, of an entry whose inode is not in memory. Returns the entries of
    /// the window that begins with it, if one is due. `apart`: the mean distance of entries.
    fn step(&mut self, at: u64, apart: u64) -> Option<usize> {
        let is_near = at.abs_diff(self.last) / apart <= NEAR;
        if at <= self.last && is_near {
            return None;
        }
        if !is_near {
            // INORDER-O3: a pause goes on.
            *self = Run { dir: self.dir, last: at, credit: self.credit.min(0), until: 0 };
        }
        self.last = at;
        self.credit = (self.credit + CREDIT).min(WINDOW_MAX);
        if at <= self.until || self.credit < WINDOW_MIN {
            return None;
        }
        let window = std::mem::take(&mut self.credit);
        // Until the entries are known, which may take a read, other look-ups begin no window.
        self.until = at.saturating_add(apart.saturating_mul(window as u64 - 1));
        Some(window as usize)
    }
}

impl Default for Runs {
    fn default() -> Runs {
        Runs((0..PLACES).map(|_| Mutex::default()).collect())
    }
}

impl Runs {
    /// A look-up of an entry of `dir` at the place `at`, whose inode is not in memory. Returns the
    /// entries of the window that begins there, if one is due. `entries`: of the directory.
    pub(crate) fn step(&self, dir: NodeId, at: u64, entries: u64) -> Option<usize> {
        let mut run = self.of(dir).lock();
        if run.dir != dir.raw() {
            *run = Run { dir: dir.raw(), last: at, credit: CREDIT, ..Run::default() };
            return None;
        }
        run.step(at, (PLACES_END / entries.max(1)).max(1))
    }

    /// The window of a run ends at this place.
    pub(crate) fn ends_at(&self, dir: NodeId, until: u64) {
        self.change(dir, |run| run.until = until);
    }

    /// The window found no room in memory (INORDER-O3).
    pub(crate) fn pause(&self, dir: NodeId) {
        self.change(dir, |run| run.credit = -CREDIT * PAUSE);
    }

    fn change(&self, dir: NodeId, change: impl FnOnce(&mut Run)) {
        let mut run = self.of(dir).lock();
        if run.dir == dir.raw() {
            change(&mut run);
        }
    }

    fn of(&self, dir: NodeId) -> &Mutex<Run, of::LookUpRuns> {
        // The root directories of all subvolumes, and those of clones, have the same number.
        let hash = dir.raw().wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.0[(hash >> (u64::BITS - PLACES.ilog2())) as usize]
    }
}

#[cfg(test)]
mod tests {
    use copyhold_types::{InodeNo, SubvolId};
    use proptest::prelude::*;

    use super::*;

    const ENTRIES: u64 = 10_000;
    const APART: u64 = PLACES_END / ENTRIES;

    fn dir(n: u64) -> NodeId {
        NodeId { subvol: SubvolId(1), ino: InodeNo(n) }
    }

    /// The windows of look-ups of these entries of directory 7.
    fn windows(runs: &Runs, entries: impl IntoIterator<Item = u64>) -> Vec<(u64, usize)> {
        let step = |n: u64| Some((n, runs.step(dir(7), (n + 1) * APART, ENTRIES)?));
        entries.into_iter().filter_map(step).collect()
    }

    #[test]
    fn the_windows_of_a_run_double_and_follow_each_other() {
        let found = windows(&Runs::default(), 0..2000);
        let (starts, sizes): (Vec<u64>, Vec<usize>) = found.into_iter().unzip();
        assert_eq!(sizes[..7], [8, 16, 32, 64, 128, 256, 256]);
        assert_eq!(starts[0], 3, "INORDER-O3");
        let next = |(start, size): (&u64, &usize)| start + *size as u64;
        assert!(
            starts.iter().zip(&sizes).map(next).zip(&starts[1..]).all(|(end, start)| end == *start)
        );
    }

    #[test]
    fn look_ups_in_another_order_read_nothing_ahead() {
        let runs = Runs::default();
        assert_eq!(windows(&runs, (0..2000).map(|n| n * 7919 % ENTRIES)), []);
        assert_eq!(windows(&runs, (0..2000).rev()), []);
        assert_eq!(windows(&runs, (0..2000).map(|_| 5)), [], "one entry over and over");
        assert_eq!(windows(&runs, (0..500).map(|n| n * (NEAR + 2))), []);
    }

    #[test]
    fn look_ups_of_threads_that_overtake_each_other_are_a_run() {
        for by in [2, 5] {
            let swapped = (0..2000).map(|n| n / by * by + (by - 1 - n % by));
            let found = windows(&Runs::default(), swapped);
            let ahead: usize = found.iter().map(|(_, size)| size).sum();
            assert!(ahead > 500, "{ahead} of 2000 entries, {by} at a time");
        }
    }

    #[test]
    fn runs_in_two_directories_do_not_disturb_each_other_and_one_place_has_one_run() {
        let runs = Runs::default();
        let step = |of: u64, n: u64| runs.step(dir(of), (n + 1) * APART, ENTRIES);
        assert!((0..20).any(|n| step(1, n).is_some() | step(2, n).is_some()));
        let is_same = |n: &u64| std::ptr::eq(runs.of(dir(3)), runs.of(dir(*n)));
        let other = (4..).find(is_same).expect("there are more directories than places");
        assert!((0..20).all(|n| step(3, n).or(step(other, n)).is_none()));
    }

    #[test]
    fn after_a_window_without_room_a_run_pauses() {
        let runs = Runs::default();
        windows(&runs, 0..4);
        runs.pause(dir(7));
        runs.pause(dir(8));
        let (next, _) = windows(&runs, 4..500)[0];
        assert_eq!(next as i32, 4 + PAUSE + WINDOW_MIN / CREDIT - 1, "INORDER-O3");
    }

    #[test]
    fn the_next_window_begins_behind_the_end_that_was_found() {
        let runs = Runs::default();
        let (first, size) = windows(&runs, 0..4)[0];
        let until = first + 2 * size as u64;
        runs.ends_at(dir(7), (until + 1) * APART);
        assert_eq!(windows(&runs, 4..100)[0].0, until + 1);
    }

    proptest! {
        /// INORDER-O2, for any look-ups.
        #[test]
        fn at_most_two_entries_are_read_ahead_for_each_look_up(
            places in proptest::collection::vec((any::<bool>(), 1..40u64), 1..400),
            entries in 1..ENTRIES,
        ) {
            let (runs, mut at, mut ahead) = (Runs::default(), 0_u64, 0);
            for (n, (forward, by)) in places.into_iter().enumerate() {
                let distance = by * APART / 4;
                at = match forward || by > 3 {
                    true => at.saturating_add(distance),
                    false => at.saturating_sub(distance),
                };
                if let Some(window) = runs.step(dir(7), at, entries) {
                    prop_assert!(window <= WINDOW_MAX as usize);
                    ahead += window;
                }
                prop_assert!(ahead <= 2 * (n + 1), "{} of {}", ahead, n + 1);
            }
        }
    }
}
