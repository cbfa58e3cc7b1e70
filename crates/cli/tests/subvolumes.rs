//! What changes subvolumes, through the kernel: rollback, moves, rmdir, and what is still open.

#![allow(clippy::disallowed_methods, reason = "it looks at processes from outside")]

mod site;

use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{FileExt, MetadataExt, chown};
use std::process::Command;

use rustix::fs::{AtFlags, CWD, RenameFlags};
use rustix::io::Errno;
use serde_json::json;
use site::*;

#[test]
fn a_rollback_is_seen_at_once_and_nothing_of_before() {
    let Some(site) = Site::mounted(&[]) else { return };
    let id = site.subvolume("a");
    fs::create_dir_all(site.path("a/deep/er")).unwrap();
    fs::write(site.path("a/deep/er/file"), "one").unwrap();
    site.snapshot("a", "s");
    fs::write(site.path("a/deep/er/file"), "two").unwrap();
    fs::write(site.path("a/deep/new"), "x").unwrap();
    // The kernel knows all of it now, also that there is no `gone`.
    fs::remove_dir_all(site.path("s/deep/none")).unwrap_err();
    let before = fs::metadata(site.path("a/deep/er/file")).unwrap();
    let done = site.done(&["subvolume", "rollback", &site.at("a"), &site.at("s")]);
    assert_ne!(done["id"], id);
    assert_eq!((&done["path"], &done["kept"]), (&json!(site.at("a")), &json!(null)));
    assert_eq!(fs::read(site.path("a/deep/er/file")).unwrap(), b"one");
    assert!(!site.path("a/deep/new").exists());
    assert_ne!(fs::metadata(site.path("a/deep/er/file")).unwrap().ino(), before.ino());
    fs::write(site.path("a/deep/new"), "again").unwrap();
    assert!(!site.path("s/deep/new").exists());
    site.done(&["subvolume", "sync", &site.at("")]);
    let rows = site.list();
    assert_eq!(rows.len(), 2);
    assert_eq!((&rows[1]["id"], &rows[1]["path"]), (&done["id"], &json!("a")));
    site.checked();
}

#[test]
fn the_old_state_is_kept_where_it_was_asked_for() {
    let Some(site) = Site::mounted(&[]) else { return };
    site.subvolume("a");
    fs::create_dir(site.path("old")).unwrap();
    fs::write(site.path("a/file"), "one").unwrap();
    site.snapshot("a", "s");
    site.subvolume("a/inner");
    fs::write(site.path("a/inner/file"), "inside").unwrap();
    let mut open = File::options().append(true).open(site.path("a/file")).unwrap();
    assert!(!site.path("old/a").exists(), "now the kernel knows that there is none");
    let (a, s, kept) = (site.at("a"), site.at("s"), site.at("old/a"));
    site.refused(&["subvolume", "rollback", &a, &s], "EBUSY", "holds subvolume");
    site.done(&["subvolume", "rollback", "--keep", &kept, &a, &s]);
    open.write_all(b" and more").unwrap();
    assert_eq!(fs::read(site.path("old/a/file")).unwrap(), b"one and more");
    assert_eq!(fs::read(site.path("old/a/inner/file")).unwrap(), b"inside");
    assert_eq!(fs::read(site.path("a/file")).unwrap(), b"one");
    // There was no subvolume in it then.
    assert!(!site.path("a/inner").exists());
    drop(open);
    site.checked();
}

#[test]
fn what_is_no_state_of_a_subvolume_is_refused_with_the_reason() {
    let Some(site) = Site::mounted(&[]) else { return };
    for name in ["a", "b"] {
        site.subvolume(name);
    }
    fs::create_dir(site.path("plain")).unwrap();
    site.done(&["subvolume", "snapshot", "-r", &site.at("a"), &site.at("s")]);
    let refused = |what: &str, to: &str, code, says| {
        site.refused(&["subvolume", "rollback", &site.at(what), &site.at(to)], code, says);
    };
    refused("a", "b", "EINVAL", "share no history");
    refused("a", "a", "EINVAL", "the same");
    refused("a", "plain", "EINVAL", "not a subvolume");
    refused("plain", "s", "EINVAL", "not a subvolume");
    refused("", "s", "EINVAL", "root of the pool");
    refused("s", "a", "EROFS", "read-only");
    refused("a", "none", "ENOENT", "No such file");
    let taken = ["subvolume", "rollback", "--keep", &site.at("b"), &site.at("a"), &site.at("s")];
    site.refused(&taken, "EEXIST", "exists already");
    // A clone becomes what it was made from.
    site.snapshot("a", "clone");
    fs::write(site.path("clone/x"), "x").unwrap();
    site.done(&["subvolume", "rollback", &site.at("clone"), &site.at("a")]);
    assert_eq!(fs::read_dir(site.path("clone")).unwrap().count(), 0);
    assert_eq!(site.list().iter().filter(|row| row["state"] == "live").count(), 4);
}

#[test]
fn limits_and_groups_hold_on_through_a_rollback() {
    let Some(site) = Site::mounted(&[]) else { return };
    let mnt = &site.at("");
    site.done(&["quota", "enable", "--simple", mnt]);
    let own = format!("0/{}", site.subvolume("a"));
    site.done(&["qgroup", "create", "1/1", mnt]);
    site.done(&["qgroup", "assign", &own, "1/1", mnt]);
    site.done(&["qgroup", "limit", "8M", &own, mnt]);
    fs::write(site.path("a/file"), vec![1; 1 << 20]).unwrap();
    site.snapshot("a", "s");
    let full = fs::write(site.path("a/much"), vec![2; 16 << 20]);
    assert_eq!(number(full), Some(Errno::DQUOT));
    let made = site.done(&["subvolume", "rollback", &site.at("a"), &site.at("s")]);
    site.done(&["subvolume", "sync", mnt]);
    let group = site.group(&format!("0/{}", made["id"]));
    assert_eq!(group["limits"]["referenced"], 8 << 20);
    assert_eq!((&group["parents"], &group["data"]), (&json!(["1/1"]), &json!(1 << 20)));
    assert_eq!(number(fs::write(site.path("a/much"), vec![2; 16 << 20])), Some(Errno::DQUOT));
    site.checked();
}

#[test]
fn what_is_open_in_a_deleted_subvolume_is_stale_at_once() {
    let Some(site) = Site::mounted(&[]) else { return };
    let rollback: &[&str] = &["subvolume", "rollback", &site.at("a"), &site.at("s")];
    let delete: &[&str] = &["subvolume", "delete", &site.at("a")];
    for arguments in [rollback, delete] {
        if !site.path("a").exists() {
            site.subvolume("a");
        }
        fs::write(site.path("a/file"), vec![7; 300_000]).unwrap();
        if !site.path("s").exists() {
            site.snapshot("a", "s");
        }
        let mut file = File::options().read(true).write(true).open(site.path("a/file")).unwrap();
        let mut content = Vec::new();
        file.read_to_end(&mut content).unwrap();
        assert!(content == [7; 300_000], "the kernel has it all now");
        let directory = File::open(site.path("a")).unwrap();
        site.done(arguments);
        file.rewind().unwrap();
        let stale = Some(Errno::STALE);
        assert_eq!(number(file.read(&mut content)), stale, "{arguments:?}");
        assert_eq!(number(file.write_at(b"x", 0)), stale);
        assert_eq!(number(file.metadata()), stale);
        assert_eq!(number(directory.metadata()), stale);
        let inside = rustix::fs::statat(&directory, "file", AtFlags::empty());
        assert_eq!(inside.unwrap_err(), Errno::STALE);
    }
    assert_eq!(fs::read(site.path("s/file")).unwrap(), vec![7; 300_000]);
}

#[test]
fn a_map_of_a_deleted_file_faults_and_its_dirty_pages_harm_nobody() {
    let Some(site) = Site::mounted(&[]) else { return };
    site.subvolume("a");
    site.snapshot("a", "s");
    let script = "import mmap,os,subprocess,sys\nf=os.open(sys.argv[1],os.O_RDWR|os.O_CREAT)\n\
                  os.ftruncate(f,100000)\nm=mmap.mmap(f,100000)\nm[5000:5005]=b'hello'\n\
                  subprocess.check_call(sys.argv[2:])\nprint('still here',flush=True)\n\
                  print(m[5000:5005])\n";
    let mut python = Command::new("python3");
    python.args(["-c", script]).arg(site.path("a/file")).arg(PROGRAM);
    let run = python.args(["subvolume", "rollback", &site.at("a"), &site.at("s")]).output();
    let run = run.unwrap();
    assert!(String::from_utf8_lossy(&run.stdout).contains("still here"), "{run:?}");
    assert!(!String::from_utf8_lossy(&run.stdout).contains("hello"), "{run:?}");
    assert!(!site.path("a/file").exists());
    site.checked();
}

#[test]
fn subvolumes_move_by_rename() {
    let Some(site) = Site::mounted(&[]) else { return };
    for name in ["a", "b", "a/inner"] {
        site.subvolume(name);
    }
    fs::create_dir(site.path("d")).unwrap();
    fs::write(site.path("a/inner/file"), "inside").unwrap();
    fs::rename(site.path("a"), site.path("d/a")).unwrap();
    fs::rename(site.path("d/a/inner"), site.path("b/moved")).unwrap();
    assert_eq!(fs::read(site.path("b/moved/file")).unwrap(), b"inside");
    let paths: Vec<_> = site.list().iter().map(|row| row["path"].clone()).collect();
    assert_eq!(paths, ["d/a", "b", "b/moved"]);
    assert_eq!(number(fs::rename(site.path("b"), site.path("b/moved/b"))), Some(Errno::INVAL));
    let into = fs::rename(site.path("b/moved/file"), site.path("b/file"));
    assert_eq!(number(into), Some(Errno::XDEV));
    fs::create_dir(site.path("empty")).unwrap();
    fs::rename(site.path("d/a"), site.path("empty")).unwrap();
    assert_eq!(number(fs::rename(site.path("empty"), site.path("b"))), Some(Errno::NOTEMPTY));
    let (one, other) = (site.path("empty"), site.path("b/moved"));
    rustix::fs::renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE).unwrap();
    assert_eq!(fs::read(site.path("empty/file")).unwrap(), b"inside");
    site.done(&["umount", &site.at("")]);
    site.mount(&[]);
    assert_eq!(fs::read(site.path("empty/file")).unwrap(), b"inside");
    assert_eq!(fs::read_dir(site.path("b/moved")).unwrap().count(), 0);
    site.checked();
}

#[test]
fn rmdir_deletes_an_empty_subvolume_for_whom_may_delete_it() {
    let Some(site) = Site::mounted(&["-o", "allow_other"]) else { return };
    site.subvolume("a");
    fs::write(site.path("a/file"), "x").unwrap();
    let stale = File::open(site.path("a")).unwrap();
    assert_eq!(number(fs::remove_dir(site.path("a"))), Some(Errno::NOTEMPTY));
    fs::remove_file(site.path("a/file")).unwrap();
    fs::remove_dir(site.path("a")).unwrap();
    assert!(!site.path("a").exists());
    assert_eq!(number(stale.metadata()), Some(Errno::STALE));
    drop(stale);
    fs::create_dir(site.path("home")).unwrap();
    site.subvolume("home/b");
    for path in ["home", "home/b"] {
        chown(site.path(path), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let rmdir = || {
        let mut plain = Command::new("setpriv");
        plain.args(["--reuid=65534", "--regid=65534", "--clear-groups", "rmdir"]);
        let output = plain.arg(site.path("home/b")).output().unwrap();
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(rmdir().contains("not permitted"), "{}", rmdir());
    site.done(&["umount", &site.at("")]);
    site.mount(&["-o", "allow_other,user_subvolumes"]);
    assert_eq!(rmdir(), "");
    assert!(!site.path("home/b").exists());
    site.checked();
}

#[test]
fn what_cannot_be_deleted_does_not_keep_the_others() {
    let Some(site) = Site::mounted(&[]) else { return };
    for name in ["a", "b", "b/inner", "c"] {
        site.subvolume(name);
    }
    let paths = ["none", "a", "b", "c"].map(|name| site.at(name));
    let output =
        site.run(&[&["subvolume", "delete"], &paths.each_ref().map(|path| &**path)[..]].concat());
    assert_eq!(output.status.code(), Some(1));
    let told: Vec<serde_json::Value> = String::from_utf8(output.stderr)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let codes: Vec<_> = told.iter().map(|told| &told["error"]["code"]).collect();
    assert_eq!(codes, ["ENOENT", "EBUSY"]);
    assert!(!site.path("a").exists() && !site.path("c").exists() && site.path("b/inner").exists());
}
