//! The powers that the daemon keeps: capabilities, core dumps, new files.
//!
//! Capabilities belong to threads, so they are given up before the first thread starts. The kept
//! ones ([`KEPT`]) serve a purpose until the end:
//!
//! | capability | purpose |
//! | --- | --- |
//! | `SYS_ADMIN` | mount, and unmount on a signal |
//! | `SYS_PTRACE` | look up the namespaces of callers in /proc |
//! | `SYS_RESOURCE` | descriptors, and the space that the host keeps for root |
//! | `IPC_LOCK` | memory of io_uring |
//! | `DAC_OVERRIDE`, `DAC_READ_SEARCH` | only if pool or directory cannot be opened without |
//!
//! A daemon without `SYS_PTRACE` keeps all that it has: the kernel lets it look only at callers
//! that have no more capabilities than itself.
//!
//! A core dump would hold the data of tenants. The kernel dumps no process whose limit for dumps is
//! one byte, neither to a file nor to a program, and the filter leaves out all memory, for other
//! handlers. The process stays dumpable in the sense of prctl(2): otherwise only CAP_SYS_PTRACE
//! could take the connection of a further mount from it, and find out that it lives (ORPHAN-O3).

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};

use crate::mount_request::Request;

const OVERRIDES: CapabilitySet = CapabilitySet::DAC_OVERRIDE.union(CapabilitySet::DAC_READ_SEARCH);
const KEPT: CapabilitySet = CapabilitySet::SYS_ADMIN
    .union(CapabilitySet::SYS_PTRACE)
    .union(CapabilitySet::SYS_RESOURCE)
    .union(CapabilitySet::IPC_LOCK);
/// For this limit the kernel starts no program for a dump, as it does for a limit of none.
const CORE_NONE: Option<u64> = Some(1);
/// Capabilities have the numbers below this one.
const NUMBERS: u32 = 64;

/// Gives up the powers that the daemon of this mount does not need. Before the first thread; an
/// error leaves the process as it is, and is for the log.
pub(crate) fn confine(request: &Request) -> io::Result<()> {
    rustix::process::umask(Mode::from_raw_mode(0o077));
    if !request.options.engine.core_dumps {
        setrlimit(Resource::Core, Rlimit { current: CORE_NONE, maximum: CORE_NONE })?;
        std::fs::write("/proc/self/coredump_filter", "0")?;
    }
    // An ordinary user mounts by fusermount3, which is setuid.
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    set_no_new_privs(true)?;
    let held = capabilities(None)?;
    if !held.permitted.contains(CapabilitySet::SYS_PTRACE) {
        return Ok(());
    }
    let read_only = request.options.mount.read_only();
    let kept = held.permitted
        & if opens_without(&held, request, read_only)? { KEPT } else { KEPT | OVERRIDES };
    clear_ambient_capability_set()?;
    for number in 0..NUMBERS {
        let one = CapabilitySet::from_bits_retain(1 << number);
        // The kernel has fewer; without SETPCAP the bounding set remains.
        if !kept.contains(one) && remove_capability_from_bounding_set(one).is_err() {
            break;
        }
    }
    let inheritable = CapabilitySet::empty();
    Ok(set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable })?)
}

/// Whether user 0 can open the pool and the directory by their permissions alone.
fn opens_without(held: &CapabilitySets, request: &Request, read_only: bool) -> io::Result<bool> {
    let effective = held.effective & !OVERRIDES;
    set_capabilities(None, CapabilitySets { effective, ..*held })?;
    let access = if read_only { OFlags::RDONLY } else { OFlags::RDWR };
    let opens =
        |path: &Path, flags| rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).is_ok();
    // The close of a device can have effects.
    let pool = match std::fs::metadata(&request.pool) {
        Ok(found) if found.is_file() => opens(&request.pool, access),
        found => found.is_ok_and(|found| found.uid() == 0),
    };
    let both = pool && opens(&request.directory, OFlags::PATH);
    set_capabilities(None, *held)?;
    Ok(both)
}
