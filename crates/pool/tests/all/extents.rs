//! Blocks of file data behind extents, as the layer above writes and judges them.

use std::sync::Arc;

use copyhold_format::block_checksum;
use copyhold_format::item::{EXTENT, Extent, ExtentState};
use copyhold_pool::{BlockMode, Condition, LaneClass, Pool, PoolError, Tier, Transaction};
use copyhold_types::{Buf, EpochId, Key, Pointer, Purpose, Run, TableId, Txg};

const TABLE: TableId = TableId(100);

pub(crate) fn key(n: u64) -> Key {
    Key::new(1, EXTENT, n)
}

/// Writes blocks filled with `byte` each, then logs the extent under `n` that points to them.
pub(crate) async fn write(pool: &Arc<Pool>, n: u64, byte: u8, blocks: u64) -> (Run, Txg) {
    let mut reserved = pool.reserve(blocks, Tier::Write).await.unwrap();
    let claim = pool.claim(LaneClass::Data, blocks, &mut reserved).unwrap().remove(0);
    let run = claim.run();
    let data = vec![byte; 4096];
    let bufs = (0..blocks).map(|_| Buf::from_bytes(&data)).collect();
    pool.write(run, bufs, Purpose::Data, BlockMode::PLAIN).await.unwrap();
    let pointer = Pointer { run, epoch: EpochId::POOL, origin: EpochId::POOL };
    let state = ExtentState::Written(vec![block_checksum(&data); blocks as usize].into());
    let extent = Extent { pointer, state };
    let mut tx = Transaction::new();
    tx.allocate(claim);
    if let Some(old) = pool.get(TABLE, key(n)).await.unwrap() {
        tx.release(Extent::parse(&old).unwrap().pointer);
    }
    tx.put(TABLE, key(n), &extent.encode()[..]);
    let credit = pool.admit(Tier::Write, 4, 200).await.unwrap();
    (run, pool.apply(credit, tx).unwrap())
}

/// As [`write`], and durable.
pub(crate) async fn commit(pool: &Arc<Pool>, n: u64, byte: u8, blocks: u64) -> Run {
    let (run, txg) = write(pool, n, byte, blocks).await;
    pool.commit(txg).await.unwrap();
    run
}

/// What the first block under `n` is filled with, if it matches its checksum; nothing, if there is
/// no extent.
pub(crate) async fn read(pool: &Arc<Pool>, n: u64) -> Result<Option<u8>, PoolError> {
    let Some(item) = pool.get(TABLE, key(n)).await? else { return Ok(None) };
    let extent = Extent::parse(&item).unwrap();
    let ExtentState::Written(sums) = &extent.state else { panic!("written extents only") };
    let data = pool.read(extent.pointer.run, Condition::Nothing, Purpose::Data, None).await?;
    assert_eq!(block_checksum(&data[..4096]), sums[0], "block {n} is not what was written");
    Ok(Some(data[0]))
}
