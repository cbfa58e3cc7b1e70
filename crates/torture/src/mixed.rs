//! One file that several threads read and write at once in all ways there are: buffered, mapped,
//! direct, and direct without waiting.
//!
//! In core.  Each page of the file has its writes numbered; a word of it names its write.
//!
//! MIXED-M1  A read that begins after a write was acknowledged shows that write or a later one,
//!           whichever ways the two go.
//! MIXED-M2  Writers of one page take turns: where two ways write a page at the same time Linux
//!           promises nothing. Readers wait for nobody; what meets a write may be older and newer,
//!           word by word.
//! MIXED-M3  After a crash a page has what was acknowledged when the last fsync began, or something
//!           later.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};

use copyhold_runtime::executors::Config;
use copyhold_runtime::{Executors, Op};
use copyhold_types::Buf;

use crate::clock::Clock;
use crate::map::Map;
use copyhold_torture::content::{BLOCK, LINE, Token, block, seal};
use copyhold_torture::dice::Dice;

/// Threads that share the file.
pub(crate) const THREADS: u64 = 4;
const PAGES: usize = 48;
/// Writes that one thread has under way without waiting, at most.
const QUEUED_MAX: usize = 6;
const O_DIRECT: i32 = rustix::fs::OFlags::DIRECT.bits() as i32;

/// How a page is written.
#[derive(Clone, Copy, Debug)]
enum Way {
    Buffered,
    Mapped,
    Direct,
}

const WAYS: [Way; 3] = [Way::Buffered, Way::Mapped, Way::Direct];

/// Numbers of writes of one page.
#[derive(Default)]
struct Page {
    /// Held by whoever writes it (MIXED-M2).
    turn: Mutex<()>,
    begun: AtomicU64,
    acknowledged: AtomicU64,
    durable: AtomicU64,
}

pub(crate) struct Mixed {
    pages: Vec<Page>,
}

impl Default for Mixed {
    fn default() -> Mixed {
        Mixed { pages: (0..PAGES).map(|_| Page::default()).collect() }
    }
}

fn path(root: &Path) -> PathBuf {
    root.join("mixed")
}

/// The token of write `number` of `page`.
fn token(page: usize, number: u64) -> Token {
    (page as u64 + 1) << 48 | number
}

/// Whether each word of what was read is of a write from `least` to `most`.
fn judge(page: usize, bytes: &[u8], least: u64, most: u64) -> Result<(), String> {
    for (number, line) in bytes.chunks_exact(LINE).enumerate() {
        let word = |at: usize| u64::from_le_bytes(line[at..at + 8].try_into().expect("8 bytes"));
        let (first, last) = (word(0), word(8));
        let of_token = |n: &u64| token(page, *n) == first;
        let of_seal = |n: &u64| seal(token(page, *n), number) == last;
        let mut writes = least..=most;
        if !writes.clone().any(|n| of_token(&n)) || !writes.any(|n| of_seal(&n)) {
            let text = format!("line {number} of page {page} is {first:x} {last:x}");
            return Err(format!("{text}, not of a write from {least} to {most}"));
        }
    }
    Ok(())
}

impl Mixed {
    /// A round begins: all pages are written anew, and durable.
    pub(crate) fn begin(&mut self, root: &Path) -> io::Result<()> {
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(false).open(path(root))?;
        for (number, page) in self.pages.iter().enumerate() {
            let next = page.begun.load(SeqCst) + 1;
            file.write_all_at(&block(token(number, next)), (number * BLOCK) as u64)?;
            page.begun.store(next, SeqCst);
        }
        file.sync_all()?;
        self.pages.iter().for_each(|page| page.acknowledged.store(page.begun.load(SeqCst), SeqCst));
        self.settle();
        Ok(())
    }

    /// What was acknowledged is durable.
    pub(crate) fn settle(&self) {
        let settle = |page: &Page| page.durable.store(page.acknowledged.load(SeqCst), SeqCst);
        self.pages.iter().for_each(settle);
    }

    /// MIXED-M3.
    pub(crate) fn verify(&self, root: &Path) -> Result<(), String> {
        let found = std::fs::read(path(root)).map_err(|error| error.to_string())?;
        if found.len() != PAGES * BLOCK {
            return Err(format!("the shared file has {} bytes", found.len()));
        }
        for (number, page) in self.pages.iter().enumerate() {
            let bytes = &found[number * BLOCK..][..BLOCK];
            judge(number, bytes, page.durable.load(SeqCst), page.begun.load(SeqCst))?;
        }
        Ok(())
    }

    /// One thread, until the round is over. How much it did.
    pub(crate) fn mix(&self, root: &Path, clock: &Clock, dice: Dice) -> Result<u64, String> {
        let over = |error: io::Error| match clock.is_over() {
            true => Ok(0),
            false => Err(format!("the shared file: {error}")),
        };
        let mut mixer = match Mixer::new(&self.pages, &path(root), dice) {
            Ok(mixer) => mixer,
            Err(error) => return over(error),
        };
        let mut operations = 0;
        while !clock.is_over() {
            match mixer.step() {
                Ok(judged) => judged?,
                Err(error) => return over(error).map(|_| operations),
            }
            operations += 1;
        }
        Ok(operations)
    }
}

/// As most filesystems want it for direct I/O.
#[repr(align(4096))]
struct Aligned([u8; BLOCK]);

/// What one thread has open.
struct Mixer<'a> {
    pages: &'a [Page],
    buffered: File,
    direct: Arc<File>,
    mapped: Map,
    executors: Arc<Executors>,
    dice: Dice,
}

/// An operation that ended, and whether it found what it should.
type Judged = io::Result<Result<(), String>>;

impl<'a> Mixer<'a> {
    fn new(pages: &'a [Page], path: &Path, dice: Dice) -> io::Result<Mixer<'a>> {
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true);
        let buffered = options.open(path)?;
        let direct = Arc::new(options.custom_flags(O_DIRECT).open(path)?);
        let mapped = Map::of(&buffered, PAGES * BLOCK)?;
        let executors =
            Executors::start(Config { cpus: Some(1), pin: false, ..Config::default() })?;
        Ok(Mixer { pages, buffered, direct, mapped, executors, dice })
    }

    fn step(&mut self) -> Judged {
        match self.dice.below(20) {
            0..=5 => self.write().map(Ok),
            6..=9 => self.write_queued().map(Ok),
            10 => self.sync().map(Ok),
            _ => self.read(),
        }
    }

    /// MIXED-M1.
    fn read(&mut self) -> Judged {
        let number = self.dice.below(PAGES);
        let (page, offset) = (&self.pages[number], number * BLOCK);
        let way = WAYS[self.dice.below(WAYS.len())];
        let Aligned(bytes) = &mut Aligned([0; BLOCK]);
        let least = page.acknowledged.load(SeqCst);
        match way {
            Way::Buffered => self.buffered.read_exact_at(bytes, offset as u64)?,
            Way::Mapped => self.mapped.read(bytes, offset)?,
            Way::Direct => self.direct.read_exact_at(bytes, offset as u64)?,
        }
        let most = page.begun.load(SeqCst);
        Ok(judge(number, bytes, least, most).map_err(|what| format!("{way:?} read: {what}")))
    }

    fn write(&mut self) -> io::Result<()> {
        let Some((number, _turn)) = self.turn() else { return Ok(()) };
        let Aligned(bytes) = &mut Aligned([0; BLOCK]);
        bytes.copy_from_slice(&self.next(number));
        let offset = number * BLOCK;
        match WAYS[self.dice.below(WAYS.len())] {
            Way::Buffered => self.buffered.write_all_at(bytes, offset as u64)?,
            Way::Mapped => self.mapped.write(bytes, offset)?,
            Way::Direct => self.direct.write_all_at(bytes, offset as u64)?,
        }
        self.acknowledge(number);
        Ok(())
    }

    /// Several direct writes at once, none of which is waited for before all are under way.
    fn write_queued(&mut self) -> io::Result<()> {
        let count = 1 + self.dice.below(QUEUED_MAX);
        let turns: Vec<_> = (0..count).filter_map(|_| self.turn()).collect();
        let reactor = self.executors.reactor();
        let begin = |number: usize| {
            let (fd, offset) = (self.direct.clone(), (number * BLOCK) as u64);
            let bufs = Buf::from_bytes(&self.next(number)).into();
            (number, reactor.submit(Op::Write { fd, bufs, offset }))
        };
        let writes: Vec<_> = turns.iter().map(|(number, _)| begin(*number)).collect();
        // Of each the end is awaited, also behind an error: a turn ends when nothing writes there.
        let ended: Vec<_> = writes
            .into_iter()
            .map(|(number, end)| (number, self.executors.block_on(end)))
            .collect();
        for (number, end) in ended {
            end.result?;
            self.acknowledge(number);
        }
        Ok(())
    }

    /// MIXED-M3.
    fn sync(&mut self) -> io::Result<()> {
        let load = |page: &Page| page.acknowledged.load(SeqCst);
        let acknowledged: Vec<u64> = self.pages.iter().map(load).collect();
        self.buffered.sync_all()?;
        for (page, number) in self.pages.iter().zip(acknowledged) {
            page.durable.fetch_max(number, SeqCst);
        }
        Ok(())
    }

    /// Some page that nobody writes, for as long as the guard is there.
    fn turn(&mut self) -> Option<(usize, MutexGuard<'a, ()>)> {
        let (pages, number) = (self.pages, self.dice.below(PAGES));
        Some((number, pages[number].turn.try_lock().ok()?))
    }

    /// What is to be written to a page next.
    fn next(&self, page: usize) -> Vec<u8> {
        block(token(page, self.pages[page].begun.fetch_add(1, SeqCst) + 1))
    }

    fn acknowledge(&self, page: usize) {
        let page = &self.pages[page];
        page.acknowledged.store(page.begun.load(SeqCst), SeqCst);
    }
}

impl Drop for Mixer<'_> {
    fn drop(&mut self) {
        self.executors.shutdown();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_of_the_writes_that_it_may_be_of() {
        let [old, new] = [4, 5].map(|number| block(token(3, number)));
        judge(3, &new, 5, 5).unwrap();
        judge(3, &old, 5, 5).unwrap_err();
        judge(3, &new, 3, 4).unwrap_err();
        judge(2, &new, 5, 5).unwrap_err();
        let met = [&new[..520], &old[520..]].concat();
        judge(3, &met, 4, 5).unwrap();
        judge(3, &met, 5, 5).unwrap_err();
        judge(3, &block(0), 0, 9).unwrap_err();
    }

    #[test]
    fn threads_agree_on_a_file_and_notice_an_old_page() {
        let place = tempfile::tempdir().unwrap();
        let (clock, mut mixed) = (Clock::default(), Mixed::default());
        mixed.begin(place.path()).unwrap();
        let mut mixer = Mixer::new(&mixed.pages, &path(place.path()), Dice::new(1, 1, 1)).unwrap();
        for _ in 0..500 {
            mixer.step().unwrap().unwrap();
        }
        mixed.verify(place.path()).unwrap();
        mixer.sync().unwrap();
        let page = mixed.pages.iter().position(|page| page.durable.load(SeqCst) > 1).unwrap();
        mixer.buffered.write_all_at(&block(token(page, 1)), (page * BLOCK) as u64).unwrap();
        mixed.verify(place.path()).unwrap_err();
        drop(mixer);
        clock.end_round();
        assert_eq!(mixed.mix(place.path(), &clock, Dice::new(1, 1, 2)), Ok(0));
    }
}
