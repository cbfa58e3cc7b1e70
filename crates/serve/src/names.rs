//! The limit of absent names, as a mount option or a command gives it.
//!
//! An entry stands for a dentry in the kernel, of which 192 bytes are the kernel's, and for 72
//! bytes here. So a share of the machine's memory bounds the first, and the daemon's budget the
//! second.

use std::fmt;
use std::str::FromStr;

use copyhold_memory::AvailableMemory;
use serde::{Deserialize, Serialize};

/// Bytes of a negative dentry (Linux 6.18).
const DENTRY_BYTES: u64 = 192;
/// Thousandths of the memory, at most: more is no bound.
const MOST: u32 = 100;

/// How many absent names may be known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum NamesLimit {
    /// Thousandths of the memory, in dentries.
    Share(u32),
    Entries(u64),
    /// No names are kept, and the kernel keeps any number.
    Off,
}

impl Default for NamesLimit {
    fn default() -> NamesLimit {
        NamesLimit::Share(20)
    }
}

impl NamesLimit {
    pub fn entries(self, machine: AvailableMemory) -> u64 {
        match self {
            NamesLimit::Share(thousandths) => {
                let memory = machine.group.unwrap_or(u64::MAX).min(machine.memory);
                (memory / 1000 * u64::from(thousandths) / DENTRY_BYTES).max(1)
            }
            NamesLimit::Entries(entries) => entries,
            NamesLimit::Off => 0,
        }
    }
}

impl FromStr for NamesLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<NamesLimit, String> {
        let bad =
            || format!("'{text}' is no limit of names; write a share up to 10%, a number, or off");
        if text == "off" {
            return Ok(NamesLimit::Off);
        }
        let Some(share) = text.strip_suffix('%') else {
            let entries: u64 = text.parse().map_err(|_| bad())?;
            return Ok(if entries == 0 { NamesLimit::Off } else { NamesLimit::Entries(entries) });
        };
        let (whole, tenths) = share.split_once('.').unwrap_or((share, "0"));
        let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let whole: u32 =
            Some(whole).filter(|of| is_number(of)).ok_or_else(bad)?.parse().map_err(|_| bad())?;
        let tenths = Some(tenths).filter(|of| of.len() == 1 && is_number(of)).ok_or_else(bad)?;
        let tenths: u32 = tenths.parse().map_err(|_| bad())?;
        match whole.saturating_mul(10).saturating_add(tenths) {
            0 => Ok(NamesLimit::Off),
            share if share <= MOST => Ok(NamesLimit::Share(share)),
            _ => Err(bad()),
        }
    }
}

impl TryFrom<String> for NamesLimit {
    type Error = String;

    fn try_from(text: String) -> Result<NamesLimit, String> {
        text.parse()
    }
}

impl From<NamesLimit> for String {
    fn from(limit: NamesLimit) -> String {
        limit.to_string()
    }
}

impl fmt::Display for NamesLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NamesLimit::Share(share) if share % 10 == 0 => write!(f, "{}%", share / 10),
            NamesLimit::Share(share) => write!(f, "{}.{}%", share / 10, share % 10),
            NamesLimit::Entries(entries) => write!(f, "{entries}"),
            NamesLimit::Off => f.write_str("off"),
        }
    }
}

#[cfg(test)]
mod tests {
    use copyhold_memory::{PoolSize, Shares};

    use super::*;

    #[test]
    fn a_limit_is_a_share_a_number_or_off() {
        for (text, limit) in [
            ("2%", NamesLimit::Share(20)),
            ("0.5%", NamesLimit::Share(5)),
            ("10%", NamesLimit::Share(100)),
            ("1600000", NamesLimit::Entries(1_600_000)),
            ("off", NamesLimit::Off),
        ] {
            assert_eq!((text.parse(), limit.to_string()), (Ok(limit), text.to_owned()));
        }
        assert_eq!(["0", "0%", "0.0%"].map(str::parse), [const { Ok(NamesLimit::Off) }; 3]);
        for bad in ["", "%", "11%", "10.1%", "-1", "1.55%", "2 %", "1.%", "+1%", "many", "1e3"] {
            assert!(bad.parse::<NamesLimit>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_share_is_of_the_memory_that_the_control_group_leaves() {
        let machine = |group| AvailableMemory { memory: 24 << 30, group };
        let entries = NamesLimit::default().entries(machine(None));
        assert_eq!(entries, 2_684_354);
        assert_eq!(NamesLimit::default().entries(machine(Some(192_000))), 20);
    }

    /// The table of docs/names.md, for a pool of 100 GiB; in thousands.
    #[test]
    fn the_daemons_memory_bounds_the_names_that_the_default_allows() {
        let limits = [1, 4, 8, 24, 64, 256].map(|gib: u64| {
            let machine = AvailableMemory { memory: gib << 30, group: None };
            let pool = PoolSize { blocks: 100 << 18, metaslab_blocks: 1 << 18 };
            let shares = Shares::of(None, None, pool, machine).expect("the default suits");
            [NamesLimit::default().entries(machine), shares.names_max()].map(|names| names / 1000)
        });
        let expected =
            [[111, 14], [447, 111], [894, 515], [2684, 1992], [7158, 2663], [28633, 2663]];
        assert_eq!(limits, expected);
    }
}
