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

/// DIRECTORY HOW... WHAT: puts a question on a directory with the tokens that it needs, or one of
/// two ioctls. A source that is a path is opened for its token.
///
/// Each HOW is a user id, to be that user; or a directory, to ask from a user namespace of its own
/// with that directory as the root, so that the table of mounts is empty.
const ASK: &str = "
import ctypes, fcntl, json, os, struct, sys
directory, *hows, what = sys.argv[1:]
libc = ctypes.CDLL(None)
at = os.open(directory, os.O_RDONLY)
question = json.loads(what) if what.startswith('{') else {}
source = question.get('source')
source = os.open(source, os.O_RDONLY) if str(source).startswith('/') else None
def ask(on, question):
    text = bytearray(json.dumps(question).encode().ljust(16376, b'\\0'))
    fcntl.ioctl(on, 0xfff84303, text)
    return json.loads(text.split(b'\\0')[0])
def token(on):
    return ask(on, {'ask': 'token'})['answer']
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
        if source:
            question['source'] = token(source)
        question['token'] = token(at)
        os.setxattr(at, 'system.copyhold.checked', question['token'].encode())
        told = ask(at, question)
        print(told['error']['code'] if 'error' in told else 'done')
        sys.exit()
    print('done')
except OSError as error:
    print({1: 'EPERM', 30: 'EROFS'}.get(error.errno, error.errno))
";

/// The answer to a process; `dropping`: options of setpriv(1) that take capabilities away.
#[track_caller]
fn told(dropping: &[&str], directory: &Path, hows: &[&str], what: &str) -> String {
    match dropping {
        [] => told_by(&[], directory, hows, what),
        dropping => told_by(&[&["setpriv"], dropping].concat(), directory, hows, what),
    }
}

/// The answer to a process that a program starts.
#[track_caller]
fn told_by(starter: &[&str], directory: &Path, hows: &[&str], what: &str) -> String {
    let mut ask = Command::new("env");
    ask.args(starter).args(["python3", "-c", ASK]).arg(directory).args(hows).arg(what);
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
    let number = fs::metadata(site.path("secret")).unwrap().ino();
    let source = |source: &str| {
        format!(
            r#"{{"ask":"snapshot","source":{source},"name":[115],"read_only":false,"groups":[]}}"#
        )
    };
    let snapshot = source(&format!("{:?}", site.path("secret")));
    fs::write(site.path("secret/secret"), "x").unwrap();
    site.unmount();
    for options in ["rw", "user_subvolumes"] {
        site.mount(&["-o", options]);
        let place = site.directory().join(options);
        fs::create_dir(&place).unwrap();
        site.done(&["mount", &site.pool(), place.to_str().unwrap(), "-o", "subvol=tenant"]);
        // A second mount, of one subvolume.
        let tenant = Mounted::existing(&place);
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
        // A source is named by neither a number nor a guess, even by root.
        assert_eq!(told(&[], &place, &[], &source(&number.to_string())), "EINVAL");
        let guess = source(&format!("\"{number:032x}\""));
        assert_eq!(told(&[], &place, &[], &guess), "EKEYEXPIRED");
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

/// A container with all capabilities has a mount namespace of its own.
#[test]
fn root_of_another_mount_namespace_manages_the_pool_only_with_the_option() {
    let Some(site) = Site::mounted(&[]) else { return };
    site.subvolume("base");
    let create = r#"{"ask":"create","name":[115],"umask":0,"groups":[]}"#;
    let enable = r#"{"ask":"quota-enable","simple":true}"#;
    let apart = ["unshare", "--mount"];
    let powerless = ["unshare", "--mount", "setpriv", "--bounding-set=-all", "--inh-caps=-all"];
    let contained = ["unshare", "--mount", "--user", "--map-root-user"];
    for what in [create, enable, "trim", "shutdown"] {
        assert_eq!(told_by(&apart, &site.mnt(), &[], what), "EPERM", "{what}");
    }
    let mut list = Command::new("unshare");
    list.args(["--mount", PROGRAM, "subvolume", "delete"]).arg(site.path("base"));
    let refused = list.output().unwrap();
    let says = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && says.contains("admin_namespaces=any"), "{says}");
    site.unmount();
    site.mount(&["-o", "admin_namespaces=any"]);
    for what in [create, enable, "trim", "shutdown"] {
        for starter in [&powerless[..], &contained] {
            assert_eq!(told_by(starter, &site.mnt(), &[], what), "EPERM", "{what} {starter:?}");
        }
        assert_eq!(told_by(&apart, &site.mnt(), &[], what), "done", "{what}");
    }
}

/// The pool at a second place, read-only, as a container gets a shared base.
#[test]
fn a_read_only_bind_mount_permits_no_change() {
    let Some(site) = Site::mounted(&[]) else { return };
    for name in ["base", "base/inner"] {
        site.subvolume(name);
    }
    fs::write(site.path("base/file"), "x").unwrap();
    let bind = site.directory().join("bind");
    fs::create_dir(&bind).unwrap();
    let base = site.path("base");
    let bound = Mounted::new(&["--bind"], &base, &bind).unwrap();
    let again = Command::new("mount").args(["-o", "remount,bind,ro"]).arg(&bind).status().unwrap();
    assert!(again.success());
    let inner = format!("{:?}", bind.join("inner"));
    for what in [
        r#"{"ask":"create","name":[115],"umask":0,"groups":[]}"#,
        &format!(
            r#"{{"ask":"snapshot","source":{inner},"name":[115],"read_only":false,"groups":[]}}"#
        ),
        r#"{"ask":"delete","name":[105,110,110,101,114],"heir":null}"#,
        r#"{"ask":"set-read-only","on":true}"#,
        r#"{"ask":"quota-enable","simple":true}"#,
    ] {
        assert_eq!(told(&[], &bind, &[], what), "EROFS", "{what}");
    }
    site.refused(
        &["subvolume", "create", bind.join("new").to_str().unwrap()],
        "EROFS",
        "read-only",
    );
    site.done(&["subvolume", "show", bind.join("inner").to_str().unwrap()]);
    // FS_IOC_SETFLAGS, its number for 32 bits, and FS_IOC_FSSETXATTR.
    let flag = "
import fcntl, struct, sys
at = open(sys.argv[1])
for number, data in (0x40086602, 'Q'), (0x40046602, 'I'), (0x401c5820, 'I24x'):
    try:
        fcntl.ioctl(at, number, struct.pack(data, 0x10 if data != 'I24x' else 8))
        print('set')
    except OSError as error:
        print(error.errno)
";
    let flags_by = |starter: &[&str], path: &Path| {
        let mut python = Command::new("env");
        let run = python.args(starter).args(["python3", "-c", flag]).arg(path).output().unwrap();
        String::from_utf8(run.stdout).unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let none = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"];
    let (rofs, notty, perm) = (30, 25, 1);
    assert_eq!(flags_by(&none, &bind.join("file")), format!("{rofs} {notty} {rofs}"));
    assert_eq!(flags_by(&[], &bind.join("file")), format!("{rofs} {notty} {rofs}"));
    assert_eq!(flags_by(&none, &base.join("file")), format!("{perm} {notty} {perm}"));
    fs::write(base.join("file"), "it has no flag").unwrap();
    drop(bound);
    site.subvolume("base/later");
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
