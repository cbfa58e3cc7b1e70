//! How much memory the control groups of this process leave it.
//!
//! A container's limit is that of a group, not of the machine: a daemon that takes its share of
//! the machine is killed there. A group's memory is limited by itself and by all groups above it,
//! in version 2 (`memory.max`, and `memory.high`, above which the kernel slows its processes down)
//! and in version 1 (`memory.limit_in_bytes`, whether or not the hierarchy is used for accounts).
//!
//! `/proc/self/cgroup` names our group in each hierarchy, `/proc/self/mountinfo` where hierarchies
//! are mounted, and which group is at the root of the mount. Groups above that are out of sight.

use std::fs;
use std::path::{Path, PathBuf};

/// The smallest limit of the groups of this process, if there is any.
pub(super) fn memory_limit() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    limit(&groups, &mounts)
}

fn limit(groups: &str, mounts: &str) -> Option<u64> {
    let hierarchies = mounts.lines().filter_map(Hierarchy::parse);
    hierarchies.filter_map(|hierarchy| hierarchy.limit(groups)).min()
}

/// A mounted hierarchy that may limit memory.
struct Hierarchy {
    is_v2: bool,
    /// The group at the root of the mount.
    root: PathBuf,
    place: PathBuf,
}

impl Hierarchy {
    /// From a line of `mountinfo`: id, parent, device, root, mount point, options, any number of
    /// fields, `-`, type, source, the filesystem's options.
    fn parse(line: &str) -> Option<Hierarchy> {
        let (mount, filesystem) = line.split_once(" - ")?;
        let mut filesystem = filesystem.split(' ');
        let is_v2 = match filesystem.next()? {
            "cgroup2" => true,
            "cgroup" if filesystem.nth(1)?.split(',').any(|option| option == "memory") => false,
            _ => return None,
        };
        let mut mount = mount.split(' ').skip(3);
        let (root, place) = (mount.next()?.into(), mount.next()?.into());
        Some(Hierarchy { is_v2, root, place })
    }

    /// The smallest limit of our group and those above it.
    fn limit(&self, groups: &str) -> Option<u64> {
        // A group outside of the mount is shown as `/..`: then the mount's root is all we know.
        let inside = self.group(groups)?.strip_prefix(&self.root).unwrap_or(Path::new(""));
        let files: &[&str] =
            if self.is_v2 { &["memory.max", "memory.high"] } else { &["memory.limit_in_bytes"] };
        let of_group = |group: &Path| {
            let value = |file| fs::read_to_string(self.place.join(group).join(file)).ok();
            // `max` is no number.
            files.iter().filter_map(value).filter_map(|text| text.trim().parse().ok()).min()
        };
        inside.ancestors().filter_map(of_group).min()
    }

    /// Our group in this hierarchy. Lines are `number:controllers:group`.
    fn group<'a>(&self, groups: &'a str) -> Option<&'a Path> {
        groups.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (number, controllers) = (fields.next()?, fields.next()?);
            let is_ours = match self.is_v2 {
                true => number == "0" && controllers.is_empty(),
                false => controllers.split(',').any(|name| name == "memory"),
            };
            is_ours.then(|| fields.next().map(Path::new)).flatten()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct World(tempfile::TempDir);

    impl World {
        fn new(files: &[(&str, &str)]) -> World {
            let world = World(tempfile::tempdir().unwrap());
            for (path, content) in files {
                let path = world.0.path().join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, content).unwrap();
            }
            world
        }

        /// A line of `mountinfo`.
        fn mount(&self, root: &str, place: &str, kind: &str, options: &str) -> String {
            let place = self.0.path().join(place);
            format!(
                "31 24 0:28 {root} {} rw,nosuid shared:9 - {kind} cgroup {options}\n",
                place.display()
            )
        }
    }

    #[test]
    fn the_smallest_limit_of_a_group_and_its_parents_counts() {
        let world = World::new(&[
            ("v2/a/memory.max", "1000\n"),
            ("v2/a/memory.high", "max\n"),
            ("v2/a/b/memory.max", "max\n"),
            ("v2/a/b/memory.high", "2000\n"),
            ("v2/a/b/c/memory.max", "3000\n"),
            ("v2/other/memory.max", "1\n"),
        ]);
        let mounts = world.mount("/", "v2", "cgroup2", "rw");
        assert_eq!(limit("0::/a/b/c\n", &mounts), Some(1000));
        assert_eq!(limit("0::/a/b\n", &mounts), Some(1000));
        assert_eq!(limit("0::/\n", &mounts), None);
        fs::write(world.0.path().join("v2/a/b/memory.high"), "500").unwrap();
        assert_eq!(limit("0::/a/b/c\n", &mounts), Some(500));
    }

    #[test]
    fn version_1_has_a_hierarchy_of_its_own_for_memory() {
        let world = World::new(&[
            ("memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("memory/a/memory.limit_in_bytes", "4096\n"),
            ("memory/a/b/memory.limit_in_bytes", "8192\n"),
            ("cpu/a/memory.limit_in_bytes", "1\n"),
            ("v2/x/memory.max", "1\n"),
        ]);
        let mounts = [
            world.mount("/", "cpu", "cgroup", "rw,cpu,cpuacct"),
            world.mount("/", "memory", "cgroup", "rw,memory"),
            world.mount("/", "v2", "cgroup2", "rw"),
        ];
        let groups = "5:cpu,cpuacct:/a\n4:memory:/a/b\n1:name=systemd:/x\n0::/\n";
        assert_eq!(limit(groups, &mounts.concat()), Some(4096));
    }

    #[test]
    fn in_a_container_the_mount_begins_at_a_group() {
        let world = World::new(&[("v1/memory.limit_in_bytes", "7000"), ("v2/memory.max", "6000")]);
        let v1 = world.mount("/docker/abc", "v1", "cgroup", "rw,memory");
        assert_eq!(limit("4:memory:/docker/abc\n", &v1), Some(7000));
        let v2 = world.mount("/../../..", "v2", "cgroup2", "rw");
        assert_eq!(limit("0::/\n", &v2), Some(6000));
    }
}
