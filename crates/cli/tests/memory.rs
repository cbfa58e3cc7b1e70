//! The daemon's memory stays within the budget of `-o memory=`, whatever the kernel looks up, who
//! writes, and what the log holds.

#![allow(clippy::disallowed_methods, reason = "it looks at processes from outside")]

mod site;

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::Duration;

use serde_json::Value;
use site::*;

/// The least for a pool of 512 MiB.
const BUDGET: u64 = 96 << 20;

fn small() -> Option<Site> {
    Site::mounted(&["-o", "memory=96M"])
}

fn info(site: &Site) -> Value {
    site.done(&["info", &site.at("")])
}

/// The most that the daemon had, without the pages of its program, which tests have in another
/// size than users.
fn peak(site: &Site) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", site.pid())).unwrap();
    let bytes = |field: &str| {
        let line = status.lines().find(|line| line.starts_with(field)).expect("a Linux field");
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
    };
    bytes("VmHWM:") - bytes("RssFile:")
}

/// Linux from 6.18 on can be asked to forget what it looked up.
fn kernel_prunes() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(18))
}

#[test]
fn what_the_kernel_has_looked_up_is_bounded() {
    let Some(site) = small() else { return };
    const FILES: usize = 100_000;
    let path = |n: usize| site.path(&format!("d{}/f{n}", n % 10));
    for n in 0..10 {
        fs::create_dir(site.path(&format!("d{n}"))).unwrap();
    }
    fs::write(path(0), b"in use").unwrap();
    let mut in_use = File::open(path(0)).unwrap();
    for n in 1..FILES {
        File::create(path(n)).unwrap();
    }
    assert_eq!(info(&site)["memory"]["budget_bytes"], BUDGET);
    if kernel_prunes() {
        // It answers when it likes.
        let lookups = || info(&site)["memory"]["lookups"].as_u64().unwrap();
        let forgot = (0..600).any(|_| {
            thread::sleep(Duration::from_millis(50));
            lookups() <= 75_000
        });
        assert!(forgot, "{} look-ups", lookups());
    }
    let mut content = String::new();
    in_use.seek(SeekFrom::Start(0)).unwrap();
    in_use.read_to_string(&mut content).unwrap();
    assert_eq!(content, "in use");
    for n in (0..FILES).step_by(97) {
        assert_eq!(fs::metadata(path(n)).unwrap().len(), if n == 0 { 6 } else { 0 });
    }
    assert!(peak(&site) <= BUDGET, "{} bytes", peak(&site));
    drop(in_use);
    site.checked();
}

#[test]
fn many_writers_of_large_pieces_stay_within_it_and_so_does_recovery() {
    let Some(site) = small() else { return };
    thread::scope(|scope| {
        for n in 0..48 {
            let path = site.path(&format!("f{n}"));
            scope.spawn(move || {
                let mut file = File::create(path).unwrap();
                (0..4).for_each(|k| file.write_all(&vec![k; 1 << 20]).unwrap());
                (0..400).for_each(|k| file.write_at(&[9; 100], k * 8192).map(drop).unwrap());
                file.sync_all().unwrap();
            });
        }
    });
    assert!(peak(&site) <= BUDGET, "{} bytes", peak(&site));
    site.crash();
    site.mount(&["-o", "memory=96M"]);
    for n in 0..48 {
        let content = fs::read(site.path(&format!("f{n}"))).unwrap();
        assert_eq!((content.len(), content[0], content[100]), (4 << 20, 9, 0));
    }
    assert!(peak(&site) <= BUDGET, "{} bytes", peak(&site));
    site.checked();
}
