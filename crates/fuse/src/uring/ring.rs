//! One io_uring with the entries of its queues: commands in, requests out.
//!
//! Only the queue's thread uses it. It knows which entries are in the kernel's hand, and makes the
//! lease when one comes back with a request; nothing else does (URING-U1). Pushed commands go to
//! the kernel with the next [`Ring::enter`].

#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use copyhold_runtime::is_shortage;
use io_uring::squeue::Entry128;
use io_uring::types::Fd;
use io_uring::{IoUring, cqueue, opcode};
use zerocopy::IntoBytes;

use super::mailbox::{Answered, Mailbox};
use super::slot::{Lease, Slot};
use crate::device::Device;
use crate::protocol::wire;

/// Marks the completion that reports the mailbox's bell.
const BELL: u64 = u64::MAX;
/// Marks completions without a receiver.
const NOBODY: u64 = u64::MAX - 1;
/// Commands that fit between two calls of the kernel; more are handed over in between.
const COMMANDS: u32 = 128;
/// Completions that fit; the kernel keeps more for later.
const COMPLETIONS: u32 = 1024;
/// Where `len` is in the kernel's `io_uring_sqe`.
const SQE_LEN: usize = 24;
/// A queue that no machine has.
const NO_QUEUE: u16 = u16::MAX;

/// An event that came out of the kernel.
#[derive(Debug)]
pub(super) enum Event {
    Request(Lease),
    /// The kernel returned an entry without a request, permanently; an errno is the reason.
    Lost(i32),
}

struct Held {
    slot: Arc<Slot>,
    in_kernel: bool,
    /// It keeps the pages that it has used.
    keeps: bool,
    /// Its payload may have many pages that were used, and does not keep them.
    is_fat: bool,
}

pub(super) struct Ring {
    uring: IoUring<Entry128>,
    device: Device,
    mailbox: Arc<Mailbox>,
    entries: Vec<Held>,
    /// For each queue served here: its number, and how many of its entries the kernel has.
    queues: Vec<(u16, usize)>,
    /// The bell is being listened to.
    listens: bool,
    /// How many more entries may keep the pages that they have used.
    kept: usize,
    has_fat: bool,
    /// Errors of the next calls of the kernel, the last first.
    #[cfg(test)]
    refusals: Vec<i32>,
}

impl Ring {
    /// Made by the thread that will use it.
    /// `kept`: how many entries may keep all memory that they have used.
    pub(super) fn new(
        device: Device,
        mailbox: Arc<Mailbox>,
        queues: &[u16],
        kept: usize,
    ) -> io::Result<Ring> {
        let mut uring = IoUring::<Entry128, cqueue::Entry>::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_submit_all()
            .setup_cqsize(COMPLETIONS)
            .build(COMMANDS)?;
        // A filter may allow to make a ring, but not to use it.
        let nop = Entry128::from(opcode::Nop::new().build().user_data(NOBODY));
        // SAFETY: it refers to nothing.
        unsafe { uring.submission().push(&nop) }.expect("the queue is empty");
        uring.submit_and_wait(1)?;
        uring.completion().for_each(drop);
        let queues = queues.iter().map(|queue| (*queue, 0)).collect();
        let (entries, listens, has_fat) = (Vec::new(), false, false);
        Ok(Ring {
            uring,
            device,
            mailbox,
            entries,
            queues,
            listens,
            kept,
            has_fat,
            #[cfg(test)]
            refusals: Vec::new(),
        })
    }

    /// Offers the kernel a new entry of `queue`; a loss is an event.
    pub(super) fn register(&mut self, queue: u16, payload_bytes: usize) -> io::Result<()> {
        let slot = Arc::new(Slot::new(queue, payload_bytes)?);
        let command = wire::RingCommand { queue, ..Default::default() };
        let index = self.entries.len();
        let entry = self.command(wire::RING_REGISTER, &command, &slot, index as u64);
        self.entries.push(Held { slot, in_kernel: false, keeps: false, is_fat: false });
        self.push(&entry)?;
        self.hand_over(index);
        Ok(())
    }

    /// Has the kernel do without the ring, if no queue has all of its entries yet.
    pub(super) fn refuse(&mut self) -> io::Result<()> {
        let slot = Slot::new(NO_QUEUE, 4096)?;
        let command = wire::RingCommand { queue: NO_QUEUE, ..Default::default() };
        let entry = self.command(wire::RING_REGISTER, &command, &slot, NOBODY);
        self.push(&entry)?;
        // Refused or not, the kernel has read the entry when this returns.
        self.enter(0)
    }

    /// Answers an entry's request, and fetches the next request into it.
    pub(super) fn commit(&mut self, answered: Answered) -> io::Result<()> {
        let index = answered.index as usize;
        let Held { slot, in_kernel, keeps, is_fat } = &mut self.entries[index];
        assert!(!*in_kernel, "URING-U1: an entry is answered once");
        if answered.was_large && !*keeps {
            // The kernel takes the entry that was used last, so it is the first few.
            *keeps = self.kept > 0;
            self.kept = self.kept.saturating_sub(1);
            *is_fat |= !*keeps;
        }
        self.has_fat |= *is_fat;
        let (queue, commit_id) = (slot.queue, answered.commit_id);
        let command = wire::RingCommand { queue, commit_id, ..Default::default() };
        let slot = Arc::clone(slot);
        let entry = self.command(wire::RING_COMMIT_AND_FETCH, &command, &slot, index as u64);
        self.push(&entry)?;
        self.hand_over(index);
        Ok(())
    }

    /// How many entries of each queue the kernel has.
    pub(super) fn queues(&self) -> &[(u16, usize)] {
        &self.queues
    }

    /// Neither entries nor anything else is in the kernel's hand.
    pub(super) fn is_empty(&self) -> bool {
        !self.listens && self.queues.iter().all(|(_, count)| *count == 0)
    }

    /// Hears the mailbox's bell once more; it is an end of waiting.
    pub(super) fn listen(&mut self) -> io::Result<()> {
        if self.listens {
            return Ok(());
        }
        let bell = Fd(self.mailbox.bell().as_raw_fd());
        let poll = opcode::PollAdd::new(bell, libc::POLLIN as u32).build().user_data(BELL);
        self.push(&Entry128::from(poll))?;
        self.listens = true;
        Ok(())
    }

    /// Submits the pushed commands, and waits for `completions`.
    pub(super) fn enter(&mut self, completions: usize) -> io::Result<()> {
        loop {
            match self.submit_and_wait(completions) {
                Ok(()) => return Ok(()),
                Err(error) if is_shortage(&error) => std::thread::yield_now(),
                Err(error) => return Err(error),
            }
        }
    }

    fn submit_and_wait(&mut self, completions: usize) -> io::Result<()> {
        #[cfg(test)]
        if let Some(errno) = self.refusals.pop() {
            return Err(io::Error::from_raw_os_error(errno));
        }
        self.uring.submit_and_wait(completions).map(drop)
    }

    /// Takes completions.
    pub(super) fn reap(&mut self, events: &mut Vec<Event>) {
        for completion in self.uring.completion() {
            match completion.user_data() {
                NOBODY => {}
                BELL => {
                    self.listens = false;
                    self.mailbox.hush();
                }
                index => {
                    let index = index as usize;
                    let held = &mut self.entries[index];
                    assert!(held.in_kernel, "URING-U1: an entry completes once");
                    held.in_kernel = false;
                    count(&mut self.queues, held.slot.queue, |count| *count -= 1);
                    events.push(match completion.result() {
                        0 => {
                            let (slot, mailbox) = (held.slot.clone(), self.mailbox.clone());
                            // SAFETY: URING-U1, the entry was in the kernel's hand and has
                            // completed.
                            Event::Request(unsafe { Lease::new(slot, index as u32, mailbox) })
                        }
                        error => Event::Lost(-error),
                    });
                }
            }
        }
    }

    /// Returns the pages of entries that were added, were used for large requests, and wait for
    /// another. Right after [`Ring::reap`].
    pub(super) fn trim(&mut self) {
        if !self.has_fat {
            return;
        }
        let commands = self.uring.submission();
        // A commit that is still here has its answer in the entry; a completion that did not fit
        // has its request there.
        let kernel_has_all = commands.is_empty() && !commands.cq_overflow();
        drop(commands);
        if !kernel_has_all {
            return;
        }
        for held in self.entries.iter_mut().filter(|held| held.is_fat && held.in_kernel) {
            // SAFETY: URING-U2, it is in the kernel's hand, all commands have been submitted, all
            // completions taken, and this thread, the only one that enters the kernel for this
            // ring, is here.
            unsafe { held.slot.trim() };
            held.is_fat = false;
        }
        self.has_fat = self.entries.iter().any(|held| held.is_fat);
    }

    fn hand_over(&mut self, index: usize) {
        let held = &mut self.entries[index];
        held.in_kernel = true;
        count(&mut self.queues, held.slot.queue, |count| *count += 1);
    }

    fn command(
        &self,
        op: u32,
        command: &wire::RingCommand,
        slot: &Slot,
        user_data: u64,
    ) -> Entry128 {
        let mut bytes = [0; 80];
        bytes[..size_of::<wire::RingCommand>()].copy_from_slice(command.as_bytes());
        let mut entry = opcode::UringCmd80::new(Fd(self.device.as_raw_fd()), op)
            .cmd(bytes)
            .addr(Some(slot.iovecs().addr() as u64))
            .build()
            .user_data(user_data);
        // SAFETY: an `Entry128` is the kernel's `io_uring_sqe` of 128 bytes, for which `len` is a
        // plain number; the crate has no way to set it for this operation.
        unsafe { (&raw mut entry).cast::<u8>().add(SQE_LEN).cast::<u32>().write(2) };
        entry
    }

    fn push(&mut self, entry: &Entry128) -> io::Result<()> {
        // SAFETY: it points to the memory of an entry that is kept until the kernel has given it
        // back (URING-U4), or is read before `refuse` returns.
        while unsafe { self.uring.submission().push(entry) }.is_err() {
            self.enter(0)?;
        }
        Ok(())
    }
}

fn count(queues: &mut [(u16, usize)], queue: u16, change: impl FnOnce(&mut usize)) {
    let found = queues.iter_mut().find(|(number, _)| *number == queue);
    change(&mut found.expect("an entry is of a queue that is served here").1);
}

impl Drop for Ring {
    fn drop(&mut self) {
        if !self.is_empty() {
            // URING-U4: an early end leaves the memory to the kernel.
            self.entries.drain(..).for_each(|held| std::mem::forget(held.slot));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ring that hears its bell, and no more: its device is none.
    fn ring(mailbox: &Arc<Mailbox>) -> Ring {
        let device = Device::new(std::fs::File::open("/dev/null").unwrap().into());
        Ring::new(device, Arc::clone(mailbox), &[0], 0).unwrap()
    }

    #[test]
    fn a_shortage_of_memory_is_waited_for_and_anything_else_is_an_error() {
        let mailbox = Arc::new(Mailbox::new().unwrap());
        let mut ring = ring(&mailbox);
        ring.listen().unwrap();
        ring.refusals = vec![libc::ENOMEM, libc::EINTR, libc::EBUSY, libc::EAGAIN, libc::ENOMEM];
        mailbox.close();
        ring.enter(1).unwrap();
        assert!(ring.refusals.is_empty());
        ring.reap(&mut Vec::new());
        assert!(ring.is_empty(), "the bell was heard");
        ring.refusals = vec![libc::EBADF];
        assert_eq!(ring.enter(0).unwrap_err().raw_os_error(), Some(libc::EBADF));
    }
}
