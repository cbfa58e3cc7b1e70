//! Extents of files: where their blocks are, and which checksums these have.

use std::ops::Range;

use copyhold_format::item::{EXTENT, Extent};
use copyhold_pool::Pool;
use copyhold_table::Table;
use copyhold_types::{InodeNo, Key, TableId};
use serde::Serialize;

/// An extent, or the error of its item.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExtentView {
    pub table: u64,
    pub inode: u64,
    /// The first block in the file.
    pub file_block: u64,
    /// "written", "unwritten", or the error of the item; then all else is missing.
    pub state: String,
    pub blocks: Option<u32>,
    pub at: Option<String>,
    pub epoch: Option<u64>,
    pub origin: Option<u64>,
    /// The checksum mode of its content.
    pub checksum: Option<&'static str>,
    /// The birth in the tags of its blocks.
    pub birth: Option<u32>,
}

/// Extents, and the errors of the ranges that cannot be read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ExtentsView {
    pub damage: Vec<String>,
    pub extents: Vec<ExtentView>,
}

/// The extents of all tables, or of one; of all files, or of those with one number.
pub async fn extents(pool: &Pool, only: Option<TableId>, inode: Option<InodeNo>) -> ExtentsView {
    let mut view = ExtentsView::default();
    let wanted = |id| only.is_none_or(|only| only == id);
    for table in pool.tables().iter().filter(|table| wanted(table.id())) {
        for range in readable_parts(table, inode) {
            let from = range.start;
            let mut visit = |key: Key, value: &[u8]| {
                if key.kind == EXTENT {
                    view.extents.push(extent_view(table.id(), key, value));
                }
            };
            let read = table.for_each_item(pool.node_source(), range, &mut visit).await;
            if let Err(error) = read {
                view.damage.push(format!("table {}, from {from}: {error}", table.id().0));
            }
        }
    }
    view
}

/// One range for each partition, so that damage hides the rest of its partition only.
fn readable_parts(table: &Table, inode: Option<InodeNo>) -> Vec<Range<Key>> {
    let wanted = match inode {
        Some(InodeNo(object)) => Key::new(object, EXTENT, 0)..Key::new(object, EXTENT, u64::MAX),
        None => Key::MIN..Key::MAX,
    };
    let mut starts: Vec<Key> = table.descriptors().into_iter().map(|(_, it)| it.start).collect();
    starts.sort();
    let ends = starts.iter().skip(1).copied().chain([Key::MAX]);
    let cut = |(start, end): (&Key, Key)| wanted.start.max(*start)..wanted.end.min(end);
    starts.iter().zip(ends).map(cut).filter(|range| !range.is_empty()).collect()
}

fn extent_view(table: TableId, key: Key, value: &[u8]) -> ExtentView {
    let parsed = Extent::parse(value);
    let extent = parsed.as_ref().ok();
    let pointer = extent.map(|extent| extent.pointer);
    let mode = extent.and_then(|extent| extent.state.checksum_mode());
    ExtentView {
        table: table.0,
        inode: key.object,
        file_block: key.offset,
        state: match &parsed {
            Ok(_) if mode.is_some() => "written".into(),
            Ok(_) => "unwritten".into(),
            Err(error) => error.to_string(),
        },
        blocks: extent.map(Extent::blocks),
        at: pointer.map(|pointer| pointer.run.addr.to_string()),
        epoch: pointer.map(|pointer| pointer.epoch.0),
        origin: pointer.map(|pointer| pointer.origin.0),
        checksum: mode.map(|mode| mode.name()),
        birth: extent.and_then(|extent| extent.state.birth()),
    }
}
