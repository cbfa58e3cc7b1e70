//! `copyhold subvolume du`: the space that subvolumes hold, and their exclusive part.

use std::path::{Path, PathBuf};

use copyhold_types::{BLOCK_BYTES, BlockAddr, Key, Run};
use copyhold_volume::{SharedRun, Tally, WeighAt, Weighed};
use serde::Serialize;

use super::progress::Progress;
use crate::control::tenants;
use crate::failure::Failure;
use crate::report::{Report, table};
use crate::size::Size;
use copyhold_serve::wire::Question;
use copyhold_serve::wire::scan::{At, Scan, WeighedStep};

/// Show how much data subvolumes hold, share, and would free
///
/// Exclusive bytes would become free if the subvolume were deleted now: no other subvolume shares
/// them by snapshot or by reflink. The daemon reads the extents of all files, in steps between
/// other operations, and stops when this program ends. The figures are exact if no file is written
/// and no subvolume is freed meanwhile, and approximate otherwise. Each block counts once, for any
/// number of references from a subvolume.
///
/// The figures are of data only, without names, attributes and extent items. Many files and
/// snapshots share the nodes with these items, and many changes are in memory until the node is
/// written, so few nodes are exclusive for long. `qgroup show` shows the metadata that a subvolume
/// pays for. A file of up to a few hundred bytes is metadata, too.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    copyhold subvolume du /mnt/alice /mnt/backups/alice\n  \
    copyhold subvolume du --exclusive /mnt/backups/*     faster: only what is not shared is read")]
pub(super) struct Du {
    /// Only the exclusive bytes, which need fewer reads
    #[arg(long)]
    exclusive: bool,
    /// Roots of subvolumes
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
}

#[derive(Debug, Serialize)]
struct Row {
    path: String,
    total_bytes: Option<u64>,
    shared_bytes: Option<u64>,
    exclusive_bytes: u64,
}

impl Du {
    pub(super) fn run(self, report: Report) -> Result<(), Failure> {
        let mut rows = Vec::new();
        for path in &self.paths {
            let tally = weigh(path, self.exclusive)?;
            let bytes = |blocks: u64| blocks * BLOCK_BYTES as u64;
            let (total, exclusive_bytes) = (bytes(tally.total()), bytes(tally.exclusive()));
            let total_bytes = (!self.exclusive).then_some(total);
            let shared_bytes = total_bytes.map(|total| total.saturating_sub(exclusive_bytes));
            let path = path.display().to_string();
            rows.push(Row { path, total_bytes, shared_bytes, exclusive_bytes });
        }
        report.show(&rows, || text(&rows, self.exclusive))
    }
}

fn weigh(path: &Path, exclusive: bool) -> Result<Tally, Failure> {
    let control = tenants::subvolume(path)?.open()?;
    control.write_pages()?;
    let _generation: u64 = control.put(&Question::Scan { step: Scan::Begin })?;
    let mut progress = Progress::new("weighing");
    let (mut tally, mut next) = (Tally::default(), Some((false, At::from(Key::MIN))));
    while let Some((dropped, at)) = next {
        let step = Scan::Weigh { exclusive, dropped, at: Some(at) };
        let found: WeighedStep = control.put(&Question::Scan { step })?;
        tally.add(&weighed(&found));
        progress.at(found.progress);
        next = found.next;
    }
    Ok(tally)
}

/// As the engine returned it.
fn weighed(step: &WeighedStep) -> Weighed {
    let shared = step.shared.iter().map(|&(addr, blocks, drops, shares, held)| SharedRun {
        run: Run::new(BlockAddr::from_raw(addr), blocks),
        drops,
        shares,
        held,
    });
    let next = step.next.map(|(dropped, at)| match dropped {
        false => WeighAt::Files(at.into()),
        true => WeighAt::Dropped(at.into()),
    });
    Weighed { held: step.held, exclusive: step.exclusive, shared: shared.collect(), next }
}

fn text(rows: &[Row], exclusive: bool) -> String {
    let size = |bytes: u64| Size(bytes).to_string();
    if exclusive {
        let cells = rows.iter().map(|row| vec![size(row.exclusive_bytes), row.path.clone()]);
        return table(&[">exclusive", "path"], &cells.collect::<Vec<_>>());
    }
    let cells = rows.iter().map(|row| {
        let of = |bytes: Option<u64>| size(bytes.unwrap_or_default());
        let (total, shared) = (of(row.total_bytes), of(row.shared_bytes));
        vec![total, shared, size(row.exclusive_bytes), row.path.clone()]
    });
    table(&[">total", ">shared", ">exclusive", "path"], &cells.collect::<Vec<_>>())
}
