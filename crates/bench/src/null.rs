//! A store that keeps nothing, behind our transport: the ceiling.
//!
//! Names and attributes are kept in memory and data is thrown away, so what a job does here in a
//! second no filesystem behind the same transport can exceed. It is served by a process of its own,
//! as a pool is: this program again, by a job that help does not show. The process says when it is
//! mounted, and unmounts when its standard input ends, which it does in any case when the one that
//! started it is gone.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;

use copyhold_fuse::mount::{Mount, MountOptions};
use copyhold_fuse::protocol::Settings;
use copyhold_fuse::{Session, SessionOptions, ThreadPerTask, Transport};
use copyhold_memfs::{Contents, MemoryFs};

use crate::error::{BenchError, On};

const READY: &str = "ready";

/// What the process is asked for.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Null {
    mount_point: PathBuf,
    #[arg(long, default_value = "auto")]
    transport: Transport,
}

impl Null {
    /// Serves until standard input ends.
    pub(crate) fn run(&self) -> Result<(), BenchError> {
        // The scheduler favours wakes within a session, and a pool's daemon has one of its own; who
        // starts this by hand may have made one already.
        let _session = rustix::process::setsid();
        let failed = |error: &dyn std::error::Error| BenchError::Null(error.to_string());
        let mount = Mount::new(Path::new("null"), &self.mount_point, &MountOptions::default())
            .map_err(|error| failed(&error))?;
        let fs = Arc::new(MemoryFs::new(Contents::Dropped));
        let options = SessionOptions { transport: self.transport, ..SessionOptions::default() };
        let (spawner, settings) = (Arc::new(ThreadPerTask), Settings::default());
        let session = Session::start(mount, fs, spawner, &settings, options)
            .map_err(|error| failed(&error))?;
        let mut output = io::stdout();
        writeln!(output, "{READY}").and_then(|()| output.flush()).on("standard output")?;
        let mount = Arc::clone(session.mount());
        thread::spawn(move || {
            // An error is an end as well.
            drop(io::stdin().read_to_end(&mut Vec::new()));
            if mount.unmount().is_err() {
                mount.detach();
            }
        });
        session.wait();
        Ok(())
    }
}

/// Starts the process; returns when it is mounted. `options` are those of Copyhold: the transport
/// among them is used.
pub(crate) fn mount(mount_point: &Path, options: &[String]) -> Result<Child, BenchError> {
    let program = std::env::current_exe().on("this program")?;
    let mut command = Command::new(program);
    command.arg("null").arg(mount_point);
    let given = options.iter().flat_map(|option| option.split(','));
    if let Some(transport) =
        given.filter_map(|option| option.strip_prefix("transport=")).next_back()
    {
        command.args(["--transport", transport]);
    }
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .on("a process for the null mount")?;
    let mut said = String::new();
    if let Some(output) = child.stdout.take() {
        BufReader::new(output).read_line(&mut said).on("the null mount")?;
    }
    match said.trim_end() {
        READY => Ok(child),
        _ => {
            drop(child.wait());
            Err(BenchError::Null("what it said is above".into()))
        }
    }
}

/// Unmounts, and waits for the end.
pub(crate) fn unmount(mut served: Child) -> Result<(), BenchError> {
    drop(served.stdin.take());
    let status = served.wait().on("the null mount")?;
    match status.success() {
        true => Ok(()),
        false => Err(BenchError::Null(status.to_string())),
    }
}
