//! The caller's identity and privilege, where the request does not carry them.
//!
//! Problem.  Where mounts may map ids, the kernel names the caller only in requests that make a
//!           file, by ids as the pool has them. Most other requests it has judged itself. Some
//!           ioctls it passes on unjudged: those about subvolumes and quotas, FITRIM, SHUTDOWN.
//!           Requests carry no capabilities.
//! Idea.     The thread that asks waits for the answer, and cannot end or change its ids before
//!           that. So /proc shows who it is.
//!
//! CALLER-D1  An administrator manages the pool: a thread of uid 0 with CAP_SYS_ADMIN in the
//!            daemon's user namespace. It is in the daemon's mount namespace, too, unless the mount
//!            allows all (`admin_namespaces=any`): a container with all capabilities has a mount
//!            namespace of its own. The same namespaces are required of the ordinary user who
//!            mounted the pool. All other callers are ordinary users. A property that /proc does
//!            not show is taken as absent.
//! CALLER-D2  An owner on disk is compared only with ids that the request carries. The ids in /proc
//!            do not show by which mount a process came: descriptors can be passed, and tables of
//!            mounts can be hidden. By an idmapped mount the owner's id is another user's.
//!            So they are compared only where the mount gives owners rights: such a mount permits
//!            no mapping of ids.
//! CALLER-D3  An ioctl or access(2) of an unidentified caller is refused.
//! CALLER-D4  Callers are looked up only where /proc has the process ids of the daemon's own
//!            namespace; in another, the same number is another process. Idmapped mounts are
//!            offered only there, and only if the daemon runs as root.

use std::ffi::OsString;
use std::fs;

use copyhold_fuse::protocol::{Caller, Ids};

use super::rules::Rules;
use crate::namespaces::Namespaces;

/// Its number in `<linux/capability.h>`.
const CAP_SYS_ADMIN: u64 = 1 << 21;

/// The user behind a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Who {
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// An administrator by CALLER-D1.
    pub(super) is_admin: bool,
    /// The caller's user and mount namespaces may manage the pool (CALLER-D1).
    pub(super) is_near: bool,
    /// Whether `uid` may be compared with owners on disk (CALLER-D2).
    pub(super) knows_owners: bool,
}

impl Who {
    pub(super) fn caller(self) -> copyhold_fs::Caller {
        copyhold_fs::Caller::new(self.uid, self.gid, 0)
    }
}

impl Rules {
    /// None if the caller cannot be identified.
    pub(super) fn who(&self, by: Caller) -> Option<Who> {
        let process = self.process(by);
        let Ids { uid, gid } = by.ids.or_else(|| process.as_ref()?.ids())?;
        let is_near = match &process {
            Some(process) => process.is_near(self.namespaces),
            // The daemon cannot look anywhere; its mount is of its user.
            None => !self.sees_callers && self.namespaces == Namespaces::Any,
        };
        let is_admin = uid == 0 && is_near && process.is_some_and(|process| process.is_capable());
        let knows_owners = self.owners_may && by.ids.is_some();
        Some(Who { uid, gid, is_admin, is_near, knows_owners })
    }

    /// The caller's ids on this machine; none if it cannot be identified.
    pub(super) fn ids(&self, by: Caller) -> Option<copyhold_fs::Caller> {
        let ids = by.ids.or_else(|| self.process(by)?.ids())?;
        Some(copyhold_fs::Caller::new(ids.uid, ids.gid, 0))
    }

    fn process(&self, by: Caller) -> Option<Process> {
        if self.sees_callers { Process::of(by.pid) } else { None }
    }
}

/// Whether callers can be looked up here (CALLER-D4).
pub(crate) fn sees_callers() -> bool {
    let own = fs::read_to_string("/proc/self/status").unwrap_or_default();
    // One number for each namespace from that of /proc down to that of the process.
    numbers(&own, "NSpid:").len() == 1
}

/// A thread as /proc shows it.
struct Process {
    pid: u32,
    status: String,
}

impl Process {
    /// `pid` is 0 for processes that this namespace does not have.
    fn of(pid: u32) -> Option<Process> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        Some(Process { pid, status })
    }

    fn ids(&self) -> Option<Ids> {
        // Real, effective, saved, of the filesystem.
        let &[.., uid] = &numbers(&self.status, "Uid:")[..] else { return None };
        let &[.., gid] = &numbers(&self.status, "Gid:")[..] else { return None };
        Some(Ids { uid, gid })
    }

    /// CAP_SYS_ADMIN in the thread's own user namespace, where any process may have it. A thread of
    /// the kernel, which has no memory of its own, acts for a client (NFS): its own powers say
    /// nothing.
    fn is_capable(&self) -> bool {
        self.status.contains("\nVmSize:") && capabilities(&self.status) & CAP_SYS_ADMIN != 0
    }

    /// Whether the thread is in namespaces from which the pool can be managed.
    fn is_near(&self, namespaces: Namespaces) -> bool {
        let is_shared = |kind| {
            let own = namespace("self", kind);
            own.is_some() && own == namespace(&self.pid.to_string(), kind)
        };
        is_shared("user") && (namespaces == Namespaces::Any || is_shared("mnt"))
    }
}

/// None where the daemon may not look at that process.
fn namespace(process: &str, kind: &str) -> Option<OsString> {
    Some(fs::read_link(format!("/proc/{process}/ns/{kind}")).ok()?.into_os_string())
}

/// Those in effect.
fn capabilities(status: &str) -> u64 {
    u64::from_str_radix(line(status, "CapEff:").trim(), 16).unwrap_or(0)
}

fn numbers(status: &str, name: &str) -> Vec<u32> {
    line(status, name).split_whitespace().filter_map(|number| number.parse().ok()).collect()
}

fn line<'a>(status: &'a str, name: &str) -> &'a str {
    status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ids_of_the_filesystem_are_the_last_of_four() {
        let status = "Name:\tx\nUid:\t1000\t0\t0\t65534\nNSpid:\t77\t1\n";
        assert_eq!(numbers(status, "Uid:"), [1000, 0, 0, 65534]);
        assert_eq!(numbers(status, "NSpid:"), [77, 1]);
        assert!(numbers(status, "Gid:").is_empty());
    }

    #[test]
    fn capabilities_in_effect_are_one_hexadecimal_number() {
        let status = "CapPrm:\t000001ffffffffff\nCapEff:\t0000000000200001\n";
        assert_eq!(capabilities(status), CAP_SYS_ADMIN | 1);
        assert_eq!(capabilities("CapPrm:\t000001ffffffffff\n"), 0);
    }

    #[test]
    fn a_thread_of_the_kernel_has_no_powers_of_its_own() {
        let is_capable = |memory: &str| {
            let status = format!("Name:\tnfsd\n{memory}CapEff:\t000001ffffffffff\n");
            Process { pid: 7, status }.is_capable()
        };
        assert!(is_capable("VmSize:\t  2048 kB\n"));
        assert!(!is_capable(""));
    }

    #[test]
    fn this_process_is_identified_and_a_stranger_is_not() {
        let found = Process::of(std::process::id()).unwrap();
        assert_eq!(found.ids().unwrap().uid, rustix::process::geteuid().as_raw());
        assert!(Process::of(0).is_none());
        let powers = capabilities(&found.status);
        assert_eq!(found.is_capable(), powers & CAP_SYS_ADMIN != 0);
        assert!(found.is_near(Namespaces::Own), "a process shares its own namespaces");
    }
}
