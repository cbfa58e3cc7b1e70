//! The log: an endless sequence of blocks kept in a ring, twice.
//!
//! Problem.  Every metadata change of the pool is in the log before it is anywhere else. One bad
//!           sector in the middle must not end it, a torn write at its end must.
//! Idea.     [`Ring`] maps positions to blocks of two copies and does the I/O; [`Appender`]
//!           chooses the place of the next frame and never lets it overwrite frames that an
//!           uberblock needs; [`recover`] reads both copies, puts frames together from the blocks
//!           of both, and follows the chain of batches.
//!
//! LOG-K1  A frame is written to a position at most once in a lap, by one writer.
//! LOG-K2  Positions from the head of the last three uberblocks on are never overwritten (rule R6).
//! LOG-K3  Recovery ends at a batch with no valid batch behind it, or in [`Damage`]; or it is
//!         [`Unreadable`] where a batch may be behind it that cannot be read.
//!
//! Order.    pieces → (data flush) → batch → flush → acknowledgement → the next batch.

#![forbid(unsafe_code)]

mod appender;
mod assemble;
mod batch;
mod end;
mod lap;
mod recover;
mod ring;
mod scan;

pub use appender::{Appender, RingFull, UBERBLOCKS_KEPT};
pub use batch::RecoveredBatch;
pub use recover::{Damage, Recovered, Unreadable, recover, recover_readable};
pub use ring::{Broken, Ring};
pub use scan::{Found, Scan};
