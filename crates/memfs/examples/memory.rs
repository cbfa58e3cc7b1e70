//! Mounts a filesystem in memory:
//! `memory DIR [-o OPTIONS] [--null] [--foreground] [--readers N] [--transport T]`.
//!
//! `--null` throws file data away: the ceiling of what any filesystem can do behind this mount.

#![allow(clippy::disallowed_methods)] // a program of its own

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use copyhold_fuse::daemon::{self, Outcome, Side};
use copyhold_fuse::mount::{Mount, MountOptions};
use copyhold_fuse::protocol::Settings;
use copyhold_fuse::{Session, SessionOptions, Signals, ThreadPerTask};
use copyhold_memfs::{Contents, MemoryFs};

type Failure = Box<dyn std::error::Error>;

struct Arguments {
    dir: PathBuf,
    options: MountOptions,
    contents: Contents,
    foreground: bool,
    session: SessionOptions,
}

fn arguments() -> Result<Arguments, Failure> {
    let mut options = MountOptions::default();
    let (mut dir, mut contents, mut foreground) = (None, Contents::Kept, false);
    let mut session = SessionOptions::default();
    let mut rest = std::env::args_os().skip(1);
    while let Some(argument) = rest.next() {
        match argument.to_str() {
            Some("--null") => contents = Contents::Dropped,
            Some("--foreground") => foreground = true,
            Some("--readers") => {
                let number = rest.next().ok_or("--readers wants a number")?;
                session.readers = Some(number.to_string_lossy().parse()?);
            }
            Some("--transport") => {
                let name = rest.next().ok_or("--transport wants auto, dev or uring")?;
                session.transport = name.to_string_lossy().parse()?;
            }
            Some("-o") => {
                let text = rest.next().ok_or("-o wants options")?;
                options.add(&text.to_string_lossy(), |_, _| Ok(false))?;
            }
            _ => dir = Some(PathBuf::from(argument)),
        }
    }
    let dir = dir.ok_or("where should it be mounted?")?;
    Ok(Arguments { dir, options, contents, foreground, session })
}

fn start(arguments: &Arguments) -> Result<(Session, Signals), Failure> {
    let signals = Signals::watch()?;
    let mount = Mount::new(Path::new("memory"), &arguments.dir, &arguments.options)?;
    let fs = Arc::new(MemoryFs::new(arguments.contents));
    let (spawner, settings) = (Arc::new(ThreadPerTask), Settings::default());
    let session = Session::start(mount, fs, spawner, &settings, arguments.session)?;
    Ok((session, signals))
}

fn serve((session, signals): (Session, Signals)) -> Result<(), Failure> {
    signals.unmount_on_arrival(Arc::clone(session.mount()));
    session.wait();
    Ok(())
}

fn run() -> Result<(), Failure> {
    let arguments = arguments()?;
    if arguments.foreground {
        return serve(start(&arguments)?);
    }
    match daemon::fork(None)? {
        Side::Parent(Outcome::Ready(_)) => Ok(()),
        Side::Parent(Outcome::Failed(text)) => Err(text.into()),
        Side::Parent(Outcome::Died(code)) => Err(format!("ended with {code}").into()),
        Side::Child(launch) => match start(&arguments) {
            Ok(started) => {
                launch.ready("")?;
                serve(started)
            }
            Err(error) => {
                launch.failed(&error.to_string());
                std::process::exit(1);
            }
        },
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("memory: {error}");
            ExitCode::FAILURE
        }
    }
}
