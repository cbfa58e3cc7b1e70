//! What containers do: layers of overlayfs, and mounts that map owners.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use copyhold_harness::Mounted;
use rustix::fs::{IFlags, XattrFlags, ioctl_getflags, removexattr, setxattr};

use crate::observer::as_nobody;
use crate::site::{Site, copied_program, worked};

const IDMAP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/acceptance/idmap.py");
const CAPABILITY: &str = "security.capability";
/// Of version 2: net_raw, effective.
const NET_RAW: [u8; 20] = [1, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Both layers are in the pool.
struct Overlay {
    /// Unmounted before what is under it.
    over: Option<Mounted>,
    site: Site,
}

impl Overlay {
    fn over(make_lower: impl FnOnce(&Path)) -> Option<Overlay> {
        Overlay::over_mount("rw", make_lower)
    }

    /// `options`: how the pool is mounted.
    fn over_mount(options: &str, make_lower: impl FnOnce(&Path)) -> Option<Overlay> {
        let overlays = fs::read_to_string("/proc/filesystems").unwrap().contains("overlay");
        if !overlays {
            eprintln!("skipped: this kernel has no overlayfs");
            return None;
        }
        let site = Site::mounted(&[])?;
        site.unmount();
        site.mount(&["-o", options]);
        for name in ["lower", "upper", "work"] {
            fs::create_dir(site.path(name)).unwrap();
        }
        make_lower(&site.path("lower"));
        let mut overlay = Overlay { over: None, site };
        fs::create_dir(overlay.at("")).unwrap();
        overlay.mount();
        Some(overlay)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.site.directory().join("merged").join(name)
    }

    fn mount(&mut self) {
        let layer = |name| self.site.path(name).display().to_string();
        let layers =
            ["lowerdir=", "upperdir=", "workdir="].into_iter().zip(["lower", "upper", "work"]);
        let layers: Vec<String> =
            layers.map(|(option, name)| option.to_owned() + &layer(name)).collect();
        let options = layers.join(",") + ",index=off";
        let options = ["-t", "overlay", "-o", &options];
        self.over = Some(worked(Mounted::new(&options, Path::new("overlay"), &self.at(""))));
    }

    /// As on another day: nothing of it is in the kernel's memory.
    fn again(&mut self) {
        self.over = None;
        fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
        self.mount();
    }
}

fn touch(path: &Path) {
    File::options().append(true).open(path).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

fn has_capabilities(path: &Path) -> bool {
    rustix::fs::getxattr(path, CAPABILITY, &mut [0; 64]).is_ok()
}

#[test]
fn a_copy_up_by_overlayfs_keeps_setuid_setgid_and_capabilities() {
    let overlay = Overlay::over(|lower| {
        for name in ["su", "owned", "later"] {
            fs::write(lower.join(name), name).unwrap();
            chown(lower.join(name), Some(7), Some(8)).unwrap();
            fs::set_permissions(lower.join(name), Permissions::from_mode(0o6755)).unwrap();
        }
        for name in ["ping", "ping-owned"] {
            fs::write(lower.join(name), name).unwrap();
            setxattr(lower.join(name), CAPABILITY, &NET_RAW, XattrFlags::empty()).unwrap();
        }
    });
    let Some(overlay) = overlay else { return };
    touch(&overlay.at("su"));
    assert_eq!(mode(&overlay.at("su")), 0o6755);
    let found = fs::metadata(overlay.at("su")).unwrap();
    assert_eq!((found.uid(), found.gid()), (7, 8));
    touch(&overlay.at("ping"));
    assert!(has_capabilities(&overlay.at("ping")));
    // The change of owner that is asked for takes them away, with a copy-up before it or not.
    chown(overlay.at("owned"), Some(1), Some(1)).unwrap();
    assert_eq!(mode(&overlay.at("owned")), 0o755);
    chown(overlay.at("ping-owned"), Some(1), Some(1)).unwrap();
    assert!(!has_capabilities(&overlay.at("ping-owned")));
    touch(&overlay.at("later"));
    chown(overlay.at("later"), Some(1), Some(1)).unwrap();
    assert_eq!(mode(&overlay.at("later")), 0o755);
}

#[test]
fn a_write_by_a_stranger_takes_setuid_away_through_overlayfs() {
    let overlay = Overlay::over(|lower| {
        fs::write(lower.join("program"), "x").unwrap();
        fs::set_permissions(lower.join("program"), Permissions::from_mode(0o6777)).unwrap();
    });
    let Some(overlay) = overlay else { return };
    assert!(as_nobody(&overlay.site, "echo longer >> ../merged/program"));
    assert_eq!(mode(&overlay.at("program")), 0o777);
    fs::set_permissions(overlay.at("program"), Permissions::from_mode(0o6777)).unwrap();
    fs::write(overlay.at("program"), "root keeps them").unwrap();
    assert_eq!(mode(&overlay.at("program")), 0o6777);
}

/// It belongs to a program, which could give it a name.
#[test]
fn a_change_of_owner_takes_setuid_from_a_file_without_a_name() {
    let Some(site) = Site::mounted(&[]) else { return };
    let nameless = rustix::fs::openat(
        rustix::fs::CWD,
        site.mnt(),
        rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::RDWR,
        rustix::fs::Mode::from_raw_mode(0o600),
    );
    let file = File::from(nameless.unwrap());
    file.set_permissions(Permissions::from_mode(0o6755)).unwrap();
    std::os::unix::fs::fchown(&file, Some(1), Some(1)).unwrap();
    assert_eq!(file.metadata().unwrap().mode() & 0o7777, 0o755);
}

fn is_older_than(version: [u32; 2]) -> bool {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let running: Vec<u32> = release.split('.').filter_map(|part| part.parse().ok()).collect();
    running < version.to_vec()
}

/// Files that were renamed in an overlay and cannot be read when it is mounted again.
fn lost_in_an_overlay(options: &str) -> Option<Vec<String>> {
    let mut overlay = Overlay::over_mount(options, |lower| {
        fs::create_dir(lower.join("dir")).unwrap();
        for name in ["a", "dir/b", "c"] {
            fs::write(lower.join(name), name).unwrap();
        }
    })?;
    fs::rename(overlay.at("a"), overlay.at("a2")).unwrap();
    fs::rename(overlay.at("dir/b"), overlay.at("b2")).unwrap();
    touch(&overlay.at("c"));
    let mut lost = Vec::new();
    for _ in 0..2 {
        overlay.again();
        for (name, content) in [("a2", "a"), ("b2", "dir/b"), ("c", "c")] {
            // The first look finds the file that it was, by its handle; the next ones ask for that.
            for look in 0..3 {
                let found = fs::read_to_string(overlay.at(name));
                if !found.as_ref().is_ok_and(|found| found == content) {
                    lost.push(format!("{name}, look {look}: {found:?}"));
                }
            }
        }
    }
    if lost.is_empty() {
        fs::remove_file(overlay.at("a2")).unwrap();
        assert!(!overlay.at("a").exists());
    }
    Some(lost)
}

#[test]
fn a_renamed_file_is_found_when_the_overlay_is_mounted_again() {
    let Some(lost) = lost_in_an_overlay("rw") else { return };
    assert_eq!(lost, Vec::<String>::new());
}

/// With file handles, as `export` has them, overlayfs comes to a file that Linux from 6.16 on
/// refuses. The look sees it.
#[test]
fn a_mount_with_file_handles_that_loses_files_of_an_overlay_is_noticed() {
    if is_older_than([6, 16]) {
        return eprintln!("skipped: this kernel does not refuse what a handle led to");
    }
    let Some(lost) = lost_in_an_overlay("export") else { return };
    assert!(!lost.is_empty(), "nobody notices");
}

/// Users of the pool from 0 on are those from 100000 on at the second mount.
pub(crate) struct Mapped {
    _over: Mounted,
    pub(crate) site: Site,
}

pub(crate) const FIRST: u32 = 100_000;

impl Mapped {
    pub(crate) fn mounted() -> Option<Mapped> {
        Mapped::over_mount("rw")?.map_err(|refused| panic!("{refused:?}")).ok()
    }

    /// `options` are those of the pool's mount. The error is the output of `mount` where it refuses
    /// the idmapped mount.
    fn over_mount(options: &str) -> Option<Result<Mapped, Output>> {
        if is_older_than([6, 12]) {
            eprintln!("skipped: FUSE has idmapped mounts from Linux 6.12 on");
            return None;
        }
        let site = Site::mounted(&[])?;
        site.unmount();
        site.mount(&["-o", options]);
        let target = site.directory().join("mapped");
        fs::create_dir(&target).unwrap();
        let mounted = Mapped::mount(&site.mnt(), &target);
        Some(match mounted.status.success() {
            true => Ok(Mapped { _over: Mounted::existing(&target), site }),
            false => Err(mounted),
        })
    }

    /// Shows what is mounted at `source` at `target` as well, with mapped ids.
    pub(crate) fn mount(source: &Path, target: &Path) -> Output {
        let mut mount = Command::new("python3");
        mount.arg(IDMAP).arg(source).arg(target).arg(format!("0:{FIRST}:65536"));
        mount.output().unwrap()
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.site.directory().join("mapped").join(name)
    }

    /// What a shell of the user with this number in the pool says there.
    fn shell(&self, id: u32, script: &str) -> Output {
        let id = FIRST + id;
        let mut shell = Command::new("setpriv");
        shell.args([&format!("--reuid={id}"), &format!("--regid={id}"), "--clear-groups"]);
        shell.args(["sh", "-c", script]).current_dir(self.at("")).output().unwrap()
    }

    fn owner(&self, name: &str) -> (u32, u32) {
        let found = fs::symlink_metadata(self.site.path(name)).unwrap();
        (found.uid(), found.gid())
    }
}

#[test]
fn an_idmapped_mount_maps_the_owner_of_all_that_is_made_and_changed() {
    let Some(mapped) = Mapped::mounted() else { return };
    let open = |name: &str, mode| {
        fs::create_dir(mapped.site.path(name)).unwrap();
        fs::set_permissions(mapped.site.path(name), Permissions::from_mode(mode)).unwrap();
    };
    open("tmp", 0o1777);
    open("group", 0o2777);
    chown(mapped.site.path("group"), None, Some(50)).unwrap();
    fs::write(mapped.site.path("tmp/of-root"), "x").unwrap();
    let made = mapped.shell(
        1000,
        "cd tmp && touch file && mkdir dir && mkfifo fifo && ln -s x link && ln file hard && \
         touch ../group/file && mkdir ../group/dir",
    );
    assert!(made.status.success(), "{made:?}");
    for name in ["tmp/file", "tmp/dir", "tmp/fifo", "tmp/link", "tmp/hard"] {
        assert_eq!(mapped.owner(name), (1000, 1000), "{name}");
        let there = fs::symlink_metadata(mapped.at(name)).unwrap();
        assert_eq!((there.uid(), there.gid()), (FIRST + 1000, FIRST + 1000), "{name}");
    }
    for name in ["group/file", "group/dir"] {
        assert_eq!(mapped.owner(name), (1000, 50), "{name}");
    }
    assert_eq!(mode(&mapped.site.path("group/dir")) & 0o2000, 0o2000);
    // Who is root there owns what root owns, and no more.
    assert!(
        mapped.shell(0, "touch new && chmod 600 tmp/of-root && rm tmp/of-root").status.success()
    );
    assert_eq!(mapped.owner("new"), (0, 0));
    let others = mapped.shell(1001, "rm -f tmp/file || chmod 777 tmp/file || touch not-here");
    assert!(!others.status.success());
    assert!(mapped.site.path("tmp/file").exists());
    assert!(
        mapped
            .shell(1000, "chmod 640 tmp/file && touch -d @7 tmp/file && rm tmp/hard")
            .status
            .success()
    );
    assert_eq!(mode(&mapped.site.path("tmp/file")), 0o640);

    chown(mapped.at("tmp/file"), Some(FIRST + 7), Some(FIRST + 8)).unwrap();
    assert_eq!(mapped.owner("tmp/file"), (7, 8));
    let unmapped = chown(mapped.at("tmp/file"), Some(7), None);
    assert_eq!(unmapped.unwrap_err().raw_os_error(), Some(libc_overflow()));
}

/// EOVERFLOW: what the kernel says of ids that a mount does not have.
fn libc_overflow() -> i32 {
    rustix::io::Errno::OVERFLOW.raw_os_error()
}

/// A mount that judges callers by their ids does not allow it: the look sees that.
#[test]
fn a_mount_that_does_not_allow_mapped_owners_is_noticed() {
    let Some(mapped) = Mapped::over_mount("user_subvolumes") else { return };
    let refused = mapped.map(|_| "a second mount").expect_err("nobody notices");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("Invalid argument"), "{said}");
}

#[test]
fn who_has_no_id_at_an_idmapped_mount_makes_nothing_there() {
    let Some(mapped) = Mapped::mounted() else { return };
    fs::create_dir(mapped.site.path("tmp")).unwrap();
    fs::set_permissions(mapped.site.path("tmp"), Permissions::from_mode(0o777)).unwrap();
    // Root of this machine is none of the users from 100000 on.
    let made = fs::write(mapped.at("tmp/file"), "x");
    assert_eq!(made.unwrap_err().raw_os_error(), Some(libc_overflow()));
    let nameless = rustix::fs::openat(
        rustix::fs::CWD,
        mapped.at("tmp"),
        rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::RDWR,
        rustix::fs::Mode::from_raw_mode(0o600),
    );
    assert_eq!(nameless.unwrap_err(), rustix::io::Errno::OVERFLOW);
    assert_eq!(fs::read_dir(mapped.site.path("tmp")).unwrap().count(), 0);
}

#[test]
fn acls_and_flags_follow_the_mapping() {
    let Some(mapped) = Mapped::mounted() else { return };
    fs::create_dir(mapped.site.path("home")).unwrap();
    chown(mapped.site.path("home"), Some(1000), Some(1000)).unwrap();
    let user = FIRST + 1001;
    let set = mapped.shell(
        1000,
        &format!("cd home && echo secret > f && chmod 600 f && setfacl -m u:{user}:r f"),
    );
    assert!(set.status.success(), "{set:?}");
    assert!(mapped.shell(1001, "cat home/f").status.success());
    assert!(!mapped.shell(1002, "cat home/f").status.success());
    let shown = Command::new("getfacl").arg("-n").arg(mapped.site.path("home/f")).output().unwrap();
    assert!(String::from_utf8_lossy(&shown.stdout).contains("user:1001:r--"), "{shown:?}");

    assert!(mapped.shell(1000, "chattr +d home/f").status.success());
    let file = File::open(mapped.site.path("home/f")).unwrap();
    assert!(ioctl_getflags(&file).unwrap().contains(IFlags::NODUMP));
    assert!(!mapped.shell(1001, "chattr -d home/f").status.success());
    assert!(!mapped.shell(1000, "chattr +i home/f").status.success());
    let name = "user.x";
    setxattr(mapped.at("home/f"), name, b"1", XattrFlags::empty()).unwrap();
    removexattr(mapped.site.path("home/f"), name).unwrap();
}

/// The kernel names no caller for what the program asks.
#[test]
fn who_asks_about_subvolumes_is_known_where_mounts_may_map_owners() {
    let Some(mapped) = Mapped::mounted() else { return };
    let at = |path: PathBuf| path.to_str().unwrap().to_owned();
    mapped.site.subvolume("plain");
    mapped.site.done(&["subvolume", "create", &at(mapped.at("there"))]);
    assert_eq!(mapped.owner("there"), (0, 0));
    fs::set_permissions(mapped.site.mnt(), Permissions::from_mode(0o777)).unwrap();
    let copy = copied_program(mapped.site.directory());
    let script = format!("{} subvolume delete plain", copy.display());
    assert!(!mapped.shell(0, &script).status.success(), "root there is nobody here");
    assert!(!as_nobody(&mapped.site, &script));
    assert!(!as_nobody(&mapped.site, "rmdir plain"));
    assert!(mapped.site.path("plain").exists());
    mapped.site.done(&["subvolume", "delete", &at(mapped.at("plain"))]);
    assert!(Command::new("rmdir").arg(mapped.at("there")).status().unwrap().success());
    assert!(!mapped.site.path("there").exists());
    assert!(Command::new("fstrim").arg(mapped.site.mnt()).status().unwrap().success());
}
