//! Protection information: a checksum and tags that travel beside each block.
//!
//! Problem.  A checksum that only the host knows finds damage when the source is gone. A device
//!           that verifies one by itself does so at the write; but its checksum agrees with an old
//!           block, too, and nothing on the medium says that a write is missing.
//! Idea.     Each block has a tuple: a guard over its content, and tags that the host binds to its
//!           place and to the time of its write. The device verifies both ways, the host again at
//!           the read. `docs/integrity.md` has the formats, the tags and the failures.
//!
//! ```text
//!   format      which tuple, where, of which blocks; its name in words
//!   guard       the three checksums
//!   tuple       bytes of a tuple, and its comparison with tags
//!   command     the effect of a read or write on data and metadata, as a drive has it
//!   host        tags of places and births, and the host's verification
//!   judge       commands of requests, and the answers to them as errors
//!   emulated    a namespace on any device: places in `layout`, changes in `entries`,
//!               identity in `header`, twice (`headers`), which `mend` writes again; `faults`
//!               for tests
//! ```
//!
//! Tuples do not leave this module: callers give guards and a birth, and get content or
//! [`DeviceError::Integrity`](crate::DeviceError::Integrity).

mod command;
mod emulated;
mod entries;
mod faults;
mod format;
mod guard;
mod header;
mod headers;
mod host;
mod judge;
mod layout;
mod mend;
mod tuple;

pub use command::{Command, Refusal, Status};
pub use emulated::{Emulated, open};
pub use faults::DriveFault;
#[cfg(test)]
pub(crate) use format::tests::formats;
pub use format::{Format, FormatError, Place, Type};
pub use guard::Guard;
pub use header::{Features, Header, HeaderProblem, header_digest};
pub use headers::{erase_headers, sizes_by_headers};
pub use host::{Guards, Kind};
pub(crate) use judge::Request;
pub use mend::{Headers, Remake, look_at_headers, mend_headers, remake_headers};
pub use tuple::{Checks, Tags, Tuple};
