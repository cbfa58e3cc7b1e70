//! `-o writeback_cache`: the kernel keeps what is written until it likes, or somebody asks.

#![allow(clippy::disallowed_methods, reason = "it looks at processes from outside")]

mod site;

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::{Duration, SystemTime};

use site::*;

const OPTIONS: &[&str] = &["-o", "writeback_cache"];

#[test]
fn what_the_kernel_has_gathered_survives_an_unmount_with_its_times_and_sizes() {
    let Some(site) = Site::mounted(OPTIONS) else { return };
    let path = site.path("f");
    let file = File::create(&path).unwrap();
    for block in (0..512_u64).rev() {
        file.write_all_at(&[block as u8; 100], block * 1000).unwrap();
    }
    let mut appended = File::options().append(true).open(&path).unwrap();
    appended.write_all(b"the end").unwrap();
    assert_eq!(file.metadata().unwrap().size(), 511 * 1000 + 100 + 7);
    let then = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    file.set_modified(then).unwrap();
    drop((file, appended));
    site.done(&["umount", &site.at("")]);
    site.mount(&[]);
    let read = fs::read(&path).unwrap();
    assert_eq!(read.len(), 511 * 1000 + 100 + 7);
    assert!((0..512).all(|block| read[block * 1000..][..100] == [block as u8; 100]));
    assert!(read.ends_with(b"the end"));
    assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), then);
    site.checked();
}

#[test]
fn a_snapshot_has_what_the_kernel_has_gathered() {
    let Some(site) = Site::mounted(OPTIONS) else { return };
    site.subvolume("a");
    fs::write(site.path("a/f"), vec![1; 300_000]).unwrap();
    site.snapshot("a", "s");
    fs::write(site.path("a/f"), vec![2; 300_000]).unwrap();
    assert!(fs::read(site.path("s/f")).unwrap() == vec![1; 300_000]);
    site.done(&["subvolume", "rollback", &site.at("a"), &site.at("s")]);
    assert!(fs::read(site.path("a/f")).unwrap() == vec![1; 300_000]);
    site.done(&["umount", &site.at("")]);
    site.mount(&[]);
    assert!(fs::read(site.path("a/f")).unwrap() == vec![1; 300_000]);
    site.checked();
}

#[test]
fn a_limit_that_is_reached_is_told_by_fsync() {
    let Some(site) = Site::mounted(OPTIONS) else { return };
    site.done(&["quota", "enable", "--simple", &site.at("")]);
    let id = site.subvolume("a");
    site.done(&["qgroup", "limit", "8M", &format!("0/{id}"), &site.at("")]);
    let mut file = File::create(site.path("a/f")).unwrap();
    let told = file.write_all(&vec![1; 32 << 20]).and_then(|()| file.sync_all());
    assert_eq!(told.unwrap_err().kind(), ErrorKind::QuotaExceeded);
    drop(file);
    fs::remove_file(site.path("a/f")).unwrap();
    fs::write(site.path("a/g"), vec![2; 1 << 20]).unwrap();
    File::open(site.path("a/g")).unwrap().sync_all().unwrap();
    site.checked();
}
