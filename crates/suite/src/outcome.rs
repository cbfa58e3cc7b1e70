//! What came of one step: a failure is an answer here, not an error.

use std::io;
use std::process::Command;

use copyhold_harness::show;
use serde_json::Value;

use crate::errno::Errno;
use crate::error::SuiteError;

#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Bytes written or allocated, or files made, before the failure if there was one.
    pub(crate) accepted: u64,
    pub(crate) failure: Option<Failure>,
}

/// An errno, if one was to be had, and what was said.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) errno: Option<Errno>,
    pub(crate) says: String,
}

impl Outcome {
    pub(crate) fn of_call(accepted: u64, result: io::Result<()>) -> Outcome {
        let failure =
            result.err().map(|error| Failure { errno: Errno::of(&error), says: error.to_string() });
        Outcome { accepted, failure }
    }

    pub(crate) fn of(result: Result<(), impl Into<io::Error>>) -> Outcome {
        Outcome::of_call(0, result.map_err(Into::into))
    }

    /// Runs a program to its end. It may say `{"error": {"code": …, "message": …}}`, or end a line
    /// with the system's text for an errno.
    pub(crate) fn of_command(command: &mut Command) -> Result<Outcome, SuiteError> {
        Ok(Outcome { accepted: 0, failure: ask(command)?.err() })
    }
}

/// What a program answers on standard output, or how it failed.
pub(crate) fn ask(command: &mut Command) -> Result<Result<String, Failure>, SuiteError> {
    let output = copyhold_harness::output(command)?;
    if output.status.success() {
        return Ok(Ok(String::from_utf8_lossy(&output.stdout).into_owned()));
    }
    let says = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Ok(Err(failure(if says.is_empty() { output.status.to_string() } else { says })))
}

/// Where btrfs-progs check before they ask the kernel, or translate its answer.
const OWN_WORDS: [(&str, &str); 2] =
    [("bad relation requested", "EINVAL"), ("quota not enabled", "ENOTCONN")];

fn failure(says: String) -> Failure {
    let object = says.lines().find_map(|line| serde_json::from_str::<Value>(line).ok());
    if let Some(error) = object.as_ref().and_then(|object| object.get("error")) {
        let text = |field| error.get(field).and_then(Value::as_str).unwrap_or_default();
        let errno = Errno::of_code(text("code")).or_else(|| Errno::in_text(text("message")));
        return Failure { errno, says: format!("{}: {}", text("code"), text("message")) };
    }
    let own_words = OWN_WORDS.iter().find(|(words, _)| says.contains(words));
    let errno = own_words.map_or_else(|| Errno::in_text(&says), |(_, name)| Errno::named(name));
    Failure { errno, says }
}

/// Runs a program that must not fail; its standard output.
pub(crate) fn run(command: &mut Command) -> Result<String, SuiteError> {
    let answer = ask(command)?;
    answer.map_err(|failure| SuiteError::Command { command: show(command), says: failure.says })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_programs_have_an_errno_where_they_tell_one() {
        let of = |says: &str| failure(says.to_owned()).errno.map(|errno| errno.to_string());
        let json = r#"{"error":{"code":"EDQUOT","message":"group 1/100 has no room"}}"#;
        assert_eq!(of(json).as_deref(), Some("EDQUOT"));
        assert_eq!(of(r#"{"error":{"code":"in-use","message":"x"}}"#).as_deref(), Some("EBUSY"));
        assert_eq!(of("ERROR: bad relation requested: m").as_deref(), Some("EINVAL"));
        let busy = "ERROR: unable to destroy quota group: Device or resource busy";
        assert_eq!(of(busy).as_deref(), Some("EBUSY"));
        assert_eq!(of("segmentation fault"), None);
    }

    #[test]
    fn a_program_that_fails_is_an_outcome_or_an_error() {
        let mut fails = Command::new("sh");
        fails.args(["-c", "echo File exists >&2; exit 1"]);
        let failure = Outcome::of_command(&mut fails).unwrap().failure.unwrap();
        assert_eq!(failure.errno, Errno::named("EEXIST"));
        assert!(run(&mut fails).unwrap_err().to_string().contains("File exists"));
    }
}
