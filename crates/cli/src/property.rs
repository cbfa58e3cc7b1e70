//! `copyhold property`: the properties of subvolumes and files.
//!
//! `ro` belongs to a subvolume, and its daemon changes it. `checksum` belongs to each file and
//! directory: it is an attribute of a name of our own, for which the kernel asks the daemon.

use std::path::{Path, PathBuf};

use copyhold_format::item::ChecksumMode;
use rustix::fs::{XattrFlags, getxattr, setxattr};
use rustix::io::Errno;
use serde_json::{Map, Value, json};

use crate::control::tenants;
use crate::failure::Failure;
use crate::mount_table;
use crate::report::Report;
use copyhold_serve::control::{CHECKSUM, CHECKSUM_IN_EFFECT};
use copyhold_serve::wire::{Question, Refusal, Subvolume};

/// Show or set whether a subvolume is read-only, and the checksum mode of files
#[derive(Debug, clap::Args)]
pub(crate) struct Verb {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    Get(Get),
    Set(Set),
    List(List),
}

/// Show a property of a subvolume or file
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  copyhold property get /mnt/alice ro\n  \
    copyhold property get /mnt/alice/db checksum")]
struct Get {
    /// The root of a subvolume; for `checksum` any file or directory
    path: PathBuf,
    #[arg(default_value = "ro", hide_default_value = true)]
    property: Property,
}

/// Set a property of a subvolume or file
///
/// With `ro true` no user can change the subvolume, not even root. Files that are open for writing
/// refuse writes from then on.
///
/// `checksum` is the checksum mode of data that is written from now on; a new file or directory
/// takes it from its directory. `item`: the checksums are in the pool's tables, on any device.
/// `guard`: beside each block, made by the host; the device verifies them at the write and at the
/// read, and the host again at the read. `offload`: made and verified by the device alone. `none`:
/// nowhere; a read returns damaged data without an error. On a device without protection
/// information `guard` and `offload` mean `item`, and the program says so; so they do for up to 64
/// KiB that one fsync makes durable, for small files that are kept in their inode, and, when the
/// pool is full, for data in preallocated space. Stored data stays as it is.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  copyhold property set /mnt/backups/alice ro false\n  \
    copyhold property set /mnt/alice/videos checksum guard")]
struct Set {
    /// The root of a subvolume; for `checksum` any file or directory
    path: PathBuf,
    property: Property,
    /// ro: true, false; checksum: item, guard, offload, none
    value: String,
}

/// Show all properties of a subvolume or file
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  copyhold property list /mnt/alice")]
struct List {
    /// A subvolume's root, or any file or directory
    path: PathBuf,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Property {
    /// Whether a subvolume is read-only
    Ro,
    /// The checksum mode of new data of a file
    Checksum,
}

impl Verb {
    pub(crate) fn run(self, report: Report) -> Result<(), Failure> {
        match self.what {
            What::Get(Get { path, property: Property::Ro }) => {
                let readonly = is_read_only(&path)?;
                report.show(&json!({ "ro": readonly }), || format!("ro={readonly}\n"))
            }
            What::Get(Get { path, property: Property::Checksum }) => {
                let modes = Modes::of(&path)?;
                report.show(&modes.json(), || modes.text())
            }
            What::Set(Set { path, property: Property::Ro, value }) => set_read_only(&path, &value),
            What::Set(Set { path, property: Property::Checksum, value }) => {
                set_mode(&path, &value, report)
            }
            What::List(List { path }) => {
                let modes = Modes::of(&path)?;
                let readonly = tenants::subvolume(&path).ok().map(|_| is_read_only(&path));
                let Some(readonly) = readonly.transpose()? else {
                    return report.show(&modes.json(), || modes.text());
                };
                let mut all = Map::from_iter([("ro".to_owned(), readonly.into())]);
                all.extend(modes.json());
                report.show(&all, || format!("ro={readonly}\n{}", modes.text()))
            }
        }
    }
}

/// The checksum mode that a file or directory has, and the one that its new extents get on the
/// pool's device.
struct Modes {
    set: ChecksumMode,
    in_effect: ChecksumMode,
}

impl Modes {
    fn of(path: &Path) -> Result<Modes, Failure> {
        mount_table::holding(path)?;
        let set = mode_of(path, CHECKSUM)?;
        let in_effect = mode_of(path, CHECKSUM_IN_EFFECT)?;
        Ok(Modes { set, in_effect })
    }

    /// The mode in effect, if it differs.
    fn other(&self) -> Option<ChecksumMode> {
        Some(self.in_effect).filter(|mode| *mode != self.set)
    }

    fn json(&self) -> Map<String, Value> {
        let set = ("checksum".to_owned(), self.set.name().into());
        let other = self.other().map(|mode| ("checksum_in_effect".into(), mode.name().into()));
        std::iter::once(set).chain(other).collect()
    }

    fn text(&self) -> String {
        let other = self.other().map(|mode| format!("checksum_in_effect={mode}\n"));
        format!("checksum={}\n{}", self.set, other.unwrap_or_default())
    }
}

fn is_read_only(path: &Path) -> Result<bool, Failure> {
    let control = tenants::subvolume(path)?.open()?;
    let Subvolume { readonly, .. } = control.put(&Question::Subvolume)?;
    Ok(readonly)
}

fn set_read_only(path: &Path, value: &str) -> Result<(), Failure> {
    let on = value.parse().map_err(|_| invalid(value, "ro", "true or false"))?;
    let control = tenants::subvolume(path)?.open()?;
    if on {
        // Data written before belongs to it.
        control.write_pages()?;
    }
    control.change(|| Ok(Question::SetReadOnly { on }))
}

fn mode_of(path: &Path, attribute: &str) -> Result<ChecksumMode, Failure> {
    let mut name = [0; 16];
    let len = getxattr(path, attribute, &mut name[..]).map_err(|errno| failed(path, errno))?;
    let found = std::str::from_utf8(&name[..len]).ok().and_then(|name| name.parse().ok());
    found.ok_or_else(|| failed(path, Errno::INVAL))
}

fn set_mode(path: &Path, value: &str, report: Report) -> Result<(), Failure> {
    let mode: ChecksumMode =
        value.parse().map_err(|()| invalid(value, "checksum", "item, guard, offload or none"))?;
    mount_table::holding(path)?;
    let set = setxattr(path, CHECKSUM, mode.name().as_bytes(), XattrFlags::empty());
    set.map_err(|errno| failed(path, errno))?;
    match Modes::of(path)?.other() {
        None => Ok(()),
        Some(other) => report.note(|| {
            format!(
                "note: the device of this pool has no protection information; new extents have \
                 {other} instead of {mode}"
            )
        }),
    }
}

fn invalid(value: &str, property: &str, possible: &str) -> Failure {
    let why = format!("\"{value}\" is no value of {property}; possible are {possible}");
    Failure::refused(Refusal::new("EINVAL", why))
}

fn failed(path: &Path, errno: Errno) -> Failure {
    let place = path.display();
    match errno {
        Errno::PERM => Failure::refused(Refusal::new(
            "EPERM",
            format!(
                "{place}: only its owner or root sets its checksum mode, and not while it is immutable \
                 or append-only (lsattr)"
            ),
        )),
        Errno::NOTSUP | Errno::NODATA => Failure::refused(Refusal::new(
            "ENOTSUP",
            format!("{place} is neither a file nor a directory of a pool with this property"),
        )),
        errno => Failure::call(place, &errno.into()),
    }
}
