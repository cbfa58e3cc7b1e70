//! `copyhold mount`: shows a pool as a directory.
//!
//! Everything that can go wrong goes wrong before it returns: the daemon is forked first, opens,
//! recovers and mounts the pool, and then reports. With `-f` this process is the daemon.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process;
use std::thread;
use std::time::{Duration, Instant};

use copyhold_fuse::Signals;
use copyhold_fuse::daemon::{self, Launch, Outcome, Side};
use copyhold_fuse::mount::abort_orphans;

use crate::confinement::confine;
use crate::failure::{Failure, Kind, complain};
use crate::logging::Log;
use crate::mount_options::Options;
use crate::mount_request::Request;
use crate::{engine, logging, mount_again, mount_table};

/// How long a mount that comes and goes is followed.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(20);

/// Mount a pool on a directory
///
/// Returns when the mount is usable. After a crash it recovers the pool first, which takes about a
/// second. Root mounts directly; another user needs fusermount3 (package fuse3) and a directory
/// that is his.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Examples:\n  \
    copyhold mount /srv/pool.img /mnt\n  \
    copyhold mount /dev/nvme1n1 /mnt -o ro,noatime\n  \
    copyhold mount /srv/pool.img /home -o subvol=home\n  \
    copyhold mount -f /srv/pool.img /mnt     stay here, log to the terminal, Ctrl-C unmounts\n\n\
    Options for -o are those of mount(8) and FUSE, and:\n  \
    memory=SIZE     memory of the daemon [an eighth of the machine's or its group's, 128M to 4G]\n  \
    reclaim=RULE    protection of groups: proportional, published, binary, off [proportional]\n  \
    names=LIMIT     names known not to exist: SIZE% of memory, a number, off [2%]\n  \
    delta=SIZE      part of memory= for changes not yet in the tables [a quarter, up to 64M]\n  \
    flush=WHEN      a part with each commit: even; late and in bursts: threshold [even]\n  \
    replay=SECONDS  most time of a recovery, as 0.5 or 500ms, by a rate that was measured [none]\n  \
    spacelog=BOOL   on gathers changes of space in the log, off writes their maps each time [on]\n  \
    data_cache=WHAT file data kept for later readers: off, shared by clones, direct, all [off]\n  \
    commit=SECONDS  how old unsynced changes may get [5]\n  \
    transport=T     how requests come from the kernel: auto, dev (/dev/fuse), uring [auto]\n  \
    readers=N       threads that read the kernel's requests [2 for each CPU, at most 16]\n  \
    writeback_cache the kernel gathers small writes; that a limit is reached is told at fsync\n  \
    nobtime         no times of birth: a request less for each file that Rust or Node looks at\n  \
    norecovery      with ro: write nothing to the device, as ro does in any case\n  \
    cut-tail        give up, for good, what comes after the damage in a damaged log\n  \
    user_subvolumes owners of directories may make and delete subvolumes; no idmapped mounts\n  \
    core_dumps      a crash may dump the daemon's memory, with data of tenants, to a file\n  \
    public_lists    all users see all subvolumes, quota groups and the state of the pool\n  \
    admin_namespaces=any  root manages the pool from any mount namespace, not only the daemon's\n  \
    export          files can be opened by their handles, as NFS does; not below overlayfs\n  \
    subvol=PATH     show this subvolume only; subvolid=ID names it by its id (root only)\n\n\
    A pool may be mounted in more places, by root: mount it again. One daemon serves all of its\n\
    mounts. Each has its own ro, nosuid, nodev, noexec, nosymfollow, nodiratime, subvol and\n\
    subvolid. Other options must be those of the first mount, or be left out; allow_other,\n\
    fsname, blksize and strictatime have no effect.\n\n\
    A line for /etc/fstab:\n  \
    /srv/pool.img  /mnt  fuse.copyhold  defaults,nofail  0  0")]
pub(crate) struct Mount {
    /// The file, the block device, or the NVMe namespace (/dev/ngXnY)
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

impl Mount {
    pub(crate) fn run(self, log: &str) -> Result<(), Failure> {
        abort_orphans();
        let request = self.request()?;
        let here =
            if self.foreground { Some(self.be_the_daemon_here(&request, log)?) } else { None };
        let begin = Instant::now();
        loop {
            if self.again(&request)? {
                return Ok(());
            }
            mount_again::remove_dead(&request.pool)?;
            let first = match &here {
                Some((signals, _log)) => {
                    engine::serve(request.clone(), signals).and_then(|served| served.wait())
                }
                None => self.first(&request, log),
            };
            match first {
                // Another process mounted it meanwhile, or its last mount is just leaving.
                Err(failure)
                    if failure.kind == Kind::InUse
                        && begin.elapsed() < PATIENCE
                        && !mount_again::mounts_of(&request.pool)?.is_empty() =>
                {
                    thread::sleep(PAUSE);
                }
                result => return result,
            }
        }
    }

    /// One more mount of a pool that is mounted; `false` if there is none yet.
    fn again(&self, request: &Request) -> Result<bool, Failure> {
        if self.foreground {
            return match mount_again::mounts_of(&request.pool)?.first() {
                None => Ok(false),
                Some(entry) => Err(Failure::new(
                    Kind::InUse,
                    format!(
                        "{} is mounted on {} already, by a daemon that can serve another mount; \
                         leave out -f",
                        request.pool.display(),
                        entry.mount_point.display()
                    ),
                )),
            };
        }
        mount_again::mount(request)
    }

    /// Prepares signals and log in this process, as a daemon does before it opens its pool (`-f`).
    fn be_the_daemon_here(&self, request: &Request, log: &str) -> Result<(Signals, Log), Failure> {
        let confined = confine(request);
        let signals = watch_signals()?;
        let log = match &self.log_file {
            Some(file) => logging::in_background(log, Some(file))?,
            None => logging::to_stderr(log)?,
        };
        log.end_on_panic();
        report_powers(confined);
        Ok((signals, log))
    }

    /// Starts a daemon in the background.
    fn first(&self, request: &Request, log: &str) -> Result<(), Failure> {
        let log_file = self.log_file.as_deref().map(logging::append).transpose()?;
        let forked = daemon::fork(log_file);
        match forked.map_err(|error| Failure::system("starting the daemon", &error))? {
            Side::Parent(Outcome::Ready(text)) => {
                for warning in text.lines() {
                    complain(&format!("copyhold: {warning}"));
                }
                Ok(())
            }
            Side::Parent(Outcome::Failed(text)) => Err(Failure::from_text(&text)),
            Side::Parent(Outcome::Died(status)) => Err(Failure::new(
                Kind::Failed,
                format!(
                    "the daemon ended ({status}) before the mount was ready; `mount -f` shows \
                         why"
                ),
            )),
            Side::Child(launch) => {
                let ended = self.be_the_daemon(launch, request.clone(), log);
                process::exit(i32::from(ended.is_err()));
            }
        }
    }

    /// In the child: its return value is not read, the parent gets the reports of `launch`.
    fn be_the_daemon(&self, launch: Launch, request: Request, log: &str) -> Result<(), Failure> {
        let begun = || {
            let confined = confine(&request);
            let signals = watch_signals()?;
            let log = logging::in_background(log, self.log_file.as_deref())?;
            log.end_on_panic();
            report_powers(confined);
            Ok((engine::serve(request, &signals)?, log))
        };
        let (served, _log) = match begun() {
            Ok(begun) => begun,
            Err(failure) => {
                launch.failed(&Failure::to_text(&failure));
                return Err(failure);
            }
        };
        if let Err(error) = launch.ready(&served.warnings().join("\n")) {
            tracing::error!(%error, "leaving the terminal failed");
        }
        served.wait().inspect_err(|failure| tracing::error!("{failure}"))
    }

    fn request(&self) -> Result<Request, Failure> {
        let options = Options::parse(&self.options, self.sloppy)?;
        if !self.pool.exists() {
            return Err(Failure::new(
                Kind::NotFound,
                format!(
                    "{0} does not exist; `copyhold create {0} --size SIZE` makes a pool",
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

fn report_powers(confined: io::Result<()>) {
    if let Err(error) = confined {
        tracing::warn!(%error, "the daemon keeps powers that it does not need");
    }
}

/// Before the first thread.
fn watch_signals() -> Result<Signals, Failure> {
    Signals::watch().map_err(|error| Failure::system("blocking signals", &error))
}
