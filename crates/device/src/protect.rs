//! The protection of written blocks, and the expectation of a reader.

use crate::DeviceError;
use crate::pi::Guards;

/// The protection that a write gives to its blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Protect {
    /// None that counts: the blocks have a digest elsewhere, or none.
    Plain,
    /// The host has made the guards, one for each block of the device; the device verifies them
    /// before it stores anything.
    Guard { birth: u32, guards: Guards },
    /// The device makes the guards from the data that arrives.
    Offload { birth: u32 },
}

/// The protection that a reader expects of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// None: nothing is compared.
    Plain,
    /// Guards and birth: the device compares them, and the host again.
    Guard { birth: u32 },
    /// The same, compared by the device alone.
    Offload { birth: u32 },
}

impl Protect {
    /// For a device that has no protection information.
    pub(crate) fn check_plain(&self, name: &str) -> Result<(), DeviceError> {
        check_plain(*self == Protect::Plain, name)
    }

    /// Of a part of the blocks of the device.
    pub(crate) fn part(&self, blocks: std::ops::Range<usize>) -> Protect {
        match self {
            Protect::Guard { birth, guards } => {
                Protect::Guard { birth: *birth, guards: guards[blocks].into() }
            }
            other => other.clone(),
        }
    }
}

impl Expect {
    /// For a device that has no protection information.
    pub(crate) fn check_plain(self, name: &str) -> Result<(), DeviceError> {
        check_plain(self == Expect::Plain, name)
    }

    /// The birth that the tags have, where they count.
    pub fn birth(self) -> Option<u32> {
        match self {
            Expect::Plain => None,
            Expect::Guard { birth } | Expect::Offload { birth } => Some(birth),
        }
    }
}

fn check_plain(is_plain: bool, name: &str) -> Result<(), DeviceError> {
    match is_plain {
        true => Ok(()),
        false => Err(DeviceError::Unprotected { name: name.into() }),
    }
}
