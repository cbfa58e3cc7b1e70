//! The memory of an entry, and the lease that says whose it is.
//!
//! A page with the headers and the two `iovec`s that describe the entry, then the payload. The
//! kernel reads and writes it only inside `io_uring_enter` of the queue's thread, and only while
//! the entry is in its hand (URING-U2). Between a completion and the commit that answers it a
//! [`Lease`] is the only way to the memory (URING-U1): it can be sent to other threads, is not
//! cloned, and borrows as usual. Its safety rests on being made nowhere but in `ring`, once for
//! each completion.

#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;

use rustix::mm::{Advice, madvise};
use zerocopy::{FromBytes, IntoBytes};

use super::mailbox::{Answered, Mailbox};
use crate::Errno;
use crate::protocol::{Answer, wire};

const PAGE: usize = 4096;
/// Where in the first page the `iovec`s are.
const IOVECS: usize = 1024;
const _: () = assert!(size_of::<wire::RingHeaders>() <= IOVECS);

/// An entry's memory. The C library maps it and unmaps it: ThreadSanitizer knows of its calls, and
/// so does not take the next owner of an address for a thread that races with the last.
pub(super) struct Slot {
    place: NonNull<u8>,
    payload_bytes: usize,
    /// The queue that it belongs to.
    pub(super) queue: u16,
}

// SAFETY: the memory belongs to no thread; URING-U1 and URING-U2 say which one may touch it.
unsafe impl Send for Slot {}
// SAFETY: as above; a shared slot gives out addresses, the rest is `Lease`.
unsafe impl Sync for Slot {}

impl Slot {
    /// `payload_bytes`: whole pages.
    pub(super) fn new(queue: u16, payload_bytes: usize) -> io::Result<Slot> {
        assert_eq!(payload_bytes % PAGE, 0);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let bytes = PAGE + payload_bytes;
        // SAFETY: a new mapping, wherever the kernel wants it.
        let place = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) };
        if place == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let place = NonNull::new(place.cast::<u8>()).expect("no mapping is at 0");
        let slot = Slot { place, payload_bytes, queue };
        let iovec = |start: usize, iov_len| libc::iovec {
            // SAFETY: the start is within the mapping.
            iov_base: unsafe { place.as_ptr().add(start) }.cast(),
            iov_len,
        };
        let iovecs = [iovec(0, size_of::<wire::RingHeaders>()), iovec(PAGE, payload_bytes)];
        // SAFETY: within the first page, which is writable, aligned, and not yet shared.
        unsafe { slot.iovecs().cast_mut().cast::<[libc::iovec; 2]>().write(iovecs) };
        Ok(slot)
    }

    /// Two of them, for the kernel to read when the entry is registered.
    pub(super) fn iovecs(&self) -> *const libc::iovec {
        // SAFETY: within the mapping.
        unsafe { self.place.as_ptr().add(IOVECS) }.cast()
    }

    fn payload(&self) -> NonNull<u8> {
        // SAFETY: within the mapping.
        unsafe { self.place.add(PAGE) }
    }

    /// Gives the payload's pages back to the system; they read as zeros afterwards.
    ///
    /// # Safety
    /// The entry must be in the kernel's hand, its commit submitted, outside `io_uring_enter`, with
    /// no completion that has not been taken (URING-U2): then nothing of worth is there, and it
    /// has no reader.
    pub(super) unsafe fn trim(&self) {
        // SAFETY: the range is this slot's own mapping, whose content the caller discards.
        let _kept = unsafe {
            madvise(self.payload().as_ptr().cast(), self.payload_bytes, Advice::LinuxDontNeed)
        };
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // SAFETY: URING-U4, the mapping is no longer referenced.
        let failed = unsafe { libc::munmap(self.place.as_ptr().cast(), PAGE + self.payload_bytes) };
        debug_assert_eq!(failed, 0);
    }
}

/// The right to an entry, from the completion that reported its request to the answer. Dropping it
/// answers EIO.
pub(crate) struct Lease {
    slot: Arc<Slot>,
    index: u32,
    commit_id: u64,
    mailbox: Arc<Mailbox>,
    answered: bool,
    /// Bytes of payload, of the request or the answer.
    used: usize,
}

/// A payload of so many bytes leaves many pages behind.
const LARGE: usize = 16 << 10;

impl Lease {
    /// # Safety
    /// URING-U1: a completion has reported a request in the entry, and no lease exists for it yet.
    pub(super) unsafe fn new(slot: Arc<Slot>, index: u32, mailbox: Arc<Mailbox>) -> Lease {
        let mut lease = Lease { slot, index, commit_id: 0, mailbox, answered: false, used: 0 };
        lease.commit_id = lease.headers().commit_id;
        lease.used = lease.payload().len();
        lease
    }

    fn headers(&self) -> &wire::RingHeaders {
        // SAFETY: URING-U1, this lease is the only way to the memory, which is aligned, was zeroed,
        // and is of a type for which all bytes are good.
        unsafe { self.slot.place.cast::<wire::RingHeaders>().as_ref() }
    }

    fn headers_mut(&mut self) -> &mut wire::RingHeaders {
        // SAFETY: URING-U1, and `self` is borrowed exclusively.
        unsafe { self.slot.place.cast::<wire::RingHeaders>().as_mut() }
    }

    fn room(&mut self) -> &mut [u8] {
        // SAFETY: URING-U1, exclusively borrowed; the mapping has so many bytes there.
        unsafe { slice::from_raw_parts_mut(self.slot.payload().as_ptr(), self.slot.payload_bytes) }
    }

    /// The bytes that came beside the headers.
    pub(crate) fn payload(&self) -> &[u8] {
        let len = (self.headers().payload_size as usize).min(self.slot.payload_bytes);
        // SAFETY: URING-U1, borrowed; the mapping has so many bytes there.
        unsafe { slice::from_raw_parts(self.slot.payload().as_ptr(), len) }
    }

    pub(crate) fn header(&self) -> wire::InHeader {
        let (header, _) = wire::InHeader::read_from_prefix(self.headers().in_out.as_bytes())
            .expect("the place is larger");
        header
    }

    /// The operation's own header: the bytes of the message beyond its header and the payload.
    /// `None` when that makes no sense.
    pub(crate) fn argument(&self) -> Option<&[u8]> {
        let len = (self.header().len as usize)
            .checked_sub(size_of::<wire::InHeader>())?
            .checked_sub(self.headers().payload_size as usize)?;
        self.headers().op_in.as_bytes().get(..len)
    }

    /// Answers the request, whose number is `unique`.
    pub(crate) fn answer(mut self, unique: u64, answer: &Answer) {
        if answer.body_len() > self.slot.payload_bytes {
            tracing::error!(unique, ?answer, "an answer is larger than any may be; sent EIO");
            return self.answer(unique, &Answer::error(Errno::EIO));
        }
        self.put(unique, answer);
    }

    fn put(&mut self, unique: u64, answer: &Answer) {
        answer.write_body(self.room());
        let header = answer.header(unique);
        let headers = self.headers_mut();
        headers.in_out.as_mut_bytes()[..size_of::<wire::OutHeader>()]
            .copy_from_slice(header.as_bytes());
        headers.payload_size = answer.body_len() as u32;
        self.used = self.used.max(answer.body_len());
        self.answered = true;
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.answered {
            let unique = self.header().unique;
            self.put(unique, &Answer::error(Errno::EIO));
        }
        // From here on the memory is the ring's.
        let was_large = self.used > LARGE;
        self.mailbox.post(Answered { index: self.index, commit_id: self.commit_id, was_large });
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "entry {} of queue {}", self.index, self.slot.queue)
    }
}
