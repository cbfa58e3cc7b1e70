//! The checksum mode of file data: a property of files, and of each extent.
//!
//! An inode has the mode of its new extents; each extent has its own. So a change of the
//! property rewrites nothing (`docs/integrity.md`, section 2).

use std::fmt;
use std::str::FromStr;

/// Where the checksums of blocks are, and who makes and verifies them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChecksumMode {
    /// In the extent's item.
    #[default]
    Item,
    /// Beside each block: the host makes them, device and host verify them.
    Guard,
    /// Beside each block: the device makes and verifies them.
    Offload,
    /// Nowhere.
    None,
}

impl ChecksumMode {
    pub const ALL: [ChecksumMode; 4] =
        [ChecksumMode::Item, ChecksumMode::Guard, ChecksumMode::Offload, ChecksumMode::None];

    /// Its number in items.
    pub fn code(self) -> u8 {
        self as u8
    }

    pub fn of_code(code: u8) -> Option<ChecksumMode> {
        ChecksumMode::ALL.get(usize::from(code)).copied()
    }

    pub fn name(self) -> &'static str {
        match self {
            ChecksumMode::Item => "item",
            ChecksumMode::Guard => "guard",
            ChecksumMode::Offload => "offload",
            ChecksumMode::None => "none",
        }
    }

    /// On a device with protection information, or without: tuples need one.
    pub fn on_device(self, is_protected: bool) -> ChecksumMode {
        match self {
            ChecksumMode::Guard | ChecksumMode::Offload if !is_protected => ChecksumMode::Item,
            other => other,
        }
    }
}

impl fmt::Display for ChecksumMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for ChecksumMode {
    type Err = ();

    fn from_str(text: &str) -> Result<ChecksumMode, ()> {
        ChecksumMode::ALL.into_iter().find(|one| one.name() == text).ok_or(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_is_read_as_it_is_written() {
        for mode in ChecksumMode::ALL {
            assert_eq!(mode.to_string().parse(), Ok(mode));
            assert_eq!(ChecksumMode::of_code(mode.code()), Some(mode));
        }
        assert_eq!(ChecksumMode::of_code(4), None);
        assert_eq!("crc".parse::<ChecksumMode>(), Err(()));
    }

    #[test]
    fn without_protection_tuples_fall_back_to_the_item() {
        let on = |is_protected| ChecksumMode::ALL.map(|mode| mode.on_device(is_protected));
        assert_eq!(on(true), ChecksumMode::ALL);
        assert_eq!(on(false).map(ChecksumMode::name), ["item", "item", "item", "none"]);
    }
}
