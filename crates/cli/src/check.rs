//! `copyhold check`: verifies a whole pool, and explains each damage to its owner.

use std::path::{Path, PathBuf};

use copyhold_check::Repaired;

use crate::engine;
use crate::failure::{Failure, Kind, complain};
use crate::report::Report;

/// Verify a whole pool that is not mounted
///
/// Follows every pointer, compares every digest, compares every block with the space maps and every
/// name with the link counts, and changes nothing. Exits with 3 when it finds damage. `--repair`
/// first writes bad headers of protection information again, from the other copy or from the label,
/// and rebuilds space maps whose copies are all damaged, if all references to space can be read.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    copyhold check /srv/pool.img\n  \
    copyhold check /srv/pool.img --json | jq -c '.findings[]'\n  \
    copyhold check /srv/pool.img --repair")]
pub(crate) struct Check {
    /// The file, the block device, or the NVMe namespace (/dev/ngXnY)
    pool: PathBuf,
    /// Read and verify the contents of files, too
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, value_name = "BOOL")]
    data: bool,
    /// First write bad headers again and rebuild space maps whose copies are both damaged, then
    /// verify the pool
    ///
    /// It writes only headers that are damaged or missing: from the other copy, if the label
    /// agrees, else from a label, if the size of the file fits and the tuple of each label is in
    /// its place. It rebuilds a map only if all references to space can be read.
    #[arg(long)]
    repair: bool,
}

impl Check {
    pub(crate) fn run(self, report: Report) -> Result<(), Failure> {
        let repaired = self.repair.then(|| engine::repair(&self.pool)).transpose()?;
        if let Some(repaired) = repaired.as_ref().filter(|_| !report.json) {
            tell(repaired);
        }
        let found = engine::check(&self.pool, self.data)?;
        let shown = Shown { repair: repaired.as_ref(), found: &found };
        report.show(&shown, || text(&self.pool, &found))?;
        verdict(&self.pool, &found)
    }
}

/// The object that `--json` shows.
#[derive(serde::Serialize)]
struct Shown<'a> {
    /// With `--repair`: `repaired` and `refused`.
    #[serde(flatten)]
    repair: Option<&'a Repaired>,
    #[serde(flatten)]
    found: &'a copyhold_check::Report,
}

fn tell(repaired: &Repaired) {
    for block in &repaired.headers {
        let what = format!("the header of protection information in block {block}");
        complain(&format!("copyhold: {what} was written again"));
    }
    for map in &repaired.maps {
        complain(&format!("copyhold: the space map of {map} was rebuilt"));
    }
    if let Some(why) = &repaired.refused {
        complain(&format!("copyhold: nothing was repaired: {why}"));
    }
}

/// Damage is a failure; mere untidiness is not.
pub(crate) fn verdict(pool: &Path, found: &copyhold_check::Report) -> Result<(), Failure> {
    if found.is_clean() {
        return Ok(());
    }
    let more: u64 = found.more.values().sum();
    let all = found.findings.len() as u64 + more;
    Err(Failure::new(Kind::Damaged, format!("{}: {all} findings", pool.display())))
}

pub(crate) fn text(pool: &Path, found: &copyhold_check::Report) -> String {
    let mut text = String::new();
    for finding in &found.findings {
        text +=
            &format!("{}: {}\n    {}\n", finding.severity.name(), finding.what, finding.meaning);
        for file in &finding.files {
            let place = format!("subvolume {} inode {}", file.subvolume, file.inode);
            text += &format!("    {} ({place})\n", file.path.as_deref().unwrap_or("a file"));
        }
    }
    for (kind, count) in &found.more {
        text += &format!("and {count} more of the kind {kind}\n");
    }
    let counts = found.verified.counts();
    let counts = counts.iter().filter(|(_, count)| *count > 0);
    let verified: Vec<String> =
        counts.map(|(name, count)| format!("{count} {}", name.replace('_', " "))).collect();
    text += &format!("{}: verified {}", pool.display(), verified.join(", "));
    text += if found.is_clean() { "; clean\n" } else { "\n" };
    text
}
