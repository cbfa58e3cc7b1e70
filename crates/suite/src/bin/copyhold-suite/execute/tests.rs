use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use super::*;

/// Stands, but for one step: the limit passes when the script has made the file `ready`.
struct ReadyClock {
    ready: PathBuf,
    is_asleep: bool,
}

impl Clock for ReadyClock {
    fn now(&self) -> Moment {
        if !self.ready.exists() {
            return Moment { passed: Duration::ZERO, awake: Duration::ZERO };
        }
        let passed = Duration::from_secs(1000);
        Moment { passed, awake: if self.is_asleep { Duration::ZERO } else { passed } }
    }
}

struct Scene {
    directory: tempfile::TempDir,
    interrupt: Interrupt,
    is_asleep: bool,
}

impl Scene {
    fn new() -> Scene {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        Scene { directory, interrupt: Interrupt::never(), is_asleep: false }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn script(&self, name: &str, text: &str) -> Step {
        let script = self.at(name);
        fs::write(&script, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        Step { name: name.into(), script, user: String::new() }
    }

    fn run(&self, step: &Step, failsafe: Option<&Step>, grace: Duration) -> End {
        let ready = self.at("ready");
        let clock = ReadyClock { ready, is_asleep: self.is_asleep };
        let mut machine = Machine {
            clock: &clock,
            interrupt: &self.interrupt,
            environment: vec![("SCENE", self.directory.path().into())],
            own: Account::own().unwrap(),
            grace,
            before_group: BTreeSet::new(),
        };
        let job = Job {
            step,
            directory: self.directory.path(),
            timeout: Some(Duration::from_secs(500)),
            failsafe,
            ends_at_interrupt: true,
        };
        machine.execute(&job).unwrap().end
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.at(name)).unwrap()
    }

    /// Whether a process whose number a script wrote to a file runs.
    fn runs(&self, name: &str) -> bool {
        let pid = self.read(name);
        let state = fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
        state.is_ok_and(|stat| !stat.contains(") Z"))
    }
}

const LONG: Duration = Duration::from_secs(3600);

#[test]
fn the_end_of_a_script_is_its_status_or_its_signal() {
    let _turn = crate::alone::turn();
    let scene = Scene::new();
    for (script, end) in [
        ("echo \"$SCENE\"", End::Exited(0)),
        ("exit 4", End::Exited(4)),
        ("kill -SEGV $$", End::Signalled(11)),
    ] {
        assert_eq!(scene.run(&scene.script("a", script), None, LONG), end);
    }
    let missing = Step { script: scene.at("missing"), ..scene.script("a", "") };
    let End::NotStarted(reason) = scene.run(&missing, None, LONG) else { panic!("it is missing") };
    assert!(reason.ends_with("No such file or directory (os error 2)"), "{reason}");
    let other = Step { user: "no-such-user".into(), ..scene.script("a", "") };
    let reason = "no account has the name no-such-user";
    assert_eq!(scene.run(&other, None, LONG), End::NotStarted(reason.into()));
    assert!(scene.read("merged").contains(reason));
}

#[test]
fn a_script_of_another_user_is_that_user() {
    let _turn = crate::alone::turn();
    let scene = Scene::new();
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root");
        return;
    }
    let script = scene.script("a", "id -un; id -G | wc -w; echo $USER; pwd; test ! -w /etc");
    let script = Step { user: "nobody".into(), ..script };
    assert_eq!(scene.run(&script, None, LONG), End::Exited(0));
    let place = scene.directory.path().display();
    assert_eq!(scene.read("stdout"), format!("nobody\n1\nnobody\n{place}\n"));
}

#[test]
fn at_its_limit_a_script_ends_with_a_grandchild_that_left_its_group() {
    let _turn = crate::alone::turn();
    descent::adopt_orphans().unwrap();
    let scene = Scene::new();
    // Its parent ends at once.
    let script = "sh -c 'setsid sh -c \"echo \\$\\$ >away; exec sleep 1000\" &'\n\
        while [ ! -s away ]; do sleep 0.01; done; : >ready; exec sleep 1000";
    let end = scene.run(&scene.script("a", script), None, LONG);
    assert_eq!(end, End::TimedOut { slept: false });
    assert!(!scene.runs("away"));
    assert!(scene.read("merged").contains("the time limit is over"));
}

#[test]
fn a_script_that_ignores_sigterm_is_killed_behind_its_failsafe() {
    let _turn = crate::alone::turn();
    descent::adopt_orphans().unwrap();
    let scene = Scene::new();
    let script = "trap '' TERM; echo $$ >away; : >ready; while :; do sleep 1000; done";
    let failsafe = "kill -0 $(cat $SCENE/away) && echo yes >$SCENE/saw\n\
        setsid sleep 1000 & echo $! >$SCENE/daemon";
    let failsafe = scene.script("f", failsafe);
    let end = scene.run(&scene.script("a", script), Some(&failsafe), Duration::ZERO);
    assert_eq!(end, End::TimedOut { slept: false });
    assert_eq!(scene.read("saw"), "yes\n");
    assert!(!scene.runs("away"));
    assert!(scene.runs("daemon"), "processes of the failsafe stay");
    kill_since(&BTreeSet::new()).unwrap();
    descent::reap();
}

#[test]
fn a_limit_that_passed_in_sleep_is_told_from_one_that_was_used() {
    let _turn = crate::alone::turn();
    let mut scene = Scene::new();
    scene.is_asleep = true;
    let script = scene.script("a", ": >ready; exec sleep 1000");
    assert_eq!(scene.run(&script, None, LONG), End::TimedOut { slept: true });
}

#[test]
fn processes_of_earlier_scripts_stay() {
    let _turn = crate::alone::turn();
    descent::adopt_orphans().unwrap();
    let scene = Scene::new();
    let setup = scene.script("s", "setsid sleep 1000 & echo $! >daemon");
    assert_eq!(scene.run(&setup, None, LONG), End::Exited(0));
    let hangs = scene.script("a", ": >ready; exec sleep 1000");
    assert_eq!(scene.run(&hangs, None, LONG), End::TimedOut { slept: false });
    assert!(scene.runs("daemon"));
    kill_since(&BTreeSet::new()).unwrap();
    assert!(!scene.runs("daemon"));
    descent::reap();
}

/// The real library: an assertion of failure is no shelter for a crash.
#[test]
fn a_crash_under_must_not_fails_the_test() {
    let _turn = crate::alone::turn();
    let scene = Scene::new();
    let library = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/functional/lib.sh");
    let library = library.display();
    for (command, end) in [
        ("false", End::Exited(0)),
        ("true", End::Exited(1)),
        ("sh -c 'kill -SEGV $$'", End::Exited(1)),
        ("sh -c 'kill -BUS $$'", End::Exited(1)),
        ("no-such-program", End::Exited(1)),
    ] {
        let script = scene.script("a", &format!(". {library}\nmust_not {command}\npass"));
        assert_eq!(scene.run(&script, None, LONG), end, "{command}: {}", scene.read("merged"));
    }
}
