//! A fresh filesystem over a file: made, mounted, and taken away again whatever happens.
//!
//! Copyhold mounts its file by itself, and the null store needs none. Kernel filesystems get a loop
//! device with direct I/O over a file of the same size, so that neither is cached twice.

use std::cell::RefCell;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::error::{BenchError, On};
use crate::null;
use crate::summary::Sample;

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
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Copyhold => "copyhold",
            Kind::Btrfs => "btrfs",
            Kind::Ext4 => "ext4",
            Kind::Xfs => "xfs",
            Kind::Null => "null",
        }
    }

    /// Whether it is one of the kernel's, on a loop device.
    fn is_kernels(self) -> bool {
        matches!(self, Kind::Btrfs | Kind::Ext4 | Kind::Xfs)
    }
}

/// Where filesystems are made, and with what.
pub(crate) struct Site {
    directory: PathBuf,
    program: PathBuf,
    options: Vec<String>,
    image_bytes: u64,
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
        })
    }

    /// Makes and mounts an empty filesystem.
    pub(crate) fn set_up(&self, kind: Kind) -> Result<Target<'_>, BenchError> {
        if kind.is_kernels() && !rustix::process::geteuid().is_root() {
            return Err(BenchError::NotRoot);
        }
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
    pub(crate) fn directory(&self) -> PathBuf {
        self.place.path().join("mnt")
    }

    fn image(&self) -> PathBuf {
        self.place.path().join("image")
    }

    fn mount_pool(&self) -> Result<(), BenchError> {
        let size = self.site.image_bytes.to_string();
        run(self.copyhold().arg("create").arg(self.image()).args(["--size", &size]))?;
        self.mount_again()
    }

    /// Mounts what was made before.
    fn mount_again(&self) -> Result<(), BenchError> {
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
            Kind::Btrfs | Kind::Ext4 | Kind::Xfs | Kind::Null => {
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
            Kind::Null => Ok(Traffic::default()),
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

/// What a device was asked to write, by purpose where the filesystem says so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    written_bytes: Vec<(String, u64)>,
    flushes: u64,
}

impl Traffic {
    /// From `copyhold info --json`: `counters: {purpose: {written_bytes, …}}` and `flushes`.
    fn of_info(info: &Value) -> Option<Traffic> {
        let purposes = info.get("counters")?.as_object()?.iter();
        let written_bytes = purposes
            .map(|(purpose, counts)| {
                Some((purpose.clone(), counts.get("written_bytes")?.as_u64()?))
            })
            .collect::<Option<Vec<_>>>()?;
        Some(Traffic { written_bytes, flushes: info.get("flushes")?.as_u64()? })
    }

    /// From `/sys/block/…/stat`: the seventh number is sectors written, the sixteenth flushes.
    fn of_block_stat(stat: &str) -> Traffic {
        let numbers: Vec<u64> =
            stat.split_whitespace().map(|number| number.parse().unwrap_or_default()).collect();
        let at = |index: usize| numbers.get(index).copied().unwrap_or_default();
        Traffic { written_bytes: vec![("all".into(), at(6) * 512)], flushes: at(15) }
    }

    pub(crate) fn since(&self, before: &Traffic) -> Traffic {
        let earlier = |purpose: &str| {
            before.written_bytes.iter().find(|(name, _)| name == purpose).map_or(0, |found| found.1)
        };
        Traffic {
            written_bytes: self
                .written_bytes
                .iter()
                .map(|(name, bytes)| (name.clone(), bytes - earlier(name)))
                .collect(),
            flushes: self.flushes - before.flushes,
        }
    }

    /// Per byte that the job wrote, in `ops` writes of a block.
    pub(crate) fn samples(&self, variant: &str, ops: u64) -> Vec<Sample> {
        let asked = (ops.max(1) * crate::random_overwrite::BLOCK as u64) as f64;
        let per_byte =
            |name: &str, bytes: u64| Sample::new(variant, name, "bytes/byte", bytes as f64 / asked);
        let total = self.written_bytes.iter().map(|(_, bytes)| bytes).sum();
        let mut samples = vec![
            per_byte("device_bytes", total),
            Sample::new(variant, "flushes", "per op", self.flushes as f64 / ops.max(1) as f64),
        ];
        let by_purpose = self.written_bytes.iter().filter(|(name, _)| name != "all");
        samples.extend(
            by_purpose.map(|(name, bytes)| per_byte(&format!("device_bytes.{name}"), *bytes)),
        );
        samples
    }
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
    fn traffic_is_read_from_both_sources_and_subtracted() {
        let info = r#"{"pool":"x","flushes":7,"counters":{
            "data":{"writes":1,"written_bytes":8192,"reads":0,"read_bytes":0},
            "log":{"writes":1,"written_bytes":4096,"reads":0,"read_bytes":0}}}"#;
        let traffic = Traffic::of_info(&serde_json::from_str(info).unwrap()).unwrap();
        let since = traffic.since(&Traffic { flushes: 5, ..Traffic::default() });
        assert_eq!(since.flushes, 2);
        assert_eq!(since.written_bytes, traffic.written_bytes);
        let samples = since.samples("direct", 2);
        assert_eq!(samples[0], Sample::new("direct", "device_bytes", "bytes/byte", 1.5));
        assert_eq!(Traffic::of_info(&Value::Null), None);

        let stat = "1 0 8 0 5 0 24 0 0 0 0 0 0 0 0 3 0";
        let expected = Traffic { written_bytes: vec![("all".into(), 24 * 512)], flushes: 3 };
        assert_eq!(Traffic::of_block_stat(stat), expected);
    }

    #[test]
    fn a_command_that_fails_tells_what_it_said() {
        let error = run(Command::new("sh").args(["-c", "echo no >&2; exit 3"])).unwrap_err();
        assert!(error.to_string().ends_with("no"), "{error}");
    }
}
