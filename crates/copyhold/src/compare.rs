//! The paths that differ between two snapshots, or between a snapshot and its source.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;

use copyhold_fs::{Changes, Named, Names, NodeId, Side, What};
use copyhold_types::{InodeNo, Key};

use crate::engine::Engine;
use crate::{Error, FileKind};

/// Items that one step compares.
const ITEMS: usize = 2048;

/// A path that differs. Paths begin at the subvolume's root.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Change {
    /// Of a deleted path in the older state, of all others in the newer one.
    pub path: PathBuf,
    pub what: ChangeKind,
    pub kind: FileKind,
    /// The path is the root of a nested subvolume, whose files are not compared.
    pub is_subvolume: bool,
}

/// The difference of one path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    Added,
    Deleted,
    /// With all paths below it.
    Renamed {
        from: PathBuf,
    },
    Modified {
        /// The file was written to, cut or replaced.
        content: bool,
        /// Owner, permissions, flags or times.
        metadata: bool,
        xattrs: bool,
    },
}

/// Compares the subvolumes with these roots, at the cost of the changes.
pub(crate) fn diff(engine: &Arc<Engine>, sides: [NodeId; 2]) -> Result<Vec<Change>, Error> {
    let mut asker = Asker { engine, sides };
    for root in sides {
        engine.run(root, async |view| Ok(view.fs.settle_for_scan(root.subvol).await?))?;
    }
    let changes = asker.facts()?.summary(&mut asker)?;
    Ok(changes.into_iter().map(change).collect())
}

/// Asks about the older side and the newer one.
struct Asker<'a> {
    engine: &'a Arc<Engine>,
    sides: [NodeId; 2],
}

impl Asker<'_> {
    fn facts(&self) -> Result<Changes, Error> {
        let (mut changes, mut at): (_, Option<Key>) = (Changes::default(), None);
        let both = self.sides.map(|root| root.subvol);
        loop {
            let found = self
                .engine
                .run(self.sides[1], async |view| Ok(view.fs.changes(both, at, ITEMS).await?))?;
            let facts = found.items.into_iter().flat_map(|(_, facts)| facts);
            facts.for_each(|fact| changes.add(fact));
            match found.next {
                Some(next) => at = Some(next),
                None => return Ok(changes),
            }
        }
    }
}

impl Names for Asker<'_> {
    type Error = Error;

    fn homes(&mut self, side: Side, inos: &[InodeNo]) -> Result<Vec<Option<InodeNo>>, Error> {
        let root = self.sides[side as usize];
        self.engine.run(root, async |view| Ok(view.fs.homes(root.subvol, inos).await?))
    }

    fn named(
        &mut self,
        side: Side,
        dir: Option<InodeNo>,
        wanted: &BTreeSet<InodeNo>,
    ) -> Result<Vec<Named>, Error> {
        let root = self.sides[side as usize];
        let (mut all, mut at) = (Vec::new(), None);
        loop {
            let found = self
                .engine
                .run(root, async |view| Ok(view.fs.named(root.subvol, dir, wanted, at).await?))?;
            all.extend(found.items.into_iter().map(|(_, named)| named));
            match found.next {
                Some(next) => at = Some(next),
                None => return Ok(all),
            }
        }
    }
}

fn change(change: copyhold_fs::Change) -> Change {
    let path = |bytes| PathBuf::from(OsString::from_vec(bytes));
    let what = match change.what {
        What::Added => ChangeKind::Added,
        What::Deleted => ChangeKind::Deleted,
        What::Renamed { from } => ChangeKind::Renamed { from: path(from) },
        What::Modified { content, metadata, xattrs } => {
            ChangeKind::Modified { content, metadata, xattrs }
        }
    };
    let (kind, is_subvolume) = (change.kind, change.is_subvolume);
    Change { path: path(change.path), what, kind, is_subvolume }
}
