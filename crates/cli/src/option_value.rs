//! The value of a mount option.

use copyhold_fuse::mount::OptionError;

/// `value` of the option `name`; `wanted` describes a valid one.
pub(crate) fn parsed<T: std::str::FromStr>(
    name: &str,
    value: Option<&str>,
    wanted: &'static str,
) -> Result<T, OptionError> {
    let missing = OptionError::Missing { name: name.to_owned(), wanted };
    let found = value.ok_or(missing)?;
    let say = |_| OptionError::Value { name: name.to_owned(), wanted, found: found.to_owned() };
    found.parse().map_err(say)
}
