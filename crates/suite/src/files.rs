//! What scenarios do to files, with the calls that programs use.
//!
//! A step in several calls goes on until one fails; what was accepted until then is counted. Data
//! does not compress unless it is zeros, and no two blocks are equal unless that is asked for.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};
use rustix::fs::{FallocateFlags, OFlags, XattrFlags};

use crate::outcome::Outcome;
use crate::scenario::{How, Span};

const ALIGNMENT: usize = 4096;

/// Data, different each time.
pub(crate) struct Data(Xoshiro256PlusPlus);

impl Data {
    pub(crate) fn new() -> Data {
        Data(Xoshiro256PlusPlus::seed_from_u64(1))
    }

    fn fill(&mut self, bytes: &mut [u8], how: How) {
        if how.same {
            Xoshiro256PlusPlus::seed_from_u64(2).fill_bytes(bytes);
        } else if !how.zeros {
            self.0.fill_bytes(bytes);
        }
    }
}

/// Writes a part of a file, made if it is not there.
pub(crate) fn write(path: &Path, span: Span, how: How, data: &mut Data) -> Outcome {
    let mut options = OpenOptions::new();
    options.write(true).create(true);
    write_to(options, path, span, how, data)
}

/// Writes a part of a file that is there.
pub(crate) fn overwrite(path: &Path, span: Span, how: How, data: &mut Data) -> Outcome {
    let mut options = OpenOptions::new();
    options.write(true);
    write_to(options, path, span, how, data)
}

fn write_to(
    mut options: OpenOptions,
    path: &Path,
    span: Span,
    how: How,
    data: &mut Data,
) -> Outcome {
    if how.direct {
        options.custom_flags(OFlags::DIRECT.bits() as i32);
    }
    let mut accepted = 0;
    let result = (|| {
        let file = options.open(path)?;
        let bytes = bytes_of(&file, span)?;
        let mut room = vec![0; span.chunk.min(bytes) as usize + ALIGNMENT];
        let start = room.as_ptr().align_offset(ALIGNMENT);
        while accepted < bytes {
            let wanted = (bytes - accepted).min(span.chunk) as usize;
            let buffer = &mut room[start..start + wanted];
            data.fill(buffer, how);
            let mut done = 0;
            while done < wanted {
                let now = file.write_at(&buffer[done..], span.at + accepted)?;
                if now == 0 {
                    return Err(io::ErrorKind::WriteZero.into());
                }
                done += now;
                accepted += now as u64;
            }
            if how.fsync {
                file.sync_all()?;
            }
        }
        Ok(())
    })();
    Outcome::of_call(accepted, result)
}

pub(crate) fn fallocate(path: &Path, span: Span) -> Outcome {
    in_chunks(OpenOptions::new().write(true).create(true), path, span, FallocateFlags::empty())
}

pub(crate) fn punch(path: &Path, span: Span) -> Outcome {
    let span = Span { chunk: u64::MAX, ..span };
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    in_chunks(OpenOptions::new().write(true), path, span, flags)
}

fn in_chunks(options: &OpenOptions, path: &Path, span: Span, flags: FallocateFlags) -> Outcome {
    let mut accepted = 0;
    let result = (|| {
        let file = options.open(path)?;
        let bytes = bytes_of(&file, span)?;
        while accepted < bytes {
            let now = (bytes - accepted).min(span.chunk);
            rustix::fs::fallocate(&file, flags, span.at + accepted, now)?;
            accepted += now;
        }
        Ok(())
    })();
    Outcome::of_call(accepted, result)
}

fn bytes_of(file: &File, span: Span) -> io::Result<u64> {
    match span.bytes {
        Some(bytes) => Ok(bytes),
        None => Ok(file.metadata()?.len().saturating_sub(span.at)),
    }
}

pub(crate) fn truncate(path: &Path, bytes: u64) -> Outcome {
    Outcome::of(OpenOptions::new().write(true).open(path).and_then(|file| file.set_len(bytes)))
}

/// Makes `count` files of `bytes` each in a directory, which is made if it is not there.
pub(crate) fn make_many(directory: &Path, count: u64, bytes: u64, data: &mut Data) -> Outcome {
    let mut content = vec![0; bytes as usize];
    let mut made = 0;
    let result = (|| {
        fs::create_dir_all(directory)?;
        while made < count {
            data.fill(&mut content, How::default());
            fs::write(directory.join(format!("{made:06}")), &content)?;
            made += 1;
        }
        Ok(())
    })();
    Outcome::of_call(made, result)
}

/// Unlinks every file of a directory.
pub(crate) fn clear(directory: &Path) -> Outcome {
    let mut unlinked = 0;
    let result = (|| {
        for entry in fs::read_dir(directory)? {
            fs::remove_file(entry?.path())?;
            unlinked += 1;
        }
        Ok(())
    })();
    Outcome::of_call(unlinked, result)
}

pub(crate) fn chmod(path: &Path, mode: u32) -> Outcome {
    Outcome::of(fs::set_permissions(path, fs::Permissions::from_mode(mode)))
}

pub(crate) fn setxattr(path: &Path, bytes: u64) -> Outcome {
    let value = vec![b'x'; bytes as usize];
    Outcome::of(rustix::fs::setxattr(path, "user.scenario", &value, XattrFlags::empty()))
}

/// As `cp --reflink` does it where FICLONE is not offered: the whole file by copy_file_range.
pub(crate) fn reflink(source: &Path, target: &Path) -> Outcome {
    let mut accepted = 0;
    let result = (|| {
        let source = File::open(source)?;
        let target = OpenOptions::new().write(true).create(true).truncate(true).open(target)?;
        let bytes = source.metadata()?.len();
        while accepted < bytes {
            let wanted = (bytes - accepted) as usize;
            match rustix::fs::copy_file_range(&source, None, &target, None, wanted)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                now => accepted += now as u64,
            }
        }
        Ok(())
    })();
    Outcome::of_call(accepted, result)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errno::Errno;

    const SPAN: Span = Span { at: 0, bytes: Some(100 << 10), chunk: 64 << 10 };

    #[test]
    fn what_is_written_is_counted_and_differs_each_time() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        let mut data = Data::new();
        let outcome = overwrite(&path, SPAN, How::default(), &mut data);
        assert_eq!(outcome.failure.unwrap().errno, Errno::named("ENOENT"));
        let outcome = write(&path, SPAN, How::default(), &mut data);
        assert!(outcome.failure.is_none());
        assert_eq!(outcome.accepted, 100 << 10);
        let before = fs::read(&path).unwrap();
        let whole = Span { bytes: None, ..SPAN };
        let how = How { fsync: true, ..How::default() };
        assert_eq!(overwrite(&path, whole, how, &mut data).accepted, 100 << 10);
        assert_ne!(fs::read(&path).unwrap(), before);
        assert_eq!(truncate(&path, 10).failure.map(|_| ()), None);
        assert_eq!(fs::metadata(&path).unwrap().len(), 10);
    }

    #[test]
    fn the_same_data_is_the_same_in_two_files() {
        let directory = tempfile::tempdir().unwrap();
        let [a, b] = ["a", "b"].map(|name| directory.path().join(name));
        let how = How { same: true, ..How::default() };
        write(&a, SPAN, how, &mut Data::new());
        write(&b, SPAN, how, &mut Data::new());
        assert_eq!(fs::read(a).unwrap(), fs::read(b).unwrap());
    }

    #[test]
    fn many_files_are_made_and_cleared() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("d");
        assert_eq!(make_many(&path, 20, 10, &mut Data::new()).accepted, 20);
        assert_eq!(clear(&path).accepted, 20);
        assert_eq!(clear(&path).accepted, 0);
    }
}
