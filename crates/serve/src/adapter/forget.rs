//! Notifies the kernel of changes behind its back.
//!
//! Dropping a name takes the kernel's lock of the directory. The owner of that may be waiting for
//! an answer of ours, so no thread that answers may wait for it: a thread of its own does.

use std::sync::Arc;
use std::thread;

use copyhold_fs::NodeId as FsNode;
use copyhold_fuse::Notifier;
use copyhold_fuse::protocol::NodeId;
use event_listener::Event;

use super::pages::Pages;
use super::tenants::Changed;

/// How many files have their content dropped at a time.
const FILES: usize = 256;

/// Drops the names that the kernel knows, negative ones too, with all that it knows below them,
/// and the attributes of their directories; then its pages of content that is gone: a later access
/// to a file of those that is still open returns ESTALE.
pub(super) async fn changed(notifier: &Notifier, pages: &Pages, changed: Changed) {
    let Changed { entries, stale, names: _ } = changed;
    if !entries.is_empty() {
        forget_entries(notifier.clone(), entries).await;
    }
    for nodes in stale.chunks(FILES) {
        let ask = |node: &FsNode| pages.ask(notifier, NodeId(node.raw()), 0..u64::MAX);
        let asked: Vec<_> = nodes.iter().map(ask).collect();
        for one in asked {
            // If the kernel cannot be notified, the connection has ended, or it knows nothing.
            let _ = one.answer().await;
        }
    }
}

async fn forget_entries(notifier: Notifier, entries: Vec<(FsNode, Vec<u8>)>) {
    let done = Arc::new(Event::new());
    let listener = done.listen();
    let forget = move || {
        for (parent, name) in &entries {
            let parent = NodeId(parent.raw());
            let _ = notifier.forget_attributes(parent);
            let _ = notifier.forget_entry(parent, name);
        }
        done.notify(usize::MAX);
    };
    match thread::Builder::new().name("forget".into()).spawn(forget) {
        Ok(_) => listener.await,
        Err(error) => {
            tracing::error!(%error, "the kernel may show removed entries for up to a day")
        }
    }
}
