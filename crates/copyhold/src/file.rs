//! Open files, with the traits of `std::io`.

mod handle;

use std::fmt;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use copyhold_fs::Attr;
use copyhold_sync::{Mutex, of};

pub(crate) use handle::Handle;

use crate::{Error, Volume};

/// How a file is opened, as `std::fs::OpenOptions`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileOptions {
    pub read: bool,
    pub write: bool,
    /// Each write goes to the end of the file.
    pub append: bool,
    /// The content is removed.
    pub truncate: bool,
    /// A file that does not exist is created.
    pub create: bool,
    /// The file is created, and it is an error if it exists.
    pub create_new: bool,
    /// Permissions of a file that is created; 0o644 by default.
    pub mode: u32,
}

impl FileOptions {
    /// Of a file that exists.
    pub fn reading() -> FileOptions {
        FileOptions {
            read: true,
            write: false,
            append: false,
            truncate: false,
            create: false,
            create_new: false,
            mode: 0o644,
        }
    }

    /// Of a file to read and write, which exists.
    pub fn read_write() -> FileOptions {
        FileOptions { write: true, ..FileOptions::reading() }
    }

    /// Of an empty file to read and write, created or with its content removed.
    pub fn creating() -> FileOptions {
        FileOptions { create: true, truncate: true, ..FileOptions::read_write() }
    }
}

/// An open file of a pool, with the traits of `std::io` and
/// [`FileExt`](std::os::unix::fs::FileExt). Threads that share it share its position, and one at a
/// time uses that. After the end of the pool every call returns
/// [`FsError::ShutDown`](crate::FsError::ShutDown).
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// # let dir = tempfile::tempdir()?;
/// # let image = dir.path().join("pool.img");
/// use std::io::{Read, Seek, Write};
///
/// use copyhold::{CreateOptions, OpenOptions, Pool};
///
/// Pool::create(&image, &CreateOptions::sized(64 << 20))?;
/// let pool = Pool::open(&image, OpenOptions::default())?;
/// let mut file = pool.root().create("letter")?;
/// writeln!(file, "Dear reader")?;
/// file.rewind()?;
/// let mut text = String::new();
/// file.read_to_string(&mut text)?;
/// assert_eq!(text, "Dear reader\n");
/// file.sync_all()?;
/// # Ok(())
/// # }
/// ```
pub struct File {
    volume: Volume,
    handle: Arc<Handle>,
    position: Mutex<u64, of::FilePosition>,
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File").field("path", &self.path()).finish_non_exhaustive()
    }
}

impl File {
    pub(crate) fn new(volume: Volume, handle: Handle) -> File {
        File { volume, handle: Arc::new(handle), position: Mutex::new(0) }
    }

    /// The path by which it was opened.
    pub fn path(&self) -> &Path {
        self.handle.path()
    }

    /// The attributes of the file now.
    pub fn metadata(&self) -> Result<Attr, Error> {
        self.volume.run(async |view| self.handle.metadata(view).await)
    }

    /// Makes the file `size` bytes long: cuts it, or adds zeros.
    pub fn set_len(&self, size: u64) -> Result<(), Error> {
        self.volume.run(async |view| self.handle.set_len(view, size).await)
    }

    /// Data, metadata and the name of the file are durable when this returns.
    pub fn sync_all(&self) -> Result<(), Error> {
        self.volume.run(async |view| self.handle.sync(view, false).await)
    }

    /// The data of the file is durable when this returns.
    pub fn sync_data(&self) -> Result<(), Error> {
        self.volume.run(async |view| self.handle.sync(view, true).await)
    }

    /// Allocates space for a range, so that writes to it are not refused later. The file becomes
    /// longer if the range ends behind it.
    pub fn allocate(&self, offset: u64, len: u64) -> Result<(), Error> {
        self.volume.run(async |view| self.handle.allocate(view, offset, len).await)
    }

    /// Makes a range read as zeros, and frees its whole blocks.
    pub fn punch_hole(&self, offset: u64, len: u64) -> Result<(), Error> {
        self.volume.run(async |view| self.handle.punch_hole(view, offset, len).await)
    }

    /// Fills `buf` from `offset`, and returns the bytes; fewer than asked for only at the end.
    fn read_to(&self, buf: &mut [u8], offset: u64) -> Result<usize, Error> {
        let read = self.volume.run(async |view| self.handle.read(view, offset, buf.len()).await);
        let mut at = 0;
        for slice in read?.slices() {
            buf[at..at + slice.len()].copy_from_slice(slice);
            at += slice.len();
        }
        Ok(at)
    }

    /// Writes all of `data`, and returns the offset behind it.
    fn write_from(&self, data: &[u8], offset: u64) -> Result<u64, Error> {
        self.volume.run(async |view| self.handle.write(view, offset, data).await)
    }
}

impl From<File> for crate::nonblocking::File {
    fn from(file: File) -> crate::nonblocking::File {
        crate::nonblocking::File::new(file.volume.into(), file.handle)
    }
}

impl FileExt for File {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        Ok(self.read_to(buf, offset)?)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.write_from(buf, offset)?;
        Ok(buf.len())
    }
}

impl Read for &File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut position = self.position.lock();
        let bytes = self.read_to(buf, *position)?;
        *position += bytes as u64;
        Ok(bytes)
    }
}

impl Write for &File {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let mut position = self.position.lock();
        *position = self.write_from(buf, *position)?;
        Ok(buf.len())
    }

    /// Nothing is buffered here; [`File::sync_all`] makes data durable.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for &File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let mut position = self.position.lock();
        let (base, by) = match to {
            SeekFrom::Start(offset) => (offset, 0),
            SeekFrom::Current(by) => (*position, by),
            SeekFrom::End(by) => (self.metadata()?.size, by),
        };
        let wanted = base.checked_add_signed(by);
        *position = wanted.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(*position)
    }
}

impl Read for File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buf)
    }
}

impl Write for File {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        (&*self).write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        (&*self).seek(to)
    }
}
