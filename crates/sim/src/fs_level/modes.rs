//! The checksum modes of files, and of the extents that are found.
//!
//! The mode of a file is a part of its client's tree: after a recovery it is that after the same
//! number of steps as all else. An extent has the mode that its file had when it was written back,
//! which the model does not know. So the model keeps every mode that a file ever had: each extent
//! must have one of these, of its own file or of one that shares it, as far as the device has it;
//! or its checksums in the item, as data that travels with an fsync (`docs/integrity.md`).

use std::collections::{BTreeMap, BTreeSet};

use copyhold_format::item::{ChecksumMode, Extent, extent_key};
use copyhold_fs::{Filesystem, FsError, NodeId};

/// Extents of each mode, in the order of [`ChecksumMode::ALL`].
pub type ByMode = [u64; ChecksumMode::ALL.len()];

pub fn count_by_mode<'a>(extents: impl IntoIterator<Item = &'a Extent>) -> ByMode {
    let mut counts = ByMode::default();
    for found in extents.into_iter().filter_map(|extent| extent.state.checksum_mode()) {
        counts[usize::from(found.code())] += 1;
    }
    counts
}

pub(crate) fn add(sum: &mut ByMode, more: &ByMode) {
    sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
}

/// All modes that each file ever had, and its sources, by its number in the model.
#[derive(Clone, Debug, Default)]
pub(crate) struct Modes(BTreeMap<u64, BTreeSet<ChecksumMode>>);

impl Modes {
    /// Files have these modes now.
    pub(crate) fn note(&mut self, files: impl Iterator<Item = (u64, ChecksumMode)>) {
        for (id, mode) in files {
            self.0.entry(id).or_default().insert(mode);
        }
    }

    /// A file gets extents of another.
    pub(crate) fn share(&mut self, source: u64, target: u64) {
        let had = self.0.get(&source).cloned().unwrap_or_default();
        self.0.entry(target).or_default().extend(had);
    }

    /// Whether an extent of a file may have this mode.
    pub(super) fn allows(&self, id: u64, found: ChecksumMode, has_tuples: bool) -> bool {
        let had = self.0.get(&id).into_iter().flatten();
        found == ChecksumMode::Item
            || had.into_iter().any(|mode| mode.on_device(has_tuples) == found)
    }
}

/// The extents of a file, each with its first block of the file.
///
/// # Errors
/// Its subvolume cannot be read.
///
/// # Panics
/// The subvolume is gone, or an extent is none.
pub async fn extents(fs: &Filesystem, node: NodeId) -> Result<Vec<(u64, Extent)>, FsError> {
    let subvol = fs.volumes().subvol(node.subvol).expect("its subvolume is there");
    let (from, to) = (extent_key(node.ino, 0), extent_key(node.ino, u64::MAX));
    let rows = fs.volumes().range(&subvol, from, to, 1 << 20).await?;
    let parse = |value: &[u8]| Extent::parse(value).expect("an extent");
    Ok(rows.iter().map(|(key, value)| (key.offset, parse(value))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn modes() -> Modes {
        let mut modes = Modes::default();
        modes.note([(1, ChecksumMode::Guard)].into_iter());
        modes
    }

    #[test]
    fn an_extent_has_a_mode_of_its_file_or_the_item() {
        let allowed =
            |has_tuples| ChecksumMode::ALL.map(|found| modes().allows(1, found, has_tuples));
        assert_eq!(allowed(true), [true, true, false, false]);
        assert_eq!(allowed(false), [true, false, false, false], "a device without tuples");
    }

    #[test]
    fn a_copy_brings_the_modes_of_its_source() {
        let mut modes = modes();
        assert!(!modes.allows(2, ChecksumMode::Guard, true));
        modes.share(1, 2);
        assert!(modes.allows(2, ChecksumMode::Guard, true));
    }
}
