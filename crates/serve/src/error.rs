//! Errors of opening a pool and serving it.

use std::error::Error;
use std::io;

use copyhold_fs::FsError;
use copyhold_fuse::SessionError;
use copyhold_pool::PoolError;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    #[error(transparent)]
    Pool(#[from] PoolError),
    #[error(transparent)]
    Filesystem(#[from] FsError),
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The connection to the kernel has failed.
    #[error("/dev/fuse: {0}")]
    Connection(#[source] io::Error),
}

/// An error with its causes, in one line.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        // Many repeat the text of their cause.
        if !text.contains(&more) {
            text += &format!(": {more}");
        }
        cause = error.source();
    }
    text
}
