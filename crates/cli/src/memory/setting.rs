//! The arguments of `copyhold memory set`: `low=340M`, `weight=200`.

use std::str::FromStr;

use crate::failure::{Failure, Kind};
use crate::size::Size;
use copyhold_serve::wire::memory::{Bound, MemoryChange};

/// One limit that is to change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Setting {
    Min(Bound),
    Low(Bound),
    High(Bound),
    Max(Bound),
    Weight(u32),
}

impl FromStr for Setting {
    type Err = String;

    fn from_str(text: &str) -> Result<Setting, String> {
        let (key, value) = text.split_once('=').ok_or_else(|| {
            format!("'{text}' is no setting; write KEY=VALUE, such as low=340M or max=max")
        })?;
        match key {
            "min" => bound(value).map(Setting::Min),
            "low" => bound(value).map(Setting::Low),
            "high" => bound(value).map(Setting::High),
            "max" => bound(value).map(Setting::Max),
            "weight" => weight(value).map(Setting::Weight),
            _ => Err(format!("there is no key '{key}'; the keys are min, low, high, max, weight")),
        }
    }
}

fn bound(text: &str) -> Result<Bound, String> {
    match text {
        "max" => Ok(Bound::NONE),
        text => text.parse().map(|Size(bytes)| Bound(bytes)),
    }
}

fn weight(text: &str) -> Result<u32, String> {
    let weight = text.parse().ok().filter(|weight| (1..=10_000).contains(weight));
    weight.ok_or_else(|| format!("'{text}' is no weight; write a number between 1 and 10000"))
}

/// All of them together.
pub(super) fn change(settings: &[Setting]) -> Result<MemoryChange, Failure> {
    let mut change = MemoryChange::default();
    for setting in settings {
        let was = match *setting {
            Setting::Min(bytes) => change.min.replace(bytes).is_some(),
            Setting::Low(bytes) => change.low.replace(bytes).is_some(),
            Setting::High(bytes) => change.high.replace(bytes).is_some(),
            Setting::Max(bytes) => change.max.replace(bytes).is_some(),
            Setting::Weight(weight) => change.weight.replace(weight).is_some(),
        };
        if was {
            return Err(Failure::new(Kind::Usage, "a key is given twice; give each key once"));
        }
    }
    Ok(change)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_keys_with_sizes_or_a_weight() {
        for (text, setting) in [
            ("min=0", Setting::Min(Bound(0))),
            ("low=340M", Setting::Low(Bound(340 << 20))),
            ("high=4096", Setting::High(Bound(4096))),
            ("max=max", Setting::Max(Bound::NONE)),
            ("weight=10000", Setting::Weight(10_000)),
        ] {
            assert_eq!(text.parse(), Ok(setting), "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused_with_a_hint() {
        for (text, hint) in [
            ("low", "KEY=VALUE"),
            ("", "KEY=VALUE"),
            ("swap=1M", "the keys are min, low, high, max, weight"),
            ("Low=1M", "the keys are"),
            ("low=1Q", "K, M, G or T"),
            ("low=-1", "K, M, G or T"),
            ("low=none", "K, M, G or T"),
            ("low=", "K, M, G or T"),
            ("low=99E", "too large"),
            ("weight=0", "between 1 and 10000"),
            ("weight=10001", "between 1 and 10000"),
            ("weight=max", "between 1 and 10000"),
        ] {
            let error = text.parse::<Setting>().unwrap_err();
            assert!(error.contains(hint), "{text}: {error}");
        }
        let twice = [Setting::Weight(1), Setting::Weight(2)];
        assert_eq!(change(&twice).unwrap_err().kind, Kind::Usage);
        let both = change(&[Setting::Weight(1), Setting::Min(Bound(2))]).unwrap();
        let wanted =
            MemoryChange { min: Some(Bound(2)), weight: Some(1), ..MemoryChange::default() };
        assert_eq!(both, wanted);
    }
}
