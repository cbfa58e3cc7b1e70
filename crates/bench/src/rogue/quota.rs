//! The quota limit of a rogue's subvolume.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::error::BenchError;
use crate::target::{Kind, Target, run};

pub(super) fn has_quotas(kind: Kind) -> bool {
    matches!(kind, Kind::Copyhold | Kind::Btrfs)
}

/// Limits the usage of a subvolume to so many bytes. Quotas are enabled.
pub(super) fn limit(target: &Target<'_>, subvolume: &Path, bytes: u64) -> Result<(), BenchError> {
    let (mut program, id) = match target.kind() {
        Kind::Copyhold => (target.copyhold(), id_on_copyhold(target, subvolume)?),
        _ => (Command::new("btrfs"), id_on_btrfs(subvolume)?),
    };
    let (bytes, group) = (bytes.to_string(), format!("0/{id}"));
    run(program.args(["qgroup", "limit", &bytes, &group]).arg(target.directory())).map(drop)
}

fn id_on_copyhold(target: &Target<'_>, subvolume: &Path) -> Result<u64, BenchError> {
    let mut show = target.copyhold();
    let shown = run(show.args(["subvolume", "show", "--json"]).arg(subvolume))?;
    let shown: Option<Value> = serde_json::from_str(&shown).ok();
    let id = shown.and_then(|shown| shown.get("id")?.as_u64());
    id.ok_or_else(|| no_id(subvolume))
}

fn id_on_btrfs(subvolume: &Path) -> Result<u64, BenchError> {
    let shown = run(Command::new("btrfs").args(["inspect-internal", "rootid"]).arg(subvolume))?;
    shown.trim().parse().map_err(|_| no_id(subvolume))
}

fn no_id(subvolume: &Path) -> BenchError {
    BenchError::NoId(subvolume.display().to_string())
}
