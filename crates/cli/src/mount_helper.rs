//! `mount.fuse.copyhold SOURCE DIR [-sfnv] [-N ns] [-o options] [-t type]`, as mount(8) calls it.
//!
//! mount(8) does the rest of fstab and does not pass `suid` and `dev`, which FUSE leaves off by
//! default, so they are added here for root. A remount only changes flags of the kernel's, so it
//! is the kernel's own mount program that does it. Exit codes are those of mount(8): 1 usage, 32
//! the mount failed.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use crate::failure::{Failure, Kind};
use crate::getopt::Parsed;
use crate::mount::Mount;

const USAGE: u8 = 1;
const FAILED: u8 = 32;

pub(crate) fn run(arguments: Vec<OsString>) -> u8 {
    let done = Call::parse(arguments).and_then(|call| {
        let is_root = rustix::process::geteuid().is_root();
        if call.options.iter().any(|option| option == "remount") {
            return call.remount();
        }
        if call.fake { Ok(()) } else { call.into_mount(is_root).run("info") }
    });
    match done {
        Ok(()) => 0,
        Err(failure) => {
            failure.report(false);
            if failure.kind == Kind::Usage { USAGE } else { FAILED }
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Call {
    source: OsString,
    directory: PathBuf,
    options: Vec<String>,
    sloppy: bool,
    fake: bool,
}

impl Call {
    fn parse(arguments: Vec<OsString>) -> Result<Call, Failure> {
        let mut parsed = Parsed::new(arguments, "otN")?;
        if parsed.operands.len() != 2 {
            return Err(Failure::usage("usage: mount.fuse.copyhold POOL DIR [-sfnv] [-o OPTIONS]"));
        }
        let directory = parsed.operands.pop().expect("two operands").into();
        let source = parsed.operands.pop().expect("two operands");
        let options =
            parsed.values('o').flat_map(|list| split(&list)).filter(|option| !option.is_empty());
        Ok(Call {
            source,
            directory,
            options: options.collect(),
            // -n (no /etc/mtab) and -v have nothing to say here.
            sloppy: parsed.has('s'),
            fake: parsed.has('f'),
        })
    }

    fn into_mount(self, is_root: bool) -> Mount {
        let mut options = self.options;
        if is_root {
            for (yes, no) in [("suid", "nosuid"), ("dev", "nodev")] {
                if !options.iter().any(|option| option == yes || option == no) {
                    options.push(yes.into());
                }
            }
            for option in ["allow_other", "default_permissions"] {
                if !options.iter().any(|known| known == option) {
                    options.push(option.into());
                }
            }
        }
        Mount {
            pool: PathBuf::from(&self.source),
            directory: self.directory,
            foreground: false,
            options: vec![options.join(",")],
            log_file: None,
            sloppy: self.sloppy,
            fsname: Some(self.source),
        }
    }

    fn remount(&self) -> Result<(), Failure> {
        let status = Command::new("mount")
            .args(["-i", "-o", &self.options.join(",")])
            .args([&self.source, self.directory.as_os_str()])
            .status()
            .map_err(|error| Failure::system("mount", &error))?;
        match status.success() {
            true => Ok(()),
            false => Err(Failure::new(Kind::Failed, format!("remounting failed: mount {status}"))),
        }
    }
}

fn split(list: &str) -> Vec<String> {
    list.split(',').map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(arguments: &[&str]) -> Result<Call, Failure> {
        Call::parse(arguments.iter().map(OsString::from).collect())
    }

    #[test]
    fn root_gets_what_mount_8_keeps_back() {
        let mount = call(&["/dev/x", "/mnt", "-o", "rw,noatime"]).unwrap().into_mount(true);
        assert_eq!(mount.options, ["rw,noatime,suid,dev,allow_other,default_permissions"]);
        assert_eq!(mount.fsname, Some("/dev/x".into()));
        let mount = call(&["x.img", "/mnt", "-o", "nosuid,nodev"]).unwrap().into_mount(true);
        assert_eq!(mount.options, ["nosuid,nodev,allow_other,default_permissions"]);
        let mount = call(&["x.img", "/mnt"]).unwrap().into_mount(false);
        assert_eq!(mount.options, [""]);
    }

    #[test]
    fn the_flags_of_mount_8_are_understood() {
        let call_ = call(&["a", "b", "-sfnv", "-t", "fuse.copyhold", "-o", "ro", "-N", "7"]);
        let call_ = call_.unwrap();
        assert!(call_.sloppy && call_.fake);
        assert_eq!(call_.options, ["ro"]);
        assert_eq!(call(&["a"]).unwrap_err().kind, Kind::Usage);
    }
}
