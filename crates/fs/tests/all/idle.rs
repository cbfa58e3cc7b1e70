//! Promised growth of edits in memory is given back in an idle pool, as statfs shows.

use std::time::Duration;

use copyhold_fs::Options;
use copyhold_runtime::Runtime;

use crate::common::*;

/// 1 GiB.
const BLOCKS: u64 = 262_144;
const FILES: u64 = 60_000;
/// Files at a time.
const AT_ONCE: u64 = 1000;

#[test]
fn an_empty_pool_that_had_many_files_shows_its_space_when_it_is_idle() {
    let world = World::with_log(1, BLOCKS, 16 << 20);
    world.run(async {
        let fs = world.open_with(Options { count_lookups: false, ..Options::default() }).await;
        fs.sync().await.unwrap();
        let before = fs.statfs().blocks_available;
        for from in (0..FILES).step_by(AT_ONCE as usize) {
            let names = (from..from + AT_ONCE).map(|n| format!("file{n}"));
            for name in names.clone() {
                fs.release(create(&fs, &name).await);
            }
            for name in names {
                fs.unlink(ROOT, name.as_bytes()).await.unwrap();
            }
        }
        fs.sync().await.unwrap();
        let busy = fs.statfs().blocks_available;
        world.rt.sleep(Duration::from_secs(20)).await;
        let idle = fs.statfs().blocks_available;
        assert!(busy + BLOCKS / 64 < before, "nothing was promised: {before}, {busy}");
        assert!(
            idle + BLOCKS / 64 > before,
            "{before} blocks before, {busy} at the end, {idle} idle"
        );
        world.close(fs).await;
    });
}
