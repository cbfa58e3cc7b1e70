//! Pages that the kernel caches of a file, where they must not stay.
//!
//! Problem.  When an asynchronous direct write ends (AIO, io_uring), the kernel (6.18) keeps the
//!           pages that were cached while it was under way: reads through the cache continue to see
//!           replaced content. And dirty content of a page is not known here before the kernel
//!           writes it back.
//! Idea.     INVAL_INODE has the kernel write back the dirty pages of a range, and drop the range.
//!           It waits for pages that are locked while their READ or WRITE is under way. So threads
//!           of their own send it, of the operations only the one that needs it waits for them,
//!           and it is sent when those READs and WRITEs have ended here.
//!
//! PAGES-K1  A READ or WRITE of pages notes its file as cached (`Uses::CACHED`) before it is
//!           served. So a file with a page that shows replaced content has the note when the direct
//!           write ends. A file without the note, such as one that is only open for direct I/O,
//!           gets no drops. When READs and WRITEs of pages have ceased, one drop takes all pages of
//!           the file, and the note goes.
//! PAGES-K2  A direct write is answered when the pages of its range are dropped. Every page that is
//!           filled later is read behind the write.
//! PAGES-K3  No READ and no WRITE of pages waits for a drop: the requests that a drop waits for
//!           continue.
//! PAGES-K4  A drop that overlaps READs or WRITEs of pages under way here waits in `underway`, not
//!           in the kernel. There a killed daemon could not leave it (UNDERWAY-B1 and UNDERWAY-B2,
//!           with what remains).
//!
//! A drop that meets a page which a buffered write is just sending lets a read fill it again before
//! that write arrives: so a direct and a buffered write of the same page at the same time promise
//! nothing, here as on other filesystems.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{io, thread};

use copyhold_fs::{Filesystem, NodeId as FsNode, Stale};
use copyhold_fuse::Notifier;
use copyhold_fuse::protocol::{NodeId, Read, Write};
use copyhold_sync::{Condvar, Mutex, of};
use event_listener::{Event, EventListener};

use super::underway::Underway;

/// Most threads that send drops. A drop may wait long for a locked page; fewer such waits than this
/// delay no other drop.
const THREADS_MAX: usize = 8;

/// Sends drops, by threads of its own that it starts when there is something to send.
#[derive(Default)]
pub(super) struct Pages {
    shared: Arc<Shared>,
    underway: Underway<Dropping>,
}

/// A READ or WRITE of pages, from before it is served until its answer is ready.
pub(super) struct Transfer<'a> {
    pages: &'a Pages,
    node: NodeId,
    range: Range<u64>,
}

/// The drop of all pages of a file. It notes its result also if the operation that waits for it is
/// cancelled.
struct Clearing<'a> {
    fs: &'a Filesystem,
    node: FsNode,
    done: bool,
}

impl Drop for Clearing<'_> {
    fn drop(&mut self) {
        self.fs.cache_dropped(self.node, self.done);
    }
}

/// The end of a drop, for the operation that requested it.
pub(super) struct Asked {
    end: Arc<End>,
    listener: EventListener,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue, of::PageDrops>,
    more: Condvar,
}

#[derive(Default)]
struct Queue {
    drops: VecDeque<Dropping>,
    threads: usize,
    idle: usize,
    ended: bool,
}

/// A range whose pages are to be dropped.
struct Dropping {
    notifier: Notifier,
    node: NodeId,
    range: Range<u64>,
    end: Arc<End>,
}

#[derive(Default)]
struct End {
    dropped: AtomicBool,
    event: Event,
}

impl Drop for Dropping {
    fn drop(&mut self) {
        self.end.event.notify(usize::MAX);
    }
}

/// Whether a READ fills a page: a direct one says whose locks it respects.
pub(super) fn fills_pages(read: &Read) -> bool {
    read.lock_owner.is_none()
}

/// Whether a WRITE passes the page cache: like a READ, a direct one names an owner of locks. The
/// flags of the file do not say it: another thread may set `O_DIRECT` while a buffered write waits
/// to be sent, and a drop behind that one would wait for a page that is locked until the answer.
pub(super) fn is_direct(write: &Write) -> bool {
    !write.cached && write.lock_owner.is_some()
}

pub(super) fn range(offset: u64, size: u32) -> Range<u64> {
    offset..offset.saturating_add(size.into())
}

impl Pages {
    /// To be called behind a direct WRITE, before it is answered (PAGES-K2).
    pub(super) async fn written(
        &self,
        fs: &Filesystem,
        notifier: Option<&Notifier>,
        node: FsNode,
        range: Range<u64>,
    ) {
        let stale = fs.written_past_cache(node);
        let mut clearing = (stale == Stale::All).then_some(Clearing { fs, node, done: false });
        let range = match stale {
            Stale::Nothing => return,
            Stale::Written => range,
            Stale::All => 0..u64::MAX,
        };
        let Some(notifier) = notifier else { return };
        let dropped = Box::pin(self.drop_range(notifier, NodeId(node.raw()), range)).await;
        if let Some(clearing) = &mut clearing {
            clearing.done = dropped;
        }
    }

    /// To be kept while a READ or WRITE of pages is served (PAGES-K4).
    pub(super) fn transfer(&self, node: NodeId, range: Range<u64>) -> Transfer<'_> {
        let overtaken = self.underway.begin(node, &range);
        overtaken.into_iter().for_each(|dropping| self.send(dropping));
        Transfer { pages: self, node, range }
    }

    /// Has the kernel write back and drop its pages of `range`. Whether it has: not if it cannot be
    /// notified.
    pub(super) async fn drop_range(
        &self,
        notifier: &Notifier,
        node: NodeId,
        range: Range<u64>,
    ) -> bool {
        self.ask(notifier, node, range).answer().await
    }

    /// Begins what [`Pages::drop_range`] does.
    pub(super) fn ask(&self, notifier: &Notifier, node: NodeId, range: Range<u64>) -> Asked {
        let end = Arc::new(End::default());
        let listener = end.event.listen();
        let (notifier, sent) = (notifier.clone(), Arc::clone(&end));
        let dropping = Dropping { notifier, node, range: range.clone(), end: sent };
        if let Some(dropping) = self.underway.admit(node, &range, dropping) {
            self.send(dropping);
        }
        Asked { end, listener }
    }

    fn send(&self, dropping: Dropping) {
        let mut queue = self.shared.queue.lock();
        queue.drops.push_back(dropping);
        if queue.idle >= queue.drops.len() || queue.threads == THREADS_MAX {
            drop(queue);
            self.shared.more.notify_one();
            return;
        }
        match start(&self.shared) {
            Ok(()) => queue.threads += 1,
            Err(error) if queue.threads == 0 => {
                tracing::error!(%error, "the kernel may show outdated pages");
                let unsent = std::mem::take(&mut queue.drops);
                drop(queue);
                drop(unsent);
            }
            Err(_) => drop(self.shared.more.notify_one()),
        }
    }
}

impl Asked {
    pub(super) async fn answer(self) -> bool {
        self.listener.await;
        self.end.dropped.load(Ordering::Acquire)
    }
}

impl Drop for Transfer<'_> {
    fn drop(&mut self) {
        let free = self.pages.underway.end(self.node, &self.range);
        free.into_iter().for_each(|dropping| self.pages.send(dropping));
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        self.shared.queue.lock().ended = true;
        self.shared.more.notify_all();
    }
}

fn start(shared: &Arc<Shared>) -> io::Result<()> {
    let shared = Arc::clone(shared);
    let work = move || {
        while let Some(dropping) = shared.next() {
            dropping.send();
        }
    };
    thread::Builder::new().name("pages".into()).spawn(work).map(drop)
}

impl Shared {
    /// Waits for a drop to send; `None` at the end.
    fn next(&self) -> Option<Dropping> {
        let mut queue = self.queue.lock();
        loop {
            if let Some(dropping) = queue.drops.pop_front() {
                return Some(dropping);
            }
            if queue.ended {
                return None;
            }
            queue.idle += 1;
            self.more.wait(&mut queue);
            queue.idle -= 1;
        }
    }
}

impl Dropping {
    fn send(self) {
        // If the kernel cannot be notified, the connection has ended.
        let sent = self.notifier.forget_data(self.node, self.range.clone());
        self.end.dropped.store(sent.is_ok(), Ordering::Release);
    }
}
