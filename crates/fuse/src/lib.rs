//! The mount: our own thin FUSE transport.

mod errno;
pub mod protocol;

pub use errno::Errno;
