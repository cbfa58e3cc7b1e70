//! Talking to the daemon of a mounted pool.
//!
//! Until there is a socket, private ioctls on directories of the mount do (`copyhold_serve`).

pub(crate) mod tenants;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use copyhold_fuse::Errno;
use copyhold_fuse::ask::ask;
use copyhold_fuse::mount::{DetachedMount, MountEntry, means_dead};
use copyhold_serve::control::{INFO, SYNC};
use rustix::fs::OFlags;
use serde_json::Value;

use crate::failure::{Failure, Kind};
use crate::mount_table;

/// An open directory of a mounted pool.
pub(crate) struct Control {
    file: File,
    directory: PathBuf,
}

impl Control {
    pub(crate) fn open(directory: &Path) -> Result<Control, Failure> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(directory, flags, rustix::fs::Mode::empty());
        let file = opened.map_err(|errno| unreachable(directory, &errno.into()))?.into();
        Ok(Control { file, directory: directory.to_owned() })
    }

    /// The root of `tree`, a mount of `pool` that is at no place.
    pub(crate) fn of(tree: &DetachedMount, pool: &Path) -> Result<Control, Failure> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(tree, ".", flags, rustix::fs::Mode::empty());
        let file = opened.map_err(|errno| Failure::system(pool.display(), &errno.into()))?;
        Ok(Control { file: file.into(), directory: pool.to_owned() })
    }

    /// Number of the filesystem that the directory is on.
    pub(crate) fn number(&self) -> Result<(u32, u32), Failure> {
        let found = rustix::fs::fstat(&self.file).map_err(|errno| self.failed(errno.into()))?;
        Ok((rustix::fs::major(found.st_dev), rustix::fs::minor(found.st_dev)))
    }

    /// Writes the kernel's dirty pages of this mount, then commits; returns when all is durable.
    pub(crate) fn sync(&self) -> Result<(), Failure> {
        self.write_pages()?;
        ask(&self.file, SYNC, b"").map(drop).map_err(|errno| self.failed(errno))
    }

    /// Hands the kernel's dirty pages of this mount to the daemon.
    pub(crate) fn write_pages(&self) -> Result<(), Failure> {
        rustix::fs::syncfs(&self.file).map_err(|errno| self.failed(errno.into()))
    }

    /// How the pool is.
    pub(crate) fn info(&self) -> Result<Value, Failure> {
        let text = ask(&self.file, INFO, b"").map_err(|errno| self.failed(errno))?;
        serde_json::from_slice(&text).map_err(|error| self.misunderstood(&error))
    }

    fn misunderstood(&self, error: &serde_json::Error) -> Failure {
        Failure::new(
            Kind::Failed,
            format!(
                "this program does not understand the answer of the daemon of {} ({error}); use \
                 the program that mounted the pool",
                self.directory.display()
            ),
        )
    }

    fn failed(&self, errno: Errno) -> Failure {
        let directory = self.directory.display();
        match errno {
            Errno::ENOTTY | Errno::ENOSYS => Failure::new(
                Kind::NotMounted,
                format!(
                    "{directory} is not on a mounted pool of this program; if it is on one, use the \
                     program that mounted the pool"
                ),
            ),
            Errno::EIO => Failure::new(
                Kind::Device,
                format!(
                    "{directory}: the pool has stopped after a device error; see its log, then \
                     mount it again"
                ),
            ),
            _ => unreachable(&self.directory, &io::Error::from_raw_os_error(errno.code())),
        }
    }
}

fn unreachable(directory: &Path, error: &io::Error) -> Failure {
    match means_dead(error) {
        true => daemon_is_gone(directory),
        false => Failure::system(directory.display(), error),
    }
}

/// Of a mount that `path` is on.
fn daemon_is_gone(path: &Path) -> Failure {
    let mount = mount_table::holding(path).ok().filter(MountEntry::is_dead);
    let mount_point = mount.map_or_else(|| path.to_owned(), |entry| entry.mount_point);
    Failure::new(
        Kind::NotMounted,
        format!(
            "the daemon of {0} is gone; `copyhold umount {0}`, then mount the pool again",
            mount_point.display()
        ),
    )
}
