//! The player against a filesystem that only pretends: its program is `true` or `false`.

use super::*;
use crate::parse::parse;
use crate::scenario::State;

struct Pretended {
    directory: tempfile::TempDir,
    program: &'static str,
    rows: Vec<Row>,
}

impl Filesystem for Pretended {
    fn mount_point(&self) -> &Path {
        self.directory.path()
    }

    fn program(&self) -> Command {
        Command::new(self.program)
    }

    fn enable(&self) -> Result<Outcome, SuiteError> {
        Ok(Outcome::default())
    }

    fn deduplicate(&self, _source: &Path, _target: &Path) -> Result<Outcome, SuiteError> {
        Ok(Outcome::default())
    }

    fn defragment(&self, _file: &Path) -> Result<Outcome, SuiteError> {
        Ok(Outcome::default())
    }

    fn subvolume_id(&self, path: &Path) -> Result<u64, SuiteError> {
        Ok(if path == self.mount_point() { 5 } else { 256 })
    }

    fn sync(&self) -> Result<(), SuiteError> {
        Ok(())
    }

    fn finish_deletions(&self) -> Result<(), SuiteError> {
        Ok(())
    }

    fn remount(&self) -> Result<(), SuiteError> {
        Ok(())
    }

    fn accounts(&self) -> Result<Vec<Row>, SuiteError> {
        Ok(self.rows.clone())
    }

    fn take_down(&self) -> Result<(), SuiteError> {
        Ok(())
    }
}

fn problems(program: &'static str, text: &str) -> Vec<String> {
    let row = |level, id, data| Row {
        group: GroupId { level, id },
        state: State::Live,
        data,
        metadata: 4096,
        limit: (level > 0).then_some(1 << 20),
        parents: if level > 0 { vec![] } else { vec![GroupId { level: 1, id: 100 }] },
    };
    let filesystem = Pretended {
        directory: tempfile::tempdir().unwrap(),
        program,
        rows: vec![row(0, 5, 0), row(0, 256, 8192), row(1, 100, 8192)],
    };
    let text = format!("scenario x\nsection 7\ndiffers y\n{text}\nbtrfs: sync");
    let scenario = parse(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
    let problems = play(&scenario, Kind::Copyhold, &filesystem, &Interrupt::never()).unwrap();
    problems.into_iter().map(|problem| format!("{} {}", problem.line, problem.message)).collect()
}

#[test]
fn what_is_as_expected_is_no_problem() {
    let text = "create a\nwrite f 8K\nexpect accepted 8K\nexpect usage a 8K metadata 4K total 12K\n\
                expect state a live\nexpect rows a 1/100\nexpect parents a 1/100\n\
                expect limit 1/100 1M\nexpect limit a none\nexpect state 1/7 absent\n\
                unlink g\nexpect errno ENOENT or none";
    assert_eq!(problems("true", text), Vec::<String>::new());
}

#[test]
fn what_is_not_as_expected_is_told_with_its_line() {
    let told = [
        ("create a\nexpect usage a 4K", "5 data: 4K was expected; it is 8K (8192)"),
        ("create a\nexpect usage 1/7 4K", "5 there is no row of 1/7"),
        ("create a\nexpect state a stale or tombstone", "5 stale or tombstone was expected"),
        ("create a\nexpect rows a", "5 0/256 expected; there are 0/256 1/100"),
        ("create a\nexpect parents a none", "5 none expected; there are 1/100"),
        ("create a\nexpect limit a 1M", "5 a limit of 1M was expected; there is none"),
        ("create a\nexpect limit 1/100 none", "5 no limit was expected; it is 1M"),
        ("write f 4K\nexpect accepted 8K", "5 accepted: 8K was expected; it is 4K"),
        ("write f 4K\nexpect errno EDQUOT", "5 EDQUOT was expected; it succeeded"),
        ("unlink f\nexpect errno EDQUOT", "5 EDQUOT was expected; it was ENOENT"),
        ("unlink f\nsync", "4 failed: ENOENT"),
    ];
    for (text, says) in told {
        let problems = problems("true", text);
        assert_eq!(problems.len(), 1, "{text}: {problems:?}");
        assert!(problems[0].starts_with(says), "{text}: {problems:?}");
    }
}

#[test]
fn a_failure_without_an_errno_is_not_the_expected_one() {
    let problems = problems("false", "create a\nexpect errno EDQUOT");
    assert!(problems[0].starts_with("5 EDQUOT was expected; it failed"), "{problems:?}");
}

#[test]
fn lines_for_another_target_are_not_played() {
    assert_eq!(problems("true", "btrfs: unlink f\nsync\nexpect btrfs: rows none"), [""; 0]);
}
