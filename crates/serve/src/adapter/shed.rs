//! Asks the kernel to release files that it has looked up and does not use.
//!
//! `fs` counts the nodes held, and knows the limit (docs/memory.md, LOOKUP-L1 to LOOKUP-L4). A
//! thread that lives as long as there are nodes to drop sends the notifications: before the kernel
//! drops a file, it may write back the file's pages, and another thread must answer that.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use copyhold_fs::Filesystem;
use copyhold_fuse::Notifier;
use copyhold_fuse::protocol::NodeId;

#[derive(Default)]
pub(super) struct Shedder {
    /// A thread is at it, or the kernel does not know how.
    taken: Arc<AtomicBool>,
}

impl Shedder {
    /// To be called when look-ups were added.
    pub(super) fn look_at(&self, fs: &Arc<Filesystem>, notifier: Option<&Notifier>) {
        if !fs.is_crowded() {
            return;
        }
        let Some(notifier) = notifier.cloned() else { return };
        if self.taken.swap(true, Ordering::AcqRel) {
            return;
        }
        let (fs, taken) = (fs.clone(), self.taken.clone());
        let work = move || {
            if shed(&fs, &notifier) {
                taken.store(false, Ordering::Release);
            }
        };
        if let Err(error) = thread::Builder::new().name("shed".into()).spawn(work) {
            tracing::warn!(%error, "a thread that asks the kernel to forget unused files could not \
                                    start");
            self.taken.store(false, Ordering::Release);
        }
    }
}

/// Whether asking makes sense another time.
fn shed(fs: &Filesystem, notifier: &Notifier) -> bool {
    while fs.is_crowded() {
        let nodes: Vec<NodeId> =
            fs.surplus_lookups().into_iter().map(|node| NodeId(node.raw())).collect();
        match notifier.prune(&nodes) {
            Ok(true) => tracing::debug!("asked the kernel to forget {} files", nodes.len()),
            Ok(false) => {
                tracing::info!("this kernel cannot forget files on request; Linux 6.18 can");
                return false;
            }
            // The connection has ended, or the kernel is short of memory: others may ask again.
            Err(_) => return true,
        }
    }
    true
}
