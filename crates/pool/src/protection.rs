//! The protection information that a pool needs of its device.
//!
//! Problem.  A device with protection information can be taken for one without: its blocks may be
//!           copied to a plain file, and a file that was cut or extended has no header at its end.
//!           A namespace that was made anew has the data of the pool, without its tuples. A pool
//!           that is used there returns data that its device cannot vouch for, and writes data
//!           whose tuples are missing later.
//! Idea.     The label names the format and the identity of the namespace. It is the pool's third
//!           copy of the header, at the other end of the device.
//!
//! NEEDS-P1  A pool whose label names a namespace is read and written only on a device that has
//!           the same format and identity. A label without an identity was written on a drive that
//!           gives none, so the device must not have one either: an emulated namespace always has.
//! NEEDS-P2  The label names it before the pool writes anything else to such a device (OPEN-O1,
//!           FEATURE-F1).

use copyhold_device::DynDevice;
use copyhold_device::pi::{Emulated, Format, FormatError};
use copyhold_format::label::{Label, NeededNamespace};

use crate::PoolError;

/// A device without the protection information that its pool needs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtectionProblem {
    #[error(
        "the pool needs protection information ({format}) and {wanted} blocks of 4 KiB with it, \
         and there are {found} blocks: the file was cut, or is a copy of the data alone; use the \
         original, or a copy of the whole file or device. An NVMe namespace is opened by its \
         character device, /dev/ngXnY"
    )]
    Cut { format: Format, wanted: u64, found: u64 },
    #[error(
        "the pool needs protection information ({format}), and no header of it can be read in the \
         last two blocks: if the file was extended, restore its size; if the blocks were \
         overwritten, `copyhold check --repair` makes them from the label; otherwise use the \
         original, or a copy of the whole file or device. An NVMe namespace is opened by its \
         character device, /dev/ngXnY"
    )]
    Missing { format: Format },
    #[error(
        "the pool needs protection information {needed}, and the device was formatted with \
         {found} since: the tuples of the pool are lost; restore the device from a copy, or copy \
         the files with `copyhold debug export`"
    )]
    OtherFormat { needed: Format, found: Format },
    #[error(
        "the protection information of the pool ({format}) was made anew since: its tuples are \
         lost, or the blocks are a copy on another device; restore the device from a copy, or \
         copy the files with `copyhold debug export`"
    )]
    OtherIdentity { format: Format },
    #[error("the label names an impossible format of protection information: {0}")]
    Format(#[from] FormatError),
}

/// The namespace that a label names for a pool on this device.
pub(crate) fn of(device: &DynDevice) -> Option<NeededNamespace> {
    let format = device.protection()?.to_bytes();
    Some(NeededNamespace { format, identity: device.identity().unwrap_or_default() })
}

/// NEEDS-P1.
pub(crate) fn check(label: &Label, device: &DynDevice) -> Result<(), PoolError> {
    let problem = label.namespace.and_then(|needed| problem(label, needed, device).err());
    match problem {
        None => Ok(()),
        Some(problem) => Err(PoolError::Protection { name: device.geometry().name, problem }),
    }
}

fn problem(
    label: &Label,
    needed: NeededNamespace,
    device: &DynDevice,
) -> Result<(), ProtectionProblem> {
    let format = Format::of_bytes(needed.format)?;
    let Some(found) = device.protection() else {
        let (wanted, found) =
            (Emulated::blocks_for(format, label.blocks), device.geometry().blocks);
        return Err(match found < wanted {
            true => ProtectionProblem::Cut { format, wanted, found },
            false => ProtectionProblem::Missing { format },
        });
    };
    if found != format {
        return Err(ProtectionProblem::OtherFormat { needed: format, found });
    }
    match device.identity().unwrap_or_default() == needed.identity {
        true => Ok(()),
        false => Err(ProtectionProblem::OtherIdentity { format }),
    }
}
