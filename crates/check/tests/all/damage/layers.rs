//! Layers: sorted runs of edits over a base, with copies that rot, and written wrongly.

use copyhold_check::{Problem, Report, Severity, debug};
use copyhold_device::sim::SimImage;
use copyhold_format::digest;
use copyhold_format::item::inode_key;
use copyhold_format::node::{LeafBuilder, LeafView, Level, NodeOrigin, PartitionDescriptor};
use copyhold_pool::{BlockMode, Condition, Pool, Transaction};
use copyhold_table::{NodeVisit, Table};
use copyhold_types::{InodeNo, NodePtr, Purpose, Txg};

use super::pool::{
    FIRST_OF_MANY, Files, HOW_MANY, Power, TABLE, changed, kinds, report, rot, sound,
};

/// A file whose inode is in the broken leaf only, and one that a layer has.
const LOST: InodeNo = InodeNo(FIRST_OF_MANY + HOW_MANY / 2);
const KEPT: InodeNo = InodeNo(FIRST_OF_MANY);

fn table(pool: &Pool) -> std::sync::Arc<Table> {
    pool.tables().into_iter().find(|table| table.id() == TABLE).unwrap()
}

fn visits(power: &Power, pool: &Pool) -> Vec<(Option<usize>, Level, NodePtr)> {
    let mut found = Vec::new();
    let mut visit = |visit: NodeVisit<'_>| found.push((visit.layer, visit.level, visit.ptr));
    power.rt.block_on(table(pool).for_each_node(pool.node_source(), false, &mut visit));
    found
}

/// A pool whose inner nodes could not be read for a while, so that what changed meanwhile is in
/// layers.
fn layered() -> SimImage {
    let sound = sound();
    let power = Power::on(&sound);
    let inner: Vec<NodePtr> = visits(&power, &power.open(true).unwrap())
        .into_iter()
        .filter(|(_, level, _)| *level == Level::Inner)
        .map(|(_, _, ptr)| ptr)
        .collect();
    let mut broken = sound.clone();
    rot_all(&mut broken, &inner);
    let power = Power::on(&broken);
    let pool = power.open(false).unwrap();
    let files = Files { pool: pool.clone() };
    // Their inodes are known from the whole image: reading them here would fail.
    let items = inodes(&sound);
    power.rt.block_on(async {
        for (n, item) in items.iter().enumerate() {
            if InodeNo(FIRST_OF_MANY + n as u64) != LOST {
                let key = inode_key(InodeNo(FIRST_OF_MANY + n as u64));
                files.put(key, item).await;
            }
        }
        pool.flush_all().await.unwrap();
        pool.close().await.unwrap();
    });
    power.rt.drop_tasks();
    let mut image = power.device.image();
    rot_all(&mut image, &inner);
    image
}

fn inodes(image: &SimImage) -> Vec<Vec<u8>> {
    let power = Power::on(image);
    let pool = power.open(true).unwrap();
    let inos = FIRST_OF_MANY..FIRST_OF_MANY + HOW_MANY;
    inos.map(|ino| {
        let item = power.rt.block_on(pool.get(TABLE, inode_key(InodeNo(ino)))).unwrap();
        item.unwrap().to_vec()
    })
    .collect()
}

/// Flips a bit of each copy; doing it again heals them.
fn rot_all(image: &mut SimImage, nodes: &[NodePtr]) {
    nodes.iter().flat_map(|ptr| ptr.runs()).for_each(|run| rot(image, run.addr.block()));
}

/// The nodes of layers; with a second level, if any has.
fn layer_nodes(image: &SimImage, wanted: Level) -> Vec<NodePtr> {
    let power = Power::on(image);
    let pool = power.open(true).unwrap();
    let found = visits(&power, &pool).into_iter();
    let of_layers = found.filter(|(layer, level, _)| layer.is_some() && *level == wanted);
    of_layers.map(|(_, _, ptr)| ptr).collect()
}

fn only(report: &Report) -> &Problem {
    let problems: Vec<_> = report.problems().collect();
    assert_eq!(problems.len(), 1, "{report:#?}");
    problems[0]
}

#[test]
fn layers_are_walked_and_have_no_findings() {
    let image = layered();
    let report = report(&image);
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
    assert!(report.verified.layers > 0, "{:?}", report.verified);
    let power = Power::on(&image);
    let pool = power.open(true).unwrap();
    let partitions = debug::tables(&pool);
    assert!(partitions.iter().any(|view| view.layers > 0 && view.layer_edits > 0));
    let nodes = power.rt.block_on(debug::nodes(&pool, Some(TABLE)));
    let layered = nodes.iter().filter(|node| node.layer == Some(0)).count();
    assert!(layered > 0 && nodes.iter().all(|node| node.state == "good"));
}

#[test]
fn a_layer_with_one_bad_copy_is_told() {
    let sound = layered();
    let ptr = layer_nodes(&sound, Level::Leaf)[0];
    for run in ptr.runs() {
        let mut image = sound.clone();
        rot(&mut image, run.addr.block());
        let report = report(&image);
        assert!(matches!(only(&report), Problem::LayerCopy { run: at, .. } if *at == run));
        assert_eq!(report.worst(), Some(Severity::Repairable));
    }
}

#[test]
fn a_layer_that_is_lost_takes_its_files_along_and_shows_nothing_older() {
    let mut image = layered();
    let leaf = layer_nodes(&image, Level::Leaf)[0];
    rot_all(&mut image, &[leaf]);
    let report = report(&image);
    let first = report.problems().next();
    assert!(matches!(first, Some(Problem::Layer { table: TABLE, .. })), "{report:#?}");
    assert_eq!(report.worst(), Some(Severity::DataLost));
    assert!(!report.findings[0].files.is_empty(), "{report:#?}");
    assert_eq!(kinds(&image), ["layer", "unaccounted"]);
    let power = Power::on(&image);
    let pool = power.open(false).unwrap();
    let get = power.rt.block_on(pool.get(TABLE, inode_key(KEPT)));
    assert!(get.unwrap_err().to_string().contains("damaged"), "not what the base has");
}

#[test]
fn a_base_that_is_lost_leaves_what_layers_have() {
    let mut image = layered();
    let power = Power::on(&image);
    let inner: Vec<NodePtr> = visits(&power, &power.open(true).unwrap())
        .into_iter()
        .filter(|(layer, level, _)| layer.is_none() && *level == Level::Inner)
        .map(|(_, _, ptr)| ptr)
        .collect();
    rot_all(&mut image, &inner);
    assert_eq!(kinds(&image), ["node", "unaccounted"]);
    let power = Power::on(&image);
    let pool = power.open(false).unwrap();
    let get = |ino| power.rt.block_on(pool.get(TABLE, inode_key(ino)));
    assert!(get(KEPT).unwrap().is_some());
    assert!(get(LOST).is_err());
}

/// Changes a partition with a layer of one leaf behind the pool's back.
fn rewritten(change: impl AsyncFnOnce(&Pool, &mut PartitionDescriptor)) -> SimImage {
    changed(&layered(), async |files| {
        let mut descriptors = table(&files.pool).descriptors().into_iter();
        let found = descriptors.find(|(_, d)| d.layers.iter().any(|layer| layer.height == 0));
        let (id, mut descriptor) = found.expect("a layer is small");
        change(&files.pool, &mut descriptor).await;
        let mut tx = Transaction::new();
        tx.put(Pool::TABLES, PartitionDescriptor::key(TABLE, id), descriptor.encode());
        files.apply(tx).await;
    })
}

fn complaints(image: &SimImage) -> String {
    let report = report(image);
    let wrong = |problem: &&Problem| matches!(problem, Problem::LayerContent { .. });
    let all: Vec<String> = report.problems().filter(wrong).map(ToString::to_string).collect();
    all.join("\n")
}

#[test]
fn a_count_of_edits_that_is_wrong_is_told() {
    let image = rewritten(async |_, descriptor| {
        descriptor.layers.iter_mut().for_each(|layer| layer.items += 5);
    });
    assert!(complaints(&image).contains("its parent records"), "{}", complaints(&image));
    assert_eq!(kinds(&image), ["layer-content"]);
}

#[test]
fn a_layer_from_the_future_is_told() {
    let image = rewritten(async |_, descriptor| {
        descriptor.layers.iter_mut().for_each(|layer| layer.last_txg = Txg::new(1 << 40).unwrap());
    });
    assert!(complaints(&image).contains("which is yet to come"), "{}", complaints(&image));
}

#[test]
fn a_layer_whose_values_are_no_edits_is_told() {
    let image = rewritten(async |pool, descriptor| {
        let layer = descriptor.layers.iter_mut().find(|layer| layer.height == 0).unwrap();
        let run = layer.root.runs().next().unwrap();
        let leaf = pool.read(run, Condition::Nothing, Purpose::Layer, None).await.unwrap();
        let leaf = LeafView::parse(leaf).unwrap();
        let mut builder = LeafBuilder::new(layer.root.blocks as usize * 4096);
        for (key, value) in leaf.iter() {
            let mut value = value.to_vec();
            *value.last_mut().unwrap() = 7;
            assert!(builder.push(key, &value));
        }
        let header = leaf.header();
        let bytes = builder.finish(NodeOrigin { table: header.table, birth: header.birth });
        for run in layer.root.runs() {
            pool.write(run, bytes.clone().into(), Purpose::Layer, BlockMode::PLAIN).await.unwrap();
        }
        layer.root.digest = digest(&bytes);
    });
    assert!(complaints(&image).contains("is invalid"), "{}", complaints(&image));
}
