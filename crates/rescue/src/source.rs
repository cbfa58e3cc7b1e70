//! Where the bytes of a pool come from.

use std::cell::RefCell;
use std::io::{self, Read, Seek, SeekFrom};

use crate::damage::Damage;

/// Bytes of a block: the unit of all addresses.
pub const BLOCK: usize = 4096;

/// A device, or a copy of one. It is only read.
pub trait Source {
    /// Whole blocks that there are.
    fn blocks(&self) -> u64;

    /// Fills `bytes`, a whole number of blocks, from `block` on.
    ///
    /// # Errors
    /// Any of the blocks cannot be read, or is not there.
    fn read(&self, block: u64, bytes: &mut [u8]) -> io::Result<()>;

    /// Format and identity, as in a label, of metadata that the source has apart from its blocks.
    fn protection(&self) -> Option<([u8; 8], [u8; 16])> {
        None
    }

    /// Fills `metadata` with those of the blocks from `block` on.
    ///
    /// # Errors
    /// They cannot be read, or there are none.
    fn read_metadata(&self, block: u64, metadata: &mut [u8]) -> io::Result<()> {
        let _ = (block, metadata);
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Anything that can be read and sought in: a file, a block device, bytes in memory.
pub struct Seekable<T> {
    inner: RefCell<T>,
    blocks: u64,
}

impl<T: Read + Seek> Seekable<T> {
    /// # Errors
    /// Its end cannot be found.
    pub fn new(mut inner: T) -> io::Result<Seekable<T>> {
        let blocks = inner.seek(SeekFrom::End(0))? / BLOCK as u64;
        Ok(Seekable { inner: RefCell::new(inner), blocks })
    }
}

impl<T: Read + Seek> Source for Seekable<T> {
    fn blocks(&self) -> u64 {
        self.blocks
    }

    fn read(&self, block: u64, bytes: &mut [u8]) -> io::Result<()> {
        let mut inner = self.inner.borrow_mut();
        inner.seek(SeekFrom::Start(block * BLOCK as u64))?;
        inner.read_exact(bytes)
    }
}

/// Reads `blocks` blocks, if all of them are on the device.
pub(crate) fn read(source: &dyn Source, block: u64, blocks: u64) -> Result<Vec<u8>, Damage> {
    let what = || format!("blocks {block}+{blocks}");
    let end = block.checked_add(blocks).filter(|end| *end <= source.blocks());
    end.ok_or_else(|| Damage::new(what(), "they lie behind the end of the device"))?;
    let mut bytes = vec![0; blocks as usize * BLOCK];
    source.read(block, &mut bytes).map_err(|error| Damage::new(what(), error))?;
    Ok(bytes)
}
