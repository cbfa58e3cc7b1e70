//! The machine's io_uring.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

pub(crate) use io_uring::squeue::Entry;
use io_uring::squeue::Flags;
use io_uring::types::{Fd, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode};
use rustix::event::{EventfdFlags, eventfd};

use super::{Completed, Manner};
use crate::op::{Op, Work};
use crate::threads::IOVECS_MAX;

/// Bytes that one entry moves at most.
const ENTRY_BYTES_MAX: usize = 1 << 30;
/// Flags of `io_uring_enter`, as in linux/io_uring.h.
const ENTER_GETEVENTS: u32 = 1;
const ENTER_EXT_ARG: u32 = 8;

pub(crate) struct Uring {
    uring: IoUring,
    manner: Manner,
    /// An eventfd; only ever written.
    bell: OwnedFd,
}

/// Buffers in the kernel's form. They point into the [`crate::op::Flight`] that holds them.
#[derive(Default)]
pub(crate) struct IoVecs(Vec<libc::iovec>);

// SAFETY: the pointers are only used by the kernel, and by `Work` with its buffers at hand.
unsafe impl Send for IoVecs {}

impl Uring {
    /// Space for so many entries. Fails where io_uring is refused or lacks the features needed
    /// here (Linux 5.18, and 6.1 for [`Manner::Own`]).
    pub(crate) fn new(entries: u32, manner: Manner) -> io::Result<Uring> {
        let mut builder = IoUring::builder();
        builder.setup_submit_all().setup_clamp();
        builder.setup_cqsize(entries.saturating_mul(8).max(64));
        if manner == Manner::Own {
            builder.setup_single_issuer().setup_defer_taskrun();
            builder.setup_taskrun_flag().setup_r_disabled();
        }
        let uring = builder.build(entries.max(1))?;
        let params = uring.params();
        if !params.is_feature_nodrop() || !params.is_feature_ext_arg() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Uring { uring, manner, bell })
    }

    /// Makes it this thread's; once, before it is used.
    pub(crate) fn enable(&self) -> io::Result<()> {
        match self.manner {
            Manner::Own => self.uring.submitter().register_enable_rings(),
            Manner::Plain => Ok(()),
        }
    }

    pub(crate) fn ring_bell(&self) {
        // Full after 2^64 rings: it never is.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// Whether the kernel has left something to the next [`Uring::enter`].
    pub(crate) fn has_more(&self) -> bool {
        // SAFETY: RING-U1: this is the ring's thread.
        let queue = unsafe { self.uring.submission_shared() };
        queue.taskrun() || queue.cq_overflow()
    }

    /// How many completions fit.
    pub(crate) fn completions_max(&self) -> u32 {
        self.uring.params().cq_entries()
    }

    /// Puts an entry into the submission queue; false if that is full.
    ///
    /// # Safety
    ///
    /// One call for the submission queue at a time. The memory behind the entry lives until it
    /// completes.
    pub(crate) unsafe fn push(&self, entry: &Entry) -> bool {
        // SAFETY: as above.
        unsafe { self.uring.submission_shared().push(entry).is_ok() }
    }

    /// How many entries the kernel has not taken.
    ///
    /// # Safety
    ///
    /// As for [`Uring::push`].
    pub(crate) unsafe fn queued(&self) -> u32 {
        // SAFETY: as above.
        unsafe { self.uring.submission_shared().len() as u32 }
    }

    /// Has the kernel take `submit` entries, and then, if it took so many, waits for `completions`
    /// or for `timeout` (`ETIME`). Returns how many it took. Work that it has left to this thread
    /// is done.
    pub(crate) fn enter(
        &self,
        submit: u32,
        completions: u32,
        timeout: Option<Duration>,
    ) -> io::Result<u32> {
        let submitter = self.uring.submitter();
        let flags = ENTER_GETEVENTS;
        let taken = match timeout {
            // SAFETY: no argument is passed, and entries were sound when pushed.
            None => unsafe { submitter.enter::<libc::sigset_t>(submit, completions, flags, None) },
            Some(timeout) => {
                let timeout = Timespec::from(timeout);
                let args = SubmitArgs::new().timespec(&timeout);
                // SAFETY: the argument is of the type that the flag requires, and lives as long as
                // the call.
                unsafe { submitter.enter(submit, completions, flags | ENTER_EXT_ARG, Some(&args)) }
            }
        };
        taken.map(|taken| taken as u32)
    }

    /// Takes the completions.
    ///
    /// # Safety
    ///
    /// One call at a time.
    pub(crate) unsafe fn completions(&self, taken: &mut Vec<Completed>) {
        // SAFETY: as above.
        let completions = unsafe { self.uring.completion_shared() };
        taken.extend(completions.map(|entry| Completed {
            token: entry.user_data(),
            result: entry.result(),
            has_more: cqueue::more(entry.flags()),
        }));
    }
}

/// An entry that does nothing, to see whether the ring can be used.
pub(crate) fn trial() -> Entry {
    opcode::Nop::new().build()
}

/// The entry that completes at each ring of the bell, until it does so without more to come.
pub(crate) fn listening(uring: &Uring, token: u64) -> Entry {
    let bell = Fd(uring.bell.as_raw_fd());
    opcode::PollAdd::new(bell, libc::POLLIN as u32).multi(true).build().user_data(token)
}

/// The entry for the rest of an operation. `blocks`: the kernel shall not try first whether it can
/// be done at once.
pub(crate) fn entry(work: &mut Work, token: u64, blocks: bool) -> Entry {
    let flags = if blocks { Flags::ASYNC } else { Flags::empty() };
    prepare(work).flags(flags).user_data(token)
}

fn prepare(work: &mut Work) -> Entry {
    let done = work.done;
    let at = |offset: u64| offset + done as u64;
    match &mut work.op {
        Op::Read { fd, buf, offset } => {
            let rest = &mut buf.make_mut()[done..];
            let len = rest.len().min(ENTRY_BYTES_MAX) as u32;
            opcode::Read::new(Fd(fd.as_fd().as_raw_fd()), rest.as_mut_ptr(), len)
                .offset(at(*offset))
                .build()
        }
        Op::Write { fd, bufs, offset } if bufs.len() == 1 => {
            let rest = &bufs[0][done..];
            let len = rest.len().min(ENTRY_BYTES_MAX) as u32;
            opcode::Write::new(Fd(fd.as_fd().as_raw_fd()), rest.as_ptr(), len)
                .offset(at(*offset))
                .build()
        }
        Op::Write { fd, offset, .. } => {
            let (fd, offset) = (Fd(fd.as_fd().as_raw_fd()), at(*offset));
            let mut iovecs = std::mem::take(&mut work.iovecs.0);
            iovecs.clear();
            iovecs.extend(work.rest(IOVECS_MAX).map(|rest| libc::iovec {
                iov_base: rest.as_ptr().cast_mut().cast(),
                iov_len: rest.len(),
            }));
            work.iovecs.0 = iovecs;
            let iovecs = &work.iovecs.0;
            opcode::Writev::new(fd, iovecs.as_ptr(), iovecs.len() as u32).offset(offset).build()
        }
        Op::Fdatasync { fd } => {
            opcode::Fsync::new(Fd(fd.as_fd().as_raw_fd())).flags(FsyncFlags::DATASYNC).build()
        }
        Op::Fallocate { fd, mode, offset, len } => {
            opcode::Fallocate::new(Fd(fd.as_fd().as_raw_fd()), *len)
                .offset(*offset)
                .mode(*mode)
                .build()
        }
        Op::Blocking(_) => unreachable!("goes to a thread"),
    }
}
