//! Where there is no room: a full pool, and a tenant at its limit, are snapshotted, rolled back
//! and deleted.

#![allow(clippy::disallowed_methods, reason = "it looks at processes from outside")]

mod site;

use std::fs::{self, File};
use std::io::{ErrorKind, Write};

use rustix::io::Errno;
use serde_json::Value;
use site::*;

/// Fills `name` with files, large ones, then small ones, until nothing more is taken; the error.
fn fill(site: &Site, name: &str) -> std::io::Error {
    let mut last = None;
    for (kind, bytes) in [("large", 1 << 20), ("small", 4096), ("tiny", 10)] {
        for n in 0.. {
            let path = site.path(&format!("{name}/{kind}{n}"));
            let wrote =
                File::create(path).and_then(|mut file| file.write_all(&vec![n as u8; bytes]));
            if let Err(error) = wrote {
                last = Some(error);
                break;
            }
            assert!(n < 100_000, "it never fills up");
        }
    }
    last.unwrap()
}

/// The code of the error, or none.
fn code(site: &Site, arguments: &[&str]) -> Option<String> {
    let output = site.run(arguments);
    if output.status.success() {
        return None;
    }
    let error: Value = serde_json::from_slice(&output.stderr).unwrap();
    Some(error["error"]["code"].as_str().unwrap().to_owned())
}

/// A subvolume with something old in it and a snapshot of that; then no room is left.
fn filled() -> Option<Site> {
    let site = Site::sized("96M", &[])?;
    site.subvolume("a");
    fs::write(site.path("a/old"), vec![1; 8 << 20]).unwrap();
    site.snapshot("a", "s");
    fs::write(site.path("a/old"), vec![2; 8 << 20]).unwrap();
    assert_eq!(fill(&site, "a").kind(), ErrorKind::StorageFull);
    Some(site)
}

fn available(site: &Site) -> u64 {
    site.done(&["df", &site.at("")])["available_bytes"].as_u64().unwrap()
}

#[test]
fn a_snapshot_on_a_full_pool_is_made_or_refused_and_changes_nothing_else() {
    let Some(site) = filled() else { return };
    let mut made = 0;
    for n in 0..40 {
        let name = site.at(&format!("t{n}"));
        match code(&site, &["subvolume", "snapshot", &site.at("a"), &name]).as_deref() {
            None => made += 1,
            Some(code) => {
                assert_eq!(code, "ENOSPC");
                assert!(!site.path(&format!("t{n}")).exists());
                break;
            }
        }
    }
    for n in 0..made {
        assert!(fs::read(site.path(&format!("t{n}/old"))).unwrap() == vec![2; 8 << 20]);
    }
    assert!(fs::read(site.path("s/old")).unwrap() == vec![1; 8 << 20]);
    // Every way out is open: snapshots, the subvolume itself, then writing again.
    for n in 0..made {
        site.delete(&format!("t{n}"));
    }
    site.delete("a");
    site.done(&["subvolume", "sync", &site.at("")]);
    site.done(&["sync", &site.at("")]);
    assert!(available(&site) > 32 << 20, "{}", available(&site));
    fs::write(site.path("s/more"), vec![3; 24 << 20]).unwrap();
    site.checked();
}

#[test]
fn a_full_pool_is_left_by_rolling_back() {
    let Some(site) = filled() else { return };
    let (a, s) = (site.at("a"), site.at("s"));
    site.done(&["subvolume", "rollback", &a, &s]);
    assert!(fs::read(site.path("a/old")).unwrap() == vec![1; 8 << 20]);
    assert_eq!(fs::read_dir(site.path("a")).unwrap().count(), 1);
    site.done(&["subvolume", "sync", &site.at("")]);
    site.done(&["sync", &site.at("")]);
    assert!(available(&site) > 32 << 20, "{}", available(&site));
    fs::write(site.path("a/more"), vec![3; 24 << 20]).unwrap();
    site.checked();
}

#[test]
fn rolling_back_a_full_pool_and_keeping_what_fills_it_is_done_or_refused_as_a_whole() {
    let Some(site) = filled() else { return };
    let (a, s, kept) = (site.at("a"), site.at("s"), site.at("kept"));
    match code(&site, &["subvolume", "rollback", "--keep", &kept, &a, &s]).as_deref() {
        None => {
            assert!(fs::read(site.path("a/old")).unwrap() == vec![1; 8 << 20]);
            assert!(fs::read(site.path("kept/old")).unwrap() == vec![2; 8 << 20]);
        }
        Some(code) => {
            assert_eq!(code, "ENOSPC");
            assert!(fs::read(site.path("a/old")).unwrap() == vec![2; 8 << 20]);
            assert!(!site.path("kept").exists());
        }
    }
    site.delete("s");
    site.checked();
}

#[test]
fn a_full_pool_survives_a_crash_during_the_deletion_that_empties_it() {
    let Some(site) = filled() else { return };
    site.done(&["sync", &site.at("")]);
    site.delete("a");
    site.done(&["sync", &site.at("")]);
    site.kill();
    site.mount(&[]);
    site.done(&["subvolume", "sync", &site.at("")]);
    assert!(fs::read(site.path("s/old")).unwrap() == vec![1; 8 << 20]);
    fs::write(site.path("s/more"), vec![3; 24 << 20]).unwrap();
    site.checked();
}

#[test]
fn a_tenant_at_its_limit_is_snapshotted_rolled_back_and_deleted() {
    let Some(site) = Site::mounted(&[]) else { return };
    let mnt = &site.at("");
    site.done(&["quota", "enable", "--simple", mnt]);
    let own = format!("0/{}", site.subvolume("a"));
    site.done(&["qgroup", "limit", "16M", &own, mnt]);
    fs::write(site.path("a/old"), vec![1; 4 << 20]).unwrap();
    site.snapshot("a", "s");
    let full = fill(&site, "a");
    assert_eq!(full.raw_os_error(), Some(Errno::DQUOT.raw_os_error()));
    let files = fs::read_dir(site.path("a")).unwrap().count();
    // A snapshot costs nothing, and has no limit of its own.
    site.snapshot("a", "t");
    assert_eq!(fs::read_dir(site.path("t")).unwrap().count(), files);
    fs::write(site.path("t/more"), vec![3; 4 << 20]).unwrap();
    // Below what is used already, everything is refused but what tidies up.
    site.done(&["qgroup", "limit", "1M", &own, mnt]);
    site.snapshot("a", "u");
    assert_eq!(number(fs::write(site.path("a/more"), [1; 5000])), Some(Errno::DQUOT));
    let made = site.done(&["subvolume", "rollback", &site.at("a"), &site.at("s")]);
    let now = format!("0/{}", made["id"]);
    assert_eq!(site.group(&now)["limits"]["referenced"], 1 << 20);
    assert!(fs::read(site.path("a/old")).unwrap() == vec![1; 4 << 20]);
    // It still pays for what t and u keep, as the heir of what it was.
    assert_eq!(number(fs::write(site.path("a/more"), [1; 5000])), Some(Errno::DQUOT));
    for name in ["t", "u", "s"] {
        site.delete(name);
    }
    site.done(&["subvolume", "sync", mnt]);
    assert_eq!(site.group(&now)["data"], 4 << 20);
    site.delete("a");
    site.done(&["subvolume", "sync", mnt]);
    site.done(&["sync", mnt]);
    site.done(&["qgroup", "clear-stale", mnt]);
    let shown = site.done(&["qgroup", "show", mnt]).to_string();
    assert!(!shown.contains(&format!("\"{now}\"")), "{shown}");
    site.checked();
}
