//! Talking to the daemon of a mounted pool.
//!
//! Until there is a socket, two private ioctls on the mount's root directory do: one commits
//! everything, one tells how the pool is, as JSON. They go through the mount itself, so there is
//! nothing to find, to authenticate or to clean up.
//!
//! The kernel sizes an ioctl's answer by its number: [`Info`] has room for 8 KiB of text, padded
//! with zeros.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::ioctl::{Getter, NoArg, ioctl, opcode};
use serde_json::Value;

use crate::failure::{Failure, Kind};

/// Group of our private ioctl numbers.
const GROUP: u8 = b'C';
/// Commits everything; returns when it is durable.
pub(crate) const SYNC: u32 = opcode::none(GROUP, 1);
/// Tells how the pool is, as JSON.
pub(crate) const INFO: u32 = opcode::read::<InfoText>(GROUP, 2);

type InfoText = [u8; 8192];

/// An open root directory of a mounted pool.
pub(crate) struct Control {
    root: File,
    directory: PathBuf,
}

impl Control {
    pub(crate) fn open(directory: &Path) -> Result<Control, Failure> {
        let root = File::open(directory).map_err(|error| {
            match Errno::from_io_error(&error) == Some(Errno::NOTCONN) {
                true => daemon_is_gone(directory),
                false => Failure::system(directory.display(), &error),
            }
        })?;
        Ok(Control { root, directory: directory.to_owned() })
    }

    /// Writes the kernel's dirty pages of this mount, then commits; returns when all is durable.
    pub(crate) fn sync(&self) -> Result<(), Failure> {
        rustix::fs::syncfs(&self.root).map_err(|errno| self.failed(errno))?;
        // SAFETY: `SYNC` has no argument: no memory is read or written.
        let done = unsafe { ioctl(&self.root, NoArg::<SYNC>::new()) };
        done.map_err(|errno| self.failed(errno))
    }

    /// How the pool is.
    pub(crate) fn info(&self) -> Result<Value, Failure> {
        // SAFETY: the number carries the size of `InfoText`, which the kernel fills at most; every
        // pattern of bytes is a valid one.
        let text = unsafe { ioctl(&self.root, Getter::<INFO, InfoText>::new()) };
        let text = text.map_err(|errno| self.failed(errno))?;
        let end = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
        serde_json::from_slice(&text[..end]).map_err(|error| {
            Failure::new(
                Kind::Failed,
                format!(
                    "the daemon of {} answers what this program does not understand ({error}); \
                     use the program that mounted it",
                    self.directory.display()
                ),
            )
        })
    }

    fn failed(&self, errno: Errno) -> Failure {
        match errno {
            Errno::NOTCONN | Errno::CONNABORTED => daemon_is_gone(&self.directory),
            Errno::NOTTY | Errno::NOSYS => Failure::new(
                Kind::NotMounted,
                format!("{} is no mounted pool of this program", self.directory.display()),
            ),
            Errno::IO => Failure::new(
                Kind::Device,
                format!(
                    "{}: the pool has stopped after a device error; see its log, then mount it \
                     again",
                    self.directory.display()
                ),
            ),
            _ => Failure::system(self.directory.display(), &io::Error::from(errno)),
        }
    }
}

fn daemon_is_gone(directory: &Path) -> Failure {
    Failure::new(
        Kind::NotMounted,
        format!(
            "the daemon of {0} is gone; `copyhold umount {0}`, then mount the pool again",
            directory.display()
        ),
    )
}
