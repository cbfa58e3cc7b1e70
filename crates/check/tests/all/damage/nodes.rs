//! Nodes and space maps: copies that rot, and nodes that were written wrongly.

use copyhold_check::{Problem, Repaired, Report, Severity, repair_device};
use copyhold_device::DynDevice;
use copyhold_device::sim::SimImage;
use copyhold_format::digest;
use copyhold_format::item::{INODE, inode_key};
use copyhold_format::node::{
    Child, InnerView, LeafBuilder, LeafView, Level, NodeOrigin, PartitionDescriptor, encode_inner,
};
use copyhold_format::space_map::{Descriptor, METASLAB};
use copyhold_pool::{BlockMode, Condition, Pool, Transaction};
use copyhold_runtime::Rt;
use copyhold_types::{Buf, InodeNo, Key, NodePtr, Purpose, Run, TableId};

use super::pool::{FIRST_OF_MANY, HOW_MANY, Power, TABLE, changed, kinds, report, rot, sound};

/// Nodes of a table by level, in order.
pub(crate) fn nodes(image: &SimImage, table: TableId, wanted: Level) -> Vec<NodePtr> {
    let power = Power::on(image);
    let pool = power.open(true).unwrap();
    let mut found = Vec::new();
    for table in pool.tables().into_iter().filter(|found| found.id() == table) {
        power.rt.block_on(table.for_each_node(pool.node_source(), false, &mut |visit| {
            if visit.level == wanted {
                found.push(visit.ptr);
            }
        }));
    }
    found
}

fn maps(image: &SimImage) -> Vec<NodePtr> {
    let power = Power::on(image);
    let pool = power.open(true).unwrap();
    let items = power.rt.block_on(pool.range(Pool::TABLES, Key::MIN, Key::MAX, usize::MAX));
    let items = items.unwrap();
    let maps = items.iter().filter(|(key, _)| key.kind == METASLAB);
    let maps = maps.map(|(_, value)| Descriptor::parse(value).unwrap());
    maps.flat_map(|map| map.parts().collect::<Vec<_>>()).collect()
}

pub(crate) fn copies(ptr: &NodePtr) -> Vec<Run> {
    let runs: Vec<Run> = ptr.runs().collect();
    assert_eq!(runs.len(), 2, "a pool of one device keeps nodes twice");
    runs
}

pub(crate) fn rot_all(image: &mut SimImage, ptr: &NodePtr) {
    copies(ptr).iter().for_each(|run| rot(image, run.addr.block()));
}

pub(crate) fn only(report: &Report) -> &Problem {
    let problems: Vec<_> = report.problems().collect();
    assert_eq!(problems.len(), 1, "{report:#?}");
    problems[0]
}

/// Reads everything on several mounts that may write: each draws which copies it looks at first.
pub(crate) fn read_often(image: &SimImage) -> SimImage {
    (0..16).fold(image.clone(), |image, mount| read_all(&image, mount))
}

fn read_all(image: &SimImage, seed: u64) -> SimImage {
    let power = Power::seeded(image, seed);
    let pool = power.open(false).unwrap();
    power.rt.block_on(async {
        pool.range(TABLE, Key::MIN, Key::MAX, usize::MAX).await.unwrap();
        pool.close().await.unwrap();
    });
    power.device.image()
}

#[test]
fn a_leaf_or_inner_node_with_one_bad_copy_is_repaired_when_it_is_read() {
    let sound = sound();
    for level in [Level::Leaf, Level::Inner] {
        let ptr = nodes(&sound, TABLE, level)[1];
        for run in copies(&ptr) {
            let mut image = sound.clone();
            rot(&mut image, run.addr.block());
            let report = report(&image);
            let Problem::NodeCopy { table: TABLE, level: found, run: at, .. } = only(&report)
            else {
                panic!("{report:?}");
            };
            assert_eq!((*found, *at), (level, run));
            assert_eq!(report.worst(), Some(Severity::Repairable));
            assert!(kinds(&read_often(&image)).is_empty(), "{run:?}");
        }
    }
}

#[test]
fn a_leaf_that_is_lost_takes_its_files_along_and_nothing_else() {
    let mut image = sound();
    let leaves = nodes(&image, TABLE, Level::Leaf);
    rot_all(&mut image, &leaves[leaves.len() - 1]);
    let report = report(&image);
    let Some(Problem::Node { table: TABLE, from, to, .. }) = report.problems().next() else {
        panic!("{report:#?}");
    };
    assert_eq!(report.findings[0].severity, Severity::DataLost);
    let named = &report.findings[0].files;
    let inside =
        |file: &&copyhold_check::AffectedFile| (from.object..=to.object).contains(&file.inode);
    assert!(!named.is_empty() && named.iter().filter(inside).count() == named.len(), "{named:?}");
    let path = |n: u64| format!("/many/file{n:060}");
    assert!(named.iter().all(|file| file.path.as_ref() == Some(&path(file.inode))), "{named:?}");
    // What only follows from it is not told: no names that lead nowhere, no leaks.
    assert_eq!(kinds(&image), ["node", "unaccounted"]);

    let power = Power::on(&image);
    let pool = power.open(false).unwrap();
    let gone = named[named.len() - 1].inode;
    let get = |ino| power.rt.block_on(pool.get(TABLE, inode_key(InodeNo(ino))));
    assert!(get(gone).unwrap_err().to_string().contains("damaged"));
    assert!(get(FIRST_OF_MANY).unwrap().is_some(), "other files are not affected");
}

#[test]
fn an_inner_node_that_is_lost_takes_a_partition_along() {
    let mut image = sound();
    let inner = nodes(&image, TABLE, Level::Inner);
    rot_all(&mut image, &inner[inner.len() - 1]);
    let report = report(&image);
    let lost = |p: &&Problem| matches!(p, Problem::Node { level: Level::Inner, .. });
    assert_eq!(report.problems().filter(lost).count(), 1, "{report:#?}");
    assert_eq!(kinds(&image), ["node", "unaccounted"]);
}

#[test]
fn without_the_table_of_tables_the_pool_does_not_open() {
    let mut image = sound();
    let leaves = nodes(&image, Pool::TABLES, Level::Leaf);
    rot_all(&mut image, &leaves[0]);
    let report = report(&image);
    assert_eq!(kinds(&image), ["cannot-open", "node"]);
    assert_eq!(report.worst(), Some(Severity::Fatal));
    assert!(Power::on(&image).open(true).is_err());
}

#[test]
fn a_space_map_with_one_bad_copy_is_told() {
    let sound = sound();
    for run in copies(&maps(&sound)[0]) {
        let mut image = sound.clone();
        rot(&mut image, run.addr.block());
        let report = report(&image);
        assert!(matches!(only(&report), Problem::MapCopy { run: at, .. } if *at == run));
    }
}

#[test]
fn a_space_map_that_is_lost_costs_space_but_no_files() {
    let mut image = sound();
    let maps = maps(&image);
    rot_all(&mut image, &maps[0]);
    let report = report(&image);
    assert!(matches!(only(&report), Problem::Map { .. }));
    assert_eq!(report.worst(), Some(Severity::Leak));
    let power = Power::on(&image);
    let pool = power.open(false).unwrap();
    let read = pool.range(TABLE, Key::MIN, Key::MAX, usize::MAX);
    assert!(power.rt.block_on(read).unwrap().len() > HOW_MANY as usize);
}

/// Once while nobody has written to the pool since, and once after files were written and deleted.
#[test]
fn a_space_map_that_is_lost_is_made_anew() {
    for used in [false, true] {
        let mut image = sound();
        let lost: Vec<NodePtr> = maps(&image);
        rot_all(&mut image, &lost[0]);
        if used {
            let power = Power::on(&image);
            let pool = power.open(false).unwrap();
            power.rt.block_on(async {
                pool.flush_all().await.unwrap();
                pool.close().await.unwrap();
            });
            image = power.device.image();
            assert!(kinds(&image).contains(&"map"));
        }
        let power = Power::on(&image);
        let device = power.device.clone() as DynDevice;
        let repaired = repair_device(power.rt.clone() as Rt, device);
        let repaired = power.rt.block_on(repaired).unwrap();
        assert_eq!((repaired.maps.len(), repaired.refused), (1, None));
        power.rt.drop_tasks();
        let image = power.device.image();
        assert!(report(&image).findings.is_empty(), "{:#?}", report(&image).findings);
        let power = Power::on(&image);
        let pool = power.open(false).unwrap();
        assert_eq!(pool.space_map().set_aside(), []);
        let read = pool.range(TABLE, Key::MIN, Key::MAX, usize::MAX);
        assert!(power.rt.block_on(read).unwrap().len() > HOW_MANY as usize);
    }
}

#[test]
fn no_space_map_is_made_anew_while_references_cannot_be_read() {
    let mut image = sound();
    let (maps, leaves) = (maps(&image), nodes(&image, TABLE, Level::Leaf));
    rot_all(&mut image, &maps[0]);
    rot_all(&mut image, &leaves[0]);
    let power = Power::on(&image);
    let repaired = repair_device(power.rt.clone() as Rt, power.device.clone() as DynDevice);
    let repaired = power.rt.block_on(repaired).unwrap();
    assert!(repaired.maps.is_empty() && repaired.refused.is_some());
    power.rt.drop_tasks();
    assert!(power.device.image() == image, "a repair that is refused writes nothing");
}

#[test]
fn a_pool_without_a_lost_space_map_is_not_written_to() {
    let mut image = sound();
    // Damage of another kind is no reason to write.
    let leaf = nodes(&image, TABLE, Level::Leaf)[0];
    rot(&mut image, copies(&leaf)[0].addr.block());
    for image in [sound(), image] {
        let power = Power::on(&image);
        let repaired = repair_device(power.rt.clone() as Rt, power.device.clone() as DynDevice);
        assert_eq!(power.rt.block_on(repaired).unwrap(), Repaired::default());
        power.rt.drop_tasks();
        assert!(power.device.image() == image);
    }
}

// Nodes that are whole, but wrong: written again with the digests that belong to them.

/// Puts `bytes` in the place of a node, in both copies; the pointer that then belongs to it.
async fn put_node(pool: &Pool, ptr: NodePtr, bytes: &Buf) -> NodePtr {
    assert_eq!(bytes.blocks() as u32, ptr.blocks, "it takes the place of the old one");
    for run in ptr.runs() {
        pool.write(run, bytes.clone().into(), Purpose::Leaf, BlockMode::PLAIN).await.unwrap();
    }
    NodePtr { digest: digest(bytes), ..ptr }
}

async fn read_node(pool: &Pool, ptr: NodePtr) -> Buf {
    pool.read(ptr.runs().next().unwrap(), Condition::Nothing, Purpose::Leaf, None).await.unwrap()
}

/// Changes a partition's descriptor and the rows of its inner node, behind the pool's back. The
/// partition is the one of the last inodes.
fn rewritten(
    image: &SimImage,
    change: impl AsyncFnOnce(&Pool, &mut PartitionDescriptor, &mut Vec<Child>),
) -> SimImage {
    changed(image, async |files| {
        let pool = &files.pool;
        let table = pool.tables().into_iter().find(|table| table.id() == TABLE).unwrap();
        let (id, mut descriptor) =
            table.descriptors().into_iter().max_by_key(|(_, d)| d.start).unwrap();
        let root = descriptor.root.unwrap();
        let inner = InnerView::parse(read_node(pool, root).await).unwrap();
        let mut rows: Vec<Child> = inner.iter().collect();
        change(pool, &mut descriptor, &mut rows).await;
        let origin = NodeOrigin { table: inner.header().table, birth: inner.header().birth };
        if descriptor.root == Some(root) {
            let bytes = encode_inner(origin, &rows);
            descriptor.root = Some(put_node(pool, root, &bytes).await);
        }
        let mut tx = Transaction::new();
        tx.put(Pool::TABLES, PartitionDescriptor::key(TABLE, id), descriptor.encode());
        files.apply(tx).await;
    })
}

/// The leaf of a row, encoded again with other items and another table.
async fn put_leaf(
    pool: &Pool,
    row: &mut Child,
    table: TableId,
    change: impl FnOnce(&mut Vec<(Key, Vec<u8>)>),
) {
    let leaf = LeafView::parse(read_node(pool, row.ptr).await).unwrap();
    let mut items: Vec<_> = leaf.iter().map(|(key, value)| (key, value.to_vec())).collect();
    change(&mut items);
    let mut builder = LeafBuilder::new(row.ptr.blocks as usize * 4096);
    items.iter().for_each(|(key, value)| assert!(builder.push(*key, value)));
    let bytes = builder.finish(NodeOrigin { table, birth: leaf.header().birth });
    row.ptr = put_node(pool, row.ptr, &bytes).await;
}

fn complaints(image: &SimImage) -> String {
    let report = report(image);
    let at_risk = report.findings.iter().filter(|finding| finding.severity == Severity::AtRisk);
    let all: Vec<&str> = at_risk.map(|finding| finding.what.as_str()).collect();
    all.join("\n")
}

#[test]
fn a_node_written_for_another_table_is_told() {
    let image = rewritten(&sound(), async |pool, _, rows| {
        put_leaf(pool, &mut rows[0], TableId(77), |_| {}).await;
    });
    assert_eq!(kinds(&image), ["node-content"]);
    assert!(complaints(&image).contains("it was written for table 77"));
}

#[test]
fn keys_outside_of_the_range_of_a_node_are_told() {
    let image = rewritten(&sound(), async |pool, _, rows| {
        put_leaf(pool, &mut rows[0], TABLE, |items| {
            let beyond = Key::new(FIRST_OF_MANY + HOW_MANY, INODE, 0);
            let (_, value) = items.pop().unwrap();
            items.push((beyond, value));
        })
        .await;
    });
    assert!(complaints(&image).contains("are not in its range"));
    let power = Power::on(&image);
    let files = super::pool::Files { pool: power.open(false).unwrap() };
    power.rt.block_on(async {
        files.change_inode(InodeNo(FIRST_OF_MANY), |item| item.uid = 1).await;
        files
            .put(Key::new(10, copyhold_format::item::DIRENT, 6_900_000_000_000_000_000), b"x")
            .await;
        // That settling it is refused would be an answer, too.
        let _ = files.pool.flush_all().await;
    });
}

#[test]
fn a_count_of_items_that_is_wrong_is_told_for_leaf_and_partition() {
    let leaf = rewritten(&sound(), async |_, _, rows| rows[0].items -= 1);
    assert!(complaints(&leaf).contains("and its parent records"));
    let partition = rewritten(&sound(), async |_, descriptor, _| descriptor.items += 5);
    assert!(complaints(&partition).contains("its count of items is"));
    assert_eq!(kinds(&partition), ["node-content"]);
}

#[test]
fn a_child_whose_first_key_is_not_as_its_parent_says_is_told() {
    let image = rewritten(&sound(), async |_, _, rows| {
        let last = rows.len() - 1;
        rows[last].first = Key { object: rows[last].first.object - 1, ..rows[last].first };
    });
    assert!(
        complaints(&image).contains("not in its range")
            || complaints(&image).contains("another first key")
    );
}

#[test]
fn a_node_that_means_nothing_although_its_digest_is_right_is_lost() {
    let image = rewritten(&sound(), async |pool, _, rows| {
        let mut bytes = read_node(pool, rows[0].ptr).await;
        bytes.make_mut()[36] ^= 1;
        rows[0].ptr = put_node(pool, rows[0].ptr, &bytes).await;
    });
    assert_eq!(kinds(&image), ["node"]);
}

#[test]
fn a_leaf_where_an_inner_node_should_be_is_told() {
    let image = rewritten(&sound(), async |_, descriptor, rows| {
        descriptor.root = Some(rows[0].ptr);
    });
    let report = report(&image);
    let found =
        report.findings.iter().any(|f| f.what.contains("not the one that its parent records"));
    assert!(found, "{report:#?}");
}

#[test]
fn partitions_that_do_not_cover_all_keys_are_told() {
    let image = changed(&sound(), async |files| {
        let mut tx = Transaction::new();
        let table = files.pool.tables().into_iter().find(|table| table.id() == TABLE).unwrap();
        let (id, _) = table.descriptors().into_iter().min_by_key(|(_, d)| d.start).unwrap();
        tx.delete(Pool::TABLES, PartitionDescriptor::key(TABLE, id));
        files.apply(tx).await;
    });
    let report = report(&image);
    assert_eq!(kinds(&image), ["cannot-open"]);
    assert!(report.findings[0].what.contains("contradict each other"), "{report:#?}");
}
