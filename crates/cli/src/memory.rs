//! `copyhold memory`: memory groups, their figures and limits.
//!
//! Verbs and words are those of memory in cgroup v2; a group is a subvolume. `show` is in
//! `memory/show.rs`, the keys of `set` in `memory/setting.rs`.

mod cgroup;
mod setting;
mod show;

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::control::Control;
use crate::control::tenants;
use crate::failure::Failure;
use crate::report::Report;
use crate::size::Size;
use copyhold_serve::wire::memory::{Freed, MemoryRow};
use copyhold_serve::wire::{Question, Refusal};
use setting::Setting;

/// Show and limit the daemon's memory by subvolume
///
/// A subvolume with all subvolumes inside is a memory group. Limits and figures have the names of
/// cgroup v2, in bytes. `min` and `low` protect the caches of the group: `low` gives way when all
/// that is left is protected, `min` does not. Above them, groups lose memory in proportion. A group
/// that would be promised more than its holder can keep gets its part, by use. Data that belongs to
/// no single subvolume, such as the content that clones share, has a group of its own (`--shared`).
///
/// The page cache and the dentries of the kernel are no part of it: they belong to the control
/// group of the reader.
#[derive(Debug, clap::Args)]
pub(crate) struct Verb {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    Show(show::Show),
    Set(Set),
    Events(Events),
    Stat(Stat),
    Pressure(Pressure),
    Reclaim(Reclaim),
}

/// Change limits of a group
///
/// The keys are `min`, `low`, `high`, `max` (bytes, or a number with K, M, G or T; `max` for no
/// limit) and `weight` (1 to 10000). `min` and `low` protect caches. Above `high`, caches of the
/// group make room, and its writes and creations are delayed; above `max`, its writers wait for
/// their own write-back, too. `weight` divides what is scarce: dirty data, unflushed edits,
/// look-ups, names that do not exist, and turns in the request queue. Limits that are not named
/// stay. They are durable when the program returns, and follow the subvolume through moves and
/// rollbacks; a snapshot has none.
/// Promises (`min`) beyond the limit of a group above, or beyond the budget, are refused.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    copyhold memory set /mnt/a low=340M max=1G\n  \
    copyhold memory set /mnt/a low=0 max=max weight=200\n  \
    copyhold memory set --shared /mnt low=1G\n  \
    copyhold memory set /mnt/a --from-cgroup /sys/fs/cgroup/tenants/a")]
struct Set {
    /// Change the group of data that belongs to no single subvolume
    #[arg(long)]
    shared: bool,
    /// The root directory of the subvolume; with `--shared` any directory of the mount
    directory: PathBuf,
    /// Take `min`, `low`, `high` and `max` from this control group of cgroup v2, as they are now
    #[arg(long, value_name = "GROUP")]
    from_cgroup: Option<PathBuf>,
    /// `KEY=VALUE`
    #[arg(required_unless_present = "from_cgroup", value_name = "KEY=VALUE")]
    settings: Vec<Setting>,
}

/// Show how often limits of a group counted
///
/// `low`: caches were reclaimed below `low`. `bypass`: an object was not kept, because reclaim
/// found no room for it; its reader had it all the same. `max`, `high`: the group was at that
/// limit, and its own caches made room. `forced`: an object came beyond `max`, since a request
/// needs it. `oom` and `oom_kill` are 0: no request fails, and nothing is killed. If `low`, or
/// `bypass` of other groups, grows, promises are too large: lower `low` of idle groups.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    copyhold memory events /mnt/a\n  \
    copyhold memory events --shared /mnt")]
struct Events {
    #[command(flatten)]
    group: Group,
}

/// Show the bytes of a group by class, and the work of reclaim
///
/// `pgscan` and `pgsteal` are the bytes that reclaim looked at and evicted, `workingset_refault`
/// those that were fetched again after that, `pgscan_direct` those that requests which needed room
/// looked at, `throttle_us` the microseconds that requests waited. If `workingset_refault` grows
/// under the usual load, the protection is too small: raise `low`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  copyhold memory stat /mnt/a | grep pgscan")]
struct Stat {
    #[command(flatten)]
    group: Group,
}

/// Show the share of time in which requests of a group waited for memory
///
/// As the pressure files of Linux: the last 10, 60 and 300 seconds in hundredths of the time, and
/// all of it in microseconds.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  copyhold memory pressure /mnt/a")]
struct Pressure {
    #[command(flatten)]
    group: Group,
}

#[derive(Debug, clap::Args)]
struct Group {
    /// The group of data that belongs to no single subvolume
    #[arg(long)]
    shared: bool,
    /// Any directory of the subvolume
    directory: PathBuf,
}

/// Evict caches of a group now
///
/// The promises of the group itself do not count, those of the groups inside do. Fails if less than
/// SIZE was evicted. Nodes of tables, clean data and inodes are evicted, and the bytes of each are
/// printed; other requests run meanwhile.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  copyhold memory reclaim 64M /mnt/a")]
struct Reclaim {
    /// Evict from the group of data that belongs to no single subvolume
    #[arg(long)]
    shared: bool,
    /// Bytes, or a number with K, M, G or T
    size: Size,
    /// The root directory of the subvolume; with `--shared` any directory of the mount
    directory: PathBuf,
}

impl Verb {
    pub(crate) fn run(self, report: Report) -> Result<(), Failure> {
        match self.what {
            What::Show(show) => show.run(report),
            What::Set(Set { shared, directory, from_cgroup, mut settings }) => {
                if let Some(group) = from_cgroup {
                    settings.extend(cgroup::settings(&group)?);
                }
                let change = setting::change(&settings)?;
                let control = open(&directory, shared)?;
                control.change(|| Ok(Question::SetMemory { shared, change }))
            }
            What::Events(Events { group }) => {
                let MemoryRow { events, .. } = group.row()?;
                report.show(&events, || lines(&events))
            }
            What::Stat(Stat { group }) => {
                let MemoryRow { mut class, stat, .. } = group.row()?;
                class.extend(stat);
                report.show(&class, || lines(&class))
            }
            What::Pressure(Pressure { group }) => {
                let MemoryRow { pressure, .. } = group.row()?;
                let some = pressure.some;
                report.show(&pressure, || {
                    format!(
                        "some avg10={:.2} avg60={:.2} avg300={:.2} total={}\n",
                        some.avg10, some.avg60, some.avg300, some.total_us
                    )
                })
            }
            What::Reclaim(Reclaim { shared, size: Size(bytes), directory }) => {
                let question = Question::ReclaimMemory { shared, bytes };
                let class: Freed = open(&directory, shared)?.put(&question)?;
                let freed: u64 = class.values().sum();
                if freed < bytes {
                    let why = format!(
                        "evicted {} of {} ({}): the rest is in use, or promised to groups inside; \
                         see 'copyhold memory show'",
                        Size(freed),
                        Size(bytes),
                        by_class(&class, ", ")
                    );
                    return Err(Failure::refused(Refusal::new("EAGAIN", why)));
                }
                let fields = json!({ "freed": freed, "class": class });
                report.show(&fields, || {
                    format!("{} evicted\n{}\n", Size(freed), by_class(&class, "\n"))
                })
            }
        }
    }
}

impl Group {
    fn row(&self) -> Result<MemoryRow, Failure> {
        let question = Question::MemoryGroup { shared: self.shared };
        tenants::directory(&self.directory)?.put(&question)
    }
}

/// The root of the subvolume, or any directory for the shared group.
fn open(directory: &Path, shared: bool) -> Result<Control, Failure> {
    match shared {
        true => tenants::directory(directory),
        false => tenants::subvolume(directory)?.open(),
    }
}

fn by_class(class: &Freed, between: &str) -> String {
    let of = |(name, bytes): (&String, &u64)| format!("{name} {}", Size(*bytes));
    class.iter().map(of).collect::<Vec<_>>().join(between)
}

/// As the flat files of cgroup v2.
fn lines(fields: &Map<String, Value>) -> String {
    fields.iter().map(|(name, value)| format!("{name} {value}\n")).collect()
}
