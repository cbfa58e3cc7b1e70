//! Both copies of a header on a device.
//!
//! Problem.  One good copy is enough, and the other may be bad for many reasons: it rotted, it
//!           cannot be read just now, or a newer program wrote it. A repair must write over the
//!           first kind alone.
//! Idea.     Each copy is read and judged by itself. A repair asks for those that are rotten, an
//!           opening for the header that both give.
//!
//! PICOPY-C1  A copy is rotten only if it has no magic or another digest than its content, or if
//!            the medium has lost it. One of another version or with unknown features is not, nor
//!            one of which a read fails for another reason.

use copyhold_types::{BLOCK_BYTES, Buf, Purpose};

use super::header::{Header, HeaderProblem};
use super::layout::HEADERS;
use crate::{DeviceError, DynDevice, IoError};

type Copy = Result<[u8; BLOCK_BYTES], DeviceError>;

/// The copies as they were read.
pub(super) struct Copies {
    /// The block of the first.
    at: u64,
    /// Of the device.
    blocks: u64,
    read: [Copy; HEADERS as usize],
}

impl Copies {
    /// `None`: the device is too small for any.
    pub(super) async fn read(below: &DynDevice) -> Option<Copies> {
        let blocks = below.geometry().blocks;
        let at = blocks.checked_sub(HEADERS)?;
        let read = match below.read(at, HEADERS as u32, Purpose::Guard).await {
            Ok(both) => [copy_in(&both, 0), copy_in(&both, 1)],
            Err(_) => [read_copy(below, at).await, read_copy(below, at + 1).await],
        };
        Some(Copies { at, blocks, read })
    }

    /// The header that the copies give. One that cannot be read counts as none: a device without
    /// a namespace may have bad blocks there, and the label of a pool says whether it needs one.
    pub(super) fn find(&self) -> Option<Result<Header, HeaderProblem>> {
        let zeros = [0; BLOCK_BYTES];
        let [first, second] = self.read.each_ref().map(|copy| copy.as_ref().unwrap_or(&zeros));
        Header::find([first, second], self.blocks)
    }

    /// The error of a copy that may be good, and cannot be read.
    pub(super) fn unread(&self) -> Option<&DeviceError> {
        self.read.iter().filter_map(|copy| copy.as_ref().err()).find(|error| !is_lost(error))
    }

    /// The blocks of rotten copies (PICOPY-C1).
    pub(super) fn rotten(&self) -> Vec<u64> {
        let rotten = (self.at..).zip(&self.read).filter(|(_, copy)| match copy {
            Ok(copy) => matches!(Header::parse(copy), None | Some(Err(HeaderProblem::Damaged))),
            Err(error) => is_lost(error),
        });
        rotten.map(|(at, _)| at).collect()
    }

    /// The defects of bad copies beside a good one.
    pub(super) fn defects(&self) -> Vec<String> {
        let why = |copy: &Copy| match copy.as_ref().map(Header::parse) {
            Ok(Some(Ok(_))) => None,
            Ok(Some(Err(HeaderProblem::Damaged))) => Some("it is damaged".to_owned()),
            Ok(Some(Err(problem))) => Some(problem.to_string()),
            Ok(None) => Some("there is no header".to_owned()),
            Err(error) => Some(format!("it cannot be read: {error}")),
        };
        let copies = (self.at..).zip(&self.read);
        copies.filter_map(|(at, copy)| Some(format!("block {at}: {}", why(copy)?))).collect()
    }

    /// All good copies, also of different namespaces or of another size.
    fn good(&self) -> impl Iterator<Item = Header> {
        self.read.iter().filter_map(|copy| Header::parse(copy.as_ref().ok()?)?.ok())
    }
}

fn copy_in(both: &[u8], nth: usize) -> Copy {
    let mut copy = [0; BLOCK_BYTES];
    copy.copy_from_slice(&both[nth * BLOCK_BYTES..][..BLOCK_BYTES]);
    Ok(copy)
}

async fn read_copy(below: &DynDevice, block: u64) -> Copy {
    copy_in(&below.read(block, 1, Purpose::Guard).await?, 0)
}

/// Whether the medium has lost the content: a later read fails, too.
fn is_lost(error: &DeviceError) -> bool {
    matches!(
        error,
        DeviceError::Integrity { .. } | DeviceError::Read { source: IoError(libc::ENODATA), .. }
    )
}

/// Blocks of data of each namespace that a good copy on the device names.
pub async fn sizes_by_headers(below: &DynDevice) -> Vec<u64> {
    let copies = Copies::read(below).await;
    copies.iter().flat_map(Copies::good).map(|header| header.data_blocks).collect()
}

/// Erases both copies, durably.
pub async fn erase_headers(below: &DynDevice) -> Result<(), DeviceError> {
    let Some(at) = below.geometry().blocks.checked_sub(HEADERS) else { return Ok(()) };
    below.write(at, Buf::zeroed(HEADERS as usize).into(), Purpose::Guard).await?;
    below.flush().await
}
