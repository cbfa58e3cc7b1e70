//! The writers that nobody times.
//!
//! All files of all snapshots are open at once, and a process may have only so many. So the
//! writers are threads of as many processes as that takes: this program again, by a job that help
//! does not show. Such a process says when it is ready, and ends when its standard input does,
//! which it does in any case when the one that started it is gone.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{SEED, snapshot};
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
        let (mut input, mut output) = (io::stdin(), io::stdout());
        self.write_until(
            || writeln!(output, "{READY}").and_then(|()| output.flush()).on("standard output"),
            || input.read_to_end(&mut Vec::new()).map(drop).on("standard input"),
        )
    }

    /// Calls `ready` when all files are open, and ends when `wait` returns.
    fn write_until(
        &self,
        mut ready: impl FnMut() -> Result<(), BenchError>,
        mut wait: impl FnMut() -> Result<(), BenchError>,
    ) -> Result<(), BenchError> {
        let fsync = if self.strict { Fsync::Strict } else { Fsync::Next };
        let tenant = |number: u32| {
            let seed = SEED + 1 + u64::from(number);
            Tenant::new(&snapshot(&self.mount_point, number), self.files, seed, fsync)
        };
        let tenants = (self.from..self.to).map(tenant).collect::<Result<Vec<_>, _>>()?;
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let end = EndOnDrop(&over);
            let mut writers = Vec::new();
            for mut tenant in tenants {
                let over = &over;
                let write = move || {
                    while !over.load(Relaxed) {
                        tenant.write_and_sync()?;
                    }
                    Ok::<(), BenchError>(())
                };
                let thread = thread::Builder::new().stack_size(STACK_BYTES);
                writers.push(thread.spawn_scoped(scope, write).on("a writer's thread")?);
            }
            ready()?;
            let waited = wait();
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
pub(super) struct Processes(Vec<Child>);

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
        let mut outputs = Vec::new();
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
            outputs.extend(child.stdout.take());
            processes.0.push(child);
            from = to;
        }
        outputs.into_iter().try_for_each(wait_until_ready)?;
        Ok(processes)
    }

    /// Returns when nothing is written any more.
    pub(super) fn end(mut self) -> Result<(), BenchError> {
        self.end_all()
    }

    fn end_all(&mut self) -> Result<(), BenchError> {
        let mut children = std::mem::take(&mut self.0);
        children.iter_mut().for_each(|child| drop(child.stdin.take()));
        let mut all = Ok(());
        for mut child in children {
            let status = child.wait().on("a process of the background")?;
            if !status.success() {
                all = Err(BenchError::Command {
                    command: "copyhold-bench background".into(),
                    status: status.to_string(),
                    says: "see above".into(),
                });
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

fn wait_until_ready(output: ChildStdout) -> Result<(), BenchError> {
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line).on("a process of the background")?;
    if line.trim() == READY { Ok(()) } else { Err(BenchError::NoBackground) }
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
    use super::*;
    use crate::interrupt::Interrupt;
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
        let all_written = || {
            while (1..4).any(|number| contents()[number] == before[number]) {
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
