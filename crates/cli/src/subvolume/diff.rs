//! `copyhold subvolume diff`: which paths changed between two snapshots.

use std::collections::BTreeSet;
use std::path::PathBuf;

use copyhold_fs::{Change, Changes, FileKind, Named, Names, Side, What};
use copyhold_types::InodeNo;
use serde_json::{Value, json};

use super::progress::Progress;
use crate::control::Control;
use crate::control::tenants::{self, Root};
use copyhold_serve::wire::scan::{At, FactRow, NameRow, Scan, Step};
use copyhold_serve::wire::{Question, Subvolume};

use crate::failure::{Failure, complain};
use crate::report::Report;

/// Inodes that one question asks about.
const ASKED: usize = 512;

/// List the paths that changed between two snapshots
///
/// The new side may also be the subvolume itself, in its current state: changes during the
/// comparison are listed or not. Both sides must share by snapshot. The comparison does not read
/// shared nodes, so its time depends on the number of changes, not of files.
///
/// Each line is a path from the root of the subvolume: `A` the path was added; `D` it was deleted;
/// `R` it was renamed, with all paths below it; `M` it was changed, with the changed parts: content
/// (written, truncated or replaced), metadata (owner, permissions, flags, times), xattrs. A changed
/// file with several names is listed under one of them. Nested subvolumes are not compared.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    copyhold subvolume diff /mnt/backups/monday /mnt/backups/tuesday\n  \
    copyhold subvolume diff /mnt/backups/tuesday /mnt/alice --json | jq '.[].path'")]
pub(super) struct Diff {
    /// The root of the older snapshot
    old: PathBuf,
    /// The root of the newer snapshot, or of the subvolume itself
    new: PathBuf,
}

impl Diff {
    pub(super) fn run(self, report: Report) -> Result<(), Failure> {
        let roots = [tenants::subvolume(&self.old)?, tenants::subvolume(&self.new)?];
        roots[0].with(&roots[1])?;
        let mut asker = Asker { controls: [roots[0].open()?, roots[1].open()?] };
        // The kernel still has the data that programs wrote to maps of files.
        asker.controls[1].write_pages()?;
        for control in &asker.controls {
            let _generation: u64 = control.put(&Question::Scan { step: Scan::Begin })?;
        }
        let changes = asker.changes()?.summary(&mut asker)?;
        if !report.json {
            asker.note(&roots)?;
        }
        let rows: Vec<Value> = changes.iter().map(row).collect();
        report.show(&rows, || changes.iter().map(line).collect())
    }
}

/// Asks about the old side and the new one.
struct Asker {
    controls: [Control; 2],
}

impl Asker {
    fn changes(&self) -> Result<Changes, Failure> {
        let mut progress = Progress::new("comparing");
        let (mut changes, mut at): (_, Option<At>) = (Changes::default(), None);
        loop {
            let step = Scan::Changes { from: self.controls[0].token()?, at };
            let found: Step<FactRow> = self.controls[1].put(&Question::Scan { step })?;
            found.rows.into_iter().for_each(|row| changes.add(row.into()));
            progress.at(found.progress);
            match found.next {
                Some(next) => at = Some(next),
                None => return Ok(changes),
            }
        }
    }

    /// A side that may go on changing is compared as it was found.
    fn note(&self, roots: &[Root; 2]) -> Result<(), Failure> {
        for (control, root) in self.controls.iter().zip(roots) {
            let subvolume: Subvolume = control.put(&Question::Subvolume)?;
            if !subvolume.readonly {
                let path = root.path.display();
                complain(&format!("copyhold: {path} is writable; its current state was compared"));
            }
        }
        Ok(())
    }
}

impl Names for Asker {
    type Error = Failure;

    fn homes(&mut self, side: Side, inos: &[InodeNo]) -> Result<Vec<Option<InodeNo>>, Failure> {
        homes(&self.controls[side as usize], inos)
    }

    fn named(
        &mut self,
        side: Side,
        dir: Option<InodeNo>,
        wanted: &BTreeSet<InodeNo>,
    ) -> Result<Vec<Named>, Failure> {
        named(&self.controls[side as usize], dir, wanted)
    }
}

/// Where files had their latest names.
pub(super) fn homes(control: &Control, inos: &[InodeNo]) -> Result<Vec<Option<InodeNo>>, Failure> {
    let mut homes = Vec::with_capacity(inos.len());
    for inos in inos.chunks(ASKED) {
        let inodes = inos.iter().map(|ino| ino.0).collect();
        let found: Vec<Option<u64>> =
            control.put(&Question::Scan { step: Scan::Homes { inodes } })?;
        homes.extend(found.into_iter().map(|home| home.map(InodeNo)));
    }
    Ok(homes)
}

/// Names of files in a directory, or in all.
pub(super) fn named(
    control: &Control,
    dir: Option<InodeNo>,
    wanted: &BTreeSet<InodeNo>,
) -> Result<Vec<Named>, Failure> {
    let wanted: Vec<u64> = wanted.iter().map(|ino| ino.0).collect();
    let mut found = Vec::new();
    for inodes in wanted.chunks(ASKED) {
        let mut at = None;
        loop {
            let (directory, inodes) = (dir.map(|dir| dir.0), inodes.to_vec());
            let step = Scan::Named { directory, inodes, at };
            let some: Step<NameRow> = control.put(&Question::Scan { step })?;
            found.extend(some.rows.into_iter().map(|row| Named {
                dir: InodeNo(row.directory),
                name: row.name,
                ino: InodeNo(row.inode),
            }));
            match some.next {
                Some(next) => at = Some(next),
                None => break,
            }
        }
    }
    Ok(found)
}

fn letter(what: &What) -> (&'static str, &'static str) {
    match what {
        What::Added => ("A", "added"),
        What::Deleted => ("D", "deleted"),
        What::Renamed { .. } => ("R", "renamed"),
        What::Modified { .. } => ("M", "modified"),
    }
}

fn parts(what: &What) -> Vec<&'static str> {
    let What::Modified { content, metadata, xattrs } = *what else { return Vec::new() };
    let all = [(content, "content"), (metadata, "metadata"), (xattrs, "xattrs")];
    all.into_iter().filter(|(is_there, _)| *is_there).map(|(_, name)| name).collect()
}

fn line(change: &Change) -> String {
    let (letter, _) = letter(&change.what);
    let is_dir = change.kind == FileKind::Directory && change.path != b".";
    let slash = if is_dir { "/" } else { "" };
    let path = quoted(&change.path, slash);
    match &change.what {
        What::Renamed { from } => format!("{letter}\t{}\t{path}\n", quoted(from, slash)),
        What::Modified { .. } => format!("{letter}\t{path}\t{}\n", parts(&change.what).join(",")),
        _ => format!("{letter}\t{path}\n"),
    }
}

fn row(change: &Change) -> Value {
    let text = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
    let from = match &change.what {
        What::Renamed { from } => Some(from),
        _ => None,
    };
    let kind = if change.is_subvolume { "subvolume" } else { kind_name(change.kind) };
    let mut row = json!({
        "change": letter(&change.what).1,
        "path": text(&change.path),
        "from": from.map(|from| text(from)),
        "kind": kind,
        "parts": parts(&change.what),
        "links": change.links,
    });
    // Bytes that no JSON text can have.
    for (name, path) in [("path_bytes", Some(&change.path)), ("from_bytes", from)] {
        if let Some(path) = path.filter(|path| std::str::from_utf8(path).is_err()) {
            row[name] = json!(path);
        }
    }
    row
}

fn kind_name(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Regular => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
        FileKind::CharDevice | FileKind::BlockDevice => "device",
    }
}

/// As `git diff` has it: where a path has bytes that could be mistaken, in quotes and with escapes.
pub(super) fn quoted(path: &[u8], end: &str) -> String {
    let text = std::str::from_utf8(path)
        .ok()
        .filter(|text| !text.chars().any(|c| c.is_control() || c == '"' || c == '\\'));
    if let Some(text) = text {
        return format!("{text}{end}");
    }
    let mut out = String::from("\"");
    for chunk in path.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '"' | '\\' => out.extend(['\\', c]),
                '\n' => out += "\\n",
                '\t' => out += "\\t",
                '\r' => out += "\\r",
                c if c.is_control() => {
                    let mut bytes = [0; 4];
                    c.encode_utf8(&mut bytes).bytes().for_each(|b| out += &format!("\\{b:03o}"));
                }
                c => out.push(c),
            }
        }
        chunk.invalid().iter().for_each(|byte| out += &format!("\\{byte:03o}"));
    }
    out + end + "\""
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(path: &[u8], what: What) -> Change {
        let (kind, is_subvolume) = (FileKind::Regular, false);
        Change { path: path.to_vec(), what, kind, is_subvolume, links: Some(1) }
    }

    #[test]
    fn a_line_says_what_happened_to_a_path() {
        let what = What::Modified { content: true, metadata: false, xattrs: true };
        assert_eq!(line(&change(b"a/b", what)), "M\ta/b\tcontent,xattrs\n");
        let renamed = change(b"new", What::Renamed { from: b"old".to_vec() });
        assert_eq!(line(&Change { kind: FileKind::Directory, ..renamed }), "R\told/\tnew/\n");
        assert_eq!(line(&change(b"a\tb\xff\"", What::Added)), "A\t\"a\\tb\\377\\\"\"\n");
        assert_eq!(line(&change("ä".as_bytes(), What::Deleted)), "D\tä\n");
    }

    #[test]
    fn the_json_of_a_change_is_a_contract() {
        let renamed = change(b"b\xff", What::Renamed { from: b"a".to_vec() });
        let wanted = json!({"change": "renamed", "path": "b\u{fffd}", "from": "a", "kind": "file",
            "parts": [], "links": 1, "path_bytes": [98, 255]});
        assert_eq!(row(&renamed), wanted);
    }
}
