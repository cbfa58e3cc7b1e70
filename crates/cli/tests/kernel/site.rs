//! The mount that a test has, and who looks at it.

use std::fs::{self, File, OpenOptions, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use crate::transport;

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_copyhold");
pub(crate) const NOBODY: u32 = 65534;

pub(crate) struct Site {
    pub(crate) place: tempfile::TempDir,
    pub(crate) pool: PathBuf,
    loop_device: bool,
}

impl Site {
    pub(crate) fn possible() -> bool {
        let possible = rustix::process::geteuid().is_root()
            && File::options().read(true).write(true).open("/dev/fuse").is_ok();
        assert!(possible || std::env::var_os("CI").is_none(), "CI needs root and /dev/fuse");
        if !possible {
            eprintln!("skipped: needs root and /dev/fuse");
        }
        possible && transport::is_there()
    }

    pub(crate) fn mounted() -> Option<Site> {
        Site::of(&[])
    }

    /// `options`: how the pool is made.
    pub(crate) fn of(options: &[&str]) -> Option<Site> {
        Site::possible().then(|| {
            let place = tempfile::tempdir().unwrap();
            let pool = place.path().join("pool.img");
            Site { place, pool, loop_device: false }.begun(options)
        })
    }

    /// On a loop device, so that the kernel makes it a `fuseblk` mount.
    pub(crate) fn on_a_device() -> Option<Site> {
        if !Site::possible() {
            return None;
        }
        let place = tempfile::tempdir().unwrap();
        let image = place.path().join("image");
        File::create(&image).unwrap().set_len(256 << 20).unwrap();
        let made = Command::new("losetup").args(["--find", "--show"]).arg(&image).output().ok()?;
        if !made.status.success() {
            eprintln!("skipped: no loop devices here");
            return None;
        }
        let pool = PathBuf::from(String::from_utf8_lossy(&made.stdout).trim());
        Some(Site { place, pool, loop_device: true }.begun(&[]))
    }

    pub(crate) fn begun(self, options: &[&str]) -> Site {
        fs::create_dir(self.mnt()).unwrap();
        let mut create = Command::new(PROGRAM);
        create.arg("create").arg(&self.pool).args(options);
        if !self.loop_device {
            create.args(["--size", "256M"]);
        }
        let created = create.output().unwrap();
        assert!(created.status.success(), "{created:?}");
        self.mount();
        self
    }

    pub(crate) fn mnt(&self) -> PathBuf {
        self.place.path().join("mnt")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.mnt().join(name)
    }

    #[track_caller]
    pub(crate) fn mount(&self) {
        self.mount_with("rw");
    }

    #[track_caller]
    pub(crate) fn mount_with(&self, options: &str) {
        let mut mount = Command::new(PROGRAM);
        mount.arg("mount").arg(&self.pool).arg(self.mnt()).args(transport::options());
        let run = mount.args(["-o", options]).output().unwrap();
        assert!(run.status.success(), "{run:?}");
    }

    #[track_caller]
    pub(crate) fn unmount(&self) {
        let run = Command::new(PROGRAM).arg("umount").arg(self.mnt()).output().unwrap();
        assert!(run.status.success(), "{run:?}");
    }

    /// Kills the daemon; returns when it is gone.
    pub(crate) fn kill(&self) {
        let info = Command::new(PROGRAM).args(["--json", "info"]).arg(self.mnt()).output().unwrap();
        let info: serde_json::Value = serde_json::from_slice(&info.stdout).unwrap();
        let daemon = Pid::from_raw(info["pid"].as_i64().unwrap() as i32).unwrap();
        kill_process(daemon, Signal::KILL).unwrap();
        while kill_process(daemon, Signal::KILL).is_ok() {
            thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn again(&self) {
        self.unmount();
        self.mount();
    }

    pub(crate) fn kind(&self) -> String {
        let table = fs::read_to_string("/proc/self/mounts").unwrap();
        let mnt = self.mnt();
        let mut lines = table.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        lines.find(|line| Path::new(line[1]) == mnt).map_or("", |line| line[2]).to_owned()
    }

    pub(crate) fn create(&self, name: &str) -> File {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).open(self.path(name)).unwrap()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let mnt = self.mnt();
        let _ = Command::new("umount").arg("--lazy").arg(&mnt).stderr(Stdio::null()).status();
        if self.loop_device {
            let _ = Command::new("losetup").arg("--detach").arg(&self.pool).status();
        }
    }
}

/// What a shell of an ordinary user answers.
pub(crate) fn as_nobody(site: &Site, script: &str) -> bool {
    let mut shell = Command::new("setpriv");
    shell.args(["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", script]);
    fs::set_permissions(site.place.path(), Permissions::from_mode(0o755)).unwrap();
    shell.current_dir(site.mnt()).stderr(Stdio::null()).status().unwrap().success()
}

pub(crate) fn number(error: std::io::Error) -> Errno {
    Errno::from_raw_os_error(error.raw_os_error().unwrap())
}

pub(crate) fn tool(name: &str, arguments: &[&str], at: &Path) -> Output {
    Command::new(name).args(arguments).arg(at).output().unwrap()
}
