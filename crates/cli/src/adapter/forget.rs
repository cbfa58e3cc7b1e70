//! Telling the kernel what changed behind its back.
//!
//! Dropping a name takes the kernel's lock of the directory. Whoever holds that may be waiting for
//! an answer of ours, so no thread that answers may wait for it: a thread of its own does.

use std::sync::Arc;
use std::thread;

use copyhold_fuse::Notifier;
use copyhold_fuse::protocol::NodeId;
use event_listener::Event;

/// Drops what the kernel knows of a name in `parent`, be it that there is none, with all that it
/// knows below it; and the attributes of `parent`.
pub(super) async fn entry(notifier: Notifier, parent: NodeId, name: Vec<u8>) {
    let done = Arc::new(Event::new());
    let listener = done.listen();
    let forget = move || {
        // If the kernel cannot be told, the connection has ended.
        let _ = notifier.forget_attributes(parent);
        let _ = notifier.forget_entry(parent, &name);
        done.notify(usize::MAX);
    };
    match thread::Builder::new().name("forget".into()).spawn(forget) {
        Ok(_) => listener.await,
        Err(error) => tracing::error!(%error, "the kernel may show for a day what is gone"),
    }
}
