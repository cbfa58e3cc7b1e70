//! The nouns of Copyhold: numbers with a meaning, addresses, keys, buffers, purposes. No I/O.
//!
//! Every other crate may use this one; it uses none. A type here has arithmetic only where that
//! means something, and a fixed width because most of them reach the disk.

#![forbid(unsafe_code)]

mod address;
mod block;
mod buf;
mod ids;
mod key;
mod pointer;
mod purpose;
mod spare;
mod time;

pub use address::{BLOCK_BYTES, BlockAddr, DeviceId, Run};
pub use buf::{Buf, Bufs};
pub use ids::{EpochId, Incarnation, InodeNo, PoolId, SubvolId, TableId, Txg};
pub use key::{Key, Kind};
pub use pointer::{Digest, NodePtr, Pointer};
pub use purpose::Purpose;
pub use spare::keep_spare;
pub use time::{Nanos, Timestamp};
