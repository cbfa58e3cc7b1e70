//! How much memory the control groups of this process leave it.
//!
//! A container's limit is that of a group, not of the machine: a daemon that takes its share of
//! the machine is killed there. A group's memory is limited by itself and by all groups above it,
//! in version 2 (`memory.max`, and `memory.high`, above which the kernel slows its processes down)
//! and in version 1 (`memory.limit_in_bytes`, whether or not the hierarchy is used for accounts).
//!
//! `/proc/self/cgroup` names our group in each hierarchy, `/proc/self/mountinfo` where hierarchies
//! are mounted, and which group is at the root of the mount. Groups above that are out of sight,
//! and a mount may show others than ours.

use std::fs;
use std::path::{Component, Path, PathBuf};

use copyhold_fuse::mount::unescape;

/// The smallest limit of the groups of this process, if there is any.
pub(super) fn memory_limit() -> Option<u64> {
    let groups = fs::read("/proc/self/cgroup").ok()?;
    let mounts = fs::read("/proc/self/mountinfo").ok()?;
    // Names of other mounts may be anything.
    limit(&String::from_utf8_lossy(&groups), &String::from_utf8_lossy(&mounts))
}

fn limit(groups: &str, mounts: &str) -> Option<u64> {
    let all: Vec<Hierarchy> = mounts.lines().filter_map(Hierarchy::parse).collect();
    let of_version = |is_v2| {
        let mounts = || all.iter().filter(move |mount| mount.is_v2 == is_v2);
        let ours = || mounts().filter_map(|mount| Some((mount, mount.inside(groups)?)));
        match ours().next() {
            Some(_) => ours().filter_map(|(mount, group)| mount.limit(&group)).min(),
            // No mount shows our group. The roots of those that there are may be above it.
            None => mounts().filter_map(|mount| mount.limit(Path::new(""))).min(),
        }
    };
    [true, false].into_iter().filter_map(of_version).min()
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
        let mut path = || Some(PathBuf::from(unescape(mount.next()?.as_bytes())));
        let (root, place) = (path()?, path()?);
        Some(Hierarchy { is_v2, root, place })
    }

    /// Where our group is below the root of this mount; none if it is elsewhere.
    fn inside(&self, groups: &str) -> Option<PathBuf> {
        let leads_up = |part: Component<'_>| part == Component::ParentDir;
        let mut root = self.root.components().skip(1).peekable();
        if root.peek().is_some() && root.all(leads_up) {
            // The root is above the groups that this process may know: that is all we know.
            return Some(PathBuf::new());
        }
        let inside = self.group(groups)?.strip_prefix(&self.root).ok()?;
        // A group that this process may not know has such a name.
        (!inside.components().any(leads_up)).then(|| inside.to_owned())
    }

    /// The smallest limit of `group`, a path below the mount's root, and of those above it.
    fn limit(&self, group: &Path) -> Option<u64> {
        let files: &[&str] =
            if self.is_v2 { &["memory.max", "memory.high"] } else { &["memory.limit_in_bytes"] };
        let of_group = |group: &Path| {
            let value = |file| fs::read_to_string(self.place.join(group).join(file)).ok();
            // `max` is no number.
            files.iter().filter_map(value).filter_map(|text| text.trim().parse().ok()).min()
        };
        group.ancestors().filter_map(of_group).min()
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

    #[test]
    fn a_mount_of_another_group_limits_nothing() {
        let world = World::new(&[
            ("v2/ours/memory.max", "9000"),
            ("theirs/memory.max", "10"),
            ("v1/memory.limit_in_bytes", "20"),
        ]);
        let all = world.mount("/", "v2", "cgroup2", "rw");
        let theirs = world.mount("/theirs", "theirs", "cgroup2", "rw");
        for mounts in [[&*all, &*theirs].concat(), [&*theirs, &*all].concat()] {
            assert_eq!(limit("0::/ours\n", &mounts), Some(9000));
        }
        // A name that begins like ours is another one, and so is a group beside those we know.
        let like = world.mount("/our", "theirs", "cgroup2", "rw");
        let beside = world.mount("/../theirs", "theirs", "cgroup2", "rw");
        assert_eq!(limit("0::/ours\n", &[&*all, &*like, &*beside].concat()), Some(9000));
        // Nothing else shows this hierarchy: the root may be above our group.
        let v1 = world.mount("/elsewhere", "v1", "cgroup", "rw,memory");
        assert_eq!(limit("4:memory:/ours\n0::/ours\n", &[&*all, &*v1].concat()), Some(20));
    }

    #[test]
    fn a_group_outside_of_those_we_know_is_not_looked_for_by_its_name() {
        let world = World::new(&[("inside/v2/memory.max", "5000"), ("inside/out/memory.max", "1")]);
        let mounts = world.mount("/", "inside/v2", "cgroup2", "rw");
        assert_eq!(limit("0::/../out\n", &mounts), Some(5000));
    }

    #[test]
    fn names_with_blanks_are_found() {
        let world = World::new(&[("a b/c d/e/memory.max", "700")]);
        let place = world.0.path().join("a b").display().to_string().replace(' ', "\\040");
        let mounts = format!("31 24 0:28 /x\\040y {place} rw - cgroup2 cgroup rw\n");
        assert_eq!(limit("0::/x y/c d/e\n", &mounts), Some(700));
        let other = "32 24 0:9 / /mnt/\u{fffd} rw - ext4 /dev/sda rw\n";
        assert_eq!(limit("0::/x y/c d/e\n", &(other.to_owned() + &mounts)), Some(700));
    }
}
