//! Arguments as getopt reads them: flags anywhere, alone or joined, with values joined or apart.

use std::ffi::OsString;

use crate::failure::Failure;

/// See the [module](self).
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Parsed {
    /// Each flag with its value, in order.
    pub(crate) flags: Vec<(char, Option<OsString>)>,
    pub(crate) operands: Vec<OsString>,
}

impl Parsed {
    /// `with_value`: the flags that take one.
    pub(crate) fn new(arguments: Vec<OsString>, with_value: &str) -> Result<Parsed, Failure> {
        Parsed::with_long(arguments, with_value, &[])
    }

    /// As [`Self::new`], with long names of flags. Their values are behind a `=`, or apart.
    pub(crate) fn with_long(
        arguments: Vec<OsString>,
        with_value: &str,
        names: &[(&str, char)],
    ) -> Result<Parsed, Failure> {
        let mut parsed = Parsed::default();
        let mut arguments = arguments.into_iter();
        while let Some(argument) = arguments.next() {
            let text = argument.to_str().unwrap_or_default();
            if text == "--" {
                parsed.operands.extend(arguments.by_ref());
            } else if let Some(long) = text.strip_prefix("--") {
                let (long, joined) = match long.split_once('=') {
                    Some((long, value)) => (long, Some(OsString::from(value))),
                    None => (long, None),
                };
                let known = names.iter().find(|(name, _)| *name == long);
                let unknown = || Failure::usage(format!("there is no option --{long}"));
                let (_, letter) = *known.ok_or_else(unknown)?;
                let value = match (with_value.contains(letter), joined) {
                    (true, None) => arguments.next(),
                    (_, joined) => joined,
                };
                if value.is_some() != with_value.contains(letter) {
                    let takes = if value.is_some() { "takes no value" } else { "needs a value" };
                    return Err(Failure::usage(format!("--{long} {takes}")));
                }
                parsed.flags.push((letter, value));
            } else if let Some(letters) = text.strip_prefix('-').filter(|rest| !rest.is_empty()) {
                for (place, letter) in letters.char_indices() {
                    if !with_value.contains(letter) {
                        parsed.flags.push((letter, None));
                        continue;
                    }
                    let joined = &letters[place + letter.len_utf8()..];
                    let value = match joined.is_empty() {
                        false => Some(OsString::from(joined)),
                        true => arguments.next(),
                    };
                    let missing = || Failure::usage(format!("-{letter} needs a value"));
                    parsed.flags.push((letter, Some(value.ok_or_else(missing)?)));
                    break;
                }
            } else {
                parsed.operands.push(argument);
            }
        }
        Ok(parsed)
    }

    pub(crate) fn has(&self, letter: char) -> bool {
        self.flags.iter().any(|(flag, _)| *flag == letter)
    }

    /// All values of a flag, as text.
    pub(crate) fn values(&self, letter: char) -> impl Iterator<Item = String> {
        let of_letter = self.flags.iter().filter(move |(flag, _)| *flag == letter);
        of_letter.filter_map(|(_, value)| Some(value.as_ref()?.to_string_lossy().into_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_read_as_getopt_reads_them() {
        let arguments = ["/dev/x", "-sn", "/mnt", "-orw,noatime", "-o", "suid", "--", "-z"];
        let parsed = Parsed::new(arguments.map(OsString::from).to_vec(), "otN").unwrap();
        assert_eq!(parsed.operands, ["/dev/x", "/mnt", "-z"]);
        assert!(parsed.has('s') && parsed.has('n') && !parsed.has('f'));
        assert_eq!(parsed.values('o').collect::<Vec<_>>(), ["rw,noatime", "suid"]);
        assert!(Parsed::new(vec!["-o".into()], "o").is_err());
    }

    #[test]
    fn a_long_name_is_a_flag_of_its_own_or_refused() {
        let read = |arguments: &[&str]| {
            let arguments = arguments.iter().map(OsString::from).collect();
            Parsed::with_long(arguments, "L", &[("force", 'f')])
        };
        assert!(read(&["--force", "pool"]).unwrap().has('f'));
        let label = read(&["-L", "--force", "--", "--force"]).unwrap();
        assert_eq!(label.values('L').collect::<Vec<_>>(), ["--force"]);
        assert_eq!(label.operands, ["--force"]);
        assert!(!label.has('f'));
        assert!(read(&["--offset", "pool"]).is_err());
        assert!(read(&["--force=yes", "pool"]).is_err());
    }

    #[test]
    fn the_value_of_a_long_name_is_joined_or_apart() {
        let read = |arguments: &[&str]| {
            let arguments = arguments.iter().map(OsString::from).collect();
            Parsed::with_long(arguments, "P", &[("pi", 'P')])
        };
        for arguments in [&["--pi=4096+8:16b", "pool"][..], &["pool", "--pi", "4096+8:16b"]] {
            let parsed = read(arguments).unwrap();
            assert_eq!(parsed.values('P').collect::<Vec<_>>(), ["4096+8:16b"]);
            assert_eq!(parsed.operands, ["pool"]);
        }
        assert!(read(&["pool", "--pi"]).is_err());
    }
}
