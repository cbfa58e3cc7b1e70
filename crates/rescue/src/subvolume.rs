//! Subvolumes (`docs/format.md`, 9.1): which there are, and where their files are.

use crate::bytes::Bytes;
use crate::damage::{Parse, demand};

/// A subvolume that lives; one that is being deleted shows no files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subvolume {
    pub id: u32,
    pub read_only: bool,
    /// The subvolume that this one is a snapshot of; that one may be gone.
    pub origin: Option<u32>,
    /// The subvolume and directory that have its entry; the root subvolume names itself.
    pub holder: u32,
    pub directory: u64,
    pub(crate) table: u64,
}

/// The root subvolume.
pub const ROOT_SUBVOLUME: u32 = 1;

impl Subvolume {
    /// Nothing, if it is being deleted.
    pub(crate) fn parse(id: u64, value: &[u8]) -> Parse<Option<Subvolume>> {
        let id = u32::try_from(id).ok().filter(|id| id >> 28 == 0).ok_or("no such number")?;
        let mut bytes = Bytes(value);
        let table = bytes.u64()?;
        bytes.take(16)?;
        let flags = bytes.u64()?;
        demand(flags <= 1, "flags that this program does not know")?;
        bytes.take(16 + 12)?;
        let state = bytes.u8()?;
        bytes.take(3 + 16)?;
        let (holder, origin, directory) = (bytes.u32()?, bytes.u32()?, bytes.u64()?);
        bytes.take(24)?;
        bytes.end()?;
        let origin = Some(origin).filter(|origin| *origin != 0);
        let read_only = flags == 1;
        let found = Subvolume { id, read_only, origin, holder, directory, table };
        Ok((state == 0).then_some(found))
    }
}
