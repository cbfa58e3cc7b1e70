//! The writers that nobody times.
//!
//! All files of all snapshots are open at once, and a process may have only so many. So the
//! writers are threads of as many processes as that takes: this program again, by a job that help
//! does not show. Such a process says when it is ready, tells how much was written whenever a line
//! asks, and ends when its standard input does, which it does in any case when the one that started
//! it is gone.

use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;

use copyhold_harness::HarnessError;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::copies::{SEED, snapshot};
use crate::error::{BenchError, On};
use crate::tenant::{Fsync, Tenant};

/// A writer needs little, and there may be thousands.
const STACK_BYTES: usize = 128 << 10;
/// Descriptors that are for something else.
const SPARE_FILES: u64 = 64;
const READY: &str = "ready";

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
        let say = |what: &dyn std::fmt::Display| {
            let mut output = io::stdout();
            writeln!(output, "{what}").and_then(|()| output.flush()).on("standard output")
        };
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
pub(super) struct Processes(Vec<Process>);

struct Process {
    child: Child,
    says: BufReader<ChildStdout>,
}

impl Process {
    fn line(&mut self) -> Result<String, BenchError> {
        let mut line = String::new();
        self.says.read_line(&mut line).on("a process of the background")?;
        Ok(line.trim().to_owned())
    }

    fn written(&mut self) -> Result<u64, BenchError> {
        let ask = self.child.stdin.as_mut().map_or(Ok(()), |stdin| stdin.write_all(b"\n"));
        ask.on("a process of the background")?;
        self.line()?.parse().map_err(|_| BenchError::NoBackground)
    }
}

impl Processes {
    /// Returns when all of them write.
    pub(super) fn start(
        mount_point: &Path,
        snapshots: u32,
        files: u32,
        fsync: Fsync,
    ) -> Result<Processes, BenchError> {
        let program = std::env::current_exe().on("this program")?;
        let each = tenants_a_process(files)?;
        let mut processes = Processes(Vec::new());
        let mut from = 0;
        while from < snapshots {
            let to = snapshots.min(from.saturating_add(each));
            let mut command = Command::new(&program);
            command.arg("background").arg("--mount-point").arg(mount_point);
            for (name, value) in [("--from", from), ("--to", to), ("--files", files)] {
                command.arg(name).arg(value.to_string());
            }
            if fsync == Fsync::Strict {
                command.arg("--strict");
            }
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = command.spawn().on("a process for the background")?;
            let says = BufReader::new(child.stdout.take().expect("it is piped"));
            processes.0.push(Process { child, says });
            from = to;
        }
        for process in &mut processes.0 {
            if process.line()? != READY {
                return Err(BenchError::NoBackground);
            }
        }
        Ok(processes)
    }

    /// How often all of them have written so far.
    pub(super) fn written(&mut self) -> Result<u64, BenchError> {
        self.0.iter_mut().map(Process::written).sum()
    }

    /// Returns when nothing is written any more.
    pub(super) fn end(mut self) -> Result<(), BenchError> {
        self.end_all()
    }

    fn end_all(&mut self) -> Result<(), BenchError> {
        let mut processes = std::mem::take(&mut self.0);
        processes.iter_mut().for_each(|process| drop(process.child.stdin.take()));
        let mut all = Ok(());
        for mut process in processes {
            let status = process.child.wait().on("a process of the background")?;
            if !status.success() {
                let (command, says) = ("copyhold-bench background".into(), "see above".into());
                let status = status.to_string();
                all = Err(HarnessError::Failed { command, status, says }.into());
            }
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
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).on("the limit of files")?;
    let open = maximum.unwrap_or(u64::MAX).saturating_sub(SPARE_FILES);
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
