//! Which mount a person means: a directory, something on it, or the pool.
//!
//! Nothing is asked of the mounts themselves, so one whose daemon is gone can be found and taken
//! down.

use std::path::{Path, PathBuf};

use copyhold_fuse::mount::{self, MountEntry};
use rustix::io::Errno;

use crate::failure::{Failure, Kind};
use copyhold_serve::wire::Refusal;

/// The mounts of Copyhold that this process sees, oldest first.
pub(crate) fn mounts() -> Result<Vec<MountEntry>, Failure> {
    let all = mount::mounts().map_err(|error| Failure::system("the table of mounts", &error))?;
    Ok(all.into_iter().filter(MountEntry::is_copyhold).collect())
}

/// The meaning of `target`, given by a person: the pool mounted at this directory, or, if there is
/// none, every mount of this pool. Never empty.
pub(crate) fn named(target: &Path) -> Result<Vec<MountEntry>, Failure> {
    let target = absolute(target);
    choose(mounts()?, &target).ok_or_else(|| {
        Failure::new(
            Kind::NotMounted,
            format!("{0} is neither a mounted pool nor a mount point of one", target.display()),
        )
    })
}

fn choose(mounts: Vec<MountEntry>, target: &Path) -> Option<Vec<MountEntry>> {
    // A later mount at the same place hides an earlier one.
    if let Some(mount) = mounts.iter().rfind(|mount| mount.mount_point == target) {
        return Some(vec![mount.clone()]);
    }
    let is_source = |mount: &MountEntry| absolute(Path::new(&mount.source)) == target;
    let of_pool: Vec<_> = mounts.into_iter().filter(is_source).collect();
    (!of_pool.is_empty()).then_some(of_pool)
}

/// The mounted pool of `path`, which may be any file or directory on it.
pub(crate) fn holding(given: &Path) -> Result<MountEntry, Failure> {
    let path = absolute(given);
    innermost(mounts()?, &path).ok_or_else(|| match rustix::fs::stat(given) {
        // The working directory, or an open file of a process.
        Err(Errno::STALE) => Failure::refused(Refusal::new(
            "ESTALE",
            format!("the subvolume of {} has been deleted", given.display()),
        )),
        _ => Failure::new(
            Kind::NotMounted,
            format!("{} is not on a mounted pool; mount one with `copyhold mount`", path.display()),
        ),
    })
}

fn innermost(mounts: Vec<MountEntry>, path: &Path) -> Option<MountEntry> {
    let around = mounts.into_iter().filter(|mount| path.starts_with(&mount.mount_point));
    around.max_by_key(|mount| mount.mount_point.as_os_str().len())
}

/// `path` without links and dots, as far as it can be followed: behind a mount whose daemon is gone
/// it is left as it is.
pub(crate) fn absolute(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let resolved = path.ancestors().find_map(|above| Some((above, above.canonicalize().ok()?)));
    match resolved {
        Some((above, real)) => match path.strip_prefix(above) {
            Ok(rest) if !rest.as_os_str().is_empty() => real.join(rest),
            _ => real,
        },
        None => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_followed_as_far_as_it_goes() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap();
        std::fs::create_dir(real.join("d")).unwrap();
        std::os::unix::fs::symlink("d", real.join("link")).unwrap();
        assert_eq!(absolute(&real.join("link/x/y")), real.join("d/x/y"));
        assert_eq!(absolute(&real.join("link")), real.join("d"));
        assert_eq!(absolute(&real.join("d/../d")), real.join("d"));
    }

    fn mount(source: &str, mount_point: &str) -> MountEntry {
        MountEntry {
            mount_point: mount_point.into(),
            device: (0, 50),
            kind: "fuse.copyhold".into(),
            source: source.into(),
            options: "rw".into(),
        }
    }

    #[test]
    fn a_directory_is_meant_before_a_pool_and_the_newest_mount_before_hidden_ones() {
        let mounts = vec![mount("/x.img", "/m"), mount("/y.img", "/m"), mount("/x.img", "/n")];
        let chosen = choose(mounts.clone(), Path::new("/m")).unwrap();
        assert_eq!(chosen, [mount("/y.img", "/m")]);
        assert_eq!(choose(mounts.clone(), Path::new("/x.img")).unwrap().len(), 2);
        assert_eq!(choose(mounts, Path::new("/z.img")), None);
    }

    #[test]
    fn a_path_belongs_to_the_innermost_mount_around_it() {
        let mounts = vec![mount("/x.img", "/m"), mount("/y.img", "/m/deep")];
        let at = |path: &str| innermost(mounts.clone(), Path::new(path));
        assert_eq!(at("/m/deep/file"), Some(mount("/y.img", "/m/deep")));
        assert_eq!(at("/m/deeper"), Some(mount("/x.img", "/m")));
        assert_eq!(at("/mm"), None);
    }

    #[test]
    fn a_path_that_is_not_there_is_resolved_by_its_parent() {
        assert_eq!(absolute(Path::new("/proc/../nothing-here")), Path::new("/nothing-here"));
    }
}
