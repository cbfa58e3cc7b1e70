//! Sizes on the command line: a number with K, M or G behind it.

/// Bytes, at least a MiB: less measures nothing.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.chars().last().map(|letter| letter.to_ascii_uppercase()) {
        Some('K') => (&text[..text.len() - 1], 10),
        Some('M') => (&text[..text.len() - 1], 20),
        Some('G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let number: u64 = digits.parse().map_err(|_| format!("'{text}' is no size"))?;
    let bytes = number.checked_shl(shift).filter(|bytes| bytes >> shift == number);
    match bytes {
        Some(bytes) if bytes >= 1 << 20 => Ok(bytes),
        Some(_) => Err("at least 1M".into()),
        None => Err(format!("'{text}' is too large")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_make_no_sense_are_refused() {
        for text in ["", "G", "4K", "1T1", "99999999999G"] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert_eq!(parse("2m"), Ok(2 << 20));
    }
}
