//! `copyhold resize`: a pool becomes larger, mounted or not.
//!
//! The daemon of a mounted pool does it, for it has the file locked. Another pool is opened for the
//! moment.

use std::path::PathBuf;
use std::str::FromStr;

use copyhold::{OpenOptions, Pool};
use copyhold_fuse::mount::MountEntry;
use copyhold_serve::wire::Question;
use copyhold_serve::wire::growth::{PoolSize, Resized};

use crate::control::Control;
use crate::failure::{Failure, Kind};
use crate::mount_table;
use crate::report::Report;
use crate::size::Size;

/// Make a pool larger
///
/// A mounted pool stays in use, and df(1) shows its new size at once. A pool file becomes longer.
/// It stays sparse, unless the pool was created with `--preallocate written`: then all of the new
/// part is allocated, or nothing changes. A block device must have its new size before. A crash in
/// between leaves the old size or the new one.
///
/// A pool cannot become smaller, and a pool with protection information keeps its size: make a new
/// pool, mount both, and copy the files. The size of metaslabs and of the log stays, so a pool that
/// becomes many times larger works better if it is made anew.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    copyhold resize /mnt 20G                 a mounted pool, to 20 GiB\n  \
    copyhold resize /srv/pool.img +5G        by 5 GiB\n  \
    lvextend -L +100G vg/pool && copyhold resize /dev/vg/pool max")]
pub(crate) struct Resize {
    /// A pool, or a directory where one is mounted
    target: PathBuf,
    /// Bytes, or a number with K, M, G or T; with a plus before it: so much more; `max`: all of the
    /// file or device
    #[arg(value_name = "SIZE|+SIZE|max")]
    size: Wanted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wanted(PoolSize);

impl FromStr for Wanted {
    type Err = String;

    fn from_str(text: &str) -> Result<Wanted, String> {
        Ok(Wanted(match text.strip_prefix('+') {
            _ if text == "max" => PoolSize::Max,
            Some(more) => PoolSize::By(more.parse::<Size>()?.0),
            None => PoolSize::To(text.parse::<Size>()?.0),
        }))
    }
}

impl Resize {
    pub(crate) fn run(self, report: Report) -> Result<(), Failure> {
        let resized = match mount_table::named(&self.target) {
            Ok(mounts) => self.ask(&mounts)?,
            Err(failure) if failure.kind != Kind::NotMounted || self.target.is_dir() => {
                return Err(failure);
            }
            Err(_) => {
                let pool = Pool::open(&self.target, OpenOptions::default())?;
                let grown = pool.grow(self.size.0.into());
                let closed = pool.close();
                let resized: Resized = grown?.into();
                // The growth is durable, also if the end of its use fails.
                report.show(&resized, || self.text(&resized))?;
                return Ok(closed?);
            }
        };
        report.show(&resized, || self.text(&resized))
    }

    /// Asks at a mount that permits writes, if there is one.
    fn ask(&self, mounts: &[MountEntry]) -> Result<Resized, Failure> {
        let is_writable = |mount: &&MountEntry| !mount.options.split(',').any(|it| it == "ro");
        let mount = mounts.iter().find(is_writable).unwrap_or(&mounts[0]);
        let control = Control::open(&mount.mount_point)?;
        control.change(|| Ok(Question::Grow { size: self.size.0 }))
    }

    fn text(&self, resized: &Resized) -> String {
        let (target, size) = (self.target.display(), Size(resized.size_bytes));
        match resized.size_bytes - resized.before_bytes {
            0 => format!("{target} has {size} already\n"),
            more => format!("{target} has {size}: {} more\n", Size(more)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_absolute_or_more_or_all() {
        assert_eq!("20G".parse(), Ok(Wanted(PoolSize::To(20 << 30))));
        assert_eq!("+4096".parse(), Ok(Wanted(PoolSize::By(4096))));
        assert_eq!("max".parse(), Ok(Wanted(PoolSize::Max)));
        for bad in ["", "+", "++1G", "-1G", "+max", "all"] {
            assert!(bad.parse::<Wanted>().is_err(), "{bad}");
        }
    }
}
