//! Lines for people, in the form of OpenZFS's test runner.

use std::time::Duration;

use crate::run::Done;

/// With the end of the line.
const COLUMNS: usize = 80;

/// `Test: PATH (run as USER)      [MM:SS] [RESULT]`; `own` is the user that runs the program.
pub(crate) fn line(done: &Done<'_>, own: &str) -> String {
    let identifier = done.group.identifier.as_ref();
    let identifier = identifier.map_or(String::new(), |identifier| format!(" ({identifier})"));
    let user = user(done, own);
    let begin = format!("Test{identifier}: {} (run as {user}) ", done.step.name);
    let reran = if done.reran { " (RERAN)" } else { "" };
    let end = format!("[{}] [{}]{reran}\n", clock(done.took), done.verdict.name());
    let width = COLUMNS.saturating_sub(begin.chars().count());
    format!("{begin}{end:>width$}")
}

pub(crate) fn user<'a>(done: &'a Done<'_>, own: &'a str) -> &'a str {
    match done.step.user.as_str() {
        "" => own,
        user => user,
    }
}

fn clock(took: Duration) -> String {
    let seconds = took.as_secs();
    format!("{:02}:{:02}", seconds / 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Group, Step};
    use crate::verdict::Verdict;

    fn shown(name: &str, user: &str, identifier: Option<&str>, reran: bool) -> String {
        let step = Step { name: name.into(), script: name.into(), user: user.into() };
        let group = Group {
            name: "g".into(),
            identifier: identifier.map(str::to_owned),
            setup: None,
            tests: Vec::new(),
            cleanup: None,
            failsafe: None,
            timeout: None,
            quiet: false,
            tags: Vec::new(),
        };
        let done = Done {
            group: &group,
            step: &step,
            verdict: Verdict::Pass,
            reran,
            took: Duration::from_millis(61_900),
            directory: "d".into(),
            lines: None,
            reason: None,
        };
        line(&done, "root")
    }

    #[test]
    fn lines_have_eighty_columns_and_no_more_blanks_than_that() {
        let expected =
            "Test: mount/setup (run as root)                                  [01:01] [PASS]\n";
        assert_eq!(shown("mount/setup", "", None, false), expected);
        assert_eq!(expected.len(), 80);
        let long = "a".repeat(80);
        let expected = format!("Test (again): {long} (run as nobody) [01:01] [PASS] (RERAN)\n");
        assert_eq!(shown(&long, "nobody", Some("again"), true), expected);
    }
}
