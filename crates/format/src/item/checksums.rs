//! The place of the checksums of file data: a property of files, and of each extent.
//!
//! An inode has the place for its new extents; each extent has its own. So a change of the
//! property rewrites nothing (`docs/integrity.md`, section 4).

use std::fmt;
use std::str::FromStr;

/// Where the checksums of blocks are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Checksums {
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

impl Checksums {
    pub const ALL: [Checksums; 4] =
        [Checksums::Item, Checksums::Guard, Checksums::Offload, Checksums::None];

    /// Its number in items.
    pub fn code(self) -> u8 {
        self as u8
    }

    pub fn of_code(code: u8) -> Option<Checksums> {
        Checksums::ALL.get(usize::from(code)).copied()
    }

    pub fn name(self) -> &'static str {
        match self {
            Checksums::Item => "item",
            Checksums::Guard => "guard",
            Checksums::Offload => "offload",
            Checksums::None => "none",
        }
    }

    /// On a device with protection information, or without: tuples need one.
    pub fn on_device(self, is_protected: bool) -> Checksums {
        match self {
            Checksums::Guard | Checksums::Offload if !is_protected => Checksums::Item,
            other => other,
        }
    }
}

impl fmt::Display for Checksums {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Checksums {
    type Err = ();

    fn from_str(text: &str) -> Result<Checksums, ()> {
        Checksums::ALL.into_iter().find(|one| one.name() == text).ok_or(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_as_it_is_written() {
        for place in Checksums::ALL {
            assert_eq!(place.to_string().parse(), Ok(place));
            assert_eq!(Checksums::of_code(place.code()), Some(place));
        }
        assert_eq!(Checksums::of_code(4), None);
        assert_eq!("crc".parse::<Checksums>(), Err(()));
    }

    #[test]
    fn without_protection_tuples_fall_back_to_the_item() {
        let on = |is_protected| Checksums::ALL.map(|place| place.on_device(is_protected));
        assert_eq!(on(true), Checksums::ALL);
        assert_eq!(on(false).map(Checksums::name), ["item", "item", "item", "none"]);
    }
}
