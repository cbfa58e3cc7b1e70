//! The private ioctls of directories of a mount, through which programs ask its daemon.
//!
//! One commits everything, one describes the pool, one carries questions about tenants and their
//! answers ([`crate::wire`]), all as JSON. They go through the mount itself, so there is nothing to
//! find, to authenticate or to clean up.

use copyhold_fuse::ask::Command;

/// Group of our private ioctl numbers.
const GROUP: u8 = b'C';
/// Commits everything; returns when it is durable.
pub const SYNC: Command = Command::bare(GROUP, 1);
/// Reports the state of the pool, as JSON.
pub const INFO: Command = Command::answering(GROUP, 2, 12 << 10);
/// The attribute whose value is the token of the directory on which it is set: the kernel checks
/// that the caller's mount permits writes, and the daemon notes that for the token.
pub const CHECKED: &str = "system.copyhold.checked";
/// The attribute that is the checksum mode of a file's new extents (`item`, `guard`,
/// `offload`, `none`). It is not listed.
pub const CHECKSUM: &str = "system.copyhold.checksum";
/// The attribute that is the mode which these extents get on the pool's device. It is only read.
pub const CHECKSUM_IN_EFFECT: &str = "system.copyhold.checksum_in_effect";
/// A question about tenants.
pub const TENANTS: Command = Command::exchanging(GROUP, 3, (16 << 10) - 8);
