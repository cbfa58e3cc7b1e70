//! The arms of a comparison: mount options, each by itself, and none.

use std::fmt;
use std::str::FromStr;

/// A mount option of Copyhold that is compared with others, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Arm(Option<String>);

impl Arm {
    pub(crate) const DEFAULT: &'static str = "default";

    pub(super) fn option(&self) -> Option<&str> {
        self.0.as_deref()
    }
}

impl FromStr for Arm {
    type Err = String;

    fn from_str(text: &str) -> Result<Arm, String> {
        match text {
            "" => Err(format!("an arm is `{}` or a mount option", Arm::DEFAULT)),
            Arm::DEFAULT => Ok(Arm(None)),
            option => Ok(Arm(Some(option.to_owned()))),
        }
    }
}

impl fmt::Display for Arm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_deref().unwrap_or(Arm::DEFAULT))
    }
}

/// All arms, each round from another one on, so that none is always the first.
pub(super) fn in_turn(arms: &[Arm], round: u32) -> impl Iterator<Item = &Arm> {
    let first = round as usize % arms.len().max(1);
    arms[first..].iter().chain(&arms[..first])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arm_is_a_mount_option_or_none() {
        let arms = ["default", "spacelog=off"].map(|text| text.parse::<Arm>().unwrap());
        assert_eq!(arms, [Arm(None), Arm(Some("spacelog=off".into()))]);
        assert_eq!(arms.map(|arm| arm.to_string()), ["default", "spacelog=off"]);
        "".parse::<Arm>().expect_err("an empty option");
    }

    #[test]
    fn each_arm_is_the_first_of_a_round() {
        let arms = ["default", "a", "b"].map(|text| text.parse::<Arm>().unwrap());
        let order = |round| in_turn(&arms, round).map(Arm::to_string).collect::<Vec<_>>().join(" ");
        assert_eq!([1, 2, 3].map(order), ["a b default", "b default a", "default a b"]);
    }
}
