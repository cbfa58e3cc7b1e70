//! What a table costs: nanoseconds per edit, lookup and merged item, bytes per extent.
//!
//! `cargo run --release -p copyhold-table --example table_costs`

use std::collections::BTreeMap;
use std::future::Future;
use std::hint::black_box;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use copyhold_format::digest;
use copyhold_format::node::Node;
use copyhold_table::{Edit, FreezePoint, Limits, NodeFuture, NodeSink, NodeSource, Table};
use copyhold_types::{
    BlockAddr, Buf, DeviceId, EpochId, Key, Kind, NodePtr, Purpose, TableId, Txg,
};

const EXTENTS: u64 = 600_000;

/// Nodes in memory, parsed.
#[derive(Default)]
struct Nodes {
    nodes: BTreeMap<NodePtr, Arc<Node>>,
    bytes: usize,
    next: u64,
}

impl NodeSource for Nodes {
    fn cached(&self, ptr: &NodePtr) -> Option<Arc<Node>> {
        self.nodes.get(ptr).cloned()
    }

    fn read(&self, ptr: NodePtr, _: Purpose) -> NodeFuture<'_, Arc<Node>> {
        let node = self.nodes[&ptr].clone();
        Box::pin(std::future::ready(Ok(node)))
    }
}

struct Sink(Vec<(NodePtr, Buf)>, u64);

impl NodeSink for Sink {
    fn write(&mut self, _: Purpose, node: Buf) -> NodeFuture<'_, NodePtr> {
        self.1 += node.blocks() as u64;
        let addr = BlockAddr::new(DeviceId(0), self.1);
        let ptr = NodePtr {
            copies: [Some(addr), None],
            blocks: node.blocks() as u32,
            fragmented: false,
            epoch: EpochId::POOL,
            digest: digest(&node),
        };
        self.0.push((ptr, node));
        Box::pin(std::future::ready(Ok(ptr)))
    }
}

struct Random(u64);

impl Random {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 20) % below
    }
}

fn extent(random: &mut Random) -> Edit {
    let mut value = [0; 34];
    value[..8].copy_from_slice(&random.next(1 << 24).to_le_bytes());
    value[10] = random.next(4) as u8;
    value[30..].copy_from_slice(&(random.next(1 << 32) as u32).to_le_bytes());
    Edit::put(&value)
}

fn key(block: u64) -> Key {
    Key::new(270, Kind(16), block)
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return value;
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "a measurement on the machine itself")]
fn timed<T>(what: &str, count: u64, run: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = run();
    let each = start.elapsed().as_nanos() as f64 / count as f64;
    println!("{what:<44} {each:8.0} ns");
    result
}

fn flush_all(table: &Table, nodes: &mut Nodes, txg: Txg) -> (usize, usize) {
    let (mut written, mut bytes) = (0, 0);
    for stats in table.stats() {
        let point = FreezePoint {
            complete_to: txg,
            birth: txg.next(),
            own: EpochId::POOL,
            edits_max: usize::MAX,
        };
        let Some(job) = table.freeze(stats.start, point) else { continue };
        let mut sink = Sink(Vec::new(), nodes.next);
        let flushed = block_on(job.merge(nodes, &mut sink)).expect("memory does not fail");
        nodes.next = sink.1;
        for (ptr, node) in sink.0 {
            written += 1;
            bytes += node.len();
            nodes.bytes += node.len();
            let node = Node::parse(node).expect("the table wrote it");
            nodes.nodes.insert(ptr, Arc::new(node));
        }
        for ptr in &flushed.replaced {
            nodes.bytes -= nodes.nodes.remove(ptr).map_or(0, |_| ptr.blocks as usize * 4096);
        }
        table.install(job, flushed);
    }
    (written, bytes)
}

fn main() {
    let mut random = Random(1);
    let mut nodes = Nodes::default();
    let table = Table::new(TableId(1), Limits::default());
    let edits: Vec<Edit> = (0..EXTENTS).map(|_| extent(&mut random)).collect();
    timed("apply, ascending keys", EXTENTS, || {
        for (block, edit) in edits.into_iter().enumerate() {
            table.apply(Txg::FIRST, key(block as u64), edit);
        }
    });
    timed("get, in the delta", EXTENTS, || {
        for _ in 0..EXTENTS {
            let _ = black_box(block_on(table.get(&nodes, key(random.next(EXTENTS)))));
        }
    });
    timed("merge into an empty base, per item", EXTENTS, || {
        flush_all(&table, &mut nodes, Txg::FIRST)
    });
    println!("{:<44} {:8.2}", "bytes per extent", nodes.bytes as f64 / EXTENTS as f64);
    let parse: Vec<Buf> = nodes
        .nodes
        .values()
        .filter_map(|node| node.as_leaf())
        .map(|leaf| leaf.bytes().clone())
        .collect();
    timed("parse a leaf", parse.len() as u64, || {
        parse.into_iter().for_each(|buf| drop(black_box(Node::parse(buf))));
    });
    timed("get, in cached leaves", EXTENTS, || {
        for _ in 0..EXTENTS {
            let _ = black_box(block_on(table.get(&nodes, key(random.next(EXTENTS)))));
        }
    });
    timed("last_below, in cached leaves", EXTENTS, || {
        for _ in 0..EXTENTS {
            let below = key(random.next(EXTENTS));
            let _ = black_box(block_on(table.last_below(&nodes, below, key(0))));
        }
    });
    timed("range of 32 items, per item", EXTENTS, || {
        for _ in 0..EXTENTS / 32 {
            let from = random.next(EXTENTS);
            let _ = black_box(block_on(table.range(&nodes, key(from)..key(from + 32), 64)));
        }
    });
    let overwrites = EXTENTS / 10;
    let edits: Vec<Edit> = (0..overwrites).map(|_| extent(&mut random)).collect();
    timed("apply, random keys", overwrites, || {
        for edit in edits {
            table.apply(Txg::FIRST.next(), key(random.next(EXTENTS)), edit);
        }
    });
    let (written, bytes) = timed("merge of a tenth of the items, per edit", overwrites, || {
        flush_all(&table, &mut nodes, Txg::FIRST.next())
    });
    println!("{:<44} {:8}", "nodes written", written);
    println!("{:<44} {:8.1}", "bytes written per edit", bytes as f64 / overwrites as f64);
}
