//! The caller's identity, where the request does not carry it.
//!
//! Problem.  Where mounts may map ids, the kernel names the caller only in requests that make a
//!           file, by ids as the pool has them. Most other requests it has judged itself. Some
//!           ioctls it passes on unjudged: those about subvolumes and quotas, FITRIM, SHUTDOWN.
//! Idea.     The thread that asks waits for the answer, and cannot end or change its ids before
//!           that. So /proc shows who it is.
//!
//! ID1 Such an ioctl is judged by the ids that its caller has on this machine, whatever mount it
//!     came by. Root of a container is an ordinary user there.
//! ID2 An owner on disk is compared with these ids only if the caller's mount namespace has no
//!     idmapped mount of the pool: by such a mount the same id belongs to another user.
//! ID3 An ioctl or access(2) of an unidentified caller is refused.
//! ID4 Idmapped mounts are offered only where the daemon can identify callers: it runs as root, and
//!     its /proc has the process ids of its own namespace.

use std::fs;

use copyhold_fuse::protocol::Caller;

use super::Rules;

/// The user behind a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Who {
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// Whether `uid` may be compared with owners on disk.
    pub(super) knows_owners: bool,
}

/// How callers are identified that the kernel does not name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identify {
    /// Number of the mounted filesystem.
    pub(crate) device: (u32, u32),
}

impl Who {
    pub(super) fn caller(self) -> copyhold_fs::Caller {
        copyhold_fs::Caller::new(self.uid, self.gid, 0)
    }
}

impl Rules {
    /// None if the caller cannot be identified.
    pub(super) fn who(&self, by: Caller) -> Option<Who> {
        match by.ids {
            Some(ids) => Some(Who { uid: ids.uid, gid: ids.gid, knows_owners: true }),
            None => self.identify.and_then(|identify| identify.process(by.pid)),
        }
    }
}

impl Identify {
    /// Whether callers can be identified here (ID4).
    pub(crate) fn is_possible() -> bool {
        let own = fs::read_to_string("/proc/self/status").unwrap_or_default();
        // One number for each namespace from that of /proc down to that of the process.
        rustix::process::geteuid().is_root() && numbers(&own, "NSpid:").len() == 1
    }

    /// `pid` is 0 for processes that this namespace does not have.
    fn process(self, pid: u32) -> Option<Who> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).ok()?;
        // Real, effective, saved, of the filesystem.
        let &[.., uid] = &numbers(&status, "Uid:")[..] else { return None };
        let &[.., gid] = &numbers(&status, "Gid:")[..] else { return None };
        let knows_owners = !mounts.lines().any(|line| is_idmapped(line, self.device));
        Some(Who { uid, gid, knows_owners })
    }
}

fn numbers(status: &str, name: &str) -> Vec<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    line.split_whitespace().filter_map(|number| number.parse().ok()).collect()
}

/// Whether this line of a `mountinfo` is an idmapped mount of `device`.
fn is_idmapped(line: &str, (major, minor): (u32, u32)) -> bool {
    let fields: Vec<&str> = line.split(' ').take(6).collect();
    let &[_, _, device, _, _, options] = &fields[..] else { return false };
    device == format!("{major}:{minor}") && options.split(',').any(|option| option == "idmapped")
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
    fn an_idmapped_mount_is_known_by_its_device_and_option() {
        let line = "36 35 0:45 / /mnt/a\\040b rw,relatime,idmapped shared:1 - fuse.copyhold /p rw";
        assert!(is_idmapped(line, (0, 45)));
        assert!(!is_idmapped(line, (0, 4)));
        assert!(!is_idmapped(&line.replace(",idmapped", ""), (0, 45)));
        assert!(!is_idmapped("36 35", (0, 45)));
    }

    #[test]
    fn this_process_is_identified_and_a_stranger_is_not() {
        let identify = Identify { device: (0, 0) };
        let found = identify.process(std::process::id()).unwrap();
        assert_eq!(found.uid, rustix::process::geteuid().as_raw());
        assert_eq!(identify.process(0), None);
    }
}
