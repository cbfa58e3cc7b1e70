//! Headers of a namespace that are written again.
//!
//! Problem.  A header is written once. A copy that rots stays bad until the other rots, too, and
//!           then the namespace is lost, with all its blocks whole.
//! Idea.     A bad copy is written from the good one. If neither is good, the owner of the data may
//!           know the format and the identity: the other fields follow from the size. A wrong guess
//!           would look for tuples in the wrong place, so the tuple of a block that the owner
//!           names must be there before anything is written.
//!
//! PIMEND-M1  A header is only written where no header, or a damaged one, is; each copy is durable
//!            before the next is touched, so a crash leaves no fewer good ones.

use copyhold_runtime::Rt;
use copyhold_types::{Buf, Purpose};

use super::emulated::{Emulated, read_headers, unusable};
use super::header::{Header, HeaderProblem};
use super::layout::HEADERS;
use super::{Checks, Format, Tags, Tuple};
use crate::{DeviceError, DynDevice, OpenMode};

/// The state of both copies on a device.
pub enum Headers {
    /// One is good, at least; the blocks of the others.
    Good(Vec<u64>),
    /// They are damaged, or there are none.
    Lost,
    /// They are of a namespace that this program cannot use.
    Unusable(HeaderProblem),
}

/// Looks at both copies.
pub async fn look_at_headers(below: &DynDevice) -> Headers {
    let blocks = below.geometry().blocks;
    let Some(at) = blocks.checked_sub(HEADERS) else { return Headers::Lost };
    let copies = read_headers(below, at).await;
    match Header::find([&copies[0], &copies[1]], blocks) {
        None | Some(Err(HeaderProblem::Damaged)) => Headers::Lost,
        Some(Err(problem)) => Headers::Unusable(problem),
        Some(Ok(_)) => Headers::Good(Header::defects(&copies, at).map(|(at, _)| at).collect()),
    }
}

/// Writes the bad copies from the good one; the blocks that were written.
pub async fn mend_headers(rt: Rt, below: &DynDevice) -> Result<Vec<u64>, DeviceError> {
    let found = Emulated::find(rt, below.clone(), OpenMode::ReadWrite).await?;
    let (Some(namespace), Headers::Good(bad)) = (found, look_at_headers(below).await) else {
        return Ok(Vec::new());
    };
    write_headers(below, namespace.header(), &bad).await?;
    Ok(bad)
}

/// Makes both headers anew where they are lost, of a namespace with `data_blocks` or more. `known`
/// are blocks that were written without a birth: one of them must have its tuple.
///
/// # Errors
/// The size does not fit, or no tuple is where the header would say: nothing is written then. Or
/// the device fails.
pub async fn remake_headers(
    rt: Rt,
    below: &DynDevice,
    (format, identity): (Format, [u8; 16]),
    data_blocks: u64,
    known: &[u64],
) -> Result<Vec<u64>, Remake> {
    let blocks = below.geometry().blocks;
    let name = || below.geometry().name;
    let header = Header::new(identity, format, blocks);
    let header = header.map_err(|problem| Remake::Device(unusable(name(), problem)))?;
    if header.data_blocks < data_blocks {
        return Err(Remake::Room { wanted: data_blocks, found: header.data_blocks });
    }
    let namespace = Emulated::over(rt, below.clone(), header, OpenMode::ReadOnly, Vec::new());
    let mut has_tuples = false;
    for block in known {
        has_tuples = has_tuples || has_tuple(&namespace, *block).await;
    }
    if !has_tuples {
        return Err(Remake::NoTuples);
    }
    let both: Vec<u64> = (blocks - HEADERS..blocks).collect();
    write_headers(below, &header, &both).await.map_err(Remake::Device)?;
    Ok(both)
}

/// The cause why headers are not made anew.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Remake {
    #[error("the file has room for {found} blocks with tuples, and the pool has {wanted}")]
    Room { wanted: u64, found: u64 },
    #[error(
        "no tuple of a label is where the header would say: the file has another size than it had"
    )]
    NoTuples,
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
