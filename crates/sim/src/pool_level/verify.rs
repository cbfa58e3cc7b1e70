//! The required state of a pool after every recovery.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use copyhold_format::item::ExtentState;
use copyhold_format::node::PartitionDescriptor;
use copyhold_format::space_map::{Descriptor, METASLAB};
use copyhold_pool::{Condition, Pool, PoolError, metaslab_view};
use copyhold_types::{BLOCK_BYTES, Key, NodePtr, Purpose, Run};

use super::model::{OBJECTS, State, TABLE, World, counter, holds};

/// Finds the transaction at which recovery arrived, checks that the pool is what it was then and
/// that nothing synced is missing.
pub(crate) async fn find_prefix(
    pool: &Arc<Pool>,
    world: &World,
    clients: u64,
) -> Result<u64, PoolError> {
    let found = contents(pool).await?;
    let number = |client| {
        let value = found.get(&counter(client));
        value.map_or(0, |value| u64::from_le_bytes(value[..].try_into().expect("a counter")))
    };
    let n = (0..clients).map(number).max().unwrap_or(0);
    assert!(n >= world.synced, "lost: {} was synced, but the pool is at {n}", world.synced);
    assert!(n >= world.settled(), "an earlier recovery had settled on {}", world.settled());
    assert!(n <= world.last(), "time travel: {n}, but only {} ever happened", world.last());
    let expected = world.state_at(n);
    compare(&found, &expected, n);
    read_all(pool, world, &expected).await?;
    Ok(n)
}

/// Without changes, a pool has the state after the last transaction.
pub(crate) async fn is_now(pool: &Arc<Pool>, world: &World) -> Result<(), PoolError> {
    compare(&contents(pool).await?, &world.now, world.last());
    Ok(())
}

async fn contents(pool: &Pool) -> Result<BTreeMap<Key, Vec<u8>>, PoolError> {
    let items = pool.range(TABLE, Key::MIN, Key::MAX, usize::MAX).await?;
    Ok(items.into_iter().map(|(key, value)| (key, value.to_vec())).collect())
}

fn compare(found: &BTreeMap<Key, Vec<u8>>, expected: &State, n: u64) {
    for (key, stored) in expected {
        let value = found.get(key);
        assert!(value.is_some(), "not a prefix: at {n} there was {key}");
        assert_eq!(
            value,
            Some(&stored.value),
            "not a prefix: {key} differs from what it was at {n}"
        );
    }
    let extra = found.keys().find(|key| !expected.contains_key(key));
    assert_eq!(extra, None, "not a prefix: there was no such key at {n}");
}

/// All data is what was written, to the bit.
async fn read_all(pool: &Pool, world: &World, state: &State) -> Result<(), PoolError> {
    for (key, stored) in state.iter().filter(|(key, _)| (1..=OBJECTS).contains(&key.object)) {
        let Some(extent) = stored.extent(*key) else { continue };
        if extent.state == ExtentState::Unwritten {
            continue;
        }
        let run = extent.pointer.run;
        let data = pool.read(run, Condition::Nothing, Purpose::Data, None).await?;
        for (i, block) in data.chunks(BLOCK_BYTES).enumerate() {
            let spoiled = world.spoiled.contains(&(run.addr.block() + i as u64));
            let right = holds(block, stored.stamp, i as u32);
            assert!(right || spoiled, "{key}: block {i} of {run:?} is not what was written");
        }
    }
    Ok(())
}

/// Space is what items, nodes and maps refer to, each block once; and all invariants hold.
pub(crate) async fn check_space(pool: &Arc<Pool>, state: &State) -> Result<(), PoolError> {
    let (nodes, allocated) = settled(pool).await?;
    assert_eq!(problem_of_space(pool, state, &nodes, allocated), None);
    pool.tables().iter().for_each(|table| table.check());
    Ok(())
}

/// Every node and map of one state of the pool.
pub(crate) async fn settled_nodes(pool: &Arc<Pool>) -> Result<Vec<NodePtr>, PoolError> {
    Ok(settled(pool).await?.0)
}

/// Every node and map of one state of the pool, and its allocated blocks. Looks again while the
/// flusher is at work: a node that it replaced meanwhile lies where another one may be by now.
async fn settled(pool: &Arc<Pool>) -> Result<(Vec<NodePtr>, Vec<Run>), PoolError> {
    for _ in 0..100 {
        let pin = pool.pin(); // Of a replaced node the blocks stay until it is visited (R3).
        let before = settled_parts(pool).await?;
        let nodes = nodes(pool).await?;
        if settled_parts(pool).await? == before {
            return Ok((nodes, before.2));
        }
        drop(pin);
        pool.runtime().sleep(Duration::from_millis(50)).await;
    }
    panic!("the flusher does not come to rest");
}

type SettledParts = (Vec<Vec<(u64, PartitionDescriptor)>>, Vec<(Key, Vec<u8>)>, Vec<Run>);

/// The parts of a pool that a flush changes.
async fn settled_parts(pool: &Arc<Pool>) -> Result<SettledParts, PoolError> {
    let items = pool.range(Pool::TABLES, Key::MIN, Key::MAX, usize::MAX).await?;
    let items = items.into_iter().map(|(key, value)| (key, value.to_vec())).collect();
    let descriptors = pool.tables().iter().map(|table| table.descriptors()).collect();
    Ok((descriptors, items, allocated(pool).await))
}

async fn allocated(pool: &Arc<Pool>) -> Vec<Run> {
    let mut runs = Vec::new();
    for id in pool.space_map().metaslabs() {
        runs.extend(metaslab_view(pool, id).await.allocated);
    }
    runs
}

fn problem_of_space(
    pool: &Arc<Pool>,
    state: &State,
    nodes: &[NodePtr],
    allocated: Vec<Run>,
) -> Option<String> {
    let extents = state.iter().filter_map(|(key, stored)| stored.extent(*key));
    let runs = extents.map(|extent| extent.pointer.run).chain(nodes.iter().flat_map(NodePtr::runs));
    let mut referenced = BTreeSet::new();
    for run in runs {
        for block in run.addr.block()..run.end() {
            if !referenced.insert(block) {
                return Some(format!("block {block} is referred to twice"));
            }
        }
    }
    let blocks = |run: Run| run.addr.block()..run.end();
    let allocated: BTreeSet<u64> = allocated.into_iter().flat_map(blocks).collect();
    let space = pool.space_map();
    space.check();
    // Where a map cannot be read, it is not known what is allocated.
    let aside: Vec<Range<u64>> = space
        .set_aside()
        .into_iter()
        .filter_map(|id| space.metaslab(id))
        .map(|info| info.first_block..info.first_block + u64::from(info.blocks))
        .collect();
    if let Some(block) = allocated.difference(&referenced).next() {
        return Some(format!("block {block} is allocated, but nothing refers to it"));
    }
    let is_known = |block: &&u64| !aside.iter().any(|range| range.contains(*block));
    let block = referenced.difference(&allocated).find(is_known)?;
    Some(format!("block {block} is referred to, but not allocated"))
}

/// Every node of every table, all read, and every space map, as what lies in one run each.
async fn nodes(pool: &Arc<Pool>) -> Result<Vec<NodePtr>, PoolError> {
    let mut nodes = Vec::new();
    for table in pool.tables() {
        let mut visit = |visit: copyhold_table::NodeVisit<'_>| {
            if let Some(Err(error)) = visit.node {
                panic!("a node of table {}: {error}", table.id().0);
            }
            nodes.push(visit.ptr);
        };
        table.for_each_node(pool.node_source(), true, &mut visit).await;
    }
    nodes.extend(maps(pool).await?);
    pool.pieces_of(&nodes).await
}

/// Every node that is in fragments.
pub(crate) async fn lists(pool: &Arc<Pool>) -> Vec<NodePtr> {
    let _pin = pool.pin();
    let mut lists = Vec::new();
    for table in pool.tables() {
        let mut visit = |visit: copyhold_table::NodeVisit<'_>| lists.push(visit.ptr);
        table.for_each_node(pool.node_source(), false, &mut visit).await;
    }
    lists.retain(|ptr| ptr.fragmented);
    lists
}

/// Every space map and delta of one.
pub(crate) async fn maps(pool: &Arc<Pool>) -> Result<Vec<NodePtr>, PoolError> {
    let items = pool.range(Pool::TABLES, Key::MIN, Key::MAX, usize::MAX).await?;
    let maps = items.iter().filter(|(key, _)| key.kind == METASLAB);
    Ok(maps
        .map(|(_, value)| Descriptor::parse(value).expect("the pool's own"))
        .flat_map(|descriptor| descriptor.parts().collect::<Vec<_>>())
        .collect())
}
