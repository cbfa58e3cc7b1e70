//! Namespaces of NVMe drives that have protection information, by passthrough.
//!
//! Problem.  The kernel's block device makes and strips tuples by itself, where it knows the format
//!           at all: a program neither gives a guard nor learns which check has failed.
//! Idea.     The character device of the namespace (`/dev/ngXnY`) takes commands as the drive has
//!           them. This device builds them: guards and births go to the drive with each write, and
//!           the drive's status comes back as
//!           [`DeviceError::Integrity`](crate::DeviceError::Integrity).
//!
//! ```text
//!   device        requests of the engine, each on a thread
//!   open          the node: kind, locks
//!   kernel        its block device in sysfs: node, limits
//!   identify      pages of the drive about the namespace, as untrusted bytes
//!   unique        the number of the namespace in them
//!   drive         a request as commands, and their answers
//!   repeat        commands that a reset has ended, once more
//!   command       fields of a command, and the seam to a drive
//!   passthrough   the seam on Linux: an ioctl; all the unsafe code
//! ```
//!
//! NVME-N1  A namespace has one writer: the node and the kernel's block device of the same
//!          namespace are locked, and the block device is claimed, so neither is mounted or written
//!          beside this device, also not as a pool. Readers lock both shared.
//! NVME-N2  Every request keeps the node open until its last command has ended, also when its
//!          future is dropped.
//! NVME-N3  Content and answers are those of the emulated namespace of the same format (`pi`),
//!          except that a refused write may store commands before the refused one.
//!
//! Cost: one blocking call of a thread for each request, in which its commands follow each other;
//! a request of several buffers is joined by a copy first. Metadata are transferred with guards of
//! the host, and with all requests if the format has more metadata than the tuple.

mod command;
mod device;
mod drive;
mod identify;
mod kernel;
#[cfg(test)]
mod model;
mod open;
mod passthrough;
mod repeat;
mod unique;

pub use device::NvmeDevice;
pub use identify::{
    IdentifyProblem, Identity, Lie, MOST_BLOCKS, PAGE_BYTES, Pages, has_wide_guards,
};
pub use open::is_namespace;
