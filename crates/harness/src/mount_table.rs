//! The mounts of this namespace, as the kernel lists them.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use crate::error::{HarnessError, On};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub source: PathBuf,
    pub mount_point: PathBuf,
    /// As in `fuse.copyhold`.
    pub kind: String,
    pub options: String,
}

/// The newest mount at `path`.
pub fn at(path: &Path) -> Result<Option<Entry>, HarnessError> {
    Ok(entries()?.into_iter().rfind(|entry| entry.mount_point == path))
}

pub fn is_mounted(path: &Path) -> Result<bool, HarnessError> {
    at(path).map(|entry| entry.is_some())
}

/// All mount points in `directory`, newest last.
pub(crate) fn below(directory: &Path) -> Result<Vec<PathBuf>, HarnessError> {
    let mut points: Vec<_> = entries()?.into_iter().map(|entry| entry.mount_point).collect();
    points.retain(|point| point.starts_with(directory));
    Ok(points)
}

fn entries() -> Result<Vec<Entry>, HarnessError> {
    const TABLE: &str = "/proc/self/mounts";
    let table = fs::read(TABLE).on(TABLE)?;
    Ok(table.split(|byte| *byte == b'\n').filter_map(entry).collect())
}

fn entry(line: &[u8]) -> Option<Entry> {
    let mut fields = line.split(|byte| *byte == b' ').map(unescaped);
    let mut next = || fields.next();
    let (source, mount_point, kind, options) = (next()?, next()?, next()?, next()?);
    let text = |field: OsString| field.to_string_lossy().into_owned();
    let (source, mount_point) = (source.into(), mount_point.into());
    Some(Entry { source, mount_point, kind: text(kind), options: text(options) })
}

/// The kernel writes blanks and backslashes as three octal digits behind a backslash.
fn unescaped(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, behind)) = rest.split_first() {
        let digits = behind.get(..3).filter(|_| byte == b'\\');
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        let escaped = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        bytes.push(escaped.unwrap_or(byte));
        rest = if escaped.is_some() { &behind[3..] } else { behind };
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_gives_the_names_as_they_are() {
        let found = entry(br"/srv/a\040b.img /mnt/c\134d fuse.copyhold rw,nosuid 0 0").unwrap();
        assert_eq!(found.source, Path::new("/srv/a b.img"));
        assert_eq!(found.mount_point, Path::new(r"/mnt/c\d"));
        assert_eq!((&*found.kind, &*found.options), ("fuse.copyhold", "rw,nosuid"));
        assert_eq!(entry(b""), None);
    }

    #[test]
    fn proc_is_mounted_and_what_is_not_there_is_not() {
        assert!(is_mounted(Path::new("/proc")).unwrap());
        assert!(!is_mounted(Path::new("/no/such/place")).unwrap());
        assert!(below(Path::new("/")).unwrap().contains(&PathBuf::from("/proc")));
    }
}
