//! Others who look at the mount: an ordinary user, and tools.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use rustix::io::Errno;

use crate::site::Site;

/// The output of a shell of an ordinary user.
pub(crate) fn as_nobody(site: &Site, script: &str) -> bool {
    let mut shell = Command::new("setpriv");
    shell.args(["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", script]);
    shell.current_dir(site.mnt()).stderr(Stdio::null()).status().unwrap().success()
}

pub(crate) fn number(error: std::io::Error) -> Errno {
    Errno::from_raw_os_error(error.raw_os_error().unwrap())
}

pub(crate) fn tool(name: &str, arguments: &[&str], at: &Path) -> Output {
    Command::new(name).args(arguments).arg(at).output().unwrap()
}
