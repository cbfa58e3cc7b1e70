//! `copyhold df`: the room of a tenant.

use std::path::PathBuf;

use serde_json::json;

use crate::control::tenants;
use crate::failure::Failure;
use crate::report::Report;
use crate::view;
use copyhold_serve::wire::{Question, Room};

/// Show the space that writes to a directory may still take
///
/// The smaller of the free space of the pool and the space below the limits of the subvolume and
/// its quota groups. df(1) shows the same figures.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  copyhold df /mnt/alice --json | jq .available_bytes")]
pub(crate) struct Df {
    /// Any directory or file of the mount
    path: PathBuf,
}

impl Df {
    pub(crate) fn run(self, report: Report) -> Result<(), Failure> {
        let room: Room = tenants::directory(&self.path)?.put(&Question::Room)?;
        report.show(&room, || view::text(&json!(room)))
    }
}
