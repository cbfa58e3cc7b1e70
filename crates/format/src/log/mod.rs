//! The log on disk: frames in a ring of blocks, kept twice.
//!
//! A *position* counts blocks since the pool was created; block `position % ring` of each copy of
//! the ring holds it, so a frame left from an earlier lap is known by the position it carries. A
//! frame is a header of 128 bytes and a payload, filled up to whole blocks, never across the
//! ring's end. Its digest is seeded with the pool's secret.
//!
//! ```text
//!   piece   records of one txg, written as they gather, without a flush
//!   batch   closes a txg: names its pieces and their digests, the digest of the batch before,
//!           the highest txg known durable, the table of tables, and the last records
//!   mark    "txg n is durable", without a flush, when the pool falls idle (rule R14)
//! ```
//!
//! LOGFMT-G1  A batch is written only when the batch before it is durable. So a batch that verifies
//!            is proof that all before it were complete: only the last may ever be cut (rule R2).
//! LOGFMT-G2  Records are absolute and in the order of their transactions per key (rules R1, R5).

mod batch;
mod frame;
mod record;

pub use batch::{Batch, PieceRef};
pub use frame::{Frame, FrameHead, FrameKind, HEADER_BYTES, Payload, encode_frame};
pub use record::{Record, RecordWriter, Records};
