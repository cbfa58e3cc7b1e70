//! Making a pool.

use std::path::Path;

use copyhold_device::file::probe_signature;
use copyhold_device::{DynDevice, FileDevice, OpenMode};
use copyhold_format::label::NAME_MAX;
use copyhold_fs::{Caller, Filesystem};
use copyhold_pool::{CreateOptions, Pool, read_labels};
use copyhold_serve::describe;
use copyhold_types::{BLOCK_BYTES, DeviceId, Purpose};
use serde_json::{Value, json};

use super::Machine;
use crate::failure::{Failure, Kind};
use crate::size::Size;

/// Permissions of a new pool's root directory.
const ROOT_MODE: u32 = 0o755;

/// What `create` allocates on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Preallocate {
    /// What commits need: the log and the labels
    Log,
    /// Everything: the file neither grows nor shrinks, and nothing is discarded
    Written,
}

/// A pool to be made.
#[derive(Debug)]
pub(crate) struct NewPool<'a> {
    pub(crate) path: &'a Path,
    /// `None`: the size of what is there.
    pub(crate) size: Option<Size>,
    /// Whatever is there may go.
    pub(crate) force: bool,
    pub(crate) preallocate: Preallocate,
    pub(crate) name: &'a str,
}

impl NewPool<'_> {
    pub(crate) fn create(&self) -> Result<Value, Failure> {
        if self.name.len() > NAME_MAX {
            return Err(Failure::usage(format!("a label has at most {NAME_MAX} bytes")));
        }
        let machine = Machine::start()?;
        let is_new = !self.path.exists();
        if !is_new && !self.force {
            self.refuse_to_overwrite(&machine)?;
        }
        let device = self.device(&machine, is_new)?;
        let made = machine.run(self.fill(&machine, device));
        if made.is_err() && is_new {
            // Half a pool is of no use; only the failure matters.
            let _ = std::fs::remove_file(self.path);
        }
        made
    }

    fn refuse_to_overwrite(&self, machine: &Machine) -> Result<(), Failure> {
        let Some(mut what) = probe_signature(self.path)? else { return Ok(()) };
        let device = machine.open_device(self.path, OpenMode::ReadOnly)?;
        if machine.run(read_labels(&device)).is_ok() {
            what = "a pool already";
        }
        Err(Failure::new(
            Kind::Exists,
            format!("{} holds {what}; --force overwrites it", self.path.display()),
        ))
    }

    fn device(
        &self,
        machine: &Machine,
        is_new: bool,
    ) -> Result<std::sync::Arc<FileDevice>, Failure> {
        let say = |error: std::io::Error| Failure::system(self.path.display(), &error);
        let size = match self.size {
            Some(Size(bytes)) => bytes,
            None if is_new => {
                return Err(Failure::usage(format!(
                    "{} is not there; say how large it shall be with --size",
                    self.path.display()
                )));
            }
            None => std::fs::metadata(self.path).map_err(say)?.len(),
        };
        if is_new && self.path.starts_with("/dev") {
            return Err(Failure::new(
                Kind::NotFound,
                format!("{} is not there; `lsblk` lists block devices", self.path.display()),
            ));
        }
        let reactor = machine.executors.reactor();
        // The existing content was looked at, or may go.
        Ok(FileDevice::create(reactor, DeviceId(0), self.path, size, !is_new)?)
    }

    async fn fill(
        &self,
        machine: &Machine,
        device: std::sync::Arc<FileDevice>,
    ) -> Result<Value, Failure> {
        use copyhold_device::Device;
        let whole = device.geometry().blocks;
        let blocks = self.size.map(|Size(bytes)| bytes / BLOCK_BYTES as u64);
        if self.preallocate == Preallocate::Written {
            device.preallocate(0, blocks.unwrap_or(whole).min(whole), Purpose::Data).await?;
        }
        let device: DynDevice = device;
        let options = CreateOptions {
            name: self.name.to_owned(),
            blocks,
            preallocated: self.preallocate == Preallocate::Written,
            ..CreateOptions::default()
        };
        let rt = machine.rt();
        let label = Pool::create(&rt, &device, &options).await?;
        let pool = Pool::open(rt, device, Default::default()).await?;
        Filesystem::format(&pool, &owner(), ROOT_MODE).await?;
        pool.close().await?;
        let id = describe::id(label.pool);
        Ok(json!({ "pool": self.path.to_string_lossy(), "id": id }))
    }
}

/// The user who makes a pool owns its root directory.
fn owner() -> Caller {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    Caller::new(uid.as_raw(), gid.as_raw(), 0)
}
