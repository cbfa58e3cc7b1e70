//! A limit on the operations that a block device does in a second.
//!
//! The block layer delays requests beyond the limit (blkio, cgroup v1). The rule is in the root
//! group: a kernel filesystem writes from threads of the kernel, which are in no other group, and
//! the rule is for one device, so no other device is delayed. Groups of cgroup v2 have no rule at
//! their root, so there is no limit there.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{BenchError, On};
use crate::target::Target;

const BLKIO: &str = "/sys/fs/cgroup/blkio";
/// Of writes first: where its file is missing, no rule was written.
const RULES: [&str; 2] = ["blkio.throttle.write_iops_device", "blkio.throttle.read_iops_device"];

/// Dropping it removes the limit.
#[derive(Debug)]
pub(crate) struct DeviceLimit {
    group: PathBuf,
    /// Major and minor number of the device.
    device: String,
}

impl DeviceLimit {
    /// The reason why this machine has no such limits, if so.
    pub(crate) fn missing() -> Option<String> {
        let rule = Path::new(BLKIO).join(RULES[0]);
        (!rule.exists()).then(|| {
            format!("no limit on device operations: there is no {} (cgroup v1)", rule.display())
        })
    }

    /// So many writes, and so many reads, a second.
    pub(crate) fn set(target: &Target<'_>, operations: u32) -> Result<DeviceLimit, BenchError> {
        let device = target.device_file("dev")?.trim().to_owned();
        let limit = DeviceLimit { group: PathBuf::from(BLKIO), device };
        limit.write(operations)?;
        Ok(limit)
    }

    fn write(&self, operations: u32) -> Result<(), BenchError> {
        RULES.iter().try_for_each(|rule| {
            let path = self.group.join(rule);
            fs::write(&path, format!("{} {operations}", self.device)).on(path.display())
        })
    }
}

impl Drop for DeviceLimit {
    fn drop(&mut self) {
        // 0 removes a rule.
        if let Err(error) = self.write(0) {
            eprintln!("the limit on device {} stays: {error}", self.device);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_written_for_both_ways_and_removed_behind_it() {
        let group = tempfile::tempdir().unwrap();
        let rules = || RULES.map(|rule| fs::read_to_string(group.path().join(rule)).unwrap());
        let limit = DeviceLimit { group: group.path().to_owned(), device: "7:3".to_owned() };
        limit.write(2000).unwrap();
        assert_eq!(rules(), ["7:3 2000", "7:3 2000"]);
        drop(limit);
        assert_eq!(rules(), ["7:3 0", "7:3 0"]);
    }
}
