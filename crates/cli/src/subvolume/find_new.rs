//! `copyhold subvolume find-new`: file data that was written since some generation.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use copyhold_fs::{Named, Names, Places, Side};
use copyhold_types::InodeNo;
use serde_json::json;

use super::diff::{homes, named, quoted};
use super::progress::Progress;
use crate::control::Control;
use crate::control::tenants;
use crate::failure::Failure;
use crate::report::{Report, print};
use copyhold_serve::wire::Question;
use copyhold_serve::wire::scan::{FreshRow, Scan, Step};

/// List file data that is of a generation or newer
///
/// A subvolume writes its generation into its extents, and takes a new one at each snapshot. With
/// the generation of a snapshot (`subvolume show`), this verb lists the data written to the source
/// since that snapshot. It does not read older data. The last line has the marker for the next
/// call: the generation of writes from now on.
///
/// The data of tiny files is in their inodes and has no generation; it is listed, as INLINE, if an
/// item near it is new.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    copyhold subvolume find-new /mnt/alice 9999999     only the marker\n  \
    copyhold subvolume find-new /mnt/alice 42")]
pub(super) struct FindNew {
    /// The root of a subvolume
    path: PathBuf,
    /// A generation, from `subvolume show` or from the marker
    generation: u64,
}

/// Names on one side only.
struct Asker(Control);

impl Names for Asker {
    type Error = Failure;

    fn homes(&mut self, _: Side, inos: &[InodeNo]) -> Result<Vec<Option<InodeNo>>, Failure> {
        homes(&self.0, inos)
    }

    fn named(
        &mut self,
        _: Side,
        dir: Option<InodeNo>,
        wanted: &BTreeSet<InodeNo>,
    ) -> Result<Vec<Named>, Failure> {
        named(&self.0, dir, wanted)
    }
}

impl FindNew {
    pub(super) fn run(self, report: Report) -> Result<(), Failure> {
        let root = tenants::subvolume(&self.path)?;
        let (control, mut asker) = (root.open()?, Asker(root.open()?));
        control.write_pages()?;
        let marker: u64 = control.put(&Question::Scan { step: Scan::Begin })?;
        let mut places = Places::new(&mut asker);
        let mut progress = Progress::new("looking");
        let (mut at, mut extents) = (None, Vec::new());
        loop {
            let step = Scan::Fresh { since: self.generation, at };
            let found: Step<FreshRow> = control.put(&Question::Scan { step })?;
            let inos = found.rows.iter().map(|row| InodeNo(row.inode)).collect();
            places.find(Side::New, &inos, &BTreeMap::new())?;
            progress.at(found.progress);
            for row in &found.rows {
                let path = places.path(Side::New, InodeNo(row.inode));
                match report.json {
                    true => extents.push(json!({
                        "inode": row.inode,
                        "path": path.as_deref().map(String::from_utf8_lossy),
                        "offset": row.offset,
                        "bytes": row.bytes,
                        "address": row.extent.as_ref().map(|extent| extent.address),
                        "generation": row.extent.as_ref().map(|extent| extent.generation),
                        "flags": flags(row),
                    })),
                    false => print(&line(row, path.as_deref()))?,
                }
            }
            match found.next {
                Some(next) => at = Some(next),
                None => break,
            }
        }
        drop(progress);
        let text = || format!("transid marker was {marker}\n");
        report.show(&json!({ "generation": marker, "extents": extents }), text)
    }
}

fn flags(row: &FreshRow) -> &'static str {
    match &row.extent {
        None => "INLINE",
        Some(extent) if extent.unwritten => "PREALLOC",
        Some(_) => "NONE",
    }
}

/// As btrfs writes it.
fn line(row: &FreshRow, path: Option<&[u8]>) -> String {
    let FreshRow { inode, offset, bytes, extent } = row;
    let address = extent.as_ref().map_or(0, |extent| extent.address);
    let generation = extent.as_ref().map_or(0, |extent| extent.generation);
    let path = path.map_or("(no name)".into(), |path| quoted(path, ""));
    format!(
        "inode {inode} file offset {offset} len {bytes} disk start {address} offset 0 \
         gen {generation} flags {} {path}\n",
        flags(row)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use copyhold_serve::wire::scan::ExtentRow;

    #[test]
    fn a_line_is_as_btrfs_has_it() {
        let extent = ExtentRow { address: 8192, generation: 7, unwritten: false };
        let row = FreshRow { inode: 257, offset: 4096, bytes: 12288, extent: Some(extent) };
        assert_eq!(
            line(&row, Some(b"a b")),
            "inode 257 file offset 4096 len 12288 disk start 8192 offset 0 gen 7 flags NONE a b\n"
        );
    }
}
