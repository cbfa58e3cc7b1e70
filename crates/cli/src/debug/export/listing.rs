//! A line for each file: its kind and attributes, and a digest of its content.

use copyhold_rescue::{Chunk, ContentDigest, FileKind, Inode, Time};
use copyhold_types::Timestamp;
use serde_json::{Map, Value, json};

use super::sink::{Item, Problem, Sink, shown};
use crate::failure::Failure;
use crate::report::{Report, print};
use copyhold_serve::rfc3339;

pub(super) struct Listing {
    pub(super) report: Report,
}

/// The facts of a file that only reading its content gives.
#[derive(Default)]
struct Read {
    digest: Option<u128>,
    target: Option<Vec<u8>>,
}

impl Sink for Listing {
    fn file(&mut self, item: Item<'_>, problems: &mut Vec<Problem>) -> Result<(), Failure> {
        let read = Read::of(&item, problems);
        let line = match self.report.json {
            true => object(&item, &read, problems).to_string(),
            false => text(&item, &read),
        };
        print(&(line + "\n"))
    }

    fn empty(&mut self, _path: &[Vec<u8>], _problems: &mut Vec<Problem>) {}

    fn finish(&mut self) -> Vec<(String, Problem)> {
        Vec::new()
    }
}

impl Read {
    fn of(item: &Item<'_>, problems: &mut Vec<Problem>) -> Read {
        let mut read = Read::default();
        match item.inode.kind {
            FileKind::Symlink => match item.files.target(item.inode) {
                Ok(target) => read.target = Some(target),
                Err(damage) => problems.push(Problem::lost(damage)),
            },
            FileKind::Regular => read.digest = digest(item, problems),
            _ => {}
        }
        read
    }
}

/// Of the whole content; none, if some of it is lost.
fn digest(item: &Item<'_>, problems: &mut Vec<Problem>) -> Option<u128> {
    let mut digest = ContentDigest::default();
    let before = problems.len();
    item.files.content(item.inode, |chunk| match chunk {
        Chunk::Data { offset, bytes } => digest.add(offset, bytes),
        Chunk::Lost { offset, length, damage } => {
            if problems.len() == before {
                let why = format!("{length} bytes at {offset}, or more: {damage}");
                problems.push(Problem::Lost(why));
            }
        }
    });
    (problems.len() == before).then(|| digest.finish(item.inode.size))
}

fn moment(time: Time) -> String {
    rfc3339(Timestamp { secs: time.seconds, nanos: time.nanos })
}

fn text(item: &Item<'_>, read: &Read) -> String {
    let Inode { kind, mode, uid, gid, size, modified, .. } = item.inode;
    let mut line = format!("{:<9} {mode:04o} {uid}:{gid} {size} ", kind.name());
    line += &moment(*modified);
    if let Some(digest) = read.digest {
        line += &format!(" {digest:032x}");
    }
    line += &format!(" {}", shown(item.path));
    if let Some(target) = &read.target {
        line += &format!(" -> {}", String::from_utf8_lossy(target));
    }
    line
}

fn object(item: &Item<'_>, read: &Read, problems: &mut Vec<Problem>) -> Value {
    let inode = item.inode;
    let time = |time: Time| json!({ "seconds": time.seconds, "nanos": time.nanos });
    let mut extents: Vec<Value> = Vec::new();
    let lost = item.files.extents(inode, |run| {
        extents.push(json!([run.start, run.address, run.blocks, run.unwritten]));
    });
    // Lost content is reported with its digest; extents may also be lost behind the end.
    if problems.is_empty() {
        problems.extend(lost.iter().map(Problem::lost));
    }
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let attributes: Map<String, Value> = item
        .attributes
        .iter()
        .map(|it| (String::from_utf8_lossy(&it.name).into_owned(), hex(&it.value).into()))
        .collect();
    json!({
        "path": shown(item.path),
        "subvolume": item.subvolume,
        "inode": inode.number,
        "kind": inode.kind.name(),
        "mode": inode.mode,
        "links": inode.links,
        "uid": inode.uid,
        "gid": inode.gid,
        "size": inode.size,
        "accessed": time(inode.accessed),
        "modified": time(inode.modified),
        "changed": time(inode.changed),
        "born": time(inode.born),
        "flags": inode.flags,
        "project": inode.project,
        "device": inode.device,
        "target": read.target.as_ref().map(|target| String::from_utf8_lossy(target)),
        "xattrs": attributes,
        "extents": extents,
        "digest": read.digest.map(|digest| format!("{digest:032x}")),
    })
}
