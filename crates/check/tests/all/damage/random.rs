//! Damage at random: whatever bytes stand anywhere, the check ends and panics nowhere, and so does
//! opening.

use std::collections::BTreeSet;

use copyhold_device::sim::SimImage;
use copyhold_pool::{Pool, Transaction};
use copyhold_types::{Key, TableId};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};

use super::pool::{BLOCKS, Power, TABLE, changed, sound};

const ROUNDS: u64 = 120;

/// Checks, opens, reads. Whether the check found something.
fn exercise(image: &SimImage) -> bool {
    let power = Power::on(image);
    let found = power.check().map_or(true, |report| !report.findings.is_empty());
    for read_only in [true, false] {
        let power = Power::on(image);
        let Ok(pool) = power.open(read_only) else { continue };
        power.rt.block_on(async {
            // Errors are answers.
            let _ = pool.range(TABLE, Key::MIN, Key::MAX, usize::MAX).await;
            let _ = pool.flush_all().await;
            let _ = pool.close().await;
        });
        power.rt.drop_tasks();
    }
    found
}

#[test]
fn random_bytes_in_blocks_are_found_and_nothing_panics() {
    let sound = sound();
    let used: Vec<u64> = (0..BLOCKS)
        .filter(|&block| sound.read_block(block).iter().any(|&byte| byte != 0))
        .collect();
    let mut found = 0;
    for seed in 0..ROUNDS {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut image = sound.clone();
        let blocks: BTreeSet<u64> = (0..1 + rng.next_u64() % 6)
            .map(|_| used[rng.next_u64() as usize % used.len()])
            .collect();
        for block in blocks {
            image.corrupt(block, |bytes| {
                for _ in 0..1 + rng.next_u64() % 40 {
                    bytes[rng.next_u64() as usize % 4096] ^= rng.next_u64() as u8;
                }
            });
        }
        found += u64::from(exercise(&image));
    }
    assert!(found > ROUNDS / 2, "{found} of {ROUNDS}: the rest was in old log or freed nodes");
}

/// Values that a program wrote, with right digests around them, but that mean anything.
#[test]
fn random_items_panic_nowhere() {
    let sound = sound();
    for seed in 0..ROUNDS {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let image = changed(&sound, async |files| {
            let mut tx = Transaction::new();
            for _ in 0..1 + rng.next_u64() % 3 {
                let table = [TABLE, Pool::SYSTEM, Pool::TABLES][rng.next_u64() as usize % 3];
                let (key, value) = random_item(&files.pool, table, &mut rng).await;
                tx.put(table, key, value);
            }
            files.apply(tx).await;
        });
        exercise(&image);
    }
}

/// An item that is there, with a few bytes of it changed, or a few bytes of its key.
async fn random_item(pool: &Pool, table: TableId, rng: &mut Xoshiro256PlusPlus) -> (Key, Vec<u8>) {
    let items = pool.range(table, Key::MIN, Key::MAX, usize::MAX).await.unwrap();
    let (mut key, value) = items[rng.next_u64() as usize % items.len()].clone();
    let mut value = value.to_vec();
    if rng.next_u64().is_multiple_of(3) {
        key.offset ^= 1 << (rng.next_u64() % 64);
    }
    if rng.next_u64().is_multiple_of(8) {
        value.truncate(rng.next_u64() as usize % (value.len() + 1));
    }
    for _ in 0..rng.next_u64() % 4 {
        if !value.is_empty() {
            let at = rng.next_u64() as usize % value.len();
            value[at] ^= 1 << (rng.next_u64() % 8);
        }
    }
    (key, value)
}
