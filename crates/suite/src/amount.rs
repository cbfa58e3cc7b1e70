//! Amounts as scenarios write them: `4K`, `16M-32K`, and ranges of them, `8M..9M`, `..1M`, `8M..`.

use std::fmt;

const UNITS: [(char, u32); 4] = [('K', 10), ('M', 20), ('G', 30), ('T', 40)];

/// Bytes (or files): a number with K, M, G or T, or a sum or difference of two.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let no_amount = || format!("'{text}' is no amount; write for example 4096, 64K or 16M-32K");
    let too_large = || format!("'{text}' is too large, or below zero");
    match text.rfind(['+', '-']) {
        None => term(text).ok_or_else(no_amount)?.ok_or_else(too_large),
        Some(place) => {
            let left = parse(&text[..place])?;
            let right = term(&text[place + 1..]).ok_or_else(no_amount)?.ok_or_else(too_large)?;
            let is_sum = text[place..].starts_with('+');
            let result = if is_sum { left.checked_add(right) } else { left.checked_sub(right) };
            result.ok_or_else(too_large)
        }
    }
}

/// `None`: no number. `Some(None)`: a number that is too large.
fn term(text: &str) -> Option<Option<u64>> {
    let last = text.chars().last()?.to_ascii_uppercase();
    let unit = UNITS.iter().find(|(letter, _)| *letter == last);
    let digits = if unit.is_some() { &text[..text.len() - 1] } else { text };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let shift = unit.map_or(0, |(_, shift)| *shift);
    Some(digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift)))
}

/// The shortest way to write an amount exactly.
pub(crate) fn show(bytes: u64) -> String {
    let unit = UNITS.iter().rev().find(|(_, shift)| bytes > 0 && bytes.is_multiple_of(1 << shift));
    unit.map_or_else(|| bytes.to_string(), |(letter, shift)| format!("{}{letter}", bytes >> shift))
}

/// From `min` to `max`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    min: u64,
    max: u64,
}

impl Range {
    pub(crate) fn parse(text: &str) -> Result<Range, String> {
        let Some((min, max)) = text.split_once("..") else {
            let exact = parse(text)?;
            return Ok(Range { min: exact, max: exact });
        };
        let end = |text: &str, open| if text.is_empty() { Ok(open) } else { parse(text) };
        let range = Range { min: end(min, 0)?, max: end(max, u64::MAX)? };
        if range.min > range.max {
            return Err(format!("'{text}' ends before it begins"));
        }
        Ok(range)
    }

    pub(crate) fn contains(self, amount: u64) -> bool {
        (self.min..=self.max).contains(&amount)
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.min, self.max) {
            (min, max) if min == max => f.write_str(&show(min)),
            (min, u64::MAX) => write!(f, "at least {}", show(min)),
            (0, max) => write!(f, "at most {}", show(max)),
            (min, max) => write!(f, "{} to {}", show(min), show(max)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_have_units_and_add_up() {
        let amounts = [("0", 0), ("17", 17), ("4K", 4096), ("16M-32K", (16 << 20) - (32 << 10))];
        for (text, bytes) in amounts {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        assert_eq!(parse("1M+1K-1"), Ok((1 << 20) + 1023));
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "K", "4Q", "-1", "1K-", "1-2", "99999999999999999999", "99999999T", "9M.."]
        {
            assert!(parse(text).is_err(), "{text}");
        }
        for text in ["", "2..1", "a..b"] {
            assert!(Range::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn ranges_include_their_ends_and_say_so() {
        let range = Range::parse("8M..9M").unwrap();
        assert!(range.contains(8 << 20) && range.contains(9 << 20) && !range.contains(8 << 19));
        assert_eq!(range.to_string(), "8M to 9M");
        assert_eq!(Range::parse("..64K").unwrap().to_string(), "at most 64K");
        assert_eq!(Range::parse("64K..").unwrap().to_string(), "at least 64K");
        assert_eq!(Range::parse("100").unwrap().to_string(), "100");
    }
}
