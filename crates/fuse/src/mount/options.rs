//! The options behind `-o`.
//!
//! Options of three kinds: flags that any mount has, those of FUSE, and those of the filesystem,
//! which the caller takes for itself. Anything else is an error that names it: a misspelt option
//! that is left out silently is a setting that is not there.

use rustix::mount::MountFlags;
use thiserror::Error;

/// Why options cannot be used.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum OptionError {
    #[error("mount option `{name}` is not known; see the list in `copyhold mount --help`")]
    Unknown { name: String },
    #[error("mount option `{name}` needs {wanted}, not `{found}`")]
    Value { name: String, wanted: &'static str, found: String },
    #[error("mount option `{name}` needs a value: `{name}={wanted}`")]
    Missing { name: String, wanted: &'static str },
    #[error("mount options `{first}` and `{second}` exclude each other; give one of them")]
    Conflict { first: &'static str, second: &'static str },
}

/// How a filesystem is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptions {
    pub flags: MountFlags,
    /// `remount`: change an existing mount.
    pub remount: bool,
    /// Users other than the one who mounts may come in.
    pub allow_other: bool,
    /// Root may come in, but no third user.
    pub allow_root: bool,
    /// The kernel checks permissions (modes and ACLs) before it asks.
    pub default_permissions: bool,
    /// Largest READ in bytes, 0 for the protocol's maximum.
    pub max_read: u32,
    /// Block size of a `fuseblk` mount.
    pub block_size: u32,
    /// The source that `mount` and `df` show, instead of the source itself.
    pub fsname: Option<String>,
    /// Kept for `/proc/mounts` and security modules, passed on to the kernel as they are.
    pub passed_on: Vec<String>,
}

impl Default for MountOptions {
    /// As any filesystem that root mounts; fusermount3 adds nosuid and nodev for others.
    fn default() -> MountOptions {
        let root = rustix::process::geteuid().is_root();
        MountOptions {
            flags: MountFlags::empty(),
            remount: false,
            allow_other: root,
            allow_root: false,
            default_permissions: true,
            max_read: 0,
            block_size: 4096,
            fsname: None,
            passed_on: Vec::new(),
        }
    }
}

enum Change {
    Set(MountFlags),
    Clear(MountFlags),
    /// For mount(8) and fstab only.
    Ignore,
}

fn flag(name: &str) -> Option<Change> {
    use Change::{Clear, Ignore, Set};
    Some(match name {
        "ro" => Set(MountFlags::RDONLY),
        "rw" => Clear(MountFlags::RDONLY),
        "nosuid" => Set(MountFlags::NOSUID),
        "suid" => Clear(MountFlags::NOSUID),
        "nodev" => Set(MountFlags::NODEV),
        "dev" => Clear(MountFlags::NODEV),
        "noexec" => Set(MountFlags::NOEXEC),
        "exec" => Clear(MountFlags::NOEXEC),
        "sync" => Set(MountFlags::SYNCHRONOUS),
        "async" => Clear(MountFlags::SYNCHRONOUS),
        "dirsync" => Set(MountFlags::DIRSYNC),
        "noatime" => Set(MountFlags::NOATIME),
        "atime" => Clear(MountFlags::NOATIME),
        "relatime" => Set(MountFlags::RELATIME),
        "norelatime" => Clear(MountFlags::RELATIME),
        "strictatime" => Set(MountFlags::STRICTATIME),
        "nostrictatime" => Clear(MountFlags::STRICTATIME),
        "nodiratime" => Set(MountFlags::NODIRATIME),
        "diratime" => Clear(MountFlags::NODIRATIME),
        "lazytime" => Set(MountFlags::LAZYTIME),
        "nolazytime" => Clear(MountFlags::LAZYTIME),
        "silent" => Set(MountFlags::SILENT),
        "loud" => Clear(MountFlags::SILENT),
        "nosymfollow" => Set(MountFlags::NOSYMFOLLOW),
        "symfollow" => Clear(MountFlags::NOSYMFOLLOW),
        "defaults" | "auto" | "noauto" | "user" | "nouser" | "users" | "nousers" | "owner"
        | "noowner" | "group" | "nogroup" | "nofail" | "_netdev" => Ignore,
        _ if name.starts_with("x-") || name.starts_with("X-") || name.starts_with("comment=") => {
            Ignore
        }
        _ => return None,
    })
}

impl MountOptions {
    /// Reads `text` (`ro,noatime,…`, as often given as you like) on top of the present options.
    /// `own` sees each option first, and returns whether the filesystem has taken it as its own.
    pub fn add(
        &mut self,
        text: &str,
        mut own: impl FnMut(&str, Option<&str>) -> Result<bool, OptionError>,
    ) -> Result<(), OptionError> {
        for option in split(text) {
            let (name, value) = match option.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (option.as_str(), None),
            };
            if !own(name, value)? {
                self.add_one(&option, name, value)?;
            }
        }
        if self.allow_root && self.allow_other && text.contains("allow_other") {
            return Err(OptionError::Conflict { first: "allow_root", second: "allow_other" });
        }
        Ok(())
    }

    fn add_one(
        &mut self,
        option: &str,
        name: &str,
        value: Option<&str>,
    ) -> Result<(), OptionError> {
        match (name, value) {
            ("remount", None) => self.remount = true,
            ("allow_other", None) => self.allow_other = true,
            ("allow_root", None) => (self.allow_root, self.allow_other) = (true, false),
            ("default_permissions", None) => self.default_permissions = true,
            ("no_default_permissions", None) => self.default_permissions = false,
            ("max_read", value) => self.max_read = number(name, value)?,
            ("blksize", value) => self.block_size = number(name, value)?,
            ("fsname", value) => {
                let missing = OptionError::Missing { name: name.into(), wanted: "NAME" };
                self.fsname = Some(value.ok_or(missing)?.to_owned());
            }
            ("subtype", Some("copyhold")) => {}
            ("context" | "fscontext" | "defcontext" | "rootcontext", Some(_)) => {
                self.passed_on.push(option.to_owned());
            }
            _ => match flag(option) {
                Some(Change::Set(flags)) => self.flags |= flags,
                Some(Change::Clear(flags)) => self.flags -= flags,
                Some(Change::Ignore) => {}
                None => return Err(OptionError::Unknown { name: name.to_owned() }),
            },
        }
        Ok(())
    }

    pub fn read_only(&self) -> bool {
        self.flags.contains(MountFlags::RDONLY)
    }

    /// Flags of the superblock, from the first mount. `ro` is also a flag of each mount.
    pub fn filesystem_flags(&self) -> impl Iterator<Item = &'static str> {
        let flags = [
            (MountFlags::RDONLY, "ro"),
            (MountFlags::SYNCHRONOUS, "sync"),
            (MountFlags::DIRSYNC, "dirsync"),
            (MountFlags::LAZYTIME, "lazytime"),
        ];
        let own = self.flags;
        flags.into_iter().filter(move |(flag, _)| own.contains(*flag)).map(|(_, name)| name)
    }

    /// The kernel's options for a connection through descriptor `fd`.
    pub(super) fn for_kernel(&self, fd: i32, root_mode: u32, uid: u32, gid: u32) -> Vec<String> {
        let mut all = vec![
            format!("fd={fd}"),
            format!("rootmode={root_mode:o}"),
            format!("user_id={uid}"),
            format!("group_id={gid}"),
        ];
        if self.allow_other || self.allow_root {
            all.push("allow_other".into());
        }
        if self.default_permissions {
            all.push("default_permissions".into());
        }
        if self.max_read > 0 {
            all.push(format!("max_read={}", self.max_read));
        }
        all.extend(self.passed_on.iter().cloned());
        all
    }

    /// The text behind `-o` for fusermount3.
    pub(super) fn helper_data(&self, fsname: &str) -> String {
        let mut data = format!("fsname={},subtype=copyhold", escape(fsname));
        let flags = [
            (MountFlags::RDONLY, "ro"),
            (MountFlags::NOEXEC, "noexec"),
            (MountFlags::SYNCHRONOUS, "sync"),
            (MountFlags::DIRSYNC, "dirsync"),
            (MountFlags::NOATIME, "noatime"),
        ];
        for (_, name) in flags.iter().filter(|(flag, _)| self.flags.contains(*flag)) {
            data.push(',');
            data.push_str(name);
        }
        if self.allow_other || self.allow_root {
            data.push_str(",allow_other");
        }
        if self.default_permissions {
            data.push_str(",default_permissions");
        }
        if self.max_read > 0 {
            data.push_str(&format!(",max_read={}", self.max_read));
        }
        data
    }
}

/// Options between commas; `\,` is a comma within one.
fn split(text: &str) -> Vec<String> {
    let mut options = vec![String::new()];
    let mut chars = text.chars();
    while let Some(next) = chars.next() {
        let last = options.last_mut().expect("never empty");
        match next {
            ',' => options.push(String::new()),
            '\\' => last.extend(chars.next()),
            _ => last.push(next),
        }
    }
    options.retain(|option| !option.is_empty());
    options
}

fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace(',', "\\,")
}

fn number(name: &str, value: Option<&str>) -> Result<u32, OptionError> {
    let missing = OptionError::Missing { name: name.to_owned(), wanted: "BYTES" };
    let value = value.ok_or(missing)?;
    value.parse().map_err(|_| OptionError::Value {
        name: name.to_owned(),
        wanted: "a number of bytes",
        found: value.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<MountOptions, OptionError> {
        let mut options = MountOptions::default();
        options.add(text, |_, _| Ok(false))?;
        Ok(options)
    }

    #[test]
    fn the_last_of_contradicting_flags_wins() {
        let options = parse("ro,noatime,nosuid,rw,suid,defaults,x-systemd.automount").unwrap();
        assert_eq!(options.flags, MountFlags::NOATIME);
        assert!(!options.read_only());
    }

    #[test]
    fn an_unknown_option_is_named() {
        assert_eq!(parse("ro,nonsense=3"), Err(OptionError::Unknown { name: "nonsense".into() }));
        let text = parse("max_read=many").unwrap_err().to_string();
        assert_eq!(text, "mount option `max_read` needs a number of bytes, not `many`");
        assert!(parse("max_read").is_err());
        assert!(parse("ro=1").is_err());
    }

    #[test]
    fn the_filesystem_takes_its_own_options() {
        let mut commit = None;
        let mut options = MountOptions::default();
        options
            .add("commit=5,ro", |name, value| {
                let own = name == "commit";
                if own {
                    commit = value.map(str::to_owned);
                }
                Ok(own)
            })
            .unwrap();
        assert_eq!(commit.as_deref(), Some("5"));
        assert!(options.read_only());
    }

    #[test]
    fn root_alone_excludes_everybody() {
        assert!(parse("allow_root").unwrap().allow_root);
        assert!(matches!(parse("allow_root,allow_other"), Err(OptionError::Conflict { .. })));
    }

    #[test]
    fn a_name_with_commas_reaches_the_helper_whole() {
        let options = parse("fsname=a\\,b,max_read=4096,ro").unwrap();
        assert_eq!(options.fsname.as_deref(), Some("a,b"));
        let data = MountOptions { allow_other: false, ..options }.helper_data("a,b");
        let expected = "fsname=a\\,b,subtype=copyhold,ro,default_permissions,max_read=4096";
        assert_eq!(data, expected);
    }

    #[test]
    fn the_kernel_is_told_mode_and_owner() {
        let options = MountOptions { allow_other: true, ..parse("").unwrap() };
        let data = options.for_kernel(3, 0o40000, 7, 8).join(",");
        let expected = "fd=3,rootmode=40000,user_id=7,group_id=8,allow_other,default_permissions";
        assert_eq!(data, expected);
    }
}
