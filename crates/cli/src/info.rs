//! `copyhold info`: the properties and the state of a pool.
//!
//! A mounted pool is asked through its daemon, another one is opened read-only; both answer with
//! the same JSON object (`describe` of the crate `serve`).

use std::path::PathBuf;

use serde_json::Value;

use crate::control::Control;
use crate::failure::{Failure, Kind};
use crate::report::Report;
use crate::{engine, mount_table, view};

/// Show the identity, the space and the state of a pool
///
/// `protection` is the format of the device's protection information, `-` if it has none. The
/// table `checksum modes` has the mode of new extents for each mode that a file can have.
///
/// A mounted pool also shows, since the mount: the requests to its device by purpose (file data,
/// log, nodes of tables, space maps, labels, tuples); reads that failed, and repairs (`read
/// failures`: `integrity` are blocks that do not match their tuples, `mismatch` those that do not
/// match a checksum in the tables); and writes that the device refused (`refused guards`).
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    copyhold info /srv/pool.img\n  \
    copyhold info /mnt --json | jq .counters.log")]
pub(crate) struct Info {
    /// A pool, or a directory where one is mounted
    target: PathBuf,
}

impl Info {
    pub(crate) fn run(self, report: Report) -> Result<(), Failure> {
        let info = self.ask()?;
        report.show(&info, || view::text(&info))
    }

    fn ask(&self) -> Result<Value, Failure> {
        match mount_table::named(&self.target) {
            Ok(mounts) => {
                let mount = &mounts[0];
                let mut info = Control::open(&mount.mount_point)?.info()?;
                let all = mount_table::mounts()?;
                let same = all.iter().filter(|other| other.device == mount.device);
                let at: Vec<_> = same.map(|mount| mount.mount_point.to_string_lossy()).collect();
                if let Value::Object(fields) = &mut info {
                    fields.insert("mounted_at".into(), at.join(", ").into());
                }
                Ok(info)
            }
            Err(failure) if failure.kind == Kind::NotMounted => {
                if self.target.is_dir() {
                    return Err(failure);
                }
                engine::info(&self.target)
            }
            Err(failure) => Err(failure),
        }
    }
}
