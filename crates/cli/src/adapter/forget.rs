//! Telling the kernel what changed behind its back.
//!
//! Dropping a name takes the kernel's lock of the directory. Whoever holds that may be waiting for
//! an answer of ours, so no thread that answers may wait for it: a thread of its own does.

use std::sync::Arc;
use std::thread;

use copyhold_fuse::Notifier;
use copyhold_fuse::protocol::NodeId;
use event_listener::Event;

use super::tenants::Changed;

/// Drops what the kernel knows of names, be it that there is none, with all that it knows below
/// them, and the attributes of their directories; then what it has of content that is gone: whoever
/// still has such a file open asks us, and is told that it is stale.
pub(super) async fn changed(notifier: Notifier, changed: Changed) {
    let done = Arc::new(Event::new());
    let listener = done.listen();
    let forget = move || {
        // If the kernel cannot be told, the connection has ended, or it knows nothing.
        for (parent, name) in &changed.entries {
            let parent = NodeId(parent.raw());
            let _ = notifier.forget_attributes(parent);
            let _ = notifier.forget_entry(parent, name);
        }
        for node in &changed.stale {
            let _ = notifier.forget_inode(NodeId(node.raw()));
        }
        done.notify(usize::MAX);
    };
    match thread::Builder::new().name("forget".into()).spawn(forget) {
        Ok(_) => listener.await,
        Err(error) => tracing::error!(%error, "the kernel may show for a day what is gone"),
    }
}
