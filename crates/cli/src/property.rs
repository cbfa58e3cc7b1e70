//! `copyhold property`: the properties of a subvolume. There is one, `ro`.

use std::path::PathBuf;

use serde_json::json;

use crate::control::tenants;
use crate::failure::Failure;
use crate::report::Report;
use copyhold_serve::wire::{Question, Subvolume};

/// Show or set whether a subvolume is read-only
#[derive(Debug, clap::Args)]
pub(crate) struct Verb {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    Get(Get),
    Set(Set),
}

/// Show properties of a subvolume
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  copyhold property get /mnt/alice ro")]
struct Get {
    /// The root of a subvolume
    path: PathBuf,
    #[arg(default_value = "ro", hide_default_value = true)]
    property: Property,
}

/// Set a property of a subvolume
///
/// With `ro true` no user can change the subvolume, not even root. Files that are open for writing
/// refuse writes from then on.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  copyhold property set /mnt/backups/alice ro false")]
struct Set {
    /// The root of a subvolume
    path: PathBuf,
    property: Property,
    #[arg(action = clap::ArgAction::Set, value_parser = clap::value_parser!(bool))]
    value: bool,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Property {
    /// Whether it is read-only
    Ro,
}

impl Verb {
    pub(crate) fn run(self, report: Report) -> Result<(), Failure> {
        match self.what {
            What::Get(Get { path, property: Property::Ro }) => {
                let control = tenants::subvolume(&path)?.open()?;
                let Subvolume { readonly, .. } = control.put(&Question::Subvolume)?;
                report.show(&json!({ "ro": readonly }), || format!("ro={readonly}\n"))
            }
            What::Set(Set { path, property: Property::Ro, value }) => {
                let control = tenants::subvolume(&path)?.open()?;
                if value {
                    // Data written before belongs to it.
                    control.write_pages()?;
                }
                control.change(|| Ok(Question::SetReadOnly { on: value }))
            }
        }
    }
}
