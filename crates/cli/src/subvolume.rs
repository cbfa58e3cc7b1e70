//! `copyhold subvolume`: parts of a pool that can be snapshotted, deleted and limited as one.
//!
//! Arguments come in the order that btrfs users know. The work is the daemon's; here paths become
//! questions (`control/tenants.rs`) and answers text.

mod diff;
mod du;
mod find_new;
mod progress;
mod rollback;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fs::Mode;
use serde_json::json;

use crate::control::Control;
use crate::control::tenants::{self, Entry};
use crate::failure::Failure;
use crate::report::{Report, table};
use crate::size::Size;
use crate::view;
use copyhold_serve::wire::{Group, Page, Question, Subvolume, SubvolumeState};

/// How often `sync` asks: soon at first, less often later.
const PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(250)];

/// Make, snapshot, list and delete subvolumes
///
/// A subvolume looks like a directory. Its snapshot and its deletion take constant time for any
/// size, and it can have a limit (`copyhold help qgroup`). Snapshots are subvolumes, too, and can
/// be deleted in any order.
///
/// Only root and the user who mounted the pool may change subvolumes; with `mount -o
/// user_subvolumes`, the owner of the affected directories may change them as well.
#[derive(Debug, clap::Args)]
pub(crate) struct Verb {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    Create(Create),
    Delete(Delete),
    Diff(diff::Diff),
    Du(du::Du),
    FindNew(find_new::FindNew),
    List(List),
    Rollback(rollback::Rollback),
    Show(Show),
    Snapshot(Snapshot),
    Sync(Sync),
}

/// Make an empty subvolume
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    copyhold subvolume create /mnt/alice\n  \
    copyhold subvolume create -i 1/100 /mnt/bob     in quota group 1/100")]
struct Create {
    /// Put it into this quota group, and not into those of the subvolume around it
    #[arg(short = 'i', value_name = "GROUP")]
    groups: Vec<Group>,
    /// The path of the new subvolume
    path: PathBuf,
}

/// Delete subvolumes with their content
///
/// Returns at once; the space is freed in the background (`subvolume sync` waits, `subvolume list`
/// shows the remaining ones). Blocks that snapshots share remain. A subvolume with subvolumes
/// inside it cannot be deleted; if one of several subvolumes cannot be deleted, the others are.
/// `rmdir` also deletes an empty subvolume. While other subvolumes share blocks of a deleted one,
/// its quota group remains as a `tombstone`, unless it has an heir.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    copyhold subvolume delete /mnt/alice /mnt/bob\n  \
    copyhold subvolume delete --heir /mnt/clone /mnt/base")]
struct Delete {
    /// The subvolume that pays from now on for the remaining blocks of this one
    #[arg(long, value_name = "PATH")]
    heir: Option<PathBuf>,
    /// Roots of subvolumes
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
}

/// List the subvolumes of a pool, and those that are being freed
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    copyhold subvolume list /mnt\n  \
    copyhold subvolume list /mnt --json | jq '.[] | select(.readonly) | .path'")]
struct List {
    /// Any directory or file of the mount
    path: PathBuf,
}

/// Show the properties of one subvolume
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  copyhold subvolume show /mnt/alice")]
struct Show {
    /// The root of a subvolume
    path: PathBuf,
}

/// Make a snapshot of a subvolume
///
/// A snapshot takes milliseconds and no space for any size, and is writable unless it is made with
/// -r. It has all writes that returned before the call. Subvolumes inside the source are empty
/// directories in the snapshot.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    copyhold subvolume snapshot /mnt/base /mnt/alice\n  \
    copyhold subvolume snapshot -r /mnt/alice /mnt/backups     as /mnt/backups/alice")]
struct Snapshot {
    /// Make the snapshot read-only, until `property set PATH ro false`
    #[arg(short = 'r')]
    read_only: bool,
    /// Put it into this quota group, and not into those of the subvolume around it
    #[arg(short = 'i', value_name = "GROUP")]
    groups: Vec<Group>,
    /// The root of a subvolume
    source: PathBuf,
    /// The path of the snapshot, or an existing directory, where it gets the name of the
    /// source
    target: PathBuf,
}

/// Wait until deleted subvolumes are freed
///
/// Waits for the subvolumes that are deleted at the time of the call.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  copyhold subvolume delete /mnt/a && copyhold subvolume sync /mnt"
)]
struct Sync {
    /// Any directory or file of the mount
    path: PathBuf,
    /// Only these subvolumes, as `subvolume list` showed them
    #[arg(value_name = "ID")]
    ids: Vec<u32>,
}

impl Verb {
    pub(crate) fn run(self, report: Report) -> Result<(), Failure> {
        match self.what {
            What::Create(verb) => verb.run(report),
            What::Delete(verb) => verb.run(report),
            What::Diff(verb) => verb.run(report),
            What::Du(verb) => verb.run(report),
            What::FindNew(verb) => verb.run(report),
            What::List(verb) => verb.run(report),
            What::Rollback(verb) => verb.run(report),
            What::Show(verb) => verb.run(report),
            What::Snapshot(verb) => verb.run(report),
            What::Sync(verb) => verb.run(),
        }
    }
}

impl Create {
    fn run(self, report: Report) -> Result<(), Failure> {
        let entry = Entry::new(&self.path)?;
        let (name, umask, groups) = (entry.name(), umask(), self.groups);
        let question = Question::Create { name, umask, groups };
        let made: u32 = entry.open()?.change(|| Ok(question.clone()))?;
        let path = entry.path().display().to_string();
        let text = || format!("made subvolume {made} at {path}\n");
        report.show(&json!({ "id": made, "path": path }), text)
    }
}

/// The umask that this process inherited. It can only be read by setting another one.
fn umask() -> u32 {
    let mine = rustix::process::umask(Mode::RWXG | Mode::RWXO);
    rustix::process::umask(mine);
    mine.bits() & 0o777
}

impl Delete {
    /// Subvolumes that cannot be deleted are reported, and the others are deleted.
    fn run(self, report: Report) -> Result<(), Failure> {
        let heir = self.heir.as_deref().map(tenants::subvolume).transpose()?;
        let heir = heir.map(|heir| heir.open()).transpose()?;
        let mut last = None;
        for path in &self.paths {
            if let Err(failure) = delete(path, heir.as_ref(), report)
                && let Some(before) = last.replace(failure)
            {
                before.report(report.json);
            }
        }
        last.map_or(Ok(()), Err)
    }
}

fn delete(path: &Path, heir: Option<&Control>, report: Report) -> Result<(), Failure> {
    let entry = tenants::subvolume(path)?.entry()?;
    let gone: u32 = entry.open()?.change(|| {
        let heir = heir.map(Control::token).transpose()?;
        Ok(Question::Delete { name: entry.name(), heir })
    })?;
    report.note(|| format!("deleted subvolume {gone} at {}", path.display()))
}

impl List {
    fn run(self, report: Report) -> Result<(), Failure> {
        let control = tenants::directory(&self.path)?;
        let question = |after| Question::Subvolumes { after };
        let subvolumes: Vec<Subvolume> = control.put_all(question)?;
        report.show(&subvolumes, || list_text(&subvolumes))
    }
}

fn list_text(subvolumes: &[Subvolume]) -> String {
    let rows: Vec<Vec<String>> = subvolumes.iter().map(row).collect();
    table(&[">id", ">in", ">of", "made", "state", "path"], &rows)
}

fn row(subvolume: &Subvolume) -> Vec<String> {
    let id = |id: Option<u32>| id.map_or("-".into(), |id| id.to_string());
    let state = match (subvolume.state, subvolume.readonly) {
        (SubvolumeState::Live, false) => "writable".into(),
        (SubvolumeState::Live, true) => "read-only".into(),
        (SubvolumeState::Deleting, _) => being_freed(subvolume),
    };
    vec![
        subvolume.id.to_string(),
        id(subvolume.parent),
        id(subvolume.origin),
        subvolume.created.clone(),
        state,
        subvolume.path.clone().unwrap_or("-".into()),
    ]
}

fn being_freed(subvolume: &Subvolume) -> String {
    let done = subvolume.freed_percent.map(|percent| format!(", {percent} % done"));
    let paid = subvolume.freeing_bytes.map(|bytes| format!(", pays for {}", Size(bytes)));
    format!("being freed{}{}", done.unwrap_or_default(), paid.unwrap_or_default())
}

impl Show {
    fn run(self, report: Report) -> Result<(), Failure> {
        let shown: Subvolume = tenants::subvolume(&self.path)?.open()?.put(&Question::Subvolume)?;
        report.show(&shown, || view::text(&json!(shown)))
    }
}

impl Snapshot {
    fn run(self, report: Report) -> Result<(), Failure> {
        let source = tenants::subvolume(&self.source)?;
        let entry = source.snapshot_entry(&self.target)?;
        let control = entry.open()?;
        // The kernel still has the data that programs wrote to maps of files.
        control.write_pages()?;
        let source = source.open()?;
        let made: u32 = control.change(|| {
            let (source, name, groups) = (source.token()?, entry.name(), self.groups.clone());
            Ok(Question::Snapshot { source, name, read_only: self.read_only, groups })
        })?;
        let (from, path) = (self.source.display(), entry.path().display().to_string());
        let text = || format!("made subvolume {made} at {path}, a snapshot of {from}\n");
        report.show(&json!({ "id": made, "path": path }), text)
    }
}

impl Sync {
    fn run(self) -> Result<(), Failure> {
        let control = tenants::directory(&self.path)?;
        let leaving: Vec<u32> = control.put_all(|after| Question::Leaving { after })?;
        let mut awaited = BTreeSet::from_iter(leaving);
        if !self.ids.is_empty() {
            let ids = BTreeSet::from_iter(self.ids);
            awaited.retain(|id| ids.contains(id));
        }
        let mut pause = PAUSES[0];
        while let Some(first) = awaited.first().copied() {
            thread::sleep(pause);
            let after = u64::from(first) - 1;
            let page: Page<u32> = control.put(&Question::Leaving { after })?;
            pause = match drop_freed(&mut awaited, &page) {
                true => PAUSES[0],
                false => (pause * 2).min(PAUSES[1]),
            };
        }
        Ok(())
    }
}

/// Drops the awaited subvolumes that are not in this page, which begins at the first of them: they
/// are freed, as ids are not used again. Returns whether the first of them is freed.
fn drop_freed(awaited: &mut BTreeSet<u32>, page: &Page<u32>) -> bool {
    let first = awaited.first().copied();
    let still = BTreeSet::from_iter(page.rows.iter().copied());
    let shown = |id: u32| page.next.is_none_or(|last| u64::from(id) <= last);
    awaited.retain(|id| !shown(*id) || still.contains(id));
    awaited.first().copied() != first
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subvolume(id: u32) -> Subvolume {
        Subvolume {
            id,
            path: Some(format!("a{id}")),
            parent: Some(1),
            readonly: false,
            origin: None,
            created: "2026-11-21T10:00:00Z".into(),
            state: SubvolumeState::Live,
            generation: Some(9),
            freeing_bytes: None,
            freed_percent: None,
        }
    }

    #[test]
    fn a_wait_drops_what_the_first_page_shows_to_be_freed() {
        let mut awaited = BTreeSet::from([3, 5, 8, 900]);
        let page = Page { rows: vec![3, 8], next: Some(8) };
        assert!(!drop_freed(&mut awaited, &page));
        assert_eq!(awaited, BTreeSet::from([3, 8, 900]), "nothing is known of later ones");
        assert!(drop_freed(&mut awaited, &Page { rows: vec![8], next: None }));
        assert_eq!(awaited, BTreeSet::from([8]));
        assert!(drop_freed(&mut awaited, &Page { rows: vec![], next: None }));
        assert!(awaited.is_empty());
    }

    #[test]
    fn the_json_of_a_subvolume_is_a_contract() {
        let state = SubvolumeState::Deleting;
        let gone = Subvolume { path: None, origin: Some(2), state, ..subvolume(7) };
        assert_eq!(
            json!(gone),
            json!({"id": 7, "path": null, "parent": 1, "readonly": false, "origin": 2,
                "created": "2026-11-21T10:00:00Z", "state": "deleting", "generation": 9,
                "freeing_bytes": null,
                "freed_percent": null})
        );
        assert_eq!(json!(subvolume(3))["state"], "live");
    }

    #[test]
    fn a_list_tells_what_is_read_only_and_what_is_left_of_the_deleted() {
        let freeing = Subvolume {
            path: None,
            state: SubvolumeState::Deleting,
            freeing_bytes: Some(3 << 20),
            freed_percent: Some(40),
            ..subvolume(300)
        };
        let kept = Subvolume { readonly: true, origin: Some(300), ..subvolume(4) };
        let text = list_text(&[subvolume(2), kept, freeing]);
        let lines: Vec<&str> = text.lines().collect();
        let row = |id, of, state, path| {
            format!("  {id}   1  {of}  2026-11-21T10:00:00Z  {state:<40}  {path}")
        };
        assert_eq!(lines[1], row(2, "  -", "writable", "a2"));
        assert_eq!(lines[2], row(4, "300", "read-only", "a4"));
        assert!(lines[3].contains("being freed, 40 % done, pays for 3.0 MiB  -"), "{text}");
    }
}
