//! Requirements of a mount test: root, `/dev/fuse`, the transport. On a machine that lacks one, the
//! test prints a note and passes; with `CI=true` it fails.

use std::env;
use std::fs::File;

use rustix::process::geteuid;

use crate::transport;

/// Root, `/dev/fuse`, and the transport that the tests are to use.
pub fn are_met() -> bool {
    let is_root = is_there(geteuid().is_root(), "root");
    is_root && has_fuse()
}

/// `/dev/fuse`, and the transport that the tests are to use.
pub fn has_fuse() -> bool {
    let fuse = File::options().read(true).write(true).open("/dev/fuse");
    is_there(fuse.is_ok(), "/dev/fuse") && is_there(transport::is_offered(), "FUSE over io_uring")
}

fn is_there(is_there: bool, what: &str) -> bool {
    assert!(is_there || env::var_os("CI").is_none(), "CI needs {what}");
    if !is_there {
        eprintln!("skipped: needs {what}");
    }
    is_there
}
