//! The filesystem behind the mount: `copyhold-fs` as [`Operations`].
//!
//! Node ids and inode numbers are those of `fs`, which derives them from subvolume and inode
//! number. Handles are not used: `fs` counts opens by node. The kernel has checked permissions
//! (`default_permissions`) and is the only one that changes files, so names, attributes and data
//! that it caches stay valid until we say otherwise.
//!
//! Locks are left to the kernel unless [`ServeOptions::locks`] says otherwise: within one mount they
//! are the same, cost no message for lock, unlock and close, and live on when the daemon does not.
//!
//! The end ([`Operations::destroy`]) writes everything and closes filesystem and pool; on `fuseblk`
//! umount(2) waits for that, elsewhere [`crate::Session::wait`] does.

mod convert;
mod filesystem;
mod ioctl;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use copyhold_fs::{Filesystem, FsError};
use copyhold_runtime::Rt;

use crate::locks::Locks;
use crate::mount::Mount;
use crate::protocol::{AttrReply, Entry, NodeId, Settings};
use crate::{Session, SessionError};

pub use convert::errno;

/// How a filesystem is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServeOptions {
    /// What is asked of the kernel; `locks` here decides on [`Settings::locks`].
    pub settings: Settings,
    /// How long the kernel may use a name without asking.
    pub entry_valid: Duration,
    /// How long the kernel may believe that a name does not exist.
    pub absent_valid: Duration,
    /// How long the kernel may use attributes. Its own changes and reads end that by themselves;
    /// what it cannot see is how much space a file takes once its data is written.
    pub attr_valid: Duration,
    /// Keep file locks here instead of in the kernel; needed only where several mounts show the
    /// same files.
    pub locks: bool,
    /// Answer OPEN and RELEASE. Without, files are opened in a quarter of the time, but flags
    /// (immutable, append-only) are looked at by each write instead of by open(2).
    pub open: bool,
    /// Threads that read requests, or what suits the machine.
    pub readers: Option<usize>,
}

impl Default for ServeOptions {
    fn default() -> ServeOptions {
        ServeOptions {
            settings: Settings::default(),
            entry_valid: Duration::from_secs(24 * 3600),
            absent_valid: Duration::from_secs(24 * 3600),
            attr_valid: Duration::from_secs(60),
            locks: false,
            open: true,
            readers: None,
        }
    }
}

/// A filesystem being served.
pub struct Served {
    session: Session,
    closing: Closing,
}

/// How closing filesystem and pool went, once it was tried.
type Closing = Arc<Mutex<Option<Result<(), FsError>>>>;

/// Serves `fs` on `mount`; operations that must wait run on `rt`. Returns when the mount can be
/// used.
pub fn serve(
    fs: Arc<Filesystem>,
    mount: Mount,
    rt: Rt,
    options: &ServeOptions,
) -> Result<Served, SessionError> {
    let closing = Closing::default();
    let settings =
        Settings { locks: options.locks, without_open: !options.open, ..options.settings };
    let server = Server {
        fs,
        locks: Arc::default(),
        options: *options,
        closing: Arc::clone(&closing),
    };
    let spawner = Arc::new(rt);
    let session = Session::start(mount, Arc::new(server), spawner, &settings, options.readers)?;
    Ok(Served { session, closing })
}

impl Served {
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Blocks until the mount is gone and everything is closed. The error is what closing met: the
    /// pool then mounts again, and recovers.
    pub fn wait(self) -> Result<crate::End, FsError> {
        let end = self.session.wait();
        let closed = self.closing.lock().take();
        closed.unwrap_or(Ok(())).map(|()| end)
    }
}

/// See the [module](self).
struct Server {
    fs: Arc<Filesystem>,
    locks: Arc<Locks>,
    options: ServeOptions,
    closing: Closing,
}

impl Server {
    fn entry(&self, found: &copyhold_fs::Entry) -> Entry {
        Entry {
            node: NodeId(found.node.raw()),
            generation: found.attr.generation.into(),
            attr: convert::attr(&found.attr),
            entry_valid: self.options.entry_valid,
            attr_valid: self.options.attr_valid,
        }
    }

    fn attr(&self, attr: &copyhold_fs::Attr) -> AttrReply {
        AttrReply { attr: convert::attr(attr), valid: self.options.attr_valid }
    }
}
