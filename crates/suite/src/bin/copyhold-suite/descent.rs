//! The processes that a test has started, also those that have left its process group.
//!
//! Problem.  A test that forks away (a daemon, `setsid`) has processes that no signal to its group
//!           reaches, and they hold mounts and files of the next test.
//! Idea.     The runner is the reaper of its descendants: an orphan becomes its child, so all of
//!           them are below it in the tree of processes. Those that were there before a test
//!           are not the test's.
//!
//! DESCENT-D1  A process is its number and the time of its start, so a number that was used again
//!             is never taken for the former process.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpid, pidfd_open, pidfd_send_signal,
    set_child_subreaper, wait,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Process {
    pid: i32,
    /// In ticks since the boot.
    started: u64,
}

/// Makes this process the parent of all orphans among its descendants.
pub(crate) fn adopt_orphans() -> io::Result<()> {
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// All descendants that run.
pub(crate) fn running() -> io::Result<BTreeSet<Process>> {
    let mut children: BTreeMap<i32, Vec<Process>> = BTreeMap::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
        // One that has ended meanwhile has no file.
        let Some(stat) = Stat::of(pid) else { continue };
        let process = Process { pid, started: stat.started };
        children.entry(stat.parent).or_default().push(process);
    }
    let mut found = BTreeSet::new();
    let mut parents = vec![getpid().as_raw_nonzero().get()];
    while let Some(parent) = parents.pop() {
        for process in children.remove(&parent).into_iter().flatten() {
            parents.push(process.pid);
            found.insert(process);
        }
    }
    found.retain(|process| Stat::of(process.pid).is_some_and(|stat| !stat.is_dead));
    Ok(found)
}

/// Takes the statuses of ended orphans. No child of the runner itself may run.
pub(crate) fn reap() {
    while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
}

impl Process {
    pub(crate) fn signal(self, signal: Signal) -> io::Result<()> {
        match self.open()? {
            Some(process) => match pidfd_send_signal(&process, signal) {
                Err(Errno::SRCH) => Ok(()),
                sent => Ok(sent?),
            },
            None => Ok(()),
        }
    }

    /// Whether it ends within `patience`.
    pub(crate) fn ends_within(self, patience: Duration) -> io::Result<bool> {
        let Some(process) = self.open()? else { return Ok(true) };
        let patience = Timespec::try_from(patience).map_err(io::Error::other)?;
        let mut ends = [PollFd::new(&process, PollFlags::IN)];
        Ok(retry_on_intr(|| poll(&mut ends, Some(&patience)))? > 0)
    }

    /// `PID COMMAND`, for people.
    pub(crate) fn description(self) -> String {
        let command = fs::read(format!("/proc/{}/cmdline", self.pid)).unwrap_or_default();
        let words = command.split(|byte| *byte == 0).map(String::from_utf8_lossy);
        let words: Vec<_> = words.filter(|word| !word.is_empty()).collect();
        format!("{} {}", self.pid, words.join(" "))
    }

    /// `None` if it has ended.
    fn open(self) -> io::Result<Option<OwnedFd>> {
        let pid = Pid::from_raw(self.pid).ok_or(io::ErrorKind::InvalidInput)?;
        let process = match pidfd_open(pid, PidfdFlags::empty()) {
            Err(Errno::SRCH) => return Ok(None),
            opened => opened?,
        };
        let is_same = Stat::of(self.pid).is_some_and(|stat| stat.started == self.started);
        Ok(is_same.then_some(process))
    }
}

struct Stat {
    parent: i32,
    started: u64,
    is_dead: bool,
}

impl Stat {
    fn of(pid: i32) -> Option<Stat> {
        let line = fs::read(format!("/proc/{pid}/stat")).ok()?;
        Stat::parse(&String::from_utf8_lossy(&line))
    }

    /// The name of the command is between parentheses and may have some of its own.
    fn parse(line: &str) -> Option<Stat> {
        let fields: Vec<_> = line.rsplit_once(')')?.1.split_whitespace().collect();
        let number = |field: usize| fields.get(field);
        Some(Stat {
            is_dead: matches!(*number(0)?, "Z" | "X"),
            parent: number(1)?.parse().ok()?,
            started: number(19)?.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_child_is_found_signalled_and_gone() {
        let _turn = crate::alone::turn();
        let mut cat = Command::new("cat");
        let mut child = cat.arg("-").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        // A process that has just been started may have no words yet; one that answers has.
        child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let is_child = |process: &&Process| process.pid == child.id() as i32;
        let found = running().unwrap();
        let process = *found.iter().find(is_child).unwrap();
        assert!(process.description().ends_with("cat -"));
        process.signal(Signal::KILL).unwrap();
        assert!(process.ends_within(Duration::from_secs(60)).unwrap());
        assert!(!running().unwrap().contains(&process), "a zombie does not run");
        child.wait().unwrap();
        process.signal(Signal::KILL).unwrap();
        assert!(process.ends_within(Duration::ZERO).unwrap());
    }

    #[test]
    fn another_process_of_the_same_number_gets_no_signal() {
        let _turn = crate::alone::turn();
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let former = Process { pid: child.id() as i32, started: 1 };
        former.signal(Signal::KILL).unwrap();
        assert!(former.ends_within(Duration::ZERO).unwrap());
        assert_eq!(child.try_wait().unwrap(), None);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn names_of_commands_may_have_parentheses() {
        let fields = "S 7 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4321 0 0";
        let stat = Stat::parse(&format!("12 (a) b (c)) {fields}")).unwrap();
        assert_eq!((stat.parent, stat.started, stat.is_dead), (7, 4321, false));
        assert!(Stat::parse("12 (a").is_none());
    }
}
