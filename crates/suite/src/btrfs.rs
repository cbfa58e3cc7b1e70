//! Kernel btrfs in simple mode, on a loop device: the original.

mod records;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use copyhold_harness::Place;

use crate::error::{On, SuiteError};
use crate::filesystem::{Filesystem, PREFIX, Row};
use crate::ioctl;
use crate::outcome::{Outcome, run};
use records::Records;

pub(crate) struct Btrfs {
    place: Place,
    mount_point: PathBuf,
    options: String,
}

impl Btrfs {
    pub(crate) fn make(
        parent: &Path,
        bytes: u64,
        options: Option<&str>,
    ) -> Result<Btrfs, SuiteError> {
        if !rustix::process::geteuid().is_root() {
            return Err(SuiteError::NotRoot);
        }
        let place = Place::new(parent, PREFIX)?;
        place.make_image(bytes)?;
        let nodes = records::NODE_BYTES.to_string();
        run(Command::new("mkfs.btrfs").args(["-q", "-n", &nodes]).arg(place.image()))?;
        // The loop device goes with the mount.
        let always = "loop,noatime,discard=async";
        let options = options.map_or(always.to_owned(), |more| format!("{always},{more}"));
        let btrfs = Btrfs { mount_point: place.mount_point(), place, options };
        btrfs.mount()?;
        Ok(btrfs)
    }

    fn mount(&self) -> Result<(), SuiteError> {
        let mut mount = Command::new("mount");
        mount.args(["-t", "btrfs", "-o", &self.options]).arg(self.place.image());
        run(mount.arg(&self.mount_point)).map(drop)
    }

    fn unmount(&self) -> Result<(), SuiteError> {
        run(Command::new("umount").arg(&self.mount_point)).map(drop)
    }

    fn root(&self) -> Result<File, SuiteError> {
        File::open(&self.mount_point).on(self.mount_point.display())
    }
}

impl Filesystem for Btrfs {
    fn mount_point(&self) -> &Path {
        &self.mount_point
    }

    fn program(&self) -> Command {
        Command::new("btrfs")
    }

    fn enable(&self) -> Result<Outcome, SuiteError> {
        Ok(Outcome::of(ioctl::enable_simple_quotas(&self.root()?)))
    }

    fn deduplicate(&self, source: &Path, target: &Path) -> Result<Outcome, SuiteError> {
        let source = File::open(source).on(source.display())?;
        let target = File::options().write(true).open(target).on(target.display())?;
        let bytes = source.metadata().on("the source")?.len();
        let deduped = ioctl::deduplicate(&source, &target, bytes);
        Ok(Outcome::of_call(*deduped.as_ref().unwrap_or(&0), deduped.map(drop)))
    }

    fn defragment(&self, file: &Path) -> Result<Outcome, SuiteError> {
        Outcome::of_command(self.program().args(["filesystem", "defragment"]).arg(file))
    }

    fn subvolume_id(&self, path: &Path) -> Result<u64, SuiteError> {
        let mut ask = self.program();
        let id = run(ask.args(["inspect-internal", "rootid"]).arg(path))?;
        let id = id.trim().parse();
        id.map_err(|_| SuiteError::Records(format!("{} has no tree id", path.display())))
    }

    fn sync(&self) -> Result<(), SuiteError> {
        rustix::fs::syncfs(self.root()?).on("syncfs")
    }

    fn finish_deletions(&self) -> Result<(), SuiteError> {
        // Unlike syncfs(2), this wakes the kernel's cleaner.
        let sync =
            || run(self.program().args(["filesystem", "sync"]).arg(&self.mount_point)).map(drop);
        sync()?;
        while records::has_dying_subvolumes(&self.root()?)? {
            sleep(Duration::from_millis(10));
            sync()?;
        }
        self.sync()
    }

    fn remount(&self) -> Result<(), SuiteError> {
        self.unmount()?;
        self.mount()
    }

    fn accounts(&self) -> Result<Vec<Row>, SuiteError> {
        match Records::read(&self.root()?)? {
            Some(records) => records.rows(),
            None => Ok(Vec::new()),
        }
    }

    fn take_down(&self) -> Result<(), SuiteError> {
        self.unmount()
    }
}
