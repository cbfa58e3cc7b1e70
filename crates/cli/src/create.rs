//! `copyhold create`: makes a pool in a file or on a block device.
//!
//! The one verb that destroys something, so it looks first: a device or file whose first or last
//! MiB holds anything but zeros belongs to somebody, whether or not we know the format.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::engine::{self, Preallocate};
use crate::failure::{Failure, Kind};
use crate::report::Report;
use crate::size::Size;

/// Where formats keep what they are known by.
const LOOKED_AT: u64 = 1 << 20;

/// Make a pool in a file or on a block device
///
/// A file is made sparse: it takes the room of what is written to it. Only what commits need is
/// really allocated at once, so that a full host disk cannot fail them.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    copyhold create /srv/pool.img --size 10G\n  \
    copyhold create /dev/nvme1n1                     the whole device\n  \
    copyhold create /dev/sdb --force                 although it holds something else\n  \
    copyhold create db.img --size 9G --preallocate written\n\n\
    The last one takes all its room now: no write fails for want of room on the host.")]
pub(crate) struct Create {
    /// A file, made if it is not there, or a block device
    pool: PathBuf,
    /// Size of the pool: bytes, or a number with K, M, G or T [default: that of the device or file]
    #[arg(long, short)]
    size: Option<Size>,
    /// Overwrite what is there, whatever it is
    #[arg(long, short)]
    force: bool,
    /// What to allocate on the host now
    #[arg(long, value_enum, default_value_t = Preallocate::Log)]
    preallocate: Preallocate,
    /// A name to know the pool by, up to 64 bytes
    #[arg(long, short = 'L', value_name = "NAME")]
    label: Option<String>,
}

impl Create {
    pub(crate) fn run(self, report: Report) -> Result<(), Failure> {
        let label = self.label.unwrap_or_default();
        let info = create(&self.pool, self.size, self.force, self.preallocate, &label)?;
        report.show(&info, || format!("{} is a pool; mount it next\n", self.pool.display()))
    }
}

/// Makes a pool; with `force` whatever is there is overwritten, unless it is in use.
pub(crate) fn create(
    pool: &Path,
    size: Option<Size>,
    force: bool,
    preallocate: Preallocate,
    label: &str,
) -> Result<serde_json::Value, Failure> {
    let is_new = prepare(pool, size, force)?;
    let made = engine::create(pool, size, preallocate, label);
    if made.is_err() && is_new {
        // Half a pool is of no use to anyone; the failure is what matters.
        let _ = fs::remove_file(pool);
    }
    made
}

/// Checks that a pool may be made here, and makes the file; whether it was not there before.
fn prepare(pool: &Path, size: Option<Size>, force: bool) -> Result<bool, Failure> {
    let say = |error: std::io::Error| Failure::system(pool.display(), &error);
    let kind = match fs::metadata(pool) {
        Ok(metadata) => metadata.file_type(),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            if pool.starts_with("/dev") {
                return Err(say(error));
            }
            let Some(size) = size else {
                return Err(Failure::usage(format!(
                    "{} is not there; say how large it shall be with --size",
                    pool.display()
                )));
            };
            let file = File::create_new(pool).map_err(say)?;
            if let Err(error) = file.set_len(size.0) {
                let _ = fs::remove_file(pool);
                return Err(say(error));
            }
            return Ok(true);
        }
        Err(error) => return Err(say(error)),
    };
    if !kind.is_file() && !kind.is_block_device() {
        return Err(Failure::usage(format!(
            "{} is neither a file nor a block device",
            pool.display()
        )));
    }
    if engine::is_locked(pool)? {
        return Err(Failure::new(
            Kind::InUse,
            format!("{} is in use by another process; unmount it there first", pool.display()),
        ));
    }
    if !force && let Some(what) = occupant(pool).map_err(say)? {
        return Err(Failure::new(
            Kind::Exists,
            format!("{} holds {what}; --force overwrites it", pool.display()),
        ));
    }
    if let Some(size) = size.filter(|_| kind.is_file()) {
        let file = File::options().write(true).open(pool).map_err(say)?;
        file.set_len(size.0).map_err(say)?;
    }
    Ok(false)
}

/// What seems to live there; `None` where both ends are blank.
fn occupant(pool: &Path) -> std::io::Result<Option<String>> {
    let mut file = File::open(pool)?;
    let length = file.seek(SeekFrom::End(0))?;
    let mut blank = true;
    for start in [0, length.saturating_sub(LOOKED_AT)] {
        file.seek(SeekFrom::Start(start))?;
        let mut bytes = Vec::new();
        (&mut file).take(LOOKED_AT).read_to_end(&mut bytes)?;
        blank &= bytes.iter().all(|&byte| byte == 0);
    }
    if blank {
        return Ok(None);
    }
    if engine::looks_like_a_pool(pool) {
        return Ok(Some("a pool already".into()));
    }
    Ok(Some(match known_format(pool) {
        Some(name) => format!("somebody's data ({name})"),
        None => "somebody's data".into(),
    }))
}

/// What blkid(8), where installed, calls it.
fn known_format(pool: &Path) -> Option<String> {
    let probe = ["-p", "-o", "value", "-s", "TYPE", "-s", "PTTYPE"];
    let output = Command::new("blkid").args(probe).arg(pool).output().ok()?;
    let name = String::from_utf8(output.stdout).ok()?;
    let name = name.trim();
    (!name.is_empty()).then(|| name.replace('\n', ", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blank_file_is_nobodys_and_a_byte_at_either_end_is_somebodys() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image");
        fs::write(&path, vec![0; 3 << 20]).unwrap();
        assert_eq!(occupant(&path).unwrap(), None);
        for place in [1080, (3 << 20) - 1] {
            let mut bytes = vec![0; 3 << 20];
            bytes[place] = 1;
            fs::write(&path, bytes).unwrap();
            assert!(occupant(&path).unwrap().unwrap().starts_with("somebody's data"));
        }
    }

    #[test]
    fn a_new_file_needs_a_size_and_a_missing_device_is_not_made() {
        let failure = prepare(Path::new("/tmp/no-such-pool.img"), None, false).unwrap_err();
        assert_eq!(failure.kind, Kind::Usage);
        assert!(failure.to_string().contains("--size"));
        let missing = prepare(Path::new("/dev/no-such-disk"), Some(Size(1 << 30)), true);
        assert_eq!(missing.unwrap_err().kind, Kind::NotFound);
        let device = prepare(Path::new("/dev/null"), None, true).unwrap_err();
        assert_eq!(device.kind, Kind::Usage);
    }
}
