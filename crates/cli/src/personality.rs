//! The helpers that mount(8), mkfs(8), fsck(8) and test suites call, as other names of this
//! program.
//!
//! `make install` links `/sbin/mount.fuse.copyhold`, `/sbin/mkfs.copyhold` and the like to it; the
//! name by which it is called decides. Their arguments and exit codes are those of the tools that
//! call them, not ours, and they print nothing on success.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

use crate::{fsck_helper, mkfs_helper, mount_helper};

/// Whose part this call plays; `None` for `copyhold` itself.
pub(crate) fn named(program: Option<&OsStr>) -> Option<Personality> {
    let name = Path::new(program?).file_name()?.to_str()?;
    let (verb, kind) = name.split_once('.')?;
    if !matches!(kind, "copyhold" | "fuse.copyhold" | "fuseblk.copyhold") {
        return None;
    }
    match verb {
        "mount" => Some(Personality::Mount),
        "mkfs" => Some(Personality::Mkfs),
        "fsck" => Some(Personality::Fsck),
        _ => None,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Personality {
    Mount,
    Mkfs,
    Fsck,
}

impl Personality {
    /// Does what the caller wants; `arguments` are those behind the program's name.
    pub(crate) fn run(self, arguments: Vec<OsString>) -> ExitCode {
        let status = match self {
            Personality::Mount => mount_helper::run(arguments),
            Personality::Mkfs => mkfs_helper::run(arguments),
            Personality::Fsck => fsck_helper::run(arguments),
        };
        ExitCode::from(status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_decides() {
        let named = |name: &str| named(Some(OsStr::new(name)));
        assert_eq!(named("/sbin/mount.fuse.copyhold"), Some(Personality::Mount));
        assert_eq!(named("mkfs.copyhold"), Some(Personality::Mkfs));
        assert_eq!(named("/usr/sbin/fsck.fuseblk.copyhold"), Some(Personality::Fsck));
        assert_eq!(named("/usr/bin/copyhold"), None);
        assert_eq!(named("mount.fuse.sshfs"), None);
    }
}
