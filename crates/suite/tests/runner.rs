//! `copyhold-suite` as a program: results, exit codes, and its places on disk.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use copyhold_harness::Daemon;
use copyhold_harness::wait::wait_until;
use rustix::process::Signal;
use serde_json::Value;

/// A suite with one group `g` in a directory of its own.
struct Suite(tempfile::TempDir);

impl Suite {
    fn new(runfile: &str, scripts: &[(&str, &str)]) -> Suite {
        let suite = Suite(tempfile::tempdir().unwrap());
        fs::create_dir(suite.at("g")).unwrap();
        fs::create_dir(suite.at("places")).unwrap();
        fs::write(suite.at("a.run"), runfile).unwrap();
        for (name, text) in scripts {
            let script = suite.at("g").join(name);
            fs::write(&script, format!("#!/bin/sh\n{text}\n")).unwrap();
            fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        }
        suite
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_copyhold-suite"));
        command.arg("-r").arg(self.at("a.run")).arg("-o").arg(self.at("out"));
        command.arg("--program").arg(self.at("g/good"));
        command.arg("--dir").arg(self.at("places")).args(arguments);
        command
    }

    fn run(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        let Output { status, stdout, stderr } = self.command(arguments).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (status.code(), text(stdout), text(stderr))
    }

    fn places(&self) -> usize {
        fs::read_dir(self.at("places")).unwrap().count()
    }
}

const RUNFILE: &str = "\
[DEFAULT]
pre = setup
post = cleanup
[g]
tests = ['good', 'other', 'bad', 'missing']
tags = ['functional', 'g']
";

const SCRIPTS: [(&str, &str); 5] = [
    ("setup", "test -d $SUITE_DIR && echo made >$SUITE_DIR/thing"),
    ("good", "cat $SUITE_DIR/thing; echo warning >&2"),
    ("other", "exit 4"),
    ("bad", "kill -SEGV $$"),
    ("cleanup", ":"),
];

/// The results of lines `Test: NAME (run as USER) … [RESULT]`.
fn results(stdout: &str) -> Vec<String> {
    let lines = stdout.lines().filter_map(|line| line.strip_prefix("Test: "));
    let result = |line: &str| {
        let name = line.split(' ').next().unwrap();
        format!("{name} {}", line.rsplit(' ').next().unwrap())
    };
    lines.map(result).collect()
}

#[test]
fn a_run_reports_each_script_and_leaves_only_its_results() {
    let suite = Suite::new(RUNFILE, &SCRIPTS);
    let junit = suite.at("junit.xml");
    let (status, stdout, stderr) = suite.run(&["--junit", junit.to_str().unwrap()]);
    assert_eq!(status, Some(1), "{stderr}");
    let expected = [
        "g/setup [PASS]",
        "g/good [PASS]",
        "g/other [SKIP]",
        "g/bad [FAIL]",
        "g/missing [FAIL]",
        "g/cleanup [PASS]",
    ];
    assert_eq!(results(&stdout), expected);
    let summary = "\nResults Summary\nSKIP\t   1\nFAIL\t   2\nPASS\t   3\n\nRunning Time:\t00:00:";
    assert!(stdout.contains(summary), "{stdout}");
    assert!(stdout.contains("\nPercent passed:\t50.0%\n"), "{stdout}");
    assert!(stderr.contains("g/bad: ended by signal 11"), "{stderr}");
    assert!(stderr.contains("missing: No such file or directory"), "{stderr}");
    let read = |name: &str| fs::read_to_string(suite.at("out/current").join(name)).unwrap();
    assert_eq!(
        (read("g/good/stdout").as_str(), read("g/good/stderr").as_str()),
        ("made\n", "warning\n")
    );
    assert!(read("log").lines().nth(1).unwrap().starts_with("Test: g/good (run as "));
    assert!(
        fs::read_to_string(junit).unwrap().contains("tests=\"6\" failures=\"2\" skipped=\"1\"")
    );
    assert_eq!(suite.places(), 0);
}

#[test]
fn json_has_one_object_a_line_and_quiet_only_shows_what_did_not_pass() {
    let suite = Suite::new(RUNFILE, &SCRIPTS);
    let (_, stdout, _) = suite.run(&["--json"]);
    let lines: Vec<Value> =
        stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let tests: Vec<_> = lines.iter().map(|line| line["test"].as_str().unwrap()).collect();
    assert_eq!(tests, ["g/setup", "g/good", "g/other", "g/bad", "g/missing", "g/cleanup"]);
    assert_eq!((&lines[2]["result"], &lines[3]["result"]), (&"SKIP".into(), &"FAIL".into()));
    assert!(lines.iter().all(|line| line["seconds"].is_f64() && line["user"].is_string()));
    assert!(PathBuf::from(lines[1]["log"].as_str().unwrap()).join("merged").is_file());
    let (_, stdout, _) = suite.run(&["-q"]);
    assert_eq!(results(&stdout), ["g/other [SKIP]", "g/bad [FAIL]", "g/missing [FAIL]"]);
}

#[test]
fn exit_codes_tell_good_runs_empty_runs_and_bad_input() {
    let suite = Suite::new(RUNFILE, &SCRIPTS);
    let (status, stdout, _) = suite.run(&["-t", "good", "-I", "2"]);
    assert_eq!(status, Some(0));
    let once = ["g/setup [PASS]", "g/good [PASS]", "g/cleanup [PASS]"];
    assert_eq!(results(&stdout), [once, once].concat());
    for nothing in [&["-T", "nothing"][..], &["-T", "nothing", "-d"]] {
        let (status, _, stderr) = suite.run(nothing);
        let says = "copyhold-suite: no test of the runfiles is selected\n";
        assert_eq!((status, stderr.as_str()), (Some(2), says));
    }
    assert_eq!(suite.run(&["--nonsense"]).0, Some(255));
    assert_eq!(suite.run(&["--help"]).0, Some(0));
    let (status, _, stderr) = suite.run(&["-t", "nowhere"]);
    assert_eq!(status, Some(255));
    assert!(stderr.contains("has the test nowhere"), "{stderr}");
    assert_eq!(suite.run(&["-t", "good", "-d"]).0, Some(0));
    let (status, stdout, stderr) = suite.run(&["-d"]);
    assert_eq!(status, Some(1));
    assert_eq!(stdout, "g/setup\ng/good\ng/other\ng/bad\ng/missing\ng/cleanup\n");
    assert_eq!(stderr, "copyhold-suite: g/missing: No such file or directory (os error 2)\n");
    let empty = RUNFILE.replace("['good', 'other', 'bad', 'missing']", "[]");
    fs::write(suite.at("a.run"), empty).unwrap();
    let (status, _, stderr) = suite.run(&[]);
    assert_eq!(status, Some(2));
    assert!(stderr.ends_with("no test of the runfiles is selected\n"), "{stderr}");
    fs::write(suite.at("a.run"), format!("{RUNFILE}colour = red\n")).unwrap();
    let (status, _, stderr) = suite.run(&[]);
    assert_eq!(status, Some(255));
    assert!(stderr.ends_with("[g]: 'colour' is no option of a runfile\n"), "{stderr}");
}

#[test]
fn a_program_that_is_missing_is_an_error_before_any_test() {
    let suite = Suite::new(RUNFILE, &SCRIPTS);
    fs::remove_file(suite.at("g/good")).unwrap();
    let (status, stdout, stderr) = suite.run(&["-t", "other"]);
    assert_eq!((status, stdout.as_str()), (Some(255), ""));
    assert!(stderr.ends_with("g/good: No such file or directory (os error 2)\n"), "{stderr}");
    assert_eq!(suite.places(), 0);
}

#[test]
fn a_failsafe_that_cannot_be_started_is_an_error_before_any_test() {
    let runfile = RUNFILE.replace("[g]", "failsafe = nowhere\n[g]");
    let (status, stdout, stderr) = Suite::new(&runfile, &SCRIPTS).run(&[]);
    assert_eq!((status, stdout.as_str()), (Some(255), ""));
    let says = "the failsafe cannot be started: nowhere: No such file or directory (os error 2)\n";
    assert!(stderr.ends_with(says), "{stderr}");
}

#[test]
fn known_failures_are_no_failures_as_long_as_they_come() {
    let suite = Suite::new(RUNFILE, &SCRIPTS);
    let list = suite.at("known");
    let known = ["--known", list.to_str().unwrap()];
    fs::write(&list, "g/bad FAIL it crashes\ng/missing FAIL it is not written\n").unwrap();
    let (status, stdout, _) = suite.run(&known);
    assert_eq!(status, Some(0), "{stdout}");
    assert!(stdout.ends_with("Known failures:\t2\n"), "{stdout}");
    let junit = suite.at("junit.xml");
    let with_junit = [&known[..], &["--json", "--junit", junit.to_str().unwrap()]].concat();
    suite.run(&with_junit);
    let text = fs::read_to_string(&junit).unwrap();
    assert!(text.contains("tests=\"6\" failures=\"0\" skipped=\"3\""), "{text}");
    assert!(text.contains("<skipped message=\"known: it crashes\"/>"), "{text}");
    let more = "g/bad FAIL it crashes\ng/missing FAIL it is not written\ng/good FAIL it is slow\n";
    fs::write(&list, more).unwrap();
    let says = "g/good is PASS, but the list of known failures has FAIL (it is slow)";
    for options in [&known[..], &[&known[..], &["-q"]].concat(), &with_junit] {
        let (status, _, stderr) = suite.run(options);
        assert_eq!(status, Some(1));
        assert!(stderr.ends_with(&format!("copyhold-suite: {says}\n")), "{stderr}");
    }
    let log = fs::read_to_string(suite.at("out/current/log")).unwrap();
    assert!(log.ends_with(&format!("{says}\n")), "{log}");
    let text = fs::read_to_string(&junit).unwrap();
    assert!(text.contains(&format!("<failure message=\"{says}\"/>")), "{text}");
    fs::write(&list, "g/none FAIL for a reason\n").unwrap();
    assert_eq!(suite.run(&known).0, Some(255));
}

#[test]
fn an_interrupt_ends_the_script_and_runs_the_cleanup() {
    let hangs = "sleep 1000 & echo $! >$SUITE_ROOT/hangs; wait";
    let scripts = [("setup", ":"), ("good", hangs), ("cleanup", ": >$SUITE_ROOT/cleaned")];
    let suite = Suite::new(RUNFILE, &scripts);
    let child = suite.command(&["--grace", "0"]).stdout(Stdio::piped()).spawn().unwrap();
    let pid = || fs::read_to_string(suite.at("hangs")).unwrap_or_default().trim().parse().ok();
    wait_until(|| pid().is_some());
    Daemon::of(child.id() as i32).unwrap().signal(Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(255));
    let expected = ["g/setup [PASS]", "g/good [KILLED]", "g/cleanup [PASS]"];
    assert_eq!(results(&String::from_utf8(output.stdout).unwrap()), expected);
    assert!(suite.at("cleaned").exists());
    assert!(Daemon::of(pid().unwrap()).is_err(), "the script's process still runs");
    assert_eq!(suite.places(), 0);
}

#[test]
fn places_of_killed_runs_are_removed_on_request() {
    let suite = Suite::new(RUNFILE, &SCRIPTS);
    fs::create_dir_all(suite.at("places/copyhold-suite-left/mnt")).unwrap();
    suite.run(&["-t", "good"]);
    assert_eq!(suite.places(), 1);
    suite.run(&["-t", "good", "-x"]);
    assert_eq!(suite.places(), 0);
}
