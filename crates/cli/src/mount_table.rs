//! The kernel's table of mounts, as far as it concerns Copyhold.
//!
//! `/proc/self/mountinfo` is text with octal escapes, oldest mount first; a later mount on the same
//! directory hides an earlier one. Nothing is asked of the mounts themselves, so a mount whose
//! daemon is gone can be found and taken down.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use crate::failure::{Failure, Kind};

/// One mounted pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    /// The pool, as it was given to mount.
    pub(crate) source: PathBuf,
    pub(crate) directory: PathBuf,
    pub(crate) read_only: bool,
    /// `fuse.copyhold`, or `fuseblk.copyhold` on a block device.
    pub(crate) kind: String,
}

/// The mounts of Copyhold that this process sees, oldest first.
pub(crate) fn mounts() -> Result<Vec<Mount>, Failure> {
    let path = "/proc/self/mountinfo";
    let table = fs::read(path).map_err(|error| Failure::system(path, &error))?;
    Ok(parse(&table))
}

/// What a person who names `target` means by it: the mounted pool at this directory, or, if there
/// is none, every mount of this pool.
pub(crate) fn named(target: &Path) -> Result<Vec<Mount>, Failure> {
    let all = mounts()?;
    let target = absolute(target);
    if let Some(mount) = all.iter().rfind(|mount| mount.directory == target) {
        return Ok(vec![mount.clone()]);
    }
    let of_pool: Vec<Mount> =
        all.into_iter().filter(|mount| absolute(&mount.source) == target).collect();
    if of_pool.is_empty() {
        return Err(Failure::new(
            Kind::NotMounted,
            format!("no pool is mounted at {0}, and {0} is no mounted pool", target.display()),
        ));
    }
    Ok(of_pool)
}

/// The mounted pool that holds `path`, whichever file or directory of it that is.
pub(crate) fn holding(path: &Path) -> Result<Mount, Failure> {
    let path = absolute(path);
    let found = mounts()?
        .into_iter()
        .filter(|mount| path.starts_with(&mount.directory))
        .max_by_key(|mount| mount.directory.as_os_str().len());
    found.ok_or_else(|| {
        Failure::new(
            Kind::NotMounted,
            format!("{} is on no mounted pool; `copyhold mount` makes one", path.display()),
        )
    })
}

/// `path` without links and dots; of a directory whose daemon is gone, which cannot be asked, what
/// its parent says.
pub(crate) fn absolute(path: &Path) -> PathBuf {
    if let Ok(path) = path.canonicalize() {
        return path;
    }
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    match (path.parent().and_then(|parent| parent.canonicalize().ok()), path.file_name()) {
        (Some(parent), Some(name)) => parent.join(name),
        _ => path,
    }
}

fn parse(table: &[u8]) -> Vec<Mount> {
    table.split(|&byte| byte == b'\n').filter_map(parse_line).collect()
}

/// `36 35 98:0 /root /directory rw,noatime shared:1 - fuse.copyhold /pool rw,user_id=0`
fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|&byte| byte == b' ');
    let directory = unescape(fields.nth(4)?);
    let options = fields.next()?;
    let mut fields = fields.skip_while(|field| field != b"-").skip(1);
    let kind = String::from_utf8(fields.next()?.to_vec()).ok()?;
    if kind != "fuse.copyhold" && kind != "fuseblk.copyhold" {
        return None;
    }
    let source = unescape(fields.next()?);
    let read_only = options.split(|&byte| byte == b',').any(|option| option == b"ro");
    Some(Mount { source: source.into(), directory: directory.into(), read_only, kind })
}

/// Undoes the `\040` of blanks, tabs, newlines and backslashes.
fn unescape(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        let octal = tail.get(..3).filter(|_| *first == b'\\').and_then(|digits| {
            let text = std::str::from_utf8(digits).ok()?;
            u8::from_str_radix(text, 8).ok()
        });
        bytes.push(octal.unwrap_or(*first));
        rest = if octal.is_some() { &tail[3..] } else { tail };
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
        40 22 0:50 / /mnt/my\\040pool rw,nosuid - fuse.copyhold /srv/my\\040pool.img rw,user_id=0\n\
        41 22 0:51 / /mnt/other rw shared:3 master:1 - fuse.sshfs host: rw\n\
        42 22 7:0 / /mnt/block ro,relatime shared:9 - fuseblk.copyhold /dev/loop0 ro\n";

    #[test]
    fn only_mounts_of_copyhold_are_listed_and_their_names_unescaped() {
        let mounts = parse(TABLE);
        assert_eq!(mounts.len(), 2);
        assert_eq!(mounts[0].directory, Path::new("/mnt/my pool"));
        assert_eq!(mounts[0].source, Path::new("/srv/my pool.img"));
        assert!(!mounts[0].read_only);
        assert_eq!(mounts[1].kind, "fuseblk.copyhold");
        assert!(mounts[1].read_only);
    }

    #[test]
    fn garbage_in_the_table_is_skipped() {
        assert_eq!(parse(b"\n1 2 3\n - - -\n1 2 3 4 5 6 7"), vec![]);
        assert_eq!(unescape(b"a\\9zb\\04"), "a\\9zb\\04");
        assert_eq!(unescape(b"a\\134b\\011"), "a\\b\t");
    }

    #[test]
    fn a_path_that_is_not_there_is_resolved_by_its_parent() {
        assert_eq!(
            absolute(Path::new("/proc/self/../nothing-here")),
            Path::new("/proc/nothing-here")
        );
    }
}
