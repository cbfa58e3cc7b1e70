//! The limits of a control group, for `copyhold memory set --from-cgroup`.
//!
//! The page cache of a tenant belongs to its control group, and the daemon's memory for it to its
//! memory group. Both can have the same limits: they are read once, so a change needs another call.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use super::setting::Setting;
use crate::failure::{Failure, Kind};

/// Files of cgroup v2, `memory.KEY`, whose values are values of `copyhold memory set`.
const KEYS: [&str; 4] = ["min", "low", "high", "max"];

pub(super) fn settings(group: &Path) -> Result<Vec<Setting>, Failure> {
    KEYS.iter().map(|key| setting(group, key)).collect()
}

fn setting(group: &Path, key: &str) -> Result<Setting, Failure> {
    let path = group.join(format!("memory.{key}"));
    let text = fs::read_to_string(&path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => Failure::new(
            Kind::NotFound,
            format!(
                "there is no '{}': give the directory of a control group of cgroup v2, below its \
                 root, that has the controller 'memory'",
                path.display()
            ),
        ),
        _ => Failure::system(path.display(), &error),
    })?;
    let text = text.trim();
    format!("{key}={text}")
        .parse()
        .map_err(|error| Failure::new(Kind::Failed, format!("'{}': {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use copyhold_serve::wire::memory::Bound;

    use super::*;

    #[test]
    fn limits_are_those_of_the_files() {
        let group = tempfile::tempdir().unwrap();
        let write = |key: &str, text: &str| {
            fs::write(group.path().join(format!("memory.{key}")), text).unwrap();
        };
        for (key, text) in [("min", "0\n"), ("low", "356515840\n"), ("high", "max\n")] {
            write(key, text);
        }
        let missing = settings(group.path()).unwrap_err();
        assert_eq!(missing.kind, Kind::NotFound);
        assert!(missing.to_text().contains("memory.max"), "{}", missing.to_text());
        write("max", "1073741824\n");
        let expected = [
            Setting::Min(Bound(0)),
            Setting::Low(Bound(340 << 20)),
            Setting::High(Bound::NONE),
            Setting::Max(Bound(1 << 30)),
        ];
        assert_eq!(settings(group.path()).unwrap(), expected);
        write("max", "much\n");
        let bad = settings(group.path()).unwrap_err();
        assert!(bad.to_text().contains("memory.max"), "{}", bad.to_text());
    }
}
