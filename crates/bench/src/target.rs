//! A fresh filesystem over a file: made, mounted, and taken away again whatever happens.
//!
//! Copyhold mounts its file by itself, and the null store needs none. Kernel filesystems get a loop
//! device with direct I/O over a file of the same size, so that neither is cached twice. `plain` is
//! a directory as it is, for trying a job out.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, geteuid, kill_process, test_kill_process};
use serde_json::Value;

use crate::error::{BenchError, On};
use crate::null;
use crate::traffic::Traffic;

/// What a job runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(crate) enum Kind {
    #[value(skip)]
    Copyhold,
    Btrfs,
    Ext4,
    Xfs,
    /// Our transport with a store that keeps nothing: the ceiling
    Null,
    /// A directory as it is, on whatever filesystem --dir is
    Plain,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Copyhold => "copyhold",
            Kind::Btrfs => "btrfs",
            Kind::Ext4 => "ext4",
            Kind::Xfs => "xfs",
            Kind::Null => "null",
            Kind::Plain => "plain",
        }
    }

    /// Whether it is one of the kernel's, on a loop device.
    fn is_kernels(self) -> bool {
        matches!(self, Kind::Btrfs | Kind::Ext4 | Kind::Xfs)
    }

    /// Whether what is written can be read again: the null store gives zeros.
    pub(crate) fn keeps_data(self) -> bool {
        self != Kind::Null
    }

    /// Why there is none of this kind on this machine, if so.
    pub(crate) fn missing(self) -> Option<String> {
        if !self.is_kernels() {
            return None;
        }
        if !geteuid().is_root() {
            return Some("kernel filesystems need loop devices, and those need root".into());
        }
        let mkfs = format!("mkfs.{}", self.name());
        match Command::new(&mkfs).arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status() {
            Ok(_) => None,
            Err(error) => Some(format!("{mkfs}: {error}")),
        }
    }
}

/// Where filesystems are made, and with what.
pub(crate) struct Site {
    directory: PathBuf,
    program: PathBuf,
    options: Vec<String>,
    image_bytes: u64,
    /// What was left out and why.
    notes: RefCell<BTreeSet<String>>,
}

impl Site {
    /// `data_bytes`: what a job keeps on the filesystem at most.
    pub(crate) fn new(
        directory: &Path,
        program: Option<PathBuf>,
        options: &[String],
        data_bytes: u64,
    ) -> Result<Site, BenchError> {
        let directory = directory.canonicalize().on(directory.display())?;
        let beside = std::env::current_exe().on("this program")?.with_file_name("copyhold");
        Ok(Site {
            directory,
            program: program.unwrap_or(beside),
            options: options.to_vec(),
            image_bytes: data_bytes * 5 / 2 + (1 << 30),
            notes: RefCell::default(),
        })
    }

    /// Says in the summary what was left out.
    pub(crate) fn note(&self, job: &str, kind: Kind, what: &str) {
        self.notes.borrow_mut().insert(format!("{job} on {}: {what}", kind.name()));
    }

    pub(crate) fn notes(&self) -> Vec<String> {
        self.notes.borrow().iter().cloned().collect()
    }

    /// Makes and mounts an empty filesystem.
    pub(crate) fn set_up(&self, kind: Kind) -> Result<Target<'_>, BenchError> {
        let place = tempfile::Builder::new()
            .prefix("copyhold-bench-")
            .tempdir_in(&self.directory)
            .on(self.directory.display())?;
        let target = Target { site: self, kind, place, undo: RefCell::default() };
        fs::create_dir(target.directory()).on("the mount point")?;
        match kind {
            Kind::Copyhold => target.mount_pool()?,
            Kind::Btrfs | Kind::Ext4 | Kind::Xfs => target.mount_loop()?,
            Kind::Null => target.mount_again()?,
            Kind::Plain => {}
        }
        Ok(target)
    }
}

/// A mounted filesystem. Dropping it takes it down and removes it.
pub(crate) struct Target<'a> {
    site: &'a Site,
    kind: Kind,
    place: tempfile::TempDir,
    /// What must be undone, newest last.
    undo: RefCell<Vec<Undo>>,
}

#[derive(Debug)]
enum Undo {
    Loop(PathBuf),
    KernelMount,
    PoolMount,
    NullMount(Child),
}

impl Target<'_> {
    /// The filesystem's root.
    pub(crate) fn directory(&self) -> PathBuf {
        self.place.path().join("mnt")
    }

    /// A directory beside the filesystem, for what a job needs of its own.
    pub(crate) fn beside(&self) -> &Path {
        self.place.path()
    }

    pub(crate) fn site(&self) -> &Site {
        self.site
    }

    fn image(&self) -> PathBuf {
        self.place.path().join("image")
    }

    fn mount_pool(&self) -> Result<(), BenchError> {
        let size = self.site.image_bytes.to_string();
        run(self.copyhold().arg("create").arg(self.image()).args(["--size", &size]))?;
        self.mount_again()
    }

    /// Mounts what was made before. A plain directory is there all the time.
    fn mount_again(&self) -> Result<(), BenchError> {
        if self.kind == Kind::Plain {
            return Ok(());
        }
        if let Some(device) = self.loop_device() {
            run(Command::new("mount")
                .args(["-t", self.kind.name(), "-o", "noatime"])
                .arg(&device)
                .arg(self.directory()))?;
            self.undo.borrow_mut().push(Undo::KernelMount);
            return Ok(());
        }
        if self.kind == Kind::Null {
            let served = null::mount(&self.directory(), &self.site.options)?;
            self.undo.borrow_mut().push(Undo::NullMount(served));
            return Ok(());
        }
        let mut mount = self.copyhold();
        mount.arg("mount");
        for option in &self.site.options {
            mount.args(["-o", option]);
        }
        run(mount.arg(self.image()).arg(self.directory()))?;
        self.undo.borrow_mut().push(Undo::PoolMount);
        Ok(())
    }

    fn mount_loop(&self) -> Result<(), BenchError> {
        let image = File::create_new(self.image()).on(self.image().display())?;
        image.set_len(self.site.image_bytes).on(self.image().display())?;
        let attach = ["--find", "--show", "--direct-io=on"];
        let device = run(Command::new("losetup").args(attach).arg(self.image()))?;
        let device = PathBuf::from(device.trim());
        self.undo.borrow_mut().push(Undo::Loop(device.clone()));
        let quiet: &[&str] = if self.kind == Kind::Ext4 { &["-q", "-F"] } else { &["-q", "-f"] };
        let mkfs = format!("mkfs.{}", self.kind.name());
        run(Command::new(mkfs).args(quiet).arg(&device))?;
        self.mount_again()
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    fn loop_device(&self) -> Option<PathBuf> {
        let undo = self.undo.borrow();
        undo.iter().find_map(|undo| match undo {
            Undo::Loop(device) => Some(device.clone()),
            _ => None,
        })
    }

    /// Makes everything durable and forgets what is cached, the filesystem's own caches included:
    /// it is mounted again. The null store would forget all, and is asked to drop nothing.
    pub(crate) fn cool(&self) -> Result<(), BenchError> {
        self.sync()?;
        if !matches!(self.kind, Kind::Null | Kind::Plain) {
            self.remount()?;
        }
        match geteuid().is_root() {
            true => drop_caches("3"),
            false => Ok(()),
        }
    }

    /// Has the kernel forget names and inodes, and leaves the filesystem what it keeps itself.
    /// Whether it could be asked: only root may.
    pub(crate) fn forget_names(&self) -> Result<bool, BenchError> {
        self.sync()?;
        match geteuid().is_root() {
            true => drop_caches("2").map(|()| true),
            false => Ok(false),
        }
    }

    /// The process that serves the mount; the kernel's filesystems have none.
    pub(crate) fn daemon(&self) -> Result<Option<u32>, BenchError> {
        let served = self.undo.borrow().iter().find_map(|undo| match undo {
            Undo::NullMount(served) => Some(served.id()),
            _ => None,
        });
        if self.kind != Kind::Copyhold {
            return Ok(served);
        }
        let pid = self.info()?.get("pid").and_then(Value::as_u64);
        Ok(pid.and_then(|pid| u32::try_from(pid).ok()))
    }

    /// Kills the daemon of a pool and mounts again; how long that mount took.
    pub(crate) fn crash(&self) -> Result<Duration, BenchError> {
        let program = self.site.program.display().to_string();
        let daemon = self.daemon()?.and_then(|pid| Pid::from_raw(pid as i32));
        let daemon = daemon.ok_or(BenchError::NoCounters(program))?;
        kill_process(daemon, Signal::KILL).on("kill")?;
        let detach: (&str, &str) =
            if geteuid().is_root() { ("umount", "-l") } else { ("fusermount3", "-uz") };
        run(Command::new(detach.0).arg(detach.1).arg(self.directory()))?;
        self.undo.borrow_mut().pop();
        while test_kill_process(daemon).is_ok() && !is_over(daemon) {
            thread::sleep(Duration::from_millis(1));
        }
        let began = Instant::now();
        self.mount_again()?;
        Ok(began.elapsed())
    }

    /// Unmounts and mounts again; how long each took.
    pub(crate) fn remount(&self) -> Result<(Duration, Duration), BenchError> {
        let began = Instant::now();
        let mount = self.undo.borrow_mut().pop();
        mount.map_or(Ok(()), |mount| self.undo_one(mount))?;
        let unmounted = Instant::now();
        self.mount_again()?;
        Ok((unmounted - began, unmounted.elapsed()))
    }

    pub(crate) fn copyhold(&self) -> Command {
        Command::new(&self.site.program)
    }

    /// What `copyhold info --json` says of the mount.
    pub(crate) fn info(&self) -> Result<Value, BenchError> {
        let mut ask = self.copyhold();
        let info = run(ask.args(["--json", "info"]).arg(self.directory()))?;
        let program = self.site.program.display().to_string();
        serde_json::from_str(&info).map_err(|_| BenchError::NoCounters(program))
    }

    /// Makes everything durable that was written.
    pub(crate) fn sync(&self) -> Result<(), BenchError> {
        match self.kind {
            Kind::Copyhold => run(self.copyhold().arg("sync").arg(self.directory())).map(drop),
            Kind::Btrfs | Kind::Ext4 | Kind::Xfs | Kind::Null | Kind::Plain => {
                let root = File::open(self.directory()).on(self.directory().display())?;
                rustix::fs::syncfs(&root).on("syncfs")
            }
        }
    }

    /// What the device was asked to write so far.
    pub(crate) fn traffic(&self) -> Result<Traffic, BenchError> {
        match self.kind {
            Kind::Copyhold => {
                let program = self.site.program.display().to_string();
                Traffic::of_info(&self.info()?).ok_or(BenchError::NoCounters(program))
            }
            Kind::Null | Kind::Plain => Ok(Traffic::default()),
            Kind::Btrfs | Kind::Ext4 | Kind::Xfs => {
                let device = self.loop_device().expect("a kernel filesystem has a loop device");
                let name = device.file_name().expect("devices have names");
                let path = Path::new("/sys/block").join(name).join("stat");
                let stat = fs::read_to_string(&path).on(path.display())?;
                Ok(Traffic::of_block_stat(&stat))
            }
        }
    }

    /// Unmounts and removes; dropping does the same, but has nobody to tell.
    pub(crate) fn take_down(self) -> Result<(), BenchError> {
        self.undo_all()
    }

    fn undo_all(&self) -> Result<(), BenchError> {
        let mut first_failure = Ok(());
        loop {
            let Some(undo) = self.undo.borrow_mut().pop() else { return first_failure };
            let undone = self.undo_one(undo);
            first_failure = first_failure.and(undone);
        }
    }

    fn undo_one(&self, undo: Undo) -> Result<(), BenchError> {
        match undo {
            Undo::Loop(device) => run(Command::new("losetup").arg("-d").arg(device)),
            Undo::KernelMount => run(Command::new("umount").arg(self.directory())),
            Undo::NullMount(served) => return null::unmount(served),
            Undo::PoolMount => run(self.copyhold().arg("umount").arg(self.directory())),
        }
        .map(drop)
    }
}

impl Drop for Target<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.undo_all() {
            eprintln!("copyhold-bench: cleaning up: {error}");
        }
    }
}

fn drop_caches(which: &str) -> Result<(), BenchError> {
    const ASK: &str = "/proc/sys/vm/drop_caches";
    fs::write(ASK, which).on(ASK)
}

/// Whether a process has ended, though its parent may not have looked yet.
fn is_over(process: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero()));
    stat.map_or(true, |stat| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z')))
}

/// Runs a command to its end; its standard output.
pub(crate) fn run(command: &mut Command) -> Result<String, BenchError> {
    let shown = format!("{command:?}").replace('"', "");
    let output = command.stdin(Stdio::null()).output().on(&shown)?;
    if !output.status.success() {
        return Err(BenchError::Command {
            command: shown,
            status: output.status.to_string(),
            says: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_mkfs_here_is_not_an_error() {
        assert_eq!(Kind::Copyhold.missing(), None);
        assert_eq!(Kind::Plain.missing(), None);
    }

    #[test]
    fn a_command_that_fails_tells_what_it_said() {
        let error = run(Command::new("sh").args(["-c", "echo no >&2; exit 3"])).unwrap_err();
        assert!(error.to_string().ends_with("no"), "{error}");
    }
}
