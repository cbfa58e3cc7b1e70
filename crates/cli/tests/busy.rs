//! Subvolumes that threads write to while they are snapshotted, compared, rolled back or deleted.

#![allow(clippy::disallowed_methods, reason = "it looks at processes from outside")]

mod site;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::io::Errno;
use serde_json::Value;
use site::*;

#[test]
fn a_snapshot_of_what_is_being_deleted_is_whole_or_refused() {
    let Some(site) = Site::mounted(&[]) else { return };
    let (mut made, mut late) = (0, 0);
    for round in 0..12 {
        site.subvolume("a");
        for n in 0..20 {
            fs::write(site.path(&format!("a/f{n}")), vec![n; 20_000]).unwrap();
        }
        let target = format!("s{round}");
        let snapshot = || site.run(&["subvolume", "snapshot", &site.at("a"), &site.at(&target)]);
        let delete = || {
            thread::sleep(std::time::Duration::from_millis(round));
            site.delete("a");
        };
        let snapshot = thread::scope(|scope| {
            let deleting = scope.spawn(delete);
            let snapshot = snapshot();
            deleting.join().unwrap();
            snapshot
        });
        if snapshot.status.success() {
            for n in 0..20 {
                let found = fs::read(site.path(&format!("{target}/f{n}"))).unwrap();
                assert!(found == vec![n; 20_000], "round {round}, file {n}");
            }
            made += 1;
        } else {
            let error: Value = serde_json::from_slice(&snapshot.stderr).unwrap();
            let code = error["error"]["code"].as_str().unwrap();
            assert!(["ENOENT", "ESTALE", "not-found"].contains(&code), "{error}");
            assert!(!site.path(&target).exists());
            late += 1;
        }
    }
    eprintln!("{made} were made, {late} came too late");
    site.done(&["subvolume", "sync", &site.at("")]);
    site.checked();
}

/// Writes and renames until it is told to stop.
fn disturb(site: &Site, name: &str, stop: &AtomicBool) {
    let file = File::create(site.path(&format!("{name}/busy"))).unwrap();
    let mut n = 0u64;
    while !stop.load(Ordering::Relaxed) {
        n += 1;
        file.write_all_at(&n.to_le_bytes().repeat(512), n % 64 * 4096).unwrap();
        let made = site.path(&format!("{name}/made{}", n % 16));
        fs::write(&made, n.to_le_bytes()).unwrap();
        fs::rename(&made, site.path(&format!("{name}/moved{}", n % 8))).unwrap();
    }
}

fn told(changes: &Value) -> Vec<(&str, &str)> {
    let rows = changes.as_array().unwrap().iter();
    rows.map(|row| (row["change"].as_str().unwrap(), row["path"].as_str().unwrap())).collect()
}

#[test]
fn writers_do_not_change_what_differs_between_snapshots() {
    let Some(site) = Site::mounted(&[]) else { return };
    site.subvolume("a");
    for n in 0..100 {
        fs::write(site.path(&format!("a/f{n:02}")), vec![n; 5000]).unwrap();
    }
    let read_only =
        |to: &str| site.done(&["subvolume", "snapshot", "-r", &site.at("a"), &site.at(to)]);
    let diff =
        |from: &str, to: &str| site.done(&["subvolume", "diff", &site.at(from), &site.at(to)]);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let writer = scope.spawn(|| disturb(&site, "a", &stop));
        read_only("old");
        fs::write(site.path("a/f07"), "changed").unwrap();
        fs::remove_file(site.path("a/f08")).unwrap();
        fs::rename(site.path("a/f09"), site.path("a/renamed")).unwrap();
        read_only("new");
        let first = diff("old", "new");
        for _ in 0..10 {
            assert_eq!(diff("old", "new"), first);
            // With the one that is written to: what was done before is told, whatever else is.
            let live = diff("old", "a");
            let live = told(&live);
            for change in [("modified", "f07"), ("deleted", "f08"), ("renamed", "renamed")] {
                assert!(live.contains(&change), "{change:?}: {live:?}");
            }
            assert!(!live.iter().any(|(_, path)| path.starts_with("f1")), "{live:?}");
        }
        let busy = ["busy", "made", "moved"];
        let mut quiet = told(&first);
        quiet.retain(|(_, path)| !busy.iter().any(|busy| path.starts_with(busy)));
        let wanted = [("modified", "f07"), ("deleted", "f08"), ("renamed", "renamed")];
        assert_eq!(quiet, wanted);
        stop.store(true, Ordering::Relaxed);
        writer.join().unwrap();
    });
    site.checked();
}

/// Works in `a` until it is told to stop, whatever `a` is by then: what is gone is stale, or was
/// never there, or (the two names of a rename) one of them is in what `a` was; nothing else fails.
fn work(site: &Site, who: u64, stop: &AtomicBool) -> u64 {
    let (mut done, mut turn) = (0, 0u64);
    while !stop.load(Ordering::Relaxed) {
        turn += 1;
        let name = |n: u64| site.path(&format!("a/w{who}-{}", n % 8));
        let worked = || {
            let file = File::create(name(turn))?;
            file.write_all_at(&turn.to_le_bytes().repeat(2000), turn % 5 * 3000)?;
            if turn.is_multiple_of(7) {
                file.sync_all()?;
            }
            fs::rename(name(turn), name(turn + 3))?;
            fs::read(name(turn + 3)).map(|found| assert!(found.len() >= 16_000))?;
            fs::remove_file(name(turn + 5)).or_else(|error| match error.raw_os_error() {
                Some(code) if code == Errno::NOENT.raw_os_error() => Ok(()),
                _ => Err(error),
            })
        };
        match worked() {
            Ok(()) => done += 1,
            Err(error) => {
                let errno = error.raw_os_error().map(Errno::from_raw_os_error);
                let gone = [Errno::STALE, Errno::NOENT, Errno::XDEV].map(Some).contains(&errno);
                assert!(gone, "worker {who}, turn {turn}: {error:?}");
            }
        }
    }
    done
}

#[test]
fn a_subvolume_is_rolled_back_again_and_again_while_it_is_worked_in() {
    let Some(site) = Site::mounted(&[]) else { return };
    site.subvolume("a");
    fs::write(site.path("a/kept"), vec![7; 300_000]).unwrap();
    site.done(&["subvolume", "snapshot", "-r", &site.at("a"), &site.at("s")]);
    let stop = AtomicBool::new(false);
    let (a, s, old) = (site.at("a"), site.at("s"), site.at("old"));
    thread::scope(|scope| {
        let workers = [1, 2, 3].map(|who| {
            scope.spawn({
                let (site, stop) = (&site, &stop);
                move || work(site, who, stop)
            })
        });
        for round in 0..24 {
            match round % 3 {
                0 => drop(site.done(&["subvolume", "rollback", "--keep", &old, &a, &s])),
                _ => drop(site.done(&["subvolume", "rollback", &a, &s])),
            }
            assert!(fs::read(site.path("a/kept")).unwrap() == vec![7; 300_000], "round {round}");
            if round % 3 == 0 {
                site.delete("old");
            }
            thread::sleep(std::time::Duration::from_millis(20));
        }
        stop.store(true, Ordering::Relaxed);
        assert!(workers.into_iter().map(|worker| worker.join().unwrap()).sum::<u64>() > 0);
    });
    site.done(&["subvolume", "sync", &site.at("")]);
    assert_eq!(site.list().len(), 2);
    site.done(&["subvolume", "rollback", &a, &s]);
    assert_eq!(fs::read_dir(site.path("a")).unwrap().count(), 1);
    site.checked();
}
