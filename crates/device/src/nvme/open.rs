//! Opening: the character device of a namespace, its locks, and its block device.
//!
//! The number of the node, not its name, decides what it is: sysfs names the device that has it. A
//! path may be a link, and a name in `/dev` may lie.

use std::path::Path;

use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;

use super::drive::{Drive, unusable};
use super::identify::{IdentifyProblem, Identity};
use super::kernel::BlockDevice;
use super::passthrough::Passthrough;
use crate::DeviceError;
use crate::file::{Locked, OpenMode, block_bytes, failed, lock, name_of, open_patiently};

/// Whether `path` is the character device of a namespace of an NVMe drive.
pub fn is_namespace(path: &Path) -> bool {
    block_device_of(path).is_some()
}

/// The directory of all block devices in sysfs, and that of nodes.
const SYS: &str = "/sys/class/block";
const DEV: &str = "/dev";

/// Opens the namespace, asks the drive for its format, and reads a block with its metadata: nothing
/// is written to a namespace that does not transfer them.
pub(super) fn open(path: &Path, mode: OpenMode) -> Result<Drive, DeviceError> {
    let name = name_of(path);
    let Some(block_device) = block_device_of(path) else {
        return Err(DeviceError::NotADevice { name });
    };
    let access = match mode {
        OpenMode::ReadWrite => OFlags::RDWR,
        OpenMode::ReadOnly => OFlags::RDONLY,
    };
    let node = open_patiently(path, access | OFlags::CLOEXEC).map_err(failed(path))?;
    let node = lock(node, path, mode)?;
    let block_device = BlockDevice::new(Path::new(SYS), &block_device);
    let claim = match block_device.node(Path::new(DEV), &name)? {
        Some(block_node) => Some(open_block_device(&block_node, path, mode)?),
        None => None,
    };
    let kernel = match &claim {
        Some(claim) => block_bytes(claim).map_err(|source| open_failed(&name, source))?,
        None => 0,
    };
    let way = Passthrough::new(node, claim);
    let namespace = way.namespace().map_err(|source| open_failed(&name, source))?;
    let most_blocks = block_device.most_blocks();
    let drive = Drive::identify(Box::new(way), namespace, most_blocks, &name)?;
    expect_usable(drive.identity(), kernel, mode).map_err(|problem| unusable(&name, problem))?;
    drive.probe()?;
    Ok(drive)
}

fn expect_usable(identity: &Identity, kernel: u64, mode: OpenMode) -> Result<(), IdentifyProblem> {
    if mode == OpenMode::ReadWrite {
        identity.expect_writable()?;
    }
    identity.expect_size(kernel)
}

fn open_failed(name: &str, error: std::io::Error) -> DeviceError {
    DeviceError::Open { name: name.into(), source: crate::file::io_error(&error) }
}

/// The kernel's block device of the same namespace, locked as the node is, so that a pool on it
/// is refused. A writer claims it, too, so that it is not mounted.
fn open_block_device(
    block_device: &Path,
    path: &Path,
    mode: OpenMode,
) -> Result<Locked, DeviceError> {
    let exclusive = match mode {
        OpenMode::ReadWrite => OFlags::EXCL,
        OpenMode::ReadOnly => OFlags::empty(),
    };
    match open_patiently(block_device, OFlags::RDONLY | OFlags::CLOEXEC | exclusive) {
        Ok(claim) => lock(claim, path, mode),
        Err(Errno::BUSY) => Err(DeviceError::Locked { name: name_of(path) }),
        Err(errno) => Err(failed(block_device)(errno)),
    }
}

/// The name that the block device of a namespace would have; none if `path` is no namespace.
fn block_device_of(path: &Path) -> Option<String> {
    let stat = rustix::fs::stat(path).ok()?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::CharacterDevice {
        return None;
    }
    let (major, minor) = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
    let target = std::fs::read_link(format!("/sys/dev/char/{major}:{minor}")).ok()?;
    block_name(target.file_name()?.to_str()?)
}

/// `nvme0n1` of `ng0n1`.
fn block_name(name: &str) -> Option<String> {
    let rest = name.strip_prefix("ng")?;
    let (drive, namespace) = rest.split_once('n')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    (is_number(drive) && is_number(namespace)).then(|| format!("nvme{rest}"))
}

#[cfg(test)]
mod tests {
    use super::super::identify::tests::Drawn;
    use super::*;

    #[test]
    fn names_of_namespaces_are_told_from_others() {
        assert_eq!(block_name("ng0n1").as_deref(), Some("nvme0n1"));
        assert_eq!(block_name("ng12n340").as_deref(), Some("nvme12n340"));
        for other in ["nvme0", "ng0", "ngn1", "ng0n", "ng0nx", "ng0n1p1", "null", "ng-fabric"] {
            assert_eq!(block_name(other), None, "{other}");
        }
    }

    /// A file stands for the block device: an exclusive opening of a file claims nothing, so the
    /// locks alone decide here.
    #[test]
    fn a_pool_on_the_block_device_and_one_on_the_node_exclude_each_other() {
        use OpenMode::{ReadOnly, ReadWrite};
        let dir = tempfile::tempdir().unwrap();
        let block_device = dir.path().join("nvme0n1");
        std::fs::write(&block_device, [0; 4096]).unwrap();
        let node = Path::new("/dev/ng0n1");
        let by_node = |mode| open_block_device(&block_device, node, mode);
        let by_block_device = |mode| crate::file::open(&block_device, mode);
        for (first, second) in [(ReadWrite, ReadOnly), (ReadOnly, ReadWrite)] {
            for second in [second, ReadWrite] {
                let held = by_node(first).unwrap();
                let refused = by_block_device(second).map(drop);
                assert!(matches!(refused, Err(DeviceError::Locked { .. })), "NVME-N1");
                drop(held);
                let held = by_block_device(first).unwrap();
                let refused = by_node(second).map(drop);
                let Err(DeviceError::Locked { name }) = refused else { panic!("NVME-N1") };
                assert_eq!(name, "/dev/ng0n1");
                drop(held);
            }
        }
        let _readers = (by_node(ReadOnly).unwrap(), by_block_device(ReadOnly).unwrap());
    }

    #[test]
    fn a_write_protected_namespace_is_open_to_readers_alone() {
        let mut drawn = Drawn::new(&"4096+16:64b".parse().unwrap(), 1000);
        let expect = |drawn: &Drawn, mode| expect_usable(&drawn.parse().unwrap(), 0, mode);
        assert_eq!(expect(&drawn, OpenMode::ReadWrite), Ok(()));
        drawn.namespace[99] = 1;
        let refused = expect(&drawn, OpenMode::ReadWrite);
        assert_eq!(refused, Err(IdentifyProblem::WriteProtected));
        assert_eq!(expect(&drawn, OpenMode::ReadOnly), Ok(()));
        // The other bits have other meanings.
        drawn.namespace[99] = 0xfe;
        assert_eq!(expect(&drawn, OpenMode::ReadWrite), Ok(()));
    }

    #[test]
    fn other_devices_are_no_namespaces() {
        for path in ["/dev/null", "/dev", "/nowhere"] {
            assert!(!is_namespace(Path::new(path)), "{path}");
        }
        let opened = open(Path::new("/dev/null"), OpenMode::ReadOnly);
        assert!(matches!(opened, Err(DeviceError::NotADevice { .. })));
    }
}
