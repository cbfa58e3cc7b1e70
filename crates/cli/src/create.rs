//! `copyhold create`: makes a pool in a file, on a block device or on an NVMe namespace.
//!
//! The one verb that destroys something, so the library looks first: a device or file whose first
//! or last MiB holds anything but zeros is in use, whatever its format.

use std::path::PathBuf;

use copyhold::{CreateOptions, Pool, ProtectionFormat};
use copyhold_serve::describe;
use serde_json::json;

use crate::failure::Failure;
use crate::report::Report;
use crate::size::Size;

/// The parts of a pool that `create` allocates on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Preallocate {
    /// The blocks that commits need: the log and the labels
    Log,
    /// Everything: the file neither grows nor shrinks, and nothing is discarded
    Written,
}

/// Make a pool in a file, on a block device or on an NVMe namespace
///
/// The pool file is sparse: it takes host space as data is written. Only the space that commits
/// need is allocated at once, so that a full host disk cannot fail them.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    copyhold create /srv/pool.img --size 10G\n  \
    copyhold create /dev/nvme1n1                     the whole device\n  \
    copyhold create /dev/sdb --force                 although it holds something else\n  \
    copyhold create db.img --size 9G --preallocate written\n  \
    copyhold create /srv/pool.img --size 10G --pi 4096+16:64b\n  \
    copyhold create test.img --size 4G --metaslab 4M --log-size 16M\n  \
    copyhold create /dev/ng0n1                       formatted with protection information\n\n\
    With `--preallocate written` the pool takes all its room now: no write fails for want of room \
    on the host. With --pi the size is that of the file, and the pool is smaller by the tuples.\n\
    Data uses them only after `copyhold property set DIR checksum guard` on the mounted pool.\n\
    Without --pi there are none. The usual format is 4096+16:64b; all are listed in\n\
    docs/integrity.md, section 3.")]
pub(crate) struct Create {
    /// A file, which is created if it does not exist, a block device, or an NVMe namespace
    /// (/dev/ngXnY)
    pool: PathBuf,
    /// Size of the pool: bytes, or a number with K, M, G or T [default: that of the device or file]
    #[arg(long, short)]
    size: Option<Size>,
    /// Overwrite any content of the file or device
    #[arg(long, short)]
    force: bool,
    /// The parts of the pool to allocate on the host now
    #[arg(long, value_enum, default_value_t = Preallocate::Log)]
    preallocate: Preallocate,
    /// A name for the pool, up to 64 bytes
    #[arg(long, short = 'L', value_name = "NAME")]
    label: Option<String>,
    /// Give each block protection information (checksum and tags) of this format:
    /// DATA+METADATA:GUARD, as in 4096+16:64b, with :type1 to :type3, :first or :last, and
    /// :sts=BITS where wanted [default: none]. Only files with checksum mode guard or offload
    /// use it
    #[arg(long, value_name = "FORMAT")]
    pi: Option<ProtectionFormat>,
    /// Size of a metaslab, the unit of space maps: a power of two from 1M to 16G [default: 100 to
    /// 200 of them, of 16M to 16G]
    #[arg(long, value_name = "SIZE", value_parser = metaslab_size)]
    metaslab: Option<Size>,
    /// Size of one copy of the log; below 512K or above a sixteenth of the pool, the nearest of
    /// these [default: a sixty-fourth, 4M to 64M]
    #[arg(long, value_name = "SIZE")]
    log_size: Option<Size>,
}

impl Create {
    pub(crate) fn run(self, report: Report) -> Result<(), Failure> {
        let options = CreateOptions {
            bytes: self.size.map(|size| size.0),
            name: self.label.unwrap_or_default(),
            force: self.force,
            preallocate: self.preallocate == Preallocate::Written,
            protection: self.pi,
            metaslab_bytes: self.metaslab.map(|size| size.0),
            log_bytes: self.log_size.map(|size| size.0),
            ..CreateOptions::default()
        };
        let id = describe::id(Pool::create(&self.pool, &options)?);
        let made = json!({ "pool": self.pool.to_string_lossy(), "id": id });
        report.show(&made, || {
            let next = match self.pi {
                Some(_) => {
                    "mount it next; then `copyhold property set DIR checksum guard`, or no file \
                     uses the protection information"
                }
                None => "mount it next",
            };
            format!("{} is a pool; {next}\n", self.pool.display())
        })
    }
}

fn metaslab_size(text: &str) -> Result<Size, String> {
    let size: Size = text.parse()?;
    match size.0.is_power_of_two() && (1 << 20..=16 << 30).contains(&size.0) {
        true => Ok(size),
        false => Err(format!("'{text}' is no power of two from 1M to 16G")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metaslab_has_a_size_that_a_label_can_have() {
        for text in ["1M", "4096K", "16G"] {
            assert_eq!(metaslab_size(text), text.parse());
        }
        for text in ["512K", "3M", "32G", "0", "large"] {
            assert!(metaslab_size(text).is_err(), "{text}");
        }
    }
}
