//! Absent names of the mounted filesystem, as questions show and change them.

use copyhold_fs::Filesystem;
use copyhold_types::SubvolId;

use super::Answer;
use super::answers::refused;
use super::paths::Paths;
use crate::wire::names::{NamesRow, NamesTotals};
use crate::{NamesLimit, budget};

/// At most `most` tenants with numbers behind `after`.
pub(super) async fn rows(fs: &Filesystem, after: u64, most: usize) -> Answer<Vec<NamesRow>> {
    let after = SubvolId(u32::try_from(after).unwrap_or(u32::MAX));
    let (mut paths, mut rows) = (Paths::of_page(fs), Vec::new());
    for figures in fs.names().figures_behind(after, most) {
        let path = paths.of(figures.subvol).await.map_err(refused)?;
        rows.push(NamesRow::new(&figures, path));
    }
    paths.end(rows.len() < most);
    Ok(rows)
}

pub(super) fn totals(fs: &Filesystem) -> NamesTotals {
    let (_, held) = fs.inodes_and_lookups();
    NamesTotals::new(fs.names(), held as u64)
}

/// Until the unmount. The figures afterwards.
pub(super) fn set(fs: &Filesystem, limit: NamesLimit) -> NamesTotals {
    fs.names().set_limit(limit.entries(budget::machine()));
    fs.names().drop_later(fs.pool().runtime());
    totals(fs)
}

/// The names that a subvolume has.
pub(super) fn live(fs: &Filesystem, of: SubvolId) -> u64 {
    fs.volumes().subvol(of).map_or(0, |subvol| fs.names().live_of(subvol.owner()))
}
