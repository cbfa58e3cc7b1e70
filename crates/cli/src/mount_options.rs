//! The options behind `-o`: options of the engine, taken here, and those of the mount, which
//! `fuse` knows.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use copyhold_fs::DataCache;
use copyhold_fuse::Transport;
use copyhold_fuse::mount::{MountOptions, OptionError};
use copyhold_serve::{FlushPolicy, NamesLimit, Namespaces, ReclaimArm, ReplayTime};
use rustix::mount::MountFlags;
use serde_json::Value;

use crate::failure::Failure;
use crate::option_value::parsed;
use crate::shown_subvolume::ShownSubvolume;
use crate::size::Size;

/// More threads than this only wait for each other.
const READERS_MAX: usize = 64;

/// The room in `info` for the options that all mounts of a pool share, as much as mount(2) takes:
/// its answer has 12,288 bytes, of which a path takes up to 4096, and the counters less than that.
const SHARED_BYTES_MAX: usize = 4096;

/// Everything behind `-o`, sorted by who must know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) mount: MountOptions,
    pub(crate) engine: EngineOptions,
    pub(crate) shown: ShownSubvolume,
    /// The engine's that were given, by their values, whatever they were written like.
    given: BTreeMap<String, String>,
}

/// The engine's options for one mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EngineOptions {
    /// The memory that the daemon may have.
    pub(crate) memory: Option<Size>,
    /// Of it, for changes that the tables do not have yet.
    pub(crate) delta: Option<Size>,
    /// The reads of which clean data is kept in memory.
    pub(crate) data_cache: DataCache,
    pub(crate) reclaim: ReclaimArm,
    /// When edits and maps are flushed.
    pub(crate) flush: Option<FlushPolicy>,
    /// The time that a recovery may take.
    pub(crate) replay: Option<ReplayTime>,
    /// Each txg writes the space maps that it changed.
    pub(crate) no_space_log: bool,
    /// How many absent names may be known.
    pub(crate) names: NamesLimit,
    /// How old unsynced changes may get.
    pub(crate) commit: Option<Duration>,
    /// Threads that read the kernel's requests.
    pub(crate) readers: Option<usize>,
    /// How requests come from the kernel.
    pub(crate) transport: Transport,
    /// The kernel gathers small writes and sends them when it likes, or at fsync.
    pub(crate) writeback_cache: bool,
    /// The time when files were made is not reported.
    pub(crate) nobtime: bool,
    /// Discard the part of a damaged log that cannot be read.
    pub(crate) cut_tail: bool,
    /// Accepted for scripts and has no effect: a read-only mount replays the log in memory only.
    pub(crate) norecovery: bool,
    /// Owners of directories may make, snapshot and delete subvolumes in them.
    pub(crate) user_subvolumes: bool,
    /// The kernel may dump the daemon's memory, with data of tenants, to a file.
    pub(crate) core_dumps: bool,
    /// All users see all subvolumes and groups, and the state of the pool.
    pub(crate) public_lists: bool,
    /// The mount namespaces from which the pool is managed.
    pub(crate) namespaces: Namespaces,
    /// Files can be opened by their handles.
    pub(crate) export: bool,
}

impl Options {
    /// `lists`: one for each `-o`; later options win over earlier ones. `sloppy`: unknown options
    /// are left out.
    pub(crate) fn parse(lists: &[String], sloppy: bool) -> Result<Options, Failure> {
        let Options { mut mount, mut engine, mut shown, mut given } = Options::default();
        let mut take = |name: &str, value: Option<&str>| {
            if engine.take(name, value)? {
                given.extend(engine.shared(name).map(|value| (name.to_owned(), value)));
                return Ok(true);
            }
            shown.take(name, value)
        };
        let mut add = |text: &str| mount.add(text, &mut take);
        for list in lists {
            if !sloppy {
                add(list).map_err(refused)?;
                continue;
            }
            for option in list.split(',') {
                match add(option) {
                    Err(OptionError::Unknown { .. }) | Ok(()) => {}
                    Err(error) => return Err(refused(error)),
                }
            }
        }
        if engine.norecovery && !mount.read_only() {
            return Err(Failure::usage("mount option `norecovery` needs `ro` as well".to_owned()));
        }
        let options = Options { mount, engine, shown, given };
        let told = options.described().to_string().len();
        if told > SHARED_BYTES_MAX {
            return Err(Failure::usage(format!(
                "the mount options have {told} bytes; at most {SHARED_BYTES_MAX} are allowed"
            )));
        }
        Ok(options)
    }

    /// The shared options for `info`.
    pub(crate) fn described(&self) -> Value {
        serde_json::to_value(self.shared()).expect("names and values are text")
    }

    /// Options of all mounts of a pool, by name: those that its daemon got, and flags of the
    /// filesystem.
    pub(crate) fn shared(&self) -> BTreeMap<String, String> {
        let mut all = self.given.clone();
        let mut add = |name: &str, value: String| drop(all.insert(name.to_owned(), value));
        self.mount.filesystem_flags().for_each(|name| add(name, String::new()));
        if self.mount.flags.contains(MountFlags::NOATIME) {
            add("noatime", String::new());
        }
        if self.mount.allow_root {
            add("allow_root", String::new());
        }
        if !self.mount.default_permissions {
            add("no_default_permissions", String::new());
        }
        if self.mount.max_read > 0 {
            add("max_read", self.mount.max_read.to_string());
        }
        for option in &self.mount.passed_on {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            add(name, value.to_owned());
        }
        all
    }
}

impl EngineOptions {
    /// Whether the option is the engine's.
    fn take(&mut self, name: &str, value: Option<&str>) -> Result<bool, OptionError> {
        match name {
            "memory" => self.memory = Some(parsed(name, value, "a size such as 512M")?),
            "delta" => self.delta = Some(parsed(name, value, "a size such as 64M")?),
            "data_cache" => {
                self.data_cache = parsed(name, value, "off, shared, direct or all")?;
            }
            "reclaim" => {
                self.reclaim = parsed(name, value, "proportional, published, binary or off")?;
            }
            "flush" => self.flush = Some(parsed(name, value, "even or threshold")?),
            "replay" => {
                let wanted = "a time from 1ms to 3600 seconds, such as 0.5 or 500ms";
                self.replay = Some(parsed(name, value, wanted)?);
            }
            "spacelog" => {
                let SpaceLog(is_on) = parsed(name, value, "on or off")?;
                self.no_space_log = !is_on;
            }
            "names" => self.names = parsed(name, value, "a share up to 10%, a number, or off")?,
            "commit" => {
                let seconds: u64 = parsed(name, value, "a number of seconds")?;
                self.commit = Some(Duration::from_secs(seconds.max(1)));
            }
            "readers" => {
                let readers: usize = parsed(name, value, "a number of threads")?;
                self.readers = Some(readers.clamp(1, READERS_MAX));
            }
            "transport" => self.transport = parsed(name, value, "auto, dev or uring")?,
            "writeback_cache" => self.writeback_cache = true,
            "nobtime" => self.nobtime = true,
            "cut-tail" => self.cut_tail = true,
            "norecovery" => self.norecovery = true,
            "user_subvolumes" => self.user_subvolumes = true,
            "core_dumps" => self.core_dumps = true,
            "public_lists" => self.public_lists = true,
            "admin_namespaces" => {
                let AdminNamespaces(namespaces) = parsed(name, value, "own or any")?;
                self.namespaces = namespaces;
            }
            "export" => self.export = true,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The value of an option that was given and that all mounts of a pool share; empty for flags.
    fn shared(&self, name: &str) -> Option<String> {
        match name {
            "memory" => self.memory.map(Size::exact),
            "delta" => self.delta.map(Size::exact),
            "data_cache" => Some(self.data_cache.to_string()),
            "reclaim" => Some(self.reclaim.to_string()),
            "flush" => self.flush.map(|when| when.to_string()),
            "replay" => self.replay.map(|time| time.to_string()),
            "spacelog" => Some(if self.no_space_log { "off" } else { "on" }.to_owned()),
            "names" => Some(self.names.to_string()),
            "commit" => self.commit.map(|age| age.as_secs().to_string()),
            "readers" => self.readers.map(|readers| readers.to_string()),
            "transport" => Some(self.transport.to_string()),
            "admin_namespaces" => Some(AdminNamespaces(self.namespaces).to_string()),
            "norecovery" => None,
            _ => Some(String::new()),
        }
    }
}

/// The value of `spacelog`.
struct SpaceLog(bool);

impl FromStr for SpaceLog {
    type Err = ();

    fn from_str(text: &str) -> Result<SpaceLog, ()> {
        match text {
            "on" => Ok(SpaceLog(true)),
            "off" => Ok(SpaceLog(false)),
            _ => Err(()),
        }
    }
}

/// The value of `admin_namespaces`.
struct AdminNamespaces(Namespaces);

impl FromStr for AdminNamespaces {
    type Err = ();

    fn from_str(text: &str) -> Result<AdminNamespaces, ()> {
        match text {
            "own" => Ok(AdminNamespaces(Namespaces::Own)),
            "any" => Ok(AdminNamespaces(Namespaces::Any)),
            _ => Err(()),
        }
    }
}

impl fmt::Display for AdminNamespaces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Namespaces::Own => "own",
            Namespaces::Any => "any",
        })
    }
}

fn refused(error: OptionError) -> Failure {
    Failure::usage(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(list: &str) -> Result<Options, Failure> {
        Options::parse(&[list.to_owned()], false)
    }

    #[test]
    fn options_go_to_whom_they_concern() {
        let list = "defaults,nofail,x-systemd.automount,ro,memory=1G,delta=2M,noatime,commit=1,\
             cut-tail,user_subvolumes,transport=uring,writeback_cache,nobtime,export";
        let options = parse(list);
        let Options { mount, engine, .. } = options.unwrap();
        assert!(mount.read_only());
        assert!(engine.cut_tail && engine.user_subvolumes && engine.writeback_cache);
        assert!(engine.nobtime && engine.export);
        assert_eq!(engine.memory, Some(Size(1 << 30)));
        assert_eq!(engine.delta, Some(Size(2 << 20)));
        assert_eq!(engine.transport, Transport::Uring);
        assert_eq!(engine.commit, Some(Duration::from_secs(1)));
    }

    #[test]
    fn what_holds_for_all_mounts_of_a_pool_is_known_by_name() {
        let options = parse("ro,nosuid,noexec,noatime,commit=1,nobtime,subvol=a,max_read=4096");
        let shared = options.unwrap().shared();
        let shared: Vec<_> = shared.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(shared, ["commit=1", "max_read=4096", "noatime=", "nobtime=", "ro="]);
        assert!(parse("nosuid,subvolid=3").unwrap().shared().is_empty());
    }

    /// A pool whose `info` does not fit could not be mounted again.
    #[test]
    fn more_options_than_info_has_room_for_are_refused() {
        let context = |bytes: usize| format!("context={}", "c".repeat(bytes));
        assert!(parse(&context(4082)).is_ok());
        assert!(parse(&context(4083)).unwrap_err().to_string().contains("at most 4096"));
    }

    #[test]
    fn shared_options_are_compared_by_value() {
        let shared = |list| parse(list).unwrap().shared();
        assert_eq!(shared("memory=1024M,commit=05"), shared("commit=5,memory=1G"));
        assert_eq!(shared("commit=0,readers=100"), shared("readers=64,commit=1"));
        assert_eq!(shared("delta=1000")["delta"], "1000");
        assert_ne!(shared("memory=1G"), shared("memory=1025M"));
        assert_ne!(shared("transport=dev"), shared("transport=auto"));
        assert_eq!(shared("ro,norecovery"), shared("ro"));
        assert_eq!(shared("data_cache=direct")["data_cache"], "direct");
        assert_eq!(shared("reclaim=binary")["reclaim"], "binary");
        assert_eq!(shared("names=0.5%")["names"], "0.5%");
        assert_eq!(shared("names=0")["names"], "off");
        assert_eq!(shared("admin_namespaces=any")["admin_namespaces"], "any");
    }

    #[test]
    fn nonsense_is_refused_and_the_unknown_unless_sloppy() {
        for list in [
            "delta",
            "delta=much",
            "memory=lots",
            "commit=soon",
            "transport=tcp",
            "data_cache",
            "data_cache=on",
            "reclaim=on",
            "names=11%",
            "nonsense",
            "norecovery",
            "admin_namespaces",
            "admin_namespaces=all",
        ] {
            assert!(parse(list).is_err(), "{list}");
        }
        assert!(parse("norecovery,ro").unwrap().mount.read_only());
        let sloppy = Options::parse(&["nonsense,ro".into(), "rw".into()], true).unwrap();
        assert!(!sloppy.mount.read_only());
        assert!(Options::parse(&["delta=much".into()], true).is_err());
    }
}
