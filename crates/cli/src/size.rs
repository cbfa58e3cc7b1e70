//! Sizes on the command line: `10G`, `512MiB`, `4096`. Powers of 1024, whatever the suffix.

use std::fmt;
use std::str::FromStr;

const SUFFIXES: &[u8] = b"KMGTPE";

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Size(pub(crate) u64);

impl Size {
    /// All of it, with the largest suffix that leaves no fraction: one text for each size.
    pub(crate) fn exact(self) -> String {
        let power = (self.0.trailing_zeros() / 10) as usize;
        match power {
            0 => self.0.to_string(),
            _ if self.0 == 0 => "0".to_owned(),
            _ => format!("{}{}", self.0 >> (10 * power), SUFFIXES[power - 1] as char),
        }
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let say = || format!("'{text}' is no size; write bytes, or a number with K, M, G or T");
        let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let number: u64 = text[..digits].parse().map_err(|_| say())?;
        let suffix = text[digits..].to_ascii_uppercase();
        let power = match suffix.as_bytes() {
            b"" | b"B" => 0,
            [letter] | [letter, b'B'] | [letter, b'I', b'B'] => {
                1 + SUFFIXES.iter().position(|suffix| suffix == letter).ok_or_else(say)?
            }
            _ => return Err(say()),
        };
        let unit = 1u64 << (10 * power);
        number.checked_mul(unit).map(Size).ok_or_else(|| format!("'{text}' is too large"))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let power = (self.0.max(1).ilog2() / 10) as usize;
        if power == 0 {
            return write!(f, "{} B", self.0);
        }
        let value = self.0 as f64 / (1u64 << (10 * power)) as f64;
        write!(f, "{value:.1} {}iB", SUFFIXES[power - 1] as char)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_bytes_or_powers_of_1024() {
        for (text, bytes) in [
            ("4096", 4096),
            ("0", 0),
            ("7B", 7),
            ("10G", 10 << 30),
            ("512m", 512 << 20),
            ("1TiB", 1 << 40),
            ("2kb", 2048),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused_with_a_hint() {
        for text in ["", "G", "-1", "1.5G", "10 G", "10X", "10GG", "1iB", "99999999999999999999"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
        assert_eq!("99E".parse::<Size>(), Err("'99E' is too large".into()));
        assert!("10X".parse::<Size>().unwrap_err().contains("K, M, G or T"));
    }

    #[test]
    fn sizes_are_shown_with_one_decimal() {
        assert_eq!(Size(0).to_string(), "0 B");
        assert_eq!(Size(1023).to_string(), "1023 B");
        assert_eq!(Size(1536).to_string(), "1.5 KiB");
        assert_eq!(Size(10 << 30).to_string(), "10.0 GiB");
        assert_eq!(Size(u64::MAX).to_string(), "16.0 EiB");
    }
}
