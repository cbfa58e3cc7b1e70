//! The helpers that mount(8), mkfs(8), fsck(8) and test suites call, as other names of this
//! program.
//!
//! `make install` links `/sbin/mount.fuse.copyhold`, `/sbin/mkfs.copyhold` and the like to it; the
//! name by which it is called decides. Their arguments and exit codes are those of the tools that
//! call them, not ours, and they print nothing on success.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

use crate::failure::Failure;
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

/// Arguments as getopt reads them: flags anywhere, alone or joined, with values joined or apart.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Parsed {
    /// Each flag with its value, in order.
    pub(crate) flags: Vec<(char, Option<OsString>)>,
    pub(crate) operands: Vec<OsString>,
}

impl Parsed {
    /// `with_value`: the flags that take one.
    pub(crate) fn new(arguments: Vec<OsString>, with_value: &str) -> Result<Parsed, Failure> {
        let mut parsed = Parsed::default();
        let mut arguments = arguments.into_iter();
        while let Some(argument) = arguments.next() {
            let text = argument.to_str().unwrap_or_default();
            if text == "--" {
                parsed.operands.extend(arguments.by_ref());
            } else if let Some(letters) = text.strip_prefix('-').filter(|rest| !rest.is_empty()) {
                for (place, letter) in letters.char_indices() {
                    if !with_value.contains(letter) {
                        parsed.flags.push((letter, None));
                        continue;
                    }
                    let joined = &letters[place + letter.len_utf8()..];
                    let value = match joined.is_empty() {
                        false => Some(OsString::from(joined)),
                        true => arguments.next(),
                    };
                    let missing = || Failure::usage(format!("-{letter} needs a value"));
                    parsed.flags.push((letter, Some(value.ok_or_else(missing)?)));
                    break;
                }
            } else {
                parsed.operands.push(argument);
            }
        }
        Ok(parsed)
    }

    pub(crate) fn has(&self, letter: char) -> bool {
        self.flags.iter().any(|(flag, _)| *flag == letter)
    }

    /// All values of a flag, as text.
    pub(crate) fn values(&self, letter: char) -> impl Iterator<Item = String> {
        let of_letter = self.flags.iter().filter(move |(flag, _)| *flag == letter);
        of_letter.filter_map(|(_, value)| Some(value.as_ref()?.to_string_lossy().into_owned()))
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

    #[test]
    fn flags_are_read_as_getopt_reads_them() {
        let arguments = ["/dev/x", "-sn", "/mnt", "-orw,noatime", "-o", "suid", "--", "-z"];
        let parsed = Parsed::new(arguments.map(OsString::from).to_vec(), "otN").unwrap();
        assert_eq!(parsed.operands, ["/dev/x", "/mnt", "-z"]);
        assert!(parsed.has('s') && parsed.has('n') && !parsed.has('f'));
        assert_eq!(parsed.values('o').collect::<Vec<_>>(), ["rw,noatime", "suid"]);
        assert!(Parsed::new(vec!["-o".into()], "o").is_err());
    }
}
