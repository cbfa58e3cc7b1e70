//! The right to manage a pool: Linux forwards requests about subvolumes, quotas, trim and shutdown
//! without a permission check of its own.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use copyhold_harness::wait::wait_until;
use copyhold_harness::{Mounted, transport};

use crate::containers::{FIRST, Mapped};
use crate::site::{PROGRAM, Site};

/// DIRECTORY HOW... WHAT: puts a question on a directory, or one of two ioctls.
///
/// Each HOW is a user id, to be that user; or a directory, to ask from a user namespace of its own
/// with that directory as the root, so that the table of mounts is empty.
const ASK: &str = "
import ctypes, fcntl, json, os, struct, sys
directory, *hows, what = sys.argv[1:]
libc = ctypes.CDLL(None)
at = os.open(directory, os.O_RDONLY)
for how in hows:
    if how.isdigit():
        os.setgroups([])
        os.setresgid(*3 * [int(how)])
        os.setresuid(*3 * [int(how)])
    else:
        assert libc.unshare(0x10000000) == 0
        os.chroot(how)
try:
    if what == 'shutdown':
        fcntl.ioctl(at, 0x8004587d, struct.pack('I', 2))
    elif what == 'trim':
        fcntl.ioctl(at, 0xc0185879, struct.pack('QQQ', 0, 2**64 - 1, 0))
    else:
        text = bytearray(what.encode().ljust(16376, b'\\0'))
        fcntl.ioctl(at, 0xfff84303, text)
        told = json.loads(text.split(b'\\0')[0])
        print(told['error']['code'] if 'error' in told else 'done')
        sys.exit()
    print('done')
except OSError as error:
    print({1: 'EPERM'}.get(error.errno, error.errno))
";

/// The answer to a process; `dropping`: options of setpriv(1) that take capabilities away.
#[track_caller]
fn told(dropping: &[&str], directory: &Path, hows: &[&str], what: &str) -> String {
    let mut ask = match dropping {
        [] => Command::new("python3"),
        dropping => {
            let mut setpriv = Command::new("setpriv");
            setpriv.args(dropping).arg("python3");
            setpriv
        }
    };
    ask.args(["-c", ASK]).arg(directory).args(hows).arg(what);
    let run = ask.output().unwrap();
    assert!(run.status.success(), "{run:?}");
    String::from_utf8(run.stdout).unwrap().trim().to_owned()
}

#[test]
fn root_without_capabilities_is_an_ordinary_user() {
    let Some(site) = Site::mounted(&[]) else { return };
    let empty = site.directory().join("empty");
    fs::create_dir(&empty).unwrap();
    for name in ["tenant", "secret"] {
        site.subvolume(name);
    }
    let secret = fs::metadata(site.path("secret")).unwrap().ino();
    fs::write(site.path("secret/secret"), "x").unwrap();
    site.unmount();
    for options in ["rw", "user_subvolumes"] {
        site.mount(&["-o", options]);
        let place = site.directory().join(options);
        fs::create_dir(&place).unwrap();
        site.done(&["mount", &site.pool(), place.to_str().unwrap(), "-o", "subvol=tenant"]);
        // A second mount, of one subvolume.
        let tenant = Mounted::existing(&place);
        let snapshot = format!(
            r#"{{"ask":"snapshot","source":{secret},"name":[115],"read_only":false,"groups":[]}}"#
        );
        let questions = [
            &*snapshot,
            r#"{"ask":"create","name":[115],"umask":0,"groups":[]}"#,
            r#"{"ask":"quota-enable","simple":true}"#,
            r#"{"ask":"scan","step":"begin"}"#,
            "trim",
            "shutdown",
        ];
        let without = ["--bounding-set=-sys_admin", "--inh-caps=-sys_admin"];
        let none = ["--bounding-set=-all", "--inh-caps=-all"];
        let hidden = [empty.to_str().unwrap()];
        for what in questions {
            for (dropping, hows) in [(&without, &[][..]), (&none, &[]), (&none, &hidden)] {
                let said = told(dropping, &place, hows, what);
                assert_eq!(said, "EPERM", "{options}: {what} {dropping:?} {hows:?}");
            }
        }
        // Of another subvolume there is nothing to be seen; the pool serves on, and obeys root.
        assert!(!place.join("s").exists());
        for what in [&*snapshot, "trim"] {
            assert_eq!(told(&[], &place, &[], what), "done", "{options}: {what}");
        }
        assert!(place.join("s/secret").exists());
        fs::write(site.path("file"), options).unwrap();
        site.done(&["subvolume", "delete", place.join("s").to_str().unwrap()]);
        drop(tenant);
        site.unmount();
    }
    site.mount(&[]);
    assert_eq!(told(&[], &site.mnt(), &[], "shutdown"), "done");
}

/// The id that owns a container's files is another user's on this machine.
#[test]
fn no_owner_is_compared_where_mounts_may_map_ids() {
    let Some(mapped) = Mapped::mounted() else { return };
    let site = &mapped.site;
    let base = site.path("base");
    site.subvolume("base");
    chown(&base, Some(1000), Some(1000)).unwrap();
    let empty = site.directory().join("empty");
    fs::create_dir(&empty).unwrap();
    let hidden = empty.to_str().unwrap();
    let container = (FIRST + 1000).to_string();
    let begin = r#"{"ask":"scan","step":"begin"}"#;
    for hows in [&["1000"][..], &["1000", hidden], &[&container], &[&container, hidden]] {
        for at in [&base, &mapped.at("base")] {
            assert_eq!(told(&[], at, hows, begin), "EPERM", "{hows:?}");
        }
    }
    assert_eq!(told(&[], &base, &[], begin), "done");
}

#[test]
fn where_owners_have_rights_no_mount_maps_ids() {
    let Some(site) = Site::mounted(&[]) else { return };
    site.unmount();
    site.mount(&["-o", "user_subvolumes"]);
    let base = site.path("base");
    site.subvolume("base");
    chown(&base, Some(1000), Some(1000)).unwrap();
    let target = site.directory().join("mapped");
    fs::create_dir(&target).unwrap();
    let mapped = Mapped::mount(&site.mnt(), &target);
    assert!(!mapped.status.success(), "{mapped:?}");
    let begin = r#"{"ask":"scan","step":"begin"}"#;
    assert_eq!(told(&[], &base, &["1000"], begin), "done");
    assert_eq!(told(&[], &base, &["1001"], begin), "EPERM");
}

/// The daemon of a mount in namespaces of its own.
struct Apart(Child);

impl Apart {
    fn serving(site: &Site) -> Apart {
        let mut unshare = Command::new("unshare");
        unshare.args(["--pid", "--fork", "--mount-proc", "--kill-child", PROGRAM, "mount", "-f"]);
        unshare.arg(site.pool()).arg(site.mnt()).args(transport::arguments()).stderr(Stdio::null());
        Apart(unshare.spawn().unwrap())
    }

    /// The mount's root directory, which no other namespace has.
    fn mnt(&self, site: &Site) -> PathBuf {
        format!("/proc/{}/root{}", self.0.id(), site.mnt().display()).into()
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_caller_whom_the_daemon_does_not_see_takes_setgid_away_and_manages_nothing() {
    let Some(site) = Site::mounted(&[]) else { return };
    fs::write(site.path("file"), "x").unwrap();
    site.unmount();
    let daemon = Apart::serving(&site);
    let mnt = daemon.mnt(&site);
    let file = mnt.join("file");
    wait_until(|| file.exists());
    fs::set_permissions(&file, Permissions::from_mode(0o2666)).unwrap();
    let mut shell = Command::new("setpriv");
    shell.args(["--reuid=65534", "--regid=65534", "--clear-groups", "fallocate", "-l", "128k"]);
    assert!(shell.arg("file").current_dir(&mnt).status().unwrap().success());
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o7777, 0o666);
    for what in [r#"{"ask":"quota-enable","simple":true}"#, "trim", "shutdown"] {
        assert_eq!(told(&[], &mnt, &[], what), "EPERM", "{what}");
    }
}
