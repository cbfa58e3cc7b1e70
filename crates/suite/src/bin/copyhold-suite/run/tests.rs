use std::cell::RefCell;
use std::collections::VecDeque;

use super::*;

/// Answers with prepared ends, and notes the order of calls.
struct Script {
    ends: VecDeque<(&'static str, End)>,
    calls: RefCell<Vec<String>>,
    /// The interrupt comes during this call.
    interrupted_by: &'static str,
    left: Vec<String>,
    failsafe: Option<End>,
}

impl Script {
    fn of(ends: &[(&'static str, End)]) -> Script {
        Script {
            ends: ends.iter().cloned().collect(),
            calls: RefCell::default(),
            interrupted_by: "",
            left: Vec::new(),
            failsafe: None,
        }
    }
}

impl Execute for Script {
    fn execute(&mut self, job: &Job<'_>) -> Result<Execution, RunnerError> {
        assert!(job.directory.is_dir());
        self.calls.borrow_mut().push(job.step.name.clone());
        let is_next = self.ends.front().is_some_and(|(name, _)| *name == job.step.name);
        let end = if is_next { self.ends.pop_front().unwrap().1 } else { End::Exited(0) };
        let lines = tempfile::tempfile().unwrap();
        let failsafe = matches!(end, End::TimedOut { .. }).then(|| self.failsafe.clone()).flatten();
        Ok(Execution { end, took: Duration::from_secs(1), lines, failsafe })
    }

    fn begin_group(&mut self) -> Result<(), RunnerError> {
        Ok(())
    }

    fn end_group(&mut self) -> Result<Vec<String>, RunnerError> {
        self.calls.borrow_mut().push("end".into());
        Ok(std::mem::take(&mut self.left))
    }

    fn is_interrupted(&self) -> bool {
        self.calls.borrow().iter().any(|call| call == self.interrupted_by)
    }
}

#[derive(Default)]
struct Results(Vec<String>);

impl Report for Results {
    fn report(&mut self, done: Done<'_>) -> Result<(), RunnerError> {
        let reran = if done.reran { " again" } else { "" };
        self.0.push(format!("{} {}{reran}", done.step.name, done.verdict.name()));
        Ok(())
    }

    fn warn(&mut self, text: &str) -> Result<(), RunnerError> {
        self.0.push(text.to_owned());
        Ok(())
    }
}

fn group() -> Group {
    let step = |name: &str| Step { name: name.into(), script: name.into(), user: String::new() };
    Group {
        name: "g".into(),
        identifier: None,
        setup: Some(step("setup")),
        tests: vec![step("a"), step("b")],
        cleanup: Some(step("cleanup")),
        failsafe: Some(step("safe")),
        timeout: None,
        quiet: false,
        tags: Vec::new(),
    }
}

fn played(script: &mut Script) -> (Result<(), RunnerError>, Vec<String>) {
    let directory = tempfile::tempdir().unwrap();
    let mut results = Results::default();
    let played = play(&group(), directory.path(), script, &mut results);
    (played, results.0)
}

#[test]
fn a_group_is_set_up_tested_and_cleaned() {
    let mut script = Script::of(&[("a", End::Exited(1))]);
    let (played, results) = played(&mut script);
    played.unwrap();
    assert_eq!(results, ["setup PASS", "a FAIL", "b PASS", "cleanup PASS"]);
    assert_eq!(*script.calls.borrow(), ["setup", "a", "b", "cleanup", "end"]);
}

#[test]
fn tests_are_skipped_and_the_cleanup_runs_if_the_setup_does_not_pass() {
    for end in [End::Exited(1), End::Exited(4), End::Signalled(9), End::TimedOut { slept: false }] {
        let mut script = Script::of(&[("setup", end)]);
        let (played, results) = played(&mut script);
        played.unwrap();
        assert_eq!(results[1..], ["a SKIP", "b SKIP", "cleanup PASS"]);
        assert_eq!(*script.calls.borrow(), ["setup", "cleanup", "end"]);
    }
}

#[test]
fn a_killed_test_does_not_keep_the_others_from_running() {
    let mut script = Script::of(&[("a", End::TimedOut { slept: false })]);
    let (_, results) = played(&mut script);
    assert_eq!(results, ["setup PASS", "a KILLED", "b PASS", "cleanup PASS"]);
}

#[test]
fn a_failsafe_that_does_not_pass_is_reported() {
    for (end, says) in [
        (End::Exited(0), None),
        (End::Exited(1), Some("a: its failsafe safe is FAIL")),
        (End::NotStarted("no file".into()), Some("a: its failsafe safe is FAIL: no file")),
        (End::TimedOut { slept: false }, Some("a: its failsafe safe is KILLED")),
    ] {
        let mut script = Script::of(&[("a", End::TimedOut { slept: false })]);
        script.failsafe = Some(end);
        let (_, results) = played(&mut script);
        assert_eq!(results.iter().find(|it| it.starts_with("a: ")).map(String::as_str), says);
    }
}

#[test]
fn a_test_whose_time_passed_in_sleep_runs_once_more() {
    let slept = End::TimedOut { slept: true };
    let mut script = Script::of(&[("a", slept.clone()), ("b", slept.clone()), ("b", slept)]);
    let (_, results) = played(&mut script);
    assert_eq!(results, ["setup PASS", "a PASS again", "b KILLED again", "cleanup PASS"]);
    assert_eq!(*script.calls.borrow(), ["setup", "a", "a", "b", "b", "cleanup", "end"]);
}

#[test]
fn an_interrupt_ends_the_tests_and_the_cleanup_runs() {
    let mut script = Script::of(&[("a", End::TimedOut { slept: true })]);
    script.interrupted_by = "a";
    let (played, results) = played(&mut script);
    assert!(matches!(played, Err(RunnerError::Interrupted)));
    assert_eq!(results, ["setup PASS", "a KILLED", "cleanup PASS"]);
    assert_eq!(*script.calls.borrow(), ["setup", "a", "cleanup", "end"]);
}

#[test]
fn processes_that_a_group_left_behind_are_reported() {
    let mut script = Script::of(&[]);
    script.left = vec!["17 sleep 1000".into()];
    let (_, results) = played(&mut script);
    assert_eq!(results.last().unwrap(), "g: left behind and ended: 17 sleep 1000");
}
