//! System calls that have no safe wrapper: the clone of a FUSE device, private ioctls, signal
//! masks, fork.

#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::ioctl::{Setter, ioctl, opcode};

const CLONE: rustix::ioctl::Opcode = opcode::read::<u32>(229, 0);

/// Makes `device`, freshly opened, another way into the connection of `of` (FUSE_DEV_IOC_CLONE).
pub(crate) fn clone_device(device: impl AsFd, of: impl AsFd) -> io::Result<()> {
    let source = of.as_fd().as_raw_fd() as u32;
    // SAFETY: the command reads one u32, a descriptor, which is open for the time of the call.
    unsafe { ioctl(device, Setter::<CLONE, u32>::new(source)) }?;
    Ok(())
}

/// A command whose number says how many bytes it reads and writes at most.
pub(crate) fn ioctl_sized(of: BorrowedFd<'_>, number: u32, bytes: &mut [u8]) -> io::Result<()> {
    assert!(bytes.len() >= (number >> 16) as usize & 0x3fff, "the number says more than there is");
    // SAFETY: the buffer has at least the number's length, which commands of this form copy.
    match unsafe { libc::ioctl(of.as_raw_fd(), number as _, bytes.as_mut_ptr()) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Blocks `signals` for this thread and those that it starts later.
pub(crate) fn block_signals(signals: &[i32]) -> io::Result<()> {
    let set = signal_set(signals);
    // SAFETY: `set` is initialised, and the old mask is not requested.
    let error = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) };
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
}

/// Ignores `signal` in the whole process, and in those that it starts.
pub(crate) fn ignore_signal(signal: i32) -> io::Result<()> {
    // SAFETY: no handler is set, so none can run at a bad moment.
    match unsafe { libc::signal(signal, libc::SIG_IGN) } {
        libc::SIG_ERR => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Whether this process ignores `signal`.
pub(crate) fn is_ignored(signal: i32) -> io::Result<bool> {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: without a new action it only writes the present one to `action`, a valid place.
    if unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call above has succeeded, so it is written.
    Ok(unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN)
}

/// A descriptor that reads as `signalfd_siginfo` when one of `signals`, blocked before, arrives.
pub(crate) fn signal_fd(signals: &[i32]) -> io::Result<OwnedFd> {
    let set = signal_set(signals);
    // SAFETY: `set` is initialised; -1 asks for a new descriptor.
    let fd = unsafe { libc::signalfd(-1, &set, libc::SFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just returned this descriptor, and nothing else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Ends this process by `signal`, which is blocked, as if it were not.
pub(crate) fn end_by_signal(signal: i32) -> ! {
    let set = signal_set(&[signal]);
    // SAFETY: `set` is initialised; the old mask is not requested. No handler was ever set, so the
    // signal has its usual effect, and this is the only thread that unblocks it.
    unsafe {
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
        libc::raise(signal);
    }
    // The parent of this process had set it to be ignored.
    std::process::exit(128 + signal);
}

fn signal_set(signals: &[i32]) -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the whole set; sigaddset refuses numbers that are none.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        signals.iter().for_each(|&signal| {
            libc::sigaddset(set.as_mut_ptr(), signal);
        });
        set.assume_init()
    }
}

/// Which side of a fork one is on.
pub(crate) enum Fork {
    Parent { child: libc::pid_t },
    Child,
}

/// Forks. The caller makes sure that the process has only one thread, so that the child may make
/// any calls.
pub(crate) fn fork() -> io::Result<Fork> {
    // SAFETY: with one thread no lock can be held by a thread that the child does not have.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Fork::Child),
        child => Ok(Fork::Parent { child }),
    }
}

/// How many threads this process has.
pub(crate) fn threads() -> io::Result<usize> {
    Ok(std::fs::read_dir("/proc/self/task")?.count())
}

/// Waits for `child`; its exit code, or 128 and the signal that ended it.
pub(crate) fn wait_for(child: libc::pid_t) -> io::Result<i32> {
    let mut status = 0;
    loop {
        // SAFETY: `status` is a valid place for one int.
        if unsafe { libc::waitpid(child, &mut status, 0) } == child {
            break;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    let exited = libc::WIFEXITED(status);
    Ok(if exited { libc::WEXITSTATUS(status) } else { 128 + libc::WTERMSIG(status) })
}
