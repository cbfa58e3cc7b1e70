//! What follows `-o`: options of the engine, options of the mount, and the words of fstab that mean
//! something to others.

use std::time::Duration;

use crate::failure::Failure;
use crate::size::Size;

/// Words of fstab that are for mount(8), systemd and the like.
const OTHERS: [&str; 10] = [
    "defaults", "auto", "noauto", "nofail", "user", "users", "nouser", "owner", "group", "_netdev",
];

/// Everything behind `-o`, sorted by who must know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MountOptions {
    pub(crate) read_only: bool,
    /// Memory for changes that the tables do not have yet.
    pub(crate) delta: Option<Size>,
    /// How old unsynced changes may get.
    pub(crate) commit: Option<Duration>,
    /// Drop a last commit whose data does not verify (R14).
    pub(crate) cut_tail: bool,
    /// What the mount itself must know: `noatime`, `allow_other` …
    pub(crate) system: Vec<String>,
}

impl MountOptions {
    /// `lists`: one for each `-o`; later options win over earlier ones.
    pub(crate) fn parse(lists: &[String], sloppy: bool) -> Result<MountOptions, Failure> {
        let mut options = MountOptions::default();
        for option in lists.iter().flat_map(|list| list.split(',')).map(str::trim) {
            match options.take(option) {
                Err(failure) if !sloppy => return Err(failure),
                _ => {}
            }
        }
        Ok(options)
    }

    fn take(&mut self, option: &str) -> Result<(), Failure> {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        match name {
            "" => {}
            "ro" => self.read_only = true,
            "rw" => self.read_only = false,
            "delta" => self.delta = Some(size(name, value)?),
            "commit" => self.commit = Some(seconds(name, value)?),
            "cut-tail" => self.cut_tail = true,
            _ if OTHERS.contains(&name) || name.starts_with("x-") || name.starts_with("X-") => {}
            "comment" => {}
            _ => self.system.push(option.to_owned()),
        }
        Ok(())
    }
}

fn size(name: &str, value: Option<&str>) -> Result<Size, Failure> {
    let value =
        value.ok_or_else(|| Failure::usage(format!("-o {name} needs a size: {name}=64M")))?;
    value.parse().map_err(|why: String| Failure::usage(format!("-o {name}: {why}")))
}

fn seconds(name: &str, value: Option<&str>) -> Result<Duration, Failure> {
    let seconds: Option<u64> = value.and_then(|value| value.parse().ok());
    match seconds {
        Some(seconds) if seconds > 0 => Ok(Duration::from_secs(seconds)),
        _ => Err(Failure::usage(format!("-o {name} needs a number of seconds: {name}=5"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(list: &str) -> Result<MountOptions, Failure> {
        MountOptions::parse(&[list.to_owned()], false)
    }

    #[test]
    fn options_go_to_whom_they_concern() {
        let options = parse("defaults,nofail,x-systemd.automount,ro,delta=2M,noatime,commit=1");
        let options = options.unwrap();
        assert!(options.read_only);
        assert_eq!(options.delta, Some(Size(2 << 20)));
        assert_eq!(options.commit, Some(Duration::from_secs(1)));
        assert_eq!(options.system, ["noatime"]);
    }

    #[test]
    fn the_last_one_wins_and_nonsense_is_refused_unless_sloppy() {
        assert!(!parse("ro,rw").unwrap().read_only);
        assert!(parse("delta").is_err());
        assert!(parse("delta=much").unwrap_err().to_string().contains("delta"));
        assert!(parse("commit=0").is_err());
        assert!(MountOptions::parse(&["delta=much".into()], true).is_ok());
    }
}
