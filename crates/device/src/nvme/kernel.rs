//! The kernel's block device of a namespace, as sysfs describes it.
//!
//! Problem.  A missing node in `/dev` does not mean that a namespace has no block device: then a
//!           filesystem may be mounted on it, or be mounted later, beside this device. And the
//!           kernel refuses commands that the drive would take, if they have too many bytes.
//! Idea.     sysfs decides. If it lists a block device that can be opened, there must be a node
//!           with its number, to be locked. The queue of the block device has the kernel's limits,
//!           which are those of the character device, too.
//!
//! NVMEK-K1  A namespace has no block device only if sysfs lists none, or one that the kernel
//!           hides because of its format.
//! NVMEK-K2  A command has no more blocks than the kernel accepts from any memory of the caller.
//!           If the limit is unknown, it has 128 KiB at most, which a kernel with an IOMMU allows.

use std::fs::read_to_string;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use copyhold_types::BLOCK_BYTES;
use rustix::fs::FileType;

use super::identify::MOST_BLOCKS;
use crate::{DeviceError, IoError};

/// Blocks of 4 KiB in a command, if sysfs does not show the kernel's limit: 128 KiB.
const BLOCKS_OF_UNKNOWN_KERNEL: u32 = 32;

/// The block device in sysfs.
pub(super) struct BlockDevice {
    /// Its directory.
    shown: PathBuf,
    /// Its name, as `nvme0n1`.
    name: String,
}

impl BlockDevice {
    /// `sys` is the directory of all block devices, `/sys/class/block`.
    pub(super) fn new(sys: &Path, name: &str) -> BlockDevice {
        BlockDevice { shown: sys.join(name), name: name.into() }
    }

    /// The node in the directory `dev`; none if the namespace has no block device (NVMEK-K1).
    /// `namespace` is the name for errors.
    pub(super) fn node(&self, dev: &Path, namespace: &str) -> Result<Option<PathBuf>, DeviceError> {
        let failed = |error: std::io::Error| DeviceError::Open {
            name: self.shown.display().to_string(),
            source: IoError(error.raw_os_error().unwrap_or(libc::EIO)),
        };
        let number = match read_to_string(self.shown.join("dev")) {
            Err(error) if error.kind() == ErrorKind::NotFound && !self.shown.exists() => {
                return Ok(None);
            }
            number => number.map_err(failed)?,
        };
        // Kernels before 4.15 hide none.
        if self.attribute("hidden") == Some(1) {
            return Ok(None);
        }
        let path = dev.join(&self.name);
        let has_number = rustix::fs::stat(&path).is_ok_and(|stat| {
            let (major, minor) = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
            FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice
                && number.trim() == format!("{major}:{minor}")
        });
        if has_number {
            return Ok(Some(path));
        }
        let (name, node) = (namespace.into(), path.display().to_string());
        Err(DeviceError::NoBlockDevice { name, node })
    }

    /// Blocks of 4 KiB in a command, at most (NVMEK-K2). The kernel may give each page of the
    /// caller's memory a segment of its own.
    pub(super) fn most_blocks(&self) -> u32 {
        let bytes = self.attribute("queue/max_hw_sectors_kb").map(|kib| kib.saturating_mul(1024));
        let segments = self.attribute("queue/max_segments");
        let (Some(bytes), Some(segments)) = (bytes, segments) else {
            return BLOCKS_OF_UNKNOWN_KERNEL;
        };
        let blocks = (bytes / BLOCK_BYTES as u64).min(segments);
        blocks.clamp(1, MOST_BLOCKS.into()) as u32
    }

    fn attribute(&self, name: &str) -> Option<u64> {
        read_to_string(self.shown.join(name)).ok()?.trim().parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Directories as `/sys/class/block`, with one block device, and `/dev`.
    struct Machine(tempfile::TempDir);

    impl Machine {
        fn new() -> Machine {
            let dir = tempfile::tempdir().unwrap();
            fs::create_dir_all(dir.path().join("sys/nvme0n1/queue")).unwrap();
            fs::create_dir(dir.path().join("dev")).unwrap();
            Machine(dir)
        }

        fn set(&self, attribute: &str, value: &str) {
            let path = self.0.path().join("sys/nvme0n1").join(attribute);
            fs::write(path, format!("{value}\n")).unwrap();
        }

        fn block_device(&self, name: &str) -> BlockDevice {
            BlockDevice::new(&self.0.path().join("sys"), name)
        }

        fn dev(&self) -> PathBuf {
            self.0.path().join("dev")
        }

        fn node(&self) -> Result<Option<PathBuf>, DeviceError> {
            self.block_device("nvme0n1").node(&self.dev(), "/dev/ng0n1")
        }
    }

    #[test]
    fn only_a_namespace_without_a_block_device_or_with_a_hidden_one_needs_no_node() {
        let machine = Machine::new();
        let absent = machine.block_device("nvme0n2").node(&machine.dev(), "/dev/ng0n2");
        assert_eq!(absent.unwrap(), None);
        // A directory without a number.
        assert!(matches!(machine.node(), Err(DeviceError::Open { .. })), "NVMEK-K1");
        machine.set("dev", "259:7");
        for hidden in [None, Some("0")] {
            if let Some(hidden) = hidden {
                machine.set("hidden", hidden);
            }
            let error = machine.node().unwrap_err().to_string();
            assert!(error.starts_with("/dev/ng0n1: "), "{error}");
            assert!(error.contains("dev/nvme0n1"), "{error}");
        }
        machine.set("hidden", "1");
        assert_eq!(machine.node().unwrap(), None);
    }

    #[test]
    fn the_node_is_a_block_device_with_the_number_that_sysfs_has() {
        let machine = Machine::new();
        let node = machine.dev().join("nvme0n1");
        machine.set("dev", "0:0");
        // A file has the number 0:0, and the null device another kind.
        fs::write(&node, "").unwrap();
        assert!(machine.node().is_err(), "NVMEK-K1");
        fs::remove_file(&node).unwrap();
        std::os::unix::fs::symlink("/dev/null", &node).unwrap();
        machine.set("dev", "1:3");
        assert!(machine.node().is_err(), "NVMEK-K1");
        // Any block device of the machine stands for that of the namespace.
        let is_block = |path: &PathBuf| {
            rustix::fs::stat(path)
                .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice)
        };
        let mut nodes = fs::read_dir("/dev").unwrap().map(|entry| entry.unwrap().path());
        let Some(other) = nodes.find(is_block) else { return };
        let number = rustix::fs::stat(&other).unwrap().st_rdev;
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        fs::remove_file(&node).unwrap();
        std::os::unix::fs::symlink(&other, &node).unwrap();
        machine.set("dev", &format!("{major}:{}", minor + 1));
        assert!(machine.node().is_err(), "NVMEK-K1");
        machine.set("dev", &format!("{major}:{minor}"));
        assert_eq!(machine.node().unwrap(), Some(node));
    }

    #[test]
    fn a_command_has_no_more_blocks_than_the_kernel_allows() {
        let machine = Machine::new();
        let most = || machine.block_device("nvme0n1").most_blocks();
        assert_eq!((most(), machine.block_device("nvme0n2").most_blocks()), (32, 32), "NVMEK-K2");
        machine.set("queue/max_segments", "127");
        assert_eq!(most(), 32, "NVMEK-K2");
        for (kib, segments, blocks) in [
            ("128", "127", 32),
            ("2048", "127", 64),
            ("2048", "33", 33),
            ("130", "127", 32),
            ("2", "0", 1),
            ("18446744073709551615", "127", 64),
            ("many", "127", 32),
        ] {
            machine.set("queue/max_hw_sectors_kb", kib);
            machine.set("queue/max_segments", segments);
            assert_eq!(most(), blocks, "NVMEK-K2: {kib} KiB, {segments} segments");
        }
    }
}
