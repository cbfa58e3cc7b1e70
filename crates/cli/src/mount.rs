//! `copyhold mount`: shows a pool as a directory.
//!
//! Everything that can go wrong goes wrong before it returns: the pool is opened, recovered and
//! mounted by the daemon, which then reports (`background.rs`). With `-f` this process is the
//! daemon.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::failure::{Failure, Kind};
use crate::mount_options::Options;
use crate::{background, engine, logging, mount_table};

/// Mount a pool on a directory
///
/// Returns when the mount is usable. After a crash it recovers the pool first, which takes about a
/// second. Root mounts directly; another user needs fusermount3 (package fuse3) and a directory
/// that is his.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Examples:\n  \
    copyhold mount /srv/pool.img /mnt\n  \
    copyhold mount /dev/nvme1n1 /mnt -o ro,noatime\n  \
    copyhold mount -f /srv/pool.img /mnt     stay here, log to the terminal, Ctrl-C unmounts\n\n\
    Options for -o are those of mount(8) and FUSE, and:\n  \
    delta=SIZE      memory for changes that are not in the tables yet [64M]\n  \
    commit=SECONDS  how old unsynced changes may get [5]\n  \
    cut-tail        after a crash, drop a last commit whose data does not verify\n\n\
    A line for /etc/fstab:\n  \
    /srv/pool.img  /mnt  fuse.copyhold  defaults,nofail  0  0")]
pub(crate) struct Mount {
    /// The file or block device
    pub(crate) pool: PathBuf,
    /// An existing directory
    pub(crate) directory: PathBuf,
    /// Stay in the foreground and log to standard error
    #[arg(long, short)]
    pub(crate) foreground: bool,
    /// Options, separated by commas
    #[arg(short = 'o', long = "options", value_name = "OPTIONS", allow_hyphen_values = true)]
    pub(crate) options: Vec<String>,
    /// Log to this file instead of the system log
    #[arg(long, value_name = "FILE")]
    pub(crate) log_file: Option<PathBuf>,
    /// Ignore options that we do not know
    #[arg(long, short, hide = true)]
    pub(crate) sloppy: bool,
    /// The name that the table of mounts shows [default: the pool's path]
    #[arg(long, hide = true)]
    pub(crate) fsname: Option<OsString>,
}

/// A mount that makes sense, with paths that hold wherever the daemon goes.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) pool: PathBuf,
    pub(crate) directory: PathBuf,
    pub(crate) options: Options,
    pub(crate) fsname: OsString,
}

impl Mount {
    pub(crate) fn run(self, log: &str) -> Result<(), Failure> {
        let request = self.request()?;
        if self.foreground {
            match &self.log_file {
                Some(file) => logging::in_background(log, Some(file))?,
                None => logging::to_stderr(log)?,
            }
            return engine::serve(request, || ());
        }
        background::start(&self.daemon_arguments(&request, log))
    }

    /// The daemon's side of [`Self::run`].
    pub(crate) fn serve_in_background(self, log: &str) -> Result<(), Failure> {
        background::leave_session();
        let served = self.request().and_then(|request| {
            logging::in_background(log, self.log_file.as_deref())?;
            engine::serve(request, background::report_ready)
        });
        // Heard only if it was not mounted yet; after that the log has it.
        if let Err(failure) = &served {
            background::report_failure(failure);
            tracing::error!("{failure}");
        }
        served
    }

    fn daemon_arguments(&self, request: &Request, log: &str) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = vec!["--log".into(), log.into(), "daemon".into()];
        for option in &self.options {
            arguments.extend(["-o".into(), option.into()]);
        }
        if let Some(file) = &self.log_file {
            let file = std::path::absolute(file).unwrap_or_else(|_| file.clone());
            arguments.extend(["--log-file".into(), file.into()]);
        }
        if self.sloppy {
            arguments.push("--sloppy".into());
        }
        arguments.extend(["--fsname".into(), request.fsname.clone(), "--".into()]);
        arguments.extend([request.pool.clone().into(), request.directory.clone().into()]);
        arguments
    }

    fn request(&self) -> Result<Request, Failure> {
        let options = Options::parse(&self.options, self.sloppy)?;
        if !self.pool.exists() {
            return Err(Failure::new(
                Kind::NotFound,
                format!(
                    "{0} is not there; `copyhold create {0} --size SIZE` makes a pool",
                    self.pool.display()
                ),
            ));
        }
        let pool = mount_table::absolute(&self.pool);
        let directory = mount_table::absolute(&self.directory);
        let fsname = self.fsname.clone().unwrap_or_else(|| pool.clone().into());
        Ok(Request { pool, directory, options, fsname })
    }
}
