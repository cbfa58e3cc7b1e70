//! Tenants through the program, on a mounted pool: subvolumes, snapshots, quotas.
//!
//! One mount for each test, as in `mount.rs`; they need root and /dev/fuse, and say so and pass
//! where there is none, except under CI.

#![allow(clippy::disallowed_methods, reason = "it looks at processes from outside")]

mod site;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, chown};
use std::process::Command;

use rustix::io::Errno;
use serde_json::{Value, json};
use site::*;

#[test]
fn subvolumes_come_and_go_and_the_kernel_knows_at_once() {
    let Some(site) = Site::mounted(&[]) else { return };
    assert!(!site.path("a").exists(), "now the kernel knows that there is none");
    let id = site.subvolume("a");
    let found = fs::metadata(site.path("a")).unwrap();
    assert!(found.is_dir());
    assert_eq!(found.mode() & 0o777, 0o755);
    fs::write(site.path("a/file"), "one").unwrap();
    assert!(!site.path("b").exists());
    site.snapshot("a", "b");
    fs::write(site.path("a/file"), "two").unwrap();
    assert_eq!(fs::read(site.path("b/file")).unwrap(), b"one");
    assert_eq!(fs::read(site.path("a/file")).unwrap(), b"two");
    assert_eq!(
        fs::metadata(site.path("a/file")).unwrap().dev(),
        fs::metadata(site.path("b/file")).unwrap().dev()
    );
    assert_ne!(
        fs::metadata(site.path("a/file")).unwrap().ino(),
        fs::metadata(site.path("b/file")).unwrap().ino()
    );
    site.done(&["sync", &site.at("")]);
    site.delete("a");
    assert!(!site.path("a").exists());
    assert!(!site.path("a/file").exists());
    assert_ne!(site.subvolume("a"), id, "ids are not used again");
    assert_eq!(fs::read_dir(site.path("a")).unwrap().count(), 0);
    site.done(&["subvolume", "sync", &site.at("")]);
    assert!(site.list().iter().all(|row| row["state"] == "live"));
    site.done(&["umount", &site.at("")]);
    site.mount(&[]);
    assert_eq!(fs::read(site.path("b/file")).unwrap(), b"one");
}

#[test]
fn a_snapshot_has_what_was_written_to_a_map() {
    let Some(site) = Site::mounted(&[]) else { return };
    site.subvolume("a");
    let script = "import mmap,os,subprocess,sys\nf=os.open(sys.argv[1],os.O_RDWR|os.O_CREAT)\n\
                  os.ftruncate(f,100000)\nm=mmap.mmap(f,100000)\nm[5000:5005]=b'hello'\n\
                  subprocess.check_call(sys.argv[2:])\nm[5000:5005]=b'later'\nm.flush()\n";
    let mut python = Command::new("python3");
    python.args(["-c", script]).arg(site.path("a/file")).arg(PROGRAM);
    let run = python.args(["subvolume", "snapshot", &site.at("a"), &site.at("b")]).output();
    let run = run.unwrap();
    assert!(run.status.success(), "{run:?}");
    assert_eq!(&fs::read(site.path("b/file")).unwrap()[5000..5005], b"hello");
    assert_eq!(&fs::read(site.path("a/file")).unwrap()[5000..5005], b"later");
}

#[test]
fn read_only_snapshots_refuse_changes_until_they_are_let() {
    let Some(site) = Site::mounted(&[]) else { return };
    site.subvolume("a");
    fs::write(site.path("a/file"), "one").unwrap();
    site.done(&["subvolume", "snapshot", "-r", &site.at("a"), &site.at("ro")]);
    let get = || site.done(&["property", "get", &site.at("ro"), "ro"]);
    assert_eq!(get(), json!({"ro": true}));
    assert_eq!(number(fs::write(site.path("ro/file"), "two")), Some(Errno::ROFS));
    assert_eq!(number(fs::remove_file(site.path("ro/file"))), Some(Errno::ROFS));
    site.refused(&["subvolume", "create", &site.at("ro/inner")], "EROFS", "read-only");
    site.done(&["property", "set", &site.at("ro"), "ro", "false"]);
    assert_eq!(get(), json!({"ro": false}));
    fs::write(site.path("ro/file"), "two").unwrap();
    site.done(&["property", "set", &site.at("a"), "ro", "true"]);
    assert_eq!(number(File::create(site.path("a/other"))), Some(Errno::ROFS));
    assert_eq!(fs::read(site.path("a/file")).unwrap(), b"one");
}

#[test]
fn files_do_not_cross_subvolumes() {
    let Some(site) = Site::mounted(&[]) else { return };
    site.subvolume("a");
    site.subvolume("b");
    fs::write(site.path("a/file"), "one").unwrap();
    for target in ["b/file", "file"] {
        assert_eq!(number(fs::rename(site.path("a/file"), site.path(target))), Some(Errno::XDEV));
        let linked = fs::hard_link(site.path("a/file"), site.path(target));
        assert_eq!(number(linked), Some(Errno::XDEV));
    }
    fs::rename(site.path("a"), site.path("c")).unwrap();
    assert_eq!(fs::read(site.path("c/file")).unwrap(), b"one");
    assert_eq!(site.list()[0]["path"], "c");
}

#[test]
fn subvolumes_are_listed_and_shown_as_promised() {
    let Some(site) = Site::mounted(&[]) else { return };
    let outer = site.subvolume("outer");
    fs::create_dir_all(site.path("outer/deep/er")).unwrap();
    let inner = site.subvolume("outer/deep/er/inner");
    let clone = site.snapshot("outer", "clone");
    let rows = site.list();
    let ids: Vec<&Value> = rows.iter().map(|row| &row["id"]).collect();
    assert_eq!(ids, [outer, inner, clone]);
    assert_eq!(
        (&rows[1]["path"], &rows[1]["parent"]),
        (&json!("outer/deep/er/inner"), &json!(outer))
    );
    assert_eq!((&rows[2]["origin"], &rows[2]["readonly"]), (&json!(outer), &json!(false)));
    assert_eq!(site.done(&["subvolume", "show", &site.at("clone")]), rows[2]);
    let root = site.done(&["subvolume", "show", &site.at("")]);
    assert_eq!(
        (&root["id"], &root["path"], &root["parent"]),
        (&json!(1), &json!("/"), &json!(null))
    );
    let from_inside = site.done(&["subvolume", "list", &site.at("outer/deep")]);
    assert_eq!(from_inside.as_array().unwrap(), &rows);
    // What was inside the source is an empty directory in the snapshot.
    assert_eq!(fs::read_dir(site.path("clone/deep/er/inner")).unwrap().count(), 0);
}

#[test]
fn long_lists_are_complete() {
    let Some(site) = Site::mounted(&[]) else { return };
    let name = |n: u32| format!("{}{n}", "long-name-".repeat(15));
    let ids: Vec<u64> = (0..200).map(|n| site.subvolume(&name(n))).collect();
    let rows = site.list();
    assert!(rows.iter().map(|row| row["id"].as_u64().unwrap()).eq(ids));
    assert!(rows.iter().zip(0..).all(|(row, n)| row["path"] == name(n)));
    site.done(&["quota", "enable", "--simple", &site.at("")]);
    let groups = site.done(&["qgroup", "show", &site.at("")]);
    assert_eq!(groups.as_array().unwrap().len(), 201);
}

#[test]
fn what_cannot_be_done_to_subvolumes_is_refused_with_the_reason() {
    let Some(site) = Site::mounted(&[]) else { return };
    site.subvolume("a");
    site.subvolume("a/inner");
    fs::create_dir(site.path("plain")).unwrap();
    fs::write(site.path("file"), "x").unwrap();
    let (a, plain, file, none) = (site.at("a"), site.at("plain"), site.at("file"), site.at("none"));
    site.refused(&["subvolume", "create", &a], "EEXIST", "exists already");
    site.refused(&["subvolume", "create", &site.at("none/x")], "ENOENT", "No such file");
    site.refused(&["subvolume", "create", &site.at(&"n".repeat(256))], "ENAMETOOLONG", "");
    site.refused(&["subvolume", "delete", &plain], "EINVAL", "not a subvolume");
    site.refused(&["subvolume", "delete", &none], "ENOENT", "No such file");
    site.refused(&["subvolume", "delete", &site.at("")], "EINVAL", "root of the pool");
    site.refused(&["subvolume", "delete", &a], "EBUSY", "holds subvolume");
    site.refused(&["subvolume", "show", &file], "EINVAL", "not a subvolume");
    site.refused(&["subvolume", "snapshot", &plain, &none], "EINVAL", "not a subvolume");
    site.refused(&["subvolume", "snapshot", &a, &file], "EEXIST", "exists already");
    site.refused(&["subvolume", "snapshot", &a, "/tmp/snapshot-elsewhere"], "EXDEV", "mounts");
    site.refused(
        &["subvolume", "create", "/tmp/no-such-mount"],
        "not-mounted",
        "not on a mounted pool",
    );
    site.refused(&["property", "set", &plain, "ro", "true"], "EINVAL", "not a subvolume");
    assert_eq!(site.list().len(), 2);
    // A second snapshot into a directory has its source's name there, which is taken then.
    site.snapshot("a/inner", "plain");
    assert!(site.path("plain/inner").is_dir());
    let again = ["subvolume", "snapshot", &site.at("a/inner"), &plain];
    site.refused(&again, "EEXIST", "exists");
}

#[test]
fn limits_hold_and_tell_who_refused() {
    let Some(site) = Site::mounted(&[]) else { return };
    let mnt = site.at("");
    let id = site.subvolume("a");
    site.refused(&["qgroup", "show", &mnt], "ENOTCONN", "quota enable --simple");
    site.refused(&["quota", "rescan", &mnt], "ENOTCONN", "off");
    site.refused(&["quota", "enable", &mnt], "EOPNOTSUPP", "full quotas are not implemented");
    site.done(&["quota", "enable", "--simple", &mnt]);
    site.done(&["quota", "enable", "--simple", &mnt]);
    let status = site.done(&["quota", "status", &mnt]);
    assert_eq!((&status["enabled"], &status["mode"]), (&json!(true), &json!("simple")));
    site.refused(&["quota", "rescan", &mnt], "EINVAL", "nothing to rescan");
    let own = format!("0/{id}");
    site.done(&["qgroup", "create", "1/100", &mnt]);
    site.done(&["qgroup", "assign", &own, "1/100", &mnt]);
    site.done(&["qgroup", "limit", "16M", "1/100", &mnt]);
    let mut file = File::create(site.path("a/big")).unwrap();
    let block = vec![7; 1 << 20];
    let full = (0..64).find_map(|_| file.write_all(&block).err()).expect("a limit of 16 MiB");
    assert_eq!(full.raw_os_error(), Some(Errno::DQUOT.raw_os_error()));
    let group = site.group("1/100");
    assert_eq!(group["limits"]["referenced"], 16 << 20);
    let used = group["referenced"].as_u64().unwrap();
    assert!((12 << 20..=16 << 20).contains(&used), "{group}");
    assert_eq!(site.group(&own)["parents"], json!(["1/100"]));
    assert_eq!(site.group(&own)["path"], "a");
    let room = site.done(&["df", &site.at("a")]);
    assert!(room["available_bytes"].as_u64().unwrap() <= 16 << 20, "{room}");
    assert_eq!(room["limited"], true);
    let seen = rustix::fs::statvfs(site.path("a")).unwrap();
    assert!(seen.f_bavail * seen.f_frsize <= 16 << 20);
    assert!(rustix::fs::statvfs(site.path("")).unwrap().f_bavail * seen.f_frsize > 64 << 20);
    site.done(&["qgroup", "limit", "none", "1/100", &mnt]);
    file.write_all(&block).unwrap();
    site.done(&["quota", "disable", &mnt]);
    site.refused(&["qgroup", "create", "1/1", &mnt], "ENOTCONN", "off");
}

#[test]
fn wrong_relations_have_the_errors_of_btrfs() {
    let Some(site) = Site::mounted(&[]) else { return };
    let mnt = &site.at("");
    let own = &format!("0/{}", site.subvolume("a"));
    site.done(&["quota", "enable", "--simple", mnt]);
    for id in ["1/1", "1/2", "2/1"] {
        site.done(&["qgroup", "create", id, mnt]);
    }
    site.refused(&["qgroup", "create", "1/1", mnt], "EEXIST", "exists already");
    site.refused(&["qgroup", "create", "0/77", mnt], "EINVAL", "subvolume");
    site.refused(&["qgroup", "assign", "2/1", "1/1", mnt], "EINVAL", "level");
    site.refused(&["qgroup", "assign", "1/1", "1/2", mnt], "EINVAL", "level");
    site.refused(&["qgroup", "assign", own, "1/9", mnt], "EINVAL", "does not exist");
    site.done(&["qgroup", "assign", own, "1/1", mnt]);
    site.refused(&["qgroup", "assign", own, "1/1", mnt], "EEXIST", "already");
    site.refused(&["qgroup", "remove", own, "1/2", mnt], "ENOENT", "not a member");
    site.refused(&["qgroup", "destroy", "1/1", mnt], "EBUSY", "has members");
    site.refused(&["qgroup", "destroy", own, mnt], "EBUSY", "living");
    site.refused(&["qgroup", "destroy", "1/9", mnt], "ENOENT", "no quota group");
    site.refused(&["qgroup", "limit", "1G", "1/9", mnt], "ENOENT", "no quota group");
    site.refused(
        &["qgroup", "limit", "8E", "1/1", mnt],
        "EINVAL",
        "not a possible number of bytes",
    );
    site.refused(&["qgroup", "reserve", "1T", own, mnt], "ENOSPC", "is too large");
    site.refused(&["subvolume", "create", "-i", "1/9", &site.at("b")], "ENOENT", "no quota group");
    assert!(!site.path("b").exists());
    site.done(&["qgroup", "remove", own, "1/1", mnt]);
    site.done(&["qgroup", "destroy", "1/1", mnt]);
    site.done(&["qgroup", "limit", "-e", "1M", own, mnt]);
    site.done(&["qgroup", "limit", "--inodes", "5", own, mnt]);
    site.done(&["qgroup", "limit", "--snapshots", "1", own, mnt]);
    site.done(&["qgroup", "limit", "--subvolumes", "0", own, mnt]);
    let limits = json!({
        "referenced": null,
        "exclusive": 1 << 20,
        "inodes": 5,
        "snapshots": 1,
        "subvolumes": 0,
    });
    assert_eq!(site.group(own)["limits"], limits);
    site.refused(&["subvolume", "create", &site.at("a/in")], "EDQUOT", "1 subvolumes wanted");
    let nonsense = site.run(&["qgroup", "limit", "much", own, mnt]);
    assert_eq!(nonsense.status.code(), Some(2));
}

#[test]
fn the_dead_pay_visibly_or_have_an_heir() {
    let Some(site) = Site::mounted(&[]) else { return };
    site.done(&["quota", "enable", "--simple", &site.at("")]);
    let ids = ["base", "other"].map(|name| {
        let id = site.subvolume(name);
        fs::write(site.path(name).join("data"), vec![1; 1 << 20]).unwrap();
        id
    });
    site.done(&["sync", &site.at("")]);
    site.snapshot("base", "clone");
    let heir = site.snapshot("other", "heir");
    site.delete("base");
    site.done(&["subvolume", "delete", "--heir", &site.at("heir"), &site.at("other")]);
    site.done(&["subvolume", "sync", &site.at("")]);
    let dead = site.group(&format!("0/{}", ids[0]));
    assert_eq!((&dead["state"], &dead["path"]), (&json!("tombstone"), &json!("base")));
    assert_eq!(dead["data"], 1 << 20);
    assert!(dead["deleted"].is_string());
    assert_eq!(site.group(&format!("0/{heir}"))["data"], 1 << 20);
    let shown = site.done(&["qgroup", "show", &site.at("")]);
    assert!(!shown.to_string().contains(&format!("\"0/{}\"", ids[1])));
    assert_eq!(fs::read(site.path("clone/data")).unwrap(), vec![1; 1 << 20]);
    site.delete("clone");
    site.done(&["subvolume", "sync", &site.at("")]);
    site.done(&["sync", &site.at("")]);
    site.done(&["qgroup", "clear-stale", &site.at("")]);
    let shown = site.done(&["qgroup", "show", &site.at("")]);
    assert!(!shown.to_string().contains(&format!("\"0/{}\"", ids[0])), "{shown}");
}

#[test]
fn deletions_go_on_when_the_pool_is_mounted_again() {
    let Some(site) = Site::mounted(&[]) else { return };
    site.subvolume("a");
    for n in 0..500 {
        fs::write(site.path("a").join(n.to_string()), vec![1; 10_000]).unwrap();
    }
    site.snapshot("a", "b");
    fs::write(site.path("b/0"), "other").unwrap();
    site.snapshot("b", "c");
    site.done(&["sync", &site.at("")]);
    site.delete("b");
    site.done(&["sync", &site.at("")]);
    // Killed, however far it is; then unmounted, however far it is.
    site.kill();
    site.mount(&[]);
    site.delete("a");
    site.done(&["umount", &site.at("")]);
    site.mount(&[]);
    site.done(&["subvolume", "sync", &site.at("")]);
    let rows = site.list();
    assert_eq!(rows.len(), 1, "{rows:?}");
    assert_eq!(rows[0]["path"], "c");
    assert_eq!(fs::read(site.path("c/0")).unwrap(), b"other");
    assert_eq!(fs::read(site.path("c/499")).unwrap(), vec![1; 10_000]);
    site.delete("c");
    site.done(&["subvolume", "sync", &site.at("")]);
    assert!(site.list().is_empty());
    site.done(&["umount", &site.at("")]);
    site.done(&["check", &site.pool()]);
}

#[test]
fn ordinary_users_may_look_and_change_what_they_are_let() {
    let Some(site) = Site::mounted(&["-o", "allow_other"]) else { return };
    fs::create_dir(site.path("home")).unwrap();
    chown(site.path("home"), Some(NOBODY), Some(NOBODY)).unwrap();
    site.subvolume("root's");
    let code = |arguments: &[&str]| {
        let output = site.nobody(arguments);
        let error: Value = serde_json::from_slice(&output.stderr).unwrap_or_default();
        match output.status.success() {
            true => "done".to_owned(),
            false => error["error"]["code"].as_str().unwrap_or("nothing told").to_owned(),
        }
    };
    assert_eq!(code(&["subvolume", "list", &site.at("")]), "EPERM");
    assert_eq!(code(&["df", &site.at("home")]), "done");
    assert_eq!(code(&["subvolume", "create", &site.at("home/a")]), "EPERM");
    assert_eq!(code(&["quota", "enable", "--simple", &site.at("")]), "EPERM");
    site.done(&["umount", &site.at("")]);
    site.mount(&["-o", "allow_other,user_subvolumes"]);
    assert_eq!(code(&["subvolume", "create", &site.at("home/a")]), "done");
    assert_eq!(fs::metadata(site.path("home/a")).unwrap().uid(), NOBODY);
    assert_eq!(code(&["subvolume", "snapshot", &site.at("home/a"), &site.at("home/b")]), "done");
    assert_eq!(code(&["property", "set", &site.at("home/b"), "ro", "true"]), "done");
    assert_eq!(code(&["subvolume", "snapshot", &site.at("root's"), &site.at("home/c")]), "EPERM");
    assert_eq!(code(&["subvolume", "create", &site.at("a")]), "EPERM");
    assert_eq!(code(&["subvolume", "delete", &site.at("root's")]), "EPERM");
    assert_eq!(code(&["subvolume", "delete", &site.at("home/a"), &site.at("home/b")]), "done");
    assert_eq!(code(&["quota", "enable", "--simple", &site.at("")]), "EPERM");
    site.done(&["quota", "enable", "--simple", &site.at("")]);
    assert_eq!(code(&["qgroup", "show", &site.at("")]), "done");
    assert_eq!(code(&["qgroup", "create", "1/1", &site.at("")]), "EPERM");
    site.done(&["qgroup", "create", "1/1", &site.at("")]);
    let free = ["subvolume", "create", "-i", "1/1", &site.at("home/d")];
    assert_eq!(code(&free), "EPERM");
}

#[test]
fn what_programs_are_told_of_quotas_is_a_contract() {
    let Some(site) = Site::mounted(&[]) else { return };
    let mnt = &site.at("");
    let id = site.subvolume("a");
    site.done(&["quota", "enable", "--simple", mnt]);
    site.done(&["qgroup", "create", "1/100", mnt]);
    let own = &format!("0/{id}");
    site.done(&["qgroup", "assign", own, "1/100", mnt]);
    site.done(&["qgroup", "limit", "1M", own, mnt]);
    fs::write(site.path("a/f"), vec![1; 300_000]).unwrap();
    site.snapshot("a", "s");
    site.delete("a");
    let shown = site.done(&["qgroup", "show", "--sync", mnt]);
    let rows = shown.as_array().expect("an array");
    for row in rows {
        for bytes in ["referenced", "exclusive", "data", "metadata", "reserved"] {
            assert!(row[bytes].is_u64(), "{bytes}: {row}");
        }
        assert!(row["id"].is_string() && row["parents"].is_array(), "{row}");
        for limit in ["referenced", "exclusive"] {
            let limits = row["limits"].as_object().expect("an object");
            assert!(limits[limit].is_null() || limits[limit].is_u64(), "{row}");
        }
        assert_eq!(row["referenced"], row["exclusive"]);
        let sum = row["data"].as_u64().unwrap() + row["metadata"].as_u64().unwrap();
        assert_eq!(row["referenced"], sum);
    }
    let dead = rows.iter().find(|row| row["id"] == **own).expect("it pays");
    assert_eq!((&dead["state"], &dead["path"]), (&json!("tombstone"), &json!("a")));
    assert_eq!((&dead["data"], &dead["parents"]), (&json!(303_104), &json!(["1/100"])));
    assert_eq!(dead["limits"]["referenced"], 1 << 20);
    let group = rows.iter().find(|row| row["id"] == "1/100").unwrap();
    assert_eq!((&group["state"], &group["path"]), (&json!("live"), &json!(null)));

    let refused = site.run(&["qgroup", "destroy", "1/100", mnt]);
    let told = String::from_utf8(refused.stderr).unwrap();
    assert_eq!((told.lines().count(), told.ends_with('\n')), (1, true), "{told:?}");
    let error: Value = serde_json::from_str(&told).unwrap();
    let fields = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(fields(&error), ["error"]);
    assert_eq!(fields(&error["error"]), ["code", "message"]);
    site.refused(&["qgroup", "destroy", own, mnt], "EBUSY", "still pays");
    site.refused(&["qgroup", "clear-stale", &site.at("nothing")], "ENOENT", "");
    site.done(&["qgroup", "clear-stale", mnt]);
    assert_eq!(site.group(own)["state"], "tombstone", "it is not stale");

    let waits = site.done(&["info", mnt])["join_wait"].clone();
    for field in ["count", "waited", "total_ns", "max_ns", "p50_ns", "p95_ns", "p99_ns"] {
        assert!(waits[field].is_u64(), "{waits}");
    }
    assert!(waits["count"].as_u64() > Some(0));
}

/// The kernel makes EIO of a short count for a direct write.
#[test]
fn a_direct_write_beyond_a_limit_is_refused_as_that() {
    let Some(site) = Site::mounted(&[]) else { return };
    let mnt = &site.at("");
    let own = &format!("0/{}", site.subvolume("a"));
    site.done(&["quota", "enable", "--simple", mnt]);
    site.done(&["qgroup", "limit", "16M", own, mnt]);
    let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
    let mut options = fs::OpenOptions::new();
    let mut file =
        options.write(true).create(true).custom_flags(direct).open(site.path("a/big")).unwrap();
    let bytes = vec![7; 1 << 20];
    let refused = std::iter::repeat_with(|| file.write(&bytes)).find_map(Result::err).unwrap();
    assert_eq!(refused.raw_os_error(), Some(Errno::DQUOT.raw_os_error()));
    let length = file.metadata().unwrap().len();
    assert!(length >= 15 * bytes.len() as u64);
    // Of four requests two have room. The kernel tells the error, and cuts off what they wrote.
    site.done(&["qgroup", "limit", "18M", own, mnt]);
    let refused = file.write(&vec![8; 4 << 20]).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(Errno::DQUOT.raw_os_error()));
    assert_eq!(file.metadata().unwrap().len(), length);
    assert_eq!(file.write(&bytes).unwrap(), bytes.len());
}

#[test]
fn a_tenant_at_its_limit_of_inodes_makes_no_more_and_a_write_takes_what_fits() {
    let Some(site) = Site::mounted(&[]) else { return };
    let mnt = &site.at("");
    let own = &format!("0/{}", site.subvolume("a"));
    site.done(&["quota", "enable", "--simple", mnt]);
    site.done(&["qgroup", "limit", "--inodes", "10", own, mnt]);
    let seen = || rustix::fs::statvfs(site.path("a")).unwrap();
    let made = (0..20).take_while(|n| File::create(site.path(&format!("a/f{n}"))).is_ok()).count();
    // Its root directory is older than quotas.
    assert_eq!((made, site.group(own)["inodes"].as_u64()), (10, Some(10)));
    assert_eq!((seen().f_files, seen().f_ffree), (10, 0));
    assert_eq!(number(fs::create_dir(site.path("a/d"))), Some(Errno::DQUOT));
    assert!(!site.path("a/d").exists());
    for n in 0..50 {
        fs::remove_file(site.path(&format!("a/f{}", n % 10))).unwrap();
        File::create(site.path(&format!("a/f{}", n % 10))).expect("the place of another one");
    }
    fs::remove_file(site.path("a/f0")).unwrap();

    site.done(&["qgroup", "limit", "4M", own, mnt]);
    let mut file = File::create(site.path("a/big")).unwrap();
    let block = vec![7; 3 << 20];
    assert_eq!(file.write(&block).unwrap(), block.len());
    let taken = file.write(&block).unwrap();
    assert!(taken < block.len() && taken >= 512 << 10 && taken.is_multiple_of(4096), "{taken}");
    let refused = std::iter::repeat_with(|| file.write(&block)).find_map(Result::err).unwrap();
    assert_eq!(refused.raw_os_error(), Some(Errno::DQUOT.raw_os_error()));
    let length = file.metadata().unwrap().len();
    assert_eq!(fs::read(site.path("a/big")).unwrap(), vec![7; length as usize]);
    assert!(length > (4 << 20) - (256 << 10), "{length}");
}

#[test]
fn what_changed_is_listed_and_weighed() {
    let Some(site) = Site::mounted(&[]) else { return };
    site.subvolume("a");
    for n in 0..50 {
        fs::write(site.path(&format!("a/f{n}")), vec![n as u8; 20_000]).unwrap();
    }
    site.done(&["subvolume", "snapshot", "-r", &site.at("a"), &site.at("s")]);
    let marker = site.done(&["subvolume", "show", &site.at("s")])["generation"].as_u64().unwrap();
    let diff =
        |from: &str, to: &str| site.done(&["subvolume", "diff", &site.at(from), &site.at(to)]);
    assert_eq!(diff("s", "a"), json!([]));
    let file = File::options().write(true).open(site.path("a/f7")).unwrap();
    rustix::io::pwrite(&file, &[0xff; 4096], 4096).unwrap();
    fs::rename(site.path("a/f8"), site.path("a/moved")).unwrap();
    fs::remove_file(site.path("a/f9")).unwrap();
    fs::create_dir(site.path("a/new")).unwrap();
    let changes = diff("s", "a");
    let told: Vec<(&str, &str)> = changes
        .as_array()
        .unwrap()
        .iter()
        .map(|row| (row["change"].as_str().unwrap(), row["path"].as_str().unwrap()))
        .collect();
    let wanted = [("modified", "f7"), ("deleted", "f9"), ("renamed", "moved"), ("added", "new")];
    assert_eq!(told, wanted);
    assert_eq!(changes[0]["parts"], json!(["content"]));
    assert_eq!(changes[2]["from"], "f8");

    let since = marker.to_string();
    let fresh = site.done(&["subvolume", "find-new", &site.at("a"), &since]);
    let extents = fresh["extents"].as_array().unwrap();
    let place = |row: &Value| (row["path"].clone(), row["offset"].clone(), row["bytes"].clone());
    let places: Vec<_> = extents.iter().map(place).collect();
    assert_eq!(places, [(json!("f7"), json!(4096), json!(4096))], "{fresh}");
    assert!(fresh["generation"].as_u64().unwrap() > marker);

    let weighed = site.done(&["subvolume", "du", &site.at("a"), &site.at("s")]);
    let block = |blocks: u64| json!(blocks * 4096);
    assert_eq!(weighed[0]["total_bytes"], block(49 * 5));
    assert_eq!(weighed[0]["exclusive_bytes"], block(1));
    assert_eq!(weighed[1]["shared_bytes"], block(48 * 5 + 4));
    assert_eq!(weighed[1]["exclusive_bytes"], block(6));
    let alone = site.done(&["subvolume", "du", "--exclusive", &site.at("s")]);
    assert_eq!((&alone[0]["exclusive_bytes"], &alone[0]["total_bytes"]), (&block(6), &json!(null)));

    site.refused(&["subvolume", "diff", &site.at("s"), &site.at("")], "EINVAL", "share no history");
    let refused = site.nobody(&["subvolume", "du", &site.at("a")]);
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("EPERM"), "{refused:?}");
}
