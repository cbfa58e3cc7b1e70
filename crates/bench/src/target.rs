//! A fresh filesystem over a file: made, mounted, and taken away again whatever happens.
//!
//! Copyhold mounts its file by itself, and the null store needs none. Kernel filesystems get a loop
//! device with direct I/O over a file of the same size, so that neither is cached twice. A job may
//! put Copyhold on such a device, too, and may begin with a copy of an image that it has saved.
//! `plain` is a directory as it is, for trying a job out.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use copyhold_fuse::ask::{self, ask};
use copyhold_harness::{LoopDevice, Place, Pool, Program};
use rustix::process::geteuid;
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
    program: Program,
    options: Vec<String>,
    /// More arguments of `copyhold create`, and more mount options of the kernel's filesystems.
    create: Vec<String>,
    kernels: Vec<String>,
    image_bytes: u64,
    under: Under,
    /// What was left out and why.
    notes: RefCell<BTreeSet<String>>,
}

/// The place of a new filesystem.
#[derive(Clone, Debug)]
enum Under {
    /// A new image; kernel filesystems get a loop device over it.
    Image,
    /// A loop device over a new image.
    Device,
    /// A loop device over a copy of this image, which has a filesystem.
    CopyOf(PathBuf),
}

/// As in `crates/serve/src/control.rs`.
const SYNC: ask::Command = ask::Command::bare(b'C', 1);

impl Site {
    /// `data_bytes`: what a job keeps on the filesystem at most.
    pub(crate) fn new(
        directory: &Path,
        program: Option<PathBuf>,
        options: &[String],
        data_bytes: u64,
    ) -> Result<Site, BenchError> {
        let directory = directory.canonicalize().on(directory.display())?;
        Ok(Site {
            directory,
            program: Program::given_or_beside(program)?,
            options: options.to_vec(),
            create: Vec::new(),
            kernels: vec!["noatime".into()],
            image_bytes: data_bytes * 5 / 2 + (1 << 30),
            under: Under::Image,
            notes: RefCell::default(),
        })
    }

    /// The same with more mount options of Copyhold, and notes of its own.
    pub(crate) fn with_options<const N: usize>(&self, more: [String; N]) -> Site {
        let mut site = self.again();
        site.options.extend(more);
        site
    }

    /// The same with more arguments of `copyhold create`, and notes of its own.
    pub(crate) fn created_with(&self, more: impl IntoIterator<Item = String>) -> Site {
        let mut site = self.again();
        site.create.extend(more);
        site
    }

    /// The same with more mount options of the kernel's filesystems, and notes of its own.
    pub(crate) fn kernels_with(&self, more: &[&str]) -> Site {
        let mut site = self.again();
        site.kernels.extend(more.iter().map(|option| option.to_string()));
        site
    }

    /// The same with a device of so many bytes under each filesystem, and notes of its own.
    pub(crate) fn on_devices(&self, bytes: u64) -> Site {
        Site { image_bytes: bytes, under: Under::Device, ..self.again() }
    }

    /// The same with a copy of an image under each filesystem, and notes of its own.
    pub(crate) fn on_copies_of(&self, image: &Path) -> Site {
        Site { under: Under::CopyOf(image.to_owned()), ..self.again() }
    }

    fn again(&self) -> Site {
        Site {
            directory: self.directory.clone(),
            program: self.program.clone(),
            options: self.options.clone(),
            create: self.create.clone(),
            kernels: self.kernels.clone(),
            image_bytes: self.image_bytes,
            under: self.under.clone(),
            notes: RefCell::default(),
        }
    }

    /// Says in the summary what was left out.
    pub(crate) fn note(&self, job: &str, kind: Kind, what: &str) {
        self.notes.borrow_mut().insert(format!("{job} on {}: {what}", kind.name()));
    }

    pub(crate) fn notes(&self) -> Vec<String> {
        self.notes.borrow().iter().cloned().collect()
    }

    /// A new directory where filesystems go.
    pub(crate) fn new_place(&self) -> Result<Place, BenchError> {
        Ok(Place::new(&self.directory, "copyhold-bench-")?)
    }

    /// Makes and mounts an empty filesystem.
    pub(crate) fn set_up(&self, kind: Kind) -> Result<Target<'_>, BenchError> {
        let place = self.new_place()?;
        let store = match kind {
            Kind::Copyhold => Store::Pool(self.make_pool(place)?),
            Kind::Btrfs | Kind::Ext4 | Kind::Xfs => self.make_kernels(kind, place)?,
            Kind::Null => Store::Null { served: RefCell::default(), place },
            Kind::Plain => Store::Plain(place),
        };
        let target = Target { site: self, kind, store };
        target.mount()?;
        Ok(target)
    }

    fn make_pool(&self, place: Place) -> Result<Pool, BenchError> {
        let options = self.options.iter().flat_map(|option| ["-o".to_owned(), option.clone()]);
        let device = match self.under {
            Under::Image => None,
            Under::Device | Under::CopyOf(_) => Some(self.make_device(&place)?),
        };
        let pool = Pool::new(self.program.clone(), place).mounted_with(options);
        let size = self.image_bytes.to_string();
        let (pool, size): (Pool, &[&str]) = match device {
            Some(device) => (pool.on(device), &[]),
            None => (pool, &["--size", &size]),
        };
        if self.makes_filesystems() {
            let more: Vec<&str> = self.create.iter().map(String::as_str).collect();
            pool.create(&[size, &more].concat())?;
        }
        Ok(pool)
    }

    fn makes_filesystems(&self) -> bool {
        !matches!(self.under, Under::CopyOf(_))
    }

    /// A loop device over the image of the place.
    fn make_device(&self, place: &Place) -> Result<LoopDevice, BenchError> {
        match &self.under {
            Under::Image | Under::Device => place.make_image(self.image_bytes)?,
            Under::CopyOf(image) => {
                let mut copy = Command::new("cp");
                copy.args(["--sparse=always", "--reflink=auto"]).arg(image).arg(place.image());
                run(&mut copy)?;
            }
        }
        Ok(LoopDevice::over(place.image(), &["--direct-io=on"])?)
    }

    fn make_kernels(&self, kind: Kind, place: Place) -> Result<Store, BenchError> {
        let device = self.make_device(&place)?;
        if self.makes_filesystems() {
            let quiet: &[&str] = if kind == Kind::Ext4 { &["-q", "-F"] } else { &["-q", "-f"] };
            run(Command::new(format!("mkfs.{}", kind.name())).args(quiet).arg(device.path()))?;
        }
        Ok(Store::Kernels { place, device })
    }
}

/// A mounted filesystem. Dropping it detaches and removes it.
pub(crate) struct Target<'a> {
    site: &'a Site,
    kind: Kind,
    store: Store,
}

/// Fields are dropped in order: the mount before what is under it.
enum Store {
    Pool(Pool),
    Kernels {
        place: Place,
        device: LoopDevice,
    },
    /// The process while it is mounted.
    Null {
        served: RefCell<Option<Child>>,
        place: Place,
    },
    Plain(Place),
}

impl Target<'_> {
    /// The filesystem's root.
    pub(crate) fn directory(&self) -> PathBuf {
        self.place().mount_point()
    }

    /// A directory beside the filesystem, for what a job needs of its own.
    pub(crate) fn beside(&self) -> &Path {
        self.place().path()
    }

    pub(crate) fn site(&self) -> &Site {
        self.site
    }

    fn place(&self) -> &Place {
        match &self.store {
            Store::Pool(pool) => pool.place(),
            Store::Kernels { place, .. } | Store::Null { place, .. } | Store::Plain(place) => place,
        }
    }

    fn mount(&self) -> Result<(), BenchError> {
        match &self.store {
            Store::Pool(pool) => pool.mount()?,
            Store::Kernels { device, .. } => {
                let mut mount = Command::new("mount");
                mount.args(["-t", self.kind.name(), "-o", &self.site.kernels.join(",")]);
                run(mount.arg(device.path()).arg(self.directory()))?;
            }
            Store::Null { served, .. } => {
                *served.borrow_mut() = Some(null::mount(&self.directory(), &self.site.options)?);
            }
            Store::Plain(_) => {}
        }
        Ok(())
    }

    fn unmount(&self) -> Result<(), BenchError> {
        match &self.store {
            Store::Pool(pool) => pool.unmount()?,
            Store::Kernels { .. } => drop(run(Command::new("umount").arg(self.directory()))?),
            Store::Null { served, .. } => served.take().map_or(Ok(()), null::unmount)?,
            Store::Plain(_) => {}
        }
        Ok(())
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
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
        Ok(match &self.store {
            Store::Pool(pool) => Some(pool.daemon()?.pid().as_raw_nonzero().get().unsigned_abs()),
            Store::Null { served, .. } => served.borrow().as_ref().map(Child::id),
            Store::Kernels { .. } | Store::Plain(_) => None,
        })
    }

    /// Kills the daemon of a pool and mounts again; how long that mount took.
    pub(crate) fn crash(&self) -> Result<Duration, BenchError> {
        self.pool()?.crash()?;
        let began = Instant::now();
        self.mount()?;
        Ok(began.elapsed())
    }

    /// Unmounts and mounts again; how long each took.
    pub(crate) fn remount(&self) -> Result<(Duration, Duration), BenchError> {
        let began = Instant::now();
        self.unmount()?;
        let unmounted = Instant::now();
        self.mount()?;
        Ok((unmounted - began, unmounted.elapsed()))
    }

    pub(crate) fn copyhold(&self) -> Command {
        self.site.program.command()
    }

    pub(crate) fn no_counters(&self) -> BenchError {
        BenchError::NoCounters(self.site.program.path().display().to_string())
    }

    fn pool(&self) -> Result<&Pool, BenchError> {
        match &self.store {
            Store::Pool(pool) => Ok(pool),
            _ => Err(self.no_counters()),
        }
    }

    /// What `copyhold info --json` says of the mount.
    pub(crate) fn info(&self) -> Result<Value, BenchError> {
        Ok(self.pool()?.info()?)
    }

    /// Makes everything durable that was written.
    pub(crate) fn sync(&self) -> Result<(), BenchError> {
        let root = File::open(self.directory()).on(self.directory().display())?;
        rustix::fs::syncfs(&root).on("syncfs")?;
        if self.kind != Kind::Copyhold {
            return Ok(());
        }
        let synced = ask(&root, SYNC, b"").map(drop);
        synced.map_err(|errno| io::Error::from_raw_os_error(errno.code())).on("sync")
    }

    /// What the device was asked to write so far.
    pub(crate) fn traffic(&self) -> Result<Traffic, BenchError> {
        match &self.store {
            Store::Pool(pool) => Traffic::of_info(&pool.info()?).ok_or_else(|| self.no_counters()),
            Store::Kernels { .. } => self.traffic_of_device(),
            Store::Null { .. } | Store::Plain(_) => Ok(Traffic::default()),
        }
    }

    /// The same, as the kernel counts it for the device.
    pub(crate) fn traffic_of_device(&self) -> Result<Traffic, BenchError> {
        Ok(Traffic::of_block_stat(&self.device_file("stat")?))
    }

    /// A file that the kernel has for the block device under the filesystem.
    pub(crate) fn device_file(&self, name: &str) -> Result<String, BenchError> {
        let device = self.device().ok_or(BenchError::NoDevice)?;
        let device = device.file_name().unwrap_or_default();
        let path = Path::new("/sys/block").join(device).join(name);
        fs::read_to_string(&path).on(path.display())
    }

    fn device(&self) -> Option<PathBuf> {
        match &self.store {
            Store::Pool(pool) => Some(pool.path()).filter(|path| path.starts_with("/dev")),
            Store::Kernels { device, .. } => Some(device.path().to_owned()),
            Store::Null { .. } | Store::Plain(_) => None,
        }
    }

    /// Unmounts, moves the image to `to`, on the same filesystem, and removes everything else.
    pub(crate) fn save(self, to: &Path) -> Result<(), BenchError> {
        self.unmount()?;
        fs::rename(self.place().image(), to).on(to.display())
    }

    /// Unmounts, waits until the pool is closed, and removes everything.
    pub(crate) fn take_down(self) -> Result<(), BenchError> {
        self.unmount()?;
        match self.store {
            Store::Kernels { device, .. } => Ok(device.detach()?),
            _ => Ok(()),
        }
    }
}

fn drop_caches(which: &str) -> Result<(), BenchError> {
    const ASK: &str = "/proc/sys/vm/drop_caches";
    fs::write(ASK, which).on(ASK)
}

/// Runs a command to its end; its standard output.
pub(crate) fn run(command: &mut Command) -> Result<String, BenchError> {
    Ok(copyhold_harness::run(command)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_mkfs_here_is_not_an_error() {
        assert_eq!(Kind::Copyhold.missing(), None);
        assert_eq!(Kind::Plain.missing(), None);
    }
}
