//! The request for a mount: a pool's first, which its daemon serves, or one more.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::mount_options::Options;

/// A mount that makes sense, with paths that hold wherever the daemon goes.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) pool: PathBuf,
    pub(crate) directory: PathBuf,
    pub(crate) options: Options,
    pub(crate) fsname: OsString,
}
