//! SEEK_HOLE and SEEK_DATA, where the kernel may have dirty pages that are not known here.
//!
//! Mapped pages, and with `writeback_cache` all that was written, are dirty in the kernel until it
//! writes them back; a program that skipped them as a hole would copy zeros. So the kernel is made
//! to write back a range before the answer calls it a hole, and then it is looked at again.
//!
//! HOLES-H1  A range called a hole of a file that is open for writing was still one behind a
//!           write-back that began after the question came. If that cannot be had, it is called
//!           data.
//! HOLES-H2  A file without an open for writing has no dirty pages: the kernel writes them back
//!           before it says that a descriptor or the last mapping of it is closed.
//!
//! The kernel holds the lock of the inode meanwhile, so only mapped memory and direct writes change
//! the file. A write-back takes no lock of inodes (PAGES-K3).

use std::ops::Range;

use copyhold_fs::{Filesystem, FsError, NodeId as FsNode, Result, Sabotage, Seek, Uses};
use copyhold_fuse::Notifier;
use copyhold_fuse::protocol::NodeId;

use super::pages::Pages;

/// How often it is looked again, at most: more than once only if holes move meanwhile.
const LOOKS_MAX: usize = 8;

/// A search for data or a hole, and the file that it looks into.
pub(super) struct SeekRequest<'a> {
    pub(super) fs: &'a Filesystem,
    pub(super) pages: &'a Pages,
    pub(super) notifier: Option<&'a Notifier>,
    pub(super) node: FsNode,
    pub(super) from: u64,
    pub(super) whence: Seek,
}

/// A hole that an answer implies.
struct Implied {
    /// The hole that the answer names.
    said: Range<u64>,
    /// The end of the hole.
    end: u64,
}

impl SeekRequest<'_> {
    pub(super) async fn resolve(&self) -> Result<u64> {
        let mut clean = 0..0;
        for _ in 0..LOOKS_MAX {
            let answer = self.fs.seek(self.node, self.from, self.whence).await;
            let Some(Implied { said, end }) = self.implied(&answer).await? else { return answer };
            let is_clean = !self.fs.uses(self.node).has(Uses::WRITER);
            if is_clean
                || self.fs.breaks(Sabotage::BelieveHoles)
                || (clean.start <= said.start && said.end <= clean.end)
            {
                return answer;
            }
            clean = said.start..end;
            let Some(notifier) = self.notifier else { break };
            let node = NodeId(self.node.raw());
            if !self.pages.drop_range(notifier, node, clean.clone()).await {
                break;
            }
        }
        self.as_if_all_were_data().await
    }

    async fn implied(&self, answer: &Result<u64>) -> Result<Option<Implied>> {
        let at = match answer {
            Ok(at) => *at,
            Err(FsError::PastEnd) => u64::MAX,
            Err(_) => return Ok(None),
        };
        if self.whence == Seek::Data || at == u64::MAX {
            let said = self.from..at;
            return Ok((!said.is_empty()).then_some(Implied { said, end: at }));
        }
        let end = match self.fs.seek(self.node, at, Seek::Data).await {
            Ok(data) => data,
            Err(FsError::PastEnd) => u64::MAX,
            Err(error) => return Err(error),
        };
        // It was filled between the two looks: then the next one finds another.
        let end = end.max(at + 1);
        Ok(Some(Implied { said: at..at + 1, end }))
    }

    async fn as_if_all_were_data(&self) -> Result<u64> {
        let size = self.fs.getattr(self.node).await?.size;
        match self.whence {
            _ if self.from >= size => Err(FsError::PastEnd),
            Seek::Data => Ok(self.from),
            Seek::Hole => Ok(size),
        }
    }
}
