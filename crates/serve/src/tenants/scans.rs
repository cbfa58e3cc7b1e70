//! Steps of looking through a subvolume, as answers that fit.
//!
//! A step takes some items of the engine and as many rows of them as there is room for; where the
//! rows of one key end, the next step begins.

use std::sync::Arc;

use copyhold_format::item::ExtentState;
use copyhold_fs::{Filesystem, FsError};
use copyhold_types::{BLOCK_BYTES, EpochId, InodeNo, Key, SubvolId};
use copyhold_volume::{Fresh, Scanned, Subvol, WeighAt, Weighed, Weighing};
use serde::Serialize;
use serde_json::{Value, json};

use crate::wire::scan::{At, Done, ExtentRow, FactRow, FreshRow, NameRow, Scan, Step, WeighedStep};

/// Items that a step looks at.
const ITEMS: usize = 2048;

pub(super) async fn step(
    fs: &Arc<Filesystem>,
    subvol: SubvolId,
    other: Option<SubvolId>,
    step: &Scan,
    room: usize,
) -> Result<Value, FsError> {
    let volume = fs.scanned(subvol)?;
    let key = |at: &Option<At>| at.map(Key::from);
    Ok(match step {
        Scan::Begin => json!(fs.settle_for_scan(subvol).await?.0),
        Scan::Changes { at, .. } => {
            let from = other.ok_or(FsError::Stale)?;
            let found = fs.changes([from, subvol], key(at), ITEMS).await?;
            let rows = found.items.into_iter().map(|(key, facts)| {
                (key, facts.into_iter().map(FactRow::from).collect::<Vec<_>>())
            });
            rows_that_fit(fs, &volume, rows, found.next, room)?
        }
        Scan::Homes { inodes } => {
            let inodes: Vec<InodeNo> = inodes.iter().copied().map(InodeNo).collect();
            let homes = fs.homes(subvol, &inodes).await?;
            json!(homes.into_iter().map(|home| home.map(|home| home.0)).collect::<Vec<_>>())
        }
        Scan::Named { directory, inodes, at } => {
            let wanted = inodes.iter().copied().map(InodeNo).collect();
            let directory = directory.map(InodeNo);
            let Scanned { items, next } = fs.named(subvol, directory, &wanted, key(at)).await?;
            let mut rows: Vec<(Key, Vec<NameRow>)> = Vec::new();
            for (key, named) in items {
                let (directory, inode) = (named.dir.0, named.ino.0);
                let row = NameRow { directory, name: named.name, inode };
                match rows.last_mut().filter(|(last, _)| *last == key) {
                    Some((_, rows)) => rows.push(row),
                    None => rows.push((key, vec![row])),
                }
            }
            rows_that_fit(fs, &volume, rows.into_iter(), next, room)?
        }
        Scan::Fresh { since, at } => {
            let from = key(at).unwrap_or(Key::MIN);
            let found = fs.volumes().fresh(&volume, EpochId(*since), from, ITEMS).await?;
            let rows = found.items.iter().map(|(key, fresh)| (*key, vec![fresh_row(*key, fresh)]));
            rows_that_fit(fs, &volume, rows, found.next, room)?
        }
        Scan::Weigh { exclusive, dropped, at } => {
            let key = key(at).unwrap_or(Key::MIN);
            let what = if *exclusive { Weighing::Exclusive } else { Weighing::All };
            let from = if *dropped { WeighAt::Dropped(key) } else { WeighAt::Files(key) };
            weigh(fs, &volume, (what, from), room).await?
        }
    })
}

/// Rows of keys in order, as many as fit.
fn rows_that_fit<T: Serialize>(
    fs: &Filesystem,
    subvol: &Subvol,
    keys: impl Iterator<Item = (Key, Vec<T>)>,
    mut next: Option<Key>,
    mut room: usize,
) -> Result<Value, FsError> {
    let mut shown = Vec::new();
    for (key, rows) in keys {
        let rows: Vec<Value> = rows.iter().map(|row| json!(row)).collect();
        let bytes: usize = rows.iter().map(|row| row.to_string().len() + 1).sum();
        if bytes > room {
            if shown.is_empty() {
                return Err(FsError::NotSupported("so many names with one hash"));
            }
            next = Some(key);
            break;
        }
        room -= bytes;
        shown.extend(rows);
    }
    let progress = progress(fs, subvol, next);
    Ok(json!(Step { rows: shown, next: next.map(At::from), progress }))
}

fn progress(fs: &Filesystem, subvol: &Subvol, next: Option<Key>) -> Done {
    let (done, of) = fs.volumes().position(subvol, next.unwrap_or(Key::MAX));
    Done { done: if next.is_none() { of } else { done }, of }
}

fn fresh_row(key: Key, fresh: &Fresh) -> FreshRow {
    let block = BLOCK_BYTES as u64;
    let (offset, bytes, extent) = match fresh {
        Fresh::Inline => (0, block, None),
        Fresh::Extent(extent) => {
            let run = extent.pointer.run;
            let row = ExtentRow {
                address: run.addr.block() * block,
                generation: extent.pointer.epoch.0,
                unwritten: extent.state == ExtentState::Unwritten,
            };
            (key.offset * block, run.bytes(), Some(row))
        }
    };
    FreshRow { inode: key.object, offset, bytes, extent }
}

/// Fewer items, where much is shared by reflink and all of it has to be returned.
async fn weigh(
    fs: &Filesystem,
    subvol: &Subvol,
    (what, from): (Weighing, WeighAt),
    room: usize,
) -> Result<Value, FsError> {
    let mut most = ITEMS;
    loop {
        let weighed = fs.volumes().weigh(subvol, what, from, most).await?;
        let answer = json!(weighed_step(fs, subvol, &weighed));
        if most == 1 || answer.to_string().len() <= room {
            return Ok(answer);
        }
        most = (most / 4).max(1);
    }
}

fn weighed_step(fs: &Filesystem, subvol: &Subvol, weighed: &Weighed) -> WeighedStep {
    let shared = weighed.shared.iter().map(|shared| {
        let run = shared.run;
        (run.addr.raw(), run.blocks, shared.drops, shared.shares, shared.held)
    });
    let files = match weighed.next {
        Some(WeighAt::Files(key)) => Some(key),
        _ => None,
    };
    let next = weighed.next.map(|next| match next {
        WeighAt::Files(key) => (false, At::from(key)),
        WeighAt::Dropped(key) => (true, At::from(key)),
    });
    WeighedStep {
        held: weighed.held,
        exclusive: weighed.exclusive,
        shared: shared.collect(),
        next,
        progress: progress(fs, subvol, files),
    }
}
