//! `copyhold debug`: the structures on the device, for people who mend or learn the format.

mod export;

use std::path::PathBuf;

use crate::failure::Failure;
use crate::report::Report;
use crate::{engine, view};

/// Show the structures on a pool's device, or rescue its files
///
/// The pool must not be mounted; nothing is changed. Damaged structures are shown as far as they
/// can be read. docs/format.md describes the fields.
#[derive(Debug, clap::Args)]
pub(crate) struct Debug {
    #[command(subcommand)]
    view: View,
}

#[derive(Debug, clap::Subcommand)]
enum View {
    /// Labels at both ends of the device, and the ring of uberblocks
    #[command(after_help = "Example:\n  copyhold debug labels /srv/pool.img --json | jq .")]
    Labels(Target),
    /// Batches of the log, from its head to the last one
    #[command(after_help = "Example:\n  copyhold debug log /srv/pool.img --json | jq .")]
    Log(Target),
    /// Tables: their partitions, roots, and records in the log
    #[command(after_help = "Example:\n  copyhold debug tables /srv/pool.img --json | jq .")]
    Tables(Target),
    /// Nodes of the tables, with their items
    Nodes(Nodes),
    /// Extents of files, with their checksum modes and births
    Extents(Extents),
    /// Metaslabs and their free space
    #[command(after_help = "Example:\n  copyhold debug space /srv/pool.img --json | jq .")]
    Space(Target),
    /// Protection information: both headers, and the tuples of a block
    Protection(Protection),
    Export(export::Export),
}

#[derive(Debug, clap::Args)]
struct Target {
    /// The file, the block device, or the NVMe namespace (/dev/ngXnY)
    pool: PathBuf,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  copyhold debug nodes /srv/pool.img --table 3")]
struct Nodes {
    /// The file, the block device, or the NVMe namespace (/dev/ngXnY)
    pool: PathBuf,
    /// Only this table
    #[arg(long)]
    table: Option<u64>,
}

/// An extent is a run of at most 32 blocks of a file. Each has its own checksum mode, whatever mode
/// its file has now; the birth is in the tags of its blocks, in modes that have tuples.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    copyhold debug extents /srv/pool.img --table 3\n  \
    copyhold debug extents /srv/pool.img --inode 68719476738")]
struct Extents {
    /// The file or block device
    pool: PathBuf,
    /// Only this table, as `debug tables` shows it
    #[arg(long)]
    table: Option<u64>,
    /// Only the file of this number, as `ls -i` shows it, in the table of its subvolume
    #[arg(long)]
    inode: Option<u64>,
}

/// Headers and tuples are shown as they are on the file or device, damaged ones too. A guard that
/// differs means that data or tuple changed; only reads compare tags with an expected birth.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  copyhold debug protection /srv/pool.img --block 70")]
struct Protection {
    /// The file or block device
    pool: PathBuf,
    /// The tuples of this block of 4 KiB, too
    #[arg(long)]
    block: Option<u64>,
}

impl Debug {
    pub(crate) fn run(self, report: Report) -> Result<(), Failure> {
        let shown = match self.view {
            View::Labels(target) => engine::labels(&target.pool)?,
            View::Log(target) => engine::log(&target.pool)?,
            View::Tables(target) => engine::tables(&target.pool)?,
            View::Nodes(nodes) => engine::nodes(&nodes.pool, nodes.table)?,
            View::Extents(of) => engine::extents(&of.pool, of.table, of.inode)?,
            View::Space(target) => engine::space(&target.pool)?,
            View::Protection(of) => engine::protection(&of.pool, of.block)?,
            View::Export(export) => return export.run(report),
        };
        report.show(&shown, || view::text(&shown))
    }
}
