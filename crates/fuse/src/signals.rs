//! SIGTERM, SIGINT and SIGHUP as something that one can wait for, to unmount in good order.
//!
//! The signals are blocked in the thread that calls [`Signals::block`], which must be the first of
//! the process, so that every later thread inherits it and none is ever interrupted by them.

use std::fs::File;
use std::io::{self, Read};
use std::sync::Arc;
use std::thread;

use crate::mount::{Mount, MountError};
use crate::sys;

const SIGNALS: [i32; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

/// The signals that end a mount.
#[derive(Debug)]
pub struct Signals {
    file: File,
}

impl Signals {
    /// Call it before the first thread is started.
    pub fn block() -> io::Result<Signals> {
        sys::block_signals(&SIGNALS)?;
        Ok(Signals { file: sys::signal_fd(&SIGNALS)?.into() })
    }

    /// Blocks until one arrives; its number.
    pub fn wait(&mut self) -> io::Result<i32> {
        let mut info = [0; size_of::<libc::signalfd_siginfo>()];
        self.file.read_exact(&mut info)?;
        let number = info.first_chunk().map(|four| u32::from_ne_bytes(*four));
        Ok(number.unwrap_or_default() as i32)
    }

    /// From a thread of its own, unmounts when a signal comes: as one would by hand first, and when
    /// it is busy takes the mount out of the tree, so that it ends with its last user. A second
    /// signal then breaks the connection, whoever uses it.
    pub fn unmount_on_arrival(mut self, mount: Arc<Mount>) -> io::Result<()> {
        let wait_and_unmount = move || {
            while self.wait().is_ok() {
                match mount.unmount() {
                    Err(MountError::Busy { .. }) => {
                        tracing::warn!("the mount is in use; detached until its last user leaves");
                        mount.detach();
                    }
                    Err(error) => tracing::error!(%error, "the mount could not be removed"),
                    Ok(()) => {}
                }
                if self.wait().is_ok()
                    && let Err(error) = mount.abort()
                {
                    tracing::error!(%error, "the connection could not be broken");
                }
            }
        };
        thread::Builder::new().name("signals".into()).spawn(wait_and_unmount).map(drop)
    }
}
