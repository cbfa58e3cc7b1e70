//! The writers that nobody times.
//!
//! All files of all snapshots are open at once, and a process may have only so many. So the
//! writers are threads of as many processes as that takes (`own_process.rs`). Each answers a line
//! with the number of writes so far.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;

use super::copies::{SEED, snapshot};
use crate::error::{BenchError, On};
use crate::own_process::{OwnProcess, READY, raise_open_files, say};
use crate::tenant::{Fsync, Tenant};

/// A writer needs little, and there may be thousands.
const STACK_BYTES: usize = 128 << 10;
/// Descriptors that are for something else.
const SPARE_FILES: u64 = 64;

/// What one process does: the snapshots from `from` up to `to`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Background {
    #[arg(long)]
    mount_point: PathBuf,
    #[arg(long)]
    from: u32,
    #[arg(long)]
    to: u32,
    #[arg(long)]
    files: u32,
    #[arg(long)]
    strict: bool,
}

impl Background {
    /// Writes until standard input ends.
    pub(crate) fn run(&self) -> Result<(), BenchError> {
        self.write_until(
            || say(&READY),
            |written| {
                for line in io::stdin().lines() {
                    line.on("standard input")?;
                    say(&written.load(Relaxed))?;
                }
                Ok(())
            },
        )
    }

    /// Calls `ready` when all files are open, and ends when `wait` returns, which can see how often
    /// was written.
    fn write_until(
        &self,
        mut ready: impl FnMut() -> Result<(), BenchError>,
        wait: impl FnOnce(&AtomicU64) -> Result<(), BenchError>,
    ) -> Result<(), BenchError> {
        let fsync = if self.strict { Fsync::Strict } else { Fsync::Next };
        let tenant = |number: u32| {
            let seed = SEED + 1 + u64::from(number);
            Tenant::new(&snapshot(&self.mount_point, number), self.files, seed, fsync)
        };
        let tenants = (self.from..self.to).map(tenant).collect::<Result<Vec<_>, _>>()?;
        let (over, written) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            let end = EndOnDrop(&over);
            let mut writers = Vec::new();
            for mut tenant in tenants {
                let (over, written) = (&over, &written);
                let write = move || {
                    while !over.load(Relaxed) {
                        tenant.write_and_sync()?;
                        written.fetch_add(1, Relaxed);
                    }
                    Ok::<(), BenchError>(())
                };
                let thread = thread::Builder::new().stack_size(STACK_BYTES);
                writers.push(thread.spawn_scoped(scope, write).on("a writer's thread")?);
            }
            ready()?;
            let waited = wait(&written);
            drop(end);
            let ended = writers.into_iter().map(|it| it.join().expect("writers do not panic"));
            waited.and(ended.collect())
        })
    }
}

/// Ends the threads whatever happens.
struct EndOnDrop<'a>(&'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Processes that write. Dropping them ends them.
pub(super) struct Processes(Vec<OwnProcess>);

impl Processes {
    /// Returns when all of them write.
    pub(super) fn start(
        mount_point: &Path,
        snapshots: u32,
        files: u32,
        fsync: Fsync,
    ) -> Result<Processes, BenchError> {
        let each = tenants_a_process(files)?;
        let mut processes = Processes(Vec::new());
        let mut from = 0;
        while from < snapshots {
            let to = snapshots.min(from.saturating_add(each));
            let mut arguments: Vec<OsString> = vec!["--mount-point".into(), mount_point.into()];
            for (name, value) in [("--from", from), ("--to", to), ("--files", files)] {
                arguments.extend([name.into(), value.to_string().into()]);
            }
            if fsync == Fsync::Strict {
                arguments.push("--strict".into());
            }
            processes.0.push(OwnProcess::start("background", arguments)?);
            from = to;
        }
        processes.0.iter_mut().try_for_each(OwnProcess::wait_until_ready)?;
        Ok(processes)
    }

    /// How often all of them have written so far.
    pub(super) fn written(&mut self) -> Result<u64, BenchError> {
        let written = |process: &mut OwnProcess| {
            process.ask()?.parse::<u64>().map_err(|_| process.no_answer())
        };
        self.0.iter_mut().map(written).sum()
    }

    /// Returns when nothing is written any more.
    pub(super) fn end(mut self) -> Result<(), BenchError> {
        self.end_all()
    }

    fn end_all(&mut self) -> Result<(), BenchError> {
        let mut processes = std::mem::take(&mut self.0);
        processes.iter_mut().for_each(OwnProcess::close);
        let mut all = Ok(());
        for process in &mut processes {
            all = process.wait().and(all);
        }
        all
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        if let Err(error) = self.end_all() {
            eprintln!("copyhold-bench: {error}");
        }
    }
}

/// How many writers' files one process may have open; raises the limit as far as it goes.
fn tenants_a_process(files: u32) -> Result<u32, BenchError> {
    let open = raise_open_files()?.saturating_sub(SPARE_FILES);
    let tenants = u32::try_from(open / u64::from(files)).unwrap_or(u32::MAX);
    if tenants == 0 { Err(BenchError::TooManyFiles { files, open }) } else { Ok(tenants) }
}

#[cfg(test)]
mod tests {
    use copyhold_harness::Interrupt;

    use super::*;
    use crate::tenant;

    #[test]
    fn all_snapshots_are_written_until_the_end() {
        let directory = tempfile::tempdir().unwrap();
        let contents = || {
            let read =
                |number| std::fs::read(snapshot(directory.path(), number).join("file.000000"));
            (0..4).map(|number| read(number).unwrap()).collect::<Vec<_>>()
        };
        for number in 0..4 {
            let path = snapshot(directory.path(), number);
            std::fs::create_dir(&path).unwrap();
            tenant::fill(&path, 1, &Interrupt::never()).unwrap();
        }
        let before = contents();
        let mount_point = directory.path().to_owned();
        let background = Background { mount_point, from: 1, to: 4, files: 1, strict: true };
        let all_written = |written: &AtomicU64| {
            let is_written = |number: usize| contents()[number] != before[number];
            while written.load(Relaxed) < 3 || !(1..4).all(is_written) {
                thread::yield_now();
            }
            Ok(())
        };
        background.write_until(|| Ok(()), all_written).unwrap();
        assert_eq!(contents()[0], before[0]);
    }

    #[test]
    fn a_process_takes_as_many_writers_as_it_may_open_files() {
        let few = tenants_a_process(10).unwrap();
        assert!(few >= 10 * tenants_a_process(100).unwrap());
        assert!(few == u32::MAX || tenants_a_process(u32::MAX).is_err());
    }
}
