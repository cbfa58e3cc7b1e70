//! Headers of a namespace that are written again.
//!
//! Problem.  A header is written once. A copy that rots stays bad until the other rots, too, and
//!           then the namespace is lost, with all its blocks whole.
//! Idea.     A rotten copy is written from the good one. If both are rotten, the owner of the data
//!           may know the format and the identity: the other fields follow from the size. A wrong
//!           guess would look for tuples in the wrong place, and a namespace whose tuples were
//!           erased would vouch for nothing; so each block that the owner names must have its
//!           tuple before anything is written.
//!
//! PIMEND-M1  A header is only written over a rotten copy (PICOPY-C1); each copy is durable
//!            before the next is touched, so a crash leaves no fewer good ones.
//! PIMEND-M2  Headers are made anew only where all known blocks have their tuples.

use std::sync::Arc;

use copyhold_runtime::Rt;
use copyhold_types::{Buf, Purpose};

use super::emulated::{Emulated, unusable};
use super::header::{Header, HeaderProblem};
use super::headers::Copies;
use super::layout::HEADERS;
use super::{Checks, Format, Tags, Tuple};
use crate::{DeviceError, DynDevice, OpenMode};

/// The state of both copies on a device.
pub enum Headers {
    /// One is good, at least: its namespace, for reading, and the blocks of rotten copies.
    Good { namespace: Arc<Emulated>, rotten: Vec<u64> },
    /// They are rotten, or there are none.
    Lost,
    /// None is known to be good, and one cannot be read now.
    Unread(DeviceError),
    /// They are of a namespace that this program cannot use.
    Unusable(HeaderProblem),
}

/// Looks at both copies.
pub async fn look_at_headers(rt: Rt, below: &DynDevice) -> Headers {
    let Some(copies) = Copies::read(below).await else { return Headers::Lost };
    match copies.find() {
        Some(Ok(header)) => {
            let (mode, rotten) = (OpenMode::ReadOnly, copies.rotten());
            let namespace = Emulated::over(rt, below.clone(), header, mode, copies.defects());
            Headers::Good { namespace, rotten }
        }
        None | Some(Err(HeaderProblem::Damaged)) => match copies.unread() {
            Some(error) => Headers::Unread(error.clone()),
            None => Headers::Lost,
        },
        Some(Err(problem)) => Headers::Unusable(problem),
    }
}

/// Writes this good header over rotten copies.
pub async fn mend_headers(
    below: &DynDevice,
    header: &Header,
    rotten: &[u64],
) -> Result<(), DeviceError> {
    let unusable = |problem| unusable(below.geometry().name, problem);
    header.check_writable().map_err(unusable)?;
    write_headers(below, header, rotten).await
}

/// Makes both headers anew where they are lost. `known` are blocks that were written without a
/// birth: each must have its tuple (PIMEND-M2).
///
/// # Errors
/// A tuple is not where the header would say, or no block is known: nothing is written then. Or
/// the device fails.
pub async fn remake_headers(
    rt: Rt,
    below: &DynDevice,
    (format, identity): (Format, [u8; 16]),
    known: &[u64],
) -> Result<Vec<u64>, Remake> {
    let blocks = below.geometry().blocks;
    let unusable = |problem| Remake::Device(unusable(below.geometry().name, problem));
    let header = Header::new(identity, format, blocks).map_err(unusable)?;
    let namespace = Emulated::over(rt, below.clone(), header, OpenMode::ReadOnly, Vec::new());
    if known.is_empty() {
        return Err(Remake::NothingKnown);
    }
    for block in known {
        if !has_tuple(&namespace, *block).await {
            return Err(Remake::NoTuple { block: *block });
        }
    }
    let both: Vec<u64> = (blocks - HEADERS..blocks).collect();
    write_headers(below, &header, &both).await.map_err(Remake::Device)?;
    Ok(both)
}

/// The cause why headers are not made anew.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Remake {
    #[error(
        "the tuple of the label in block {block} is not where the header would say: the file has \
         another size than it had, or tuples were erased or damaged"
    )]
    NoTuple { block: u64 },
    #[error("there is no label whose tuple would show the place of all tuples")]
    NothingKnown,
    #[error(transparent)]
    Device(DeviceError),
}

/// Whether a block that was written without a birth has its tuple. The device made it, so a
/// reference tag of type 3 says nothing.
async fn has_tuple(namespace: &Emulated, block: u64) -> bool {
    let Ok((data, metadata)) = namespace.read_both(block).await else { return false };
    let format = namespace.header().format;
    let tags = Tags::of_birth(&format, block * format.parts() as u64, None);
    let data = data.chunks_exact(format.data_bytes());
    let metadata = metadata.chunks_exact(format.metadata_bytes());
    (0..).zip(data.zip(metadata)).all(|(nth, (data, metadata))| {
        let tuple = Tuple::decode(&format, &metadata[format.tuple_range()]);
        let guard = || format.guard_of(data, metadata);
        let compared = tuple.compare(&format, Checks::all(&format), &tags.at(&format, nth), guard);
        compared.is_ok() && !tuple.is_escape(&format)
    })
}

/// PIMEND-M1.
async fn write_headers(below: &DynDevice, header: &Header, at: &[u64]) -> Result<(), DeviceError> {
    for block in at {
        let copy = Buf::from_bytes(&header.encode());
        below.write(*block, copy.into(), Purpose::Guard).await?;
        below.flush().await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
