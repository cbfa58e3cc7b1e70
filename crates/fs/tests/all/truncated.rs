//! Files that were emptied through a descriptor: what a crash leaves of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use copyhold_fs::{Attr, Caller, Filesystem, NodeId, OpenFlags, Options, SetAttr};

use crate::common::*;

const OLD: usize = 300_000;
/// Dirty bytes of one file from which on a task writes it.
const WRITTEN_AT_ONCE: u64 = 2 * OLD as u64 - 10_000;
/// Less than until a timer writes back.
const SOON: Duration = Duration::from_secs(2);
/// Longer than anything waits for a timer.
const LONG: Duration = Duration::from_secs(60);

/// A file with durable content, that nobody has open.
async fn durable(fs: &Arc<Filesystem>) -> NodeId {
    let node = create(fs, "f").await;
    write(fs, node, 0, &pattern(1, OLD)).await;
    fs.fsync(node, false).await.unwrap();
    fs.release(node);
    node
}

/// As a library has it, in one call; the kernel opens, and then sets the size.
async fn truncated(fs: &Arc<Filesystem>, node: NodeId) {
    let at_once = fs.pool().runtime().random().is_multiple_of(2);
    let flags = OpenFlags { truncate: at_once, ..OpenFlags::READ_WRITE };
    fs.open_node(node, flags).await.unwrap();
    if !at_once {
        let set = SetAttr { size: Some(0), empties: true, ..SetAttr::default() };
        fs.setattr(&Caller::ROOT, node, &set).await.unwrap();
    }
    assert_eq!(fs.getattr(node).await.unwrap().size, 0);
}

/// As [`truncated`], so many nanoseconds behind the begin of an fsync at most. Whether that still
/// writes.
async fn truncated_beside_fsync(fs: &Arc<Filesystem>, node: NodeId, nanos_max: u64) -> bool {
    let rt = fs.pool().runtime().clone();
    let (other, nanos) = (fs.clone(), rt.random() % nanos_max);
    rt.spawn(Box::pin(async move { drop(other.fsync(node, false).await) }));
    rt.sleep(Duration::from_nanos(nanos)).await;
    truncated(fs, node).await;
    fs.pool().space().claimed > 0
}

/// The content of a durable file after `then` and a crash.
fn left(seed: u64, then: impl AsyncFn(&Arc<Filesystem>, NodeId)) -> Vec<u8> {
    let all = async |fs: &_| then(fs, durable(fs).await).await;
    let ((), _, found) = after_crash(seed, all);
    found
}

/// What `then` returns, and attributes and content of `f` after a crash.
fn after_crash<T>(seed: u64, then: impl AsyncFn(&Arc<Filesystem>) -> T) -> (T, Attr, Vec<u8>) {
    after_crash_with(seed, Options::default(), then)
}

/// As [`after_crash`], with these options before it.
fn after_crash_with<T>(
    seed: u64,
    options: Options,
    then: impl AsyncFn(&Arc<Filesystem>) -> T,
) -> (T, Attr, Vec<u8>) {
    let world = World::new(seed, 16_384);
    let (fs, said) = world.run(async {
        let fs = world.open_with(options).await;
        let said = then(&fs).await;
        (fs, said)
    });
    let world = world.crash(fs, seed);
    world.run(async {
        let fs = world.open().await;
        let attr = lookup(&fs, "f").await.unwrap().attr;
        let found = read(&fs, attr.node, 0, 2 * OLD).await;
        check_space(&fs).await;
        world.close(fs).await;
        (said, attr, found)
    })
}

async fn wait(fs: &Filesystem, time: Duration) {
    fs.pool().runtime().sleep(time).await;
}

#[test]
fn a_truncation_alone_leaves_the_old_content_until_it_is_written_back() {
    let found = left(1, async |fs, node| {
        truncated(fs, node).await;
        wait(fs, SOON).await;
        // Another file that is made durable takes nothing of it along.
        let other = create(fs, "other").await;
        write(fs, other, 0, b"other").await;
        fs.fsync(other, false).await.unwrap();
    });
    assert_eq!(found, pattern(1, OLD));
}

#[test]
fn a_truncation_alone_is_durable_when_the_close_returns() {
    let found = left(2, async |fs, node| {
        truncated(fs, node).await;
        fs.flush(node).await.unwrap();
    });
    assert_eq!(found, b"");
}

#[test]
fn a_truncation_that_nothing_follows_is_written_back_in_time() {
    let found = left(6, async |fs, node| {
        truncated(fs, node).await;
        wait(fs, LONG).await;
        let other = create(fs, "other").await;
        fs.fsync(other, false).await.unwrap();
    });
    assert_eq!(found, b"");
}

#[test]
fn a_close_by_another_descriptor_makes_it_durable_too() {
    let found = left(7, async |fs, node| {
        truncated(fs, node).await;
        fs.open_node(node, OpenFlags::READ_WRITE).await.unwrap();
        fs.flush(node).await.unwrap();
    });
    assert_eq!(found, b"");
}

/// R35: the cut is logged together with the first blocks of the rewrite (DIRTY-D9).
#[test]
fn a_rewrite_longer_than_a_batch_never_leaves_the_file_empty() {
    const BATCH: usize = 4 << 20;
    for seed in seeds(20) {
        let found = left(seed, async |fs, node| {
            truncated(fs, node).await;
            write(fs, node, 0, &pattern(2, BATCH + 65_536)).await;
            let other = create(fs, "other").await;
            let full = fs.dirty_bytes();
            while fs.dirty_bytes() == full {
                wait(fs, Duration::from_micros(50)).await;
            }
            fs.fsync(other, false).await.unwrap();
        });
        assert!(!found.is_empty(), "seed {seed}");
    }
}

#[test]
fn a_truncation_goes_out_behind_the_last_close_and_by_a_second_open() {
    let found = left(3, async |fs, node| {
        truncated(fs, node).await;
        truncated(fs, node).await;
        fs.release(node);
        fs.release(node);
        wait(fs, LONG).await;
    });
    assert_eq!(found, b"");
}

#[test]
fn a_truncation_goes_out_with_what_is_written_next() {
    for size in [100, 5000, 3 * OLD] {
        let found = left(4, async |fs, node| {
            truncated(fs, node).await;
            wait(fs, LONG).await;
            write(fs, node, 0, &pattern(2, size)).await;
            fs.flush(node).await.unwrap();
            wait(fs, LONG).await;
        });
        assert_eq!(found, pattern(2, size)[..size.min(2 * OLD)]);
    }
}

#[test]
fn whoever_asks_for_the_file_or_for_all_gets_the_truncation() {
    for asked in 0..4 {
        let found = left(5, async |fs, node| {
            truncated(fs, node).await;
            match asked {
                0 => fs.fsync(node, false).await.unwrap(),
                1 => fs.sync().await.unwrap(),
                2 => {
                    let size = SetAttr { size: Some(0), ..SetAttr::default() };
                    fs.setattr(&Caller::ROOT, node, &size).await.unwrap();
                    wait(fs, LONG).await;
                }
                _ => world_ends(fs).await,
            }
        });
        assert_eq!(found, b"", "{asked}");
    }
}

async fn world_ends(fs: &Arc<Filesystem>) {
    fs.close().await.unwrap();
    fs.pool().close().await.unwrap();
}

/// The old content, or the new: a batch of what was there before the truncation, under way when it
/// comes, does not log it, and neither does the task that wrote it (DIRTY-D8).
#[test]
fn no_write_back_that_was_under_way_logs_the_truncation_alone() {
    let met = AtomicU64::new(0);
    for start in [WRITTEN_AT_ONCE, u64::MAX] {
        let options = Options {
            file_dirty_bytes_start: start,
            dirty_bytes_max: 2 << 20,
            ..Options::default()
        };
        for seed in seeds(40) {
            let ((), _, found) = after_crash_with(seed, options.clone(), async |fs| {
                let node = durable(fs).await;
                fs.open_node(node, OpenFlags::READ_WRITE).await.unwrap();
                let other = create(fs, "other").await;
                // By a task for this file alone, or together with another.
                write(fs, node, 0, &pattern(2, 2 * OLD)).await;
                write(fs, other, 0, &pattern(3, 2 * OLD)).await;
                let rt = fs.pool().runtime().clone();
                rt.sleep(Duration::from_nanos(rt.random() % 300_000)).await;
                truncated(fs, node).await;
                let still_writes = fs.pool().space().claimed > 0;
                met.fetch_add(still_writes.into(), Relaxed);
                wait(fs, SOON).await;
                let other = create(fs, "another").await;
                fs.fsync(other, false).await.unwrap();
            });
            let (old, new) = (pattern(1, OLD), pattern(2, 2 * OLD));
            assert!(found == old || found == new, "seed {seed}: {} bytes", found.len());
        }
    }
    assert!(met.load(Relaxed) > 10, "batches were under way: {met:?}");
}

/// Nothing is stored, so there is no cut to be logged, and the batch of another fsync that the
/// truncation overtakes logs nothing: the times go out by themselves (DIRTY-D8).
#[test]
fn fsync_and_sync_make_the_times_of_a_truncation_beside_the_first_write_back_durable() {
    let met = AtomicU64::new(0);
    for seed in seeds(40) {
        let (shown, found, _) = after_crash(seed, async |fs| {
            let node = create(fs, "f").await;
            write(fs, node, 0, &pattern(1, OLD)).await;
            let still_writes = truncated_beside_fsync(fs, node, 150_000).await;
            met.fetch_add(still_writes.into(), Relaxed);
            let shown = fs.getattr(node).await.unwrap();
            match fs.pool().runtime().random() % 2 {
                0 => fs.fsync(node, false).await.unwrap(),
                _ => fs.sync().await.unwrap(),
            }
            shown
        });
        assert_eq!(
            (found.size, found.mtime, found.ctime),
            (0, shown.mtime, shown.ctime),
            "seed {seed}"
        );
    }
    assert!(met.load(Relaxed) > 5, "batches were under way: {met:?}");
}
