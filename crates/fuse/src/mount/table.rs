//! The kernel's table of mounts, `/proc/self/mountinfo`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use super::which::Which;

/// One line of the table, as far as it matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    pub mount_point: PathBuf,
    /// Major and minor number of the device; distinguishes one mount from the next at the same
    /// place.
    pub device: (u32, u32),
    /// Such as `fuse.copyhold`.
    pub kind: String,
    pub source: OsString,
    /// Options of the filesystem, which all of its mounts share.
    pub options: String,
}

impl MountEntry {
    /// Whether one of ours is mounted here.
    pub fn is_copyhold(&self) -> bool {
        matches!(self.kind.as_str(), "fuse.copyhold" | "fuseblk.copyhold")
    }

    /// The user who mounted, as FUSE shows it.
    pub fn user(&self) -> Option<u32> {
        self.options.split(',').find_map(|option| option.strip_prefix("user_id=")?.parse().ok())
    }

    /// Whether the filesystem is, not only this mount of it.
    pub fn is_read_only(&self) -> bool {
        self.options.split(',').any(|option| option == "ro")
    }

    /// A number of this filesystem alone, as long as it is mounted in any namespace, or used
    /// without a mount; none after its end. Device numbers are not unique: the kernel gives them to
    /// the next filesystem at once. It gives numbers of directories in sysfs in turn.
    pub fn identity(&self) -> Option<u64> {
        self.which().identity()
    }

    /// The filesystem that is mounted here, if it still is.
    pub(super) fn which(&self) -> Which {
        Which::now(self.device, self.is_block())
    }

    /// Whether it is a mount of `which`, if that exists.
    pub(super) fn shows(&self, which: &Which) -> bool {
        self.is_copyhold() && self.device == which.number && self.is_block() == which.is_block
    }

    fn is_block(&self) -> bool {
        self.kind.starts_with("fuseblk")
    }

    fn parse(line: &[u8]) -> Option<MountEntry> {
        let mut fields = line.split(|&byte| byte == b' ').filter(|field| !field.is_empty());
        let device = std::str::from_utf8(fields.nth(2)?).ok()?;
        let (major, minor) = device.split_once(':')?;
        let mount_point = PathBuf::from(unescape(fields.nth(1)?));
        let mut fields = fields.skip_while(|field| *field != b"-").skip(1);
        let kind = String::from_utf8_lossy(fields.next()?).into_owned();
        let source = unescape(fields.next()?);
        let options = String::from_utf8_lossy(fields.next().unwrap_or_default()).into_owned();
        let device = (major.parse().ok()?, minor.parse().ok()?);
        Some(MountEntry { mount_point, device, kind, source, options })
    }
}

/// Every mount that this process sees; later ones cover earlier ones at the same place.
pub fn mounts() -> io::Result<Vec<MountEntry>> {
    let text = fs::read("/proc/self/mountinfo")?;
    Ok(text.split(|&byte| byte == b'\n').filter_map(MountEntry::parse).collect())
}

/// The mount just at `mount_point` (absolute, without links), if any.
pub fn mounted_at(mount_point: &Path) -> io::Result<Option<MountEntry>> {
    Ok(mounts()?.into_iter().rfind(|entry| entry.mount_point == mount_point))
}

/// Blanks, tabs, newlines and backslashes are written as `\` and three octal digits.
pub fn unescape(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        let octal = (first == b'\\').then(|| tail.get(..3)).flatten().and_then(|digits| {
            digits.iter().try_fold(0u8, |value, digit| match digit {
                b'0'..=b'7' => value.checked_mul(8)?.checked_add(digit - b'0'),
                _ => None,
            })
        });
        bytes.push(octal.unwrap_or(first));
        rest = if octal.is_some() { &tail[3..] } else { tail };
    }
    OsStr::from_bytes(&bytes).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_whatever_its_optional_fields() {
        let line =
            b"36 35 0:45 / /mnt/a\\040b rw,noatime shared:1 - fuse.copyhold /p\\134q ro,user_id=7";
        let entry = MountEntry::parse(line).unwrap();
        assert_eq!(entry.mount_point, Path::new("/mnt/a b"));
        assert_eq!((entry.device, entry.source.as_bytes()), ((0, 45), &b"/p\\q"[..]));
        assert!(entry.is_copyhold());
        assert_eq!((entry.user(), entry.is_read_only()), (Some(7), true));
        let plain = MountEntry::parse(b"1 2 8:1 / / rw - ext4 /dev/sda1 rw").unwrap();
        assert!(!plain.is_copyhold() && !plain.is_read_only());
        assert_eq!(MountEntry::parse(b"1 2 8:1 /"), None);
    }

    #[test]
    fn half_an_escape_is_taken_as_it_is() {
        assert_eq!(unescape(b"a\\04"), "a\\04");
        assert_eq!(unescape(b"\\777"), "\\777");
    }

    #[test]
    fn this_machine_has_a_root() {
        assert!(mounted_at(Path::new("/")).unwrap().is_some());
    }
}
