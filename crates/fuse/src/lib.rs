//! The mount: our own thin FUSE transport.
//!
//! Problem.  The mount is what users touch. It must carry every operation that the kernel forwards,
//!           answer quick requests without allocating, waking or switching threads,
//!           and never let a waiting operation hold a thread.
//! Idea.     [`Operations`] is the interface of a filesystem: one async method per operation. The
//!           protocol ([`protocol`]) is parsed and written in one place, without I/O. A back end
//!           carries messages: `/dev/fuse`, with a cloned descriptor for each reader, or a ring,
//!           with a thread on each CPU.
//! Order.    [`mount::Mount::new`] makes the mount, [`Session::start`] agrees with the kernel and
//!           starts the readers, [`Session::wait`] returns when everything is unmounted, finished
//!           and durable.
//!
//! The filesystem below knows nothing of FUSE, and nothing here knows the layout on disk.

// A front end: readers are threads.
#![allow(clippy::disallowed_methods)]
// Except in `sys`, which has the calls that no crate wraps, and `uring`, which shares memory with
// the kernel.
#![deny(unsafe_code)]

pub mod ask;
mod backlog;
pub mod daemon;
mod desk;
mod device;
mod dispatch;
mod errno;
mod fair;
mod interrupt;
pub mod loopback;
#[cfg(shuttle)]
pub mod models;
pub mod mount;
mod operations;
mod parking;
mod payload;
mod place;
pub mod protocol;
mod reader;
mod session;
mod signals;
mod spawn;
#[cfg(test)]
mod stub;
mod sys;
mod transport;
mod uring;

pub use device::End;
pub use errno::Errno;
pub use fair::Share;
pub use operations::{Operations, Reply};
pub use payload::Payload;
pub use session::{
    Counters, CountersFn, Listener, Notifier, Session, SessionError, SessionOptions,
};
pub use signals::{Signals, fail_writes_beyond_limits};
pub use spawn::{Spawner, ThreadPerTask};
pub use transport::Transport;
