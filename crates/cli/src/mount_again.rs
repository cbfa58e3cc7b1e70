//! Mounting a pool that is mounted: the same filesystem at one more place, as the kernel's own
//! filesystems have it.
//!
//! The daemon of the first mount serves all of them, until the last one is gone. So options that a
//! daemon or a filesystem has once must be those of the first mount where they are given again;
//! flags such as `ro` and `nosuid`, and the subvolume, belong to each mount.
//!
//! ADDMOUNT-A1  Only mounts that root made count: others may call theirs whatever they like.
//! ADDMOUNT-A2  The daemon has this very file or device open, whatever was renamed since.
//! ADDMOUNT-A3  The new mount is of the device that the table of mounts shows for the old one.
//!
//! A mount that ends meanwhile is no failure: the pool is then mounted as if it had not been there.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use copyhold_fuse::mount::{self, DetachedMount, MountEntry, MountError};
use rustix::process::Pid;

use crate::control::Control;
use crate::failure::{Failure, Kind};
use crate::mount_options::Options;
use crate::mount_request::Request;
use crate::mount_table;

/// Mounts the pool once more; `false` if it is not mounted, or not by root.
pub(crate) fn mount(request: &Request) -> Result<bool, Failure> {
    if !rustix::process::geteuid().is_root() {
        return Ok(false);
    }
    for entry in mounts_of(&request.pool)? {
        let Some(daemon) = Daemon::of(&entry)? else { continue };
        let connection = match is_block_device(&request.pool) {
            true => None,
            false => match daemon.connection(&request.pool) {
                Some(connection) => Some(connection),
                None => continue,
            },
        };
        let place = mount::checked_mount_point(&request.directory)?;
        daemon.agree(&request.options, &entry)?;
        let Some(tree) = DetachedMount::again(&entry, connection.as_ref(), &request.options.mount)?
        else {
            continue;
        };
        let shown = &request.options.shown;
        let part = (!shown.is_whole()).then(|| shown.find(&tree, &request.pool)).transpose()?;
        tree.attach(part, &place)?;
        return Ok(true);
    }
    Ok(false)
}

/// Where root has mounted `pool`, newest first, as long as it is served.
pub(crate) fn mounts_of(pool: &Path) -> Result<Vec<MountEntry>, Failure> {
    let mut all = all_of(pool)?;
    all.retain(|entry| !entry.is_dead());
    Ok(all)
}

/// Takes mounts of a block device whose daemon is gone out of the tree, wherever they are: the
/// device is theirs until the last one is gone. A pool file is free when its daemon is gone.
pub(crate) fn remove_dead(pool: &Path) -> Result<(), Failure> {
    if !is_block_device(pool) || !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    for entry in all_of(pool)? {
        match mount::remove_if_dead(&entry) {
            Ok(true) => {
                let place = entry.mount_point.display();
                tracing::info!(%place, "removed a dead mount of the device");
            }
            // It lives, is covered, or another process has removed it.
            Ok(false) | Err(MountError::NotMounted { .. }) => {}
            // Its path leads through another dead mount. Where that is one of this pool, it goes
            // with that; else it stays, and the device is in use.
            Err(MountError::Refused { source, .. }) if mount::means_dead(&source) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Where root has mounted `pool`, newest first.
fn all_of(pool: &Path) -> Result<Vec<MountEntry>, Failure> {
    let number = fs::metadata(pool).ok().filter(|found| found.file_type().is_block_device());
    let number =
        number.map(|found| (rustix::fs::major(found.rdev()), rustix::fs::minor(found.rdev())));
    let mut all = mount_table::mounts()?;
    all.reverse();
    all.retain(|entry| {
        let is_source = || mount_table::absolute(Path::new(&entry.source)) == *pool;
        let is_same = if number.is_some() { number == Some(entry.device) } else { is_source() };
        entry.user() == Some(0) && is_same
    });
    Ok(all)
}

fn is_block_device(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device())
}

/// The daemon of a mount, by its own description.
struct Daemon {
    process: Option<Pid>,
    options: BTreeMap<String, String>,
}

impl Daemon {
    /// `None` when the mount cannot be reached, for one that covers it, or has just ended.
    fn of(entry: &MountEntry) -> Result<Option<Daemon>, Failure> {
        let Ok(control) = Control::open(&entry.mount_point) else { return Ok(None) };
        let info = match control.number() {
            Ok(number) if number != entry.device => return Ok(None),
            number => number.and_then(|_| control.info()),
        };
        let info = match info {
            Err(failure) if failure.kind == Kind::NotMounted => return Ok(None),
            info => info?,
        };
        let options = info["options"].clone();
        Ok(Some(Daemon {
            process: info["pid"].as_i64().and_then(|pid| Pid::from_raw(pid as i32)),
            options: serde_json::from_value::<Option<_>>(options)
                .ok()
                .flatten()
                .unwrap_or_default(),
        }))
    }

    /// ADDMOUNT-A2
    fn connection(&self, pool: &Path) -> Option<OwnedFd> {
        let found = mount::connection_of(self.process?, pool);
        found.inspect_err(|error| tracing::debug!(%error, "the daemon cannot be reached")).ok()?
    }

    /// Whether the first mount, at `entry`, has what `wanted` says of a daemon and a filesystem.
    fn agree(&self, wanted: &Options, entry: &MountEntry) -> Result<(), Failure> {
        let mut wanted = wanted.shared();
        let is_read_only = wanted.remove("ro").is_some();
        let missing =
            wanted.into_iter().find(|(name, value)| self.options.get(name) != Some(value));
        let missing = missing.map(|(name, value)| match value.is_empty() {
            true => name,
            false => format!("{name}={value}"),
        });
        let differs = match missing {
            Some(option) => format!("without `{option}`"),
            None if self.options.contains_key("ro") && !is_read_only => "read-only".to_owned(),
            None => return Ok(()),
        };
        Err(Failure::new(
            Kind::InUse,
            format!(
                "{} is mounted on {} already, {differs}, and all mounts of a pool share that; \
                 mount it with the same options, or unmount it first",
                entry.source.to_string_lossy(),
                entry.mount_point.display()
            ),
        ))
    }
}
