use std::path::PathBuf;

use super::*;
use crate::amount::Range;
use crate::errno::Errno;
use crate::scenario::{Expectation, GroupId, GroupName, How, Span, State};

const HEADER: &str = "scenario A title\nsection 7\n";

fn lines(text: &str) -> Vec<Line> {
    parse(&format!("{HEADER}differs for a reason\n{text}\nbtrfs: sync\n")).unwrap().lines
}

fn complaint(text: &str) -> String {
    parse(&format!("{HEADER}{text}\n")).unwrap_err().to_string()
}

fn expectation(text: &str) -> Expectation {
    let mut lines = lines(&format!("sync\n{text}"));
    match lines.remove(1).action {
        Action::Expect(expectation) => expectation,
        Action::Step(step) => panic!("{step:?}"),
    }
}

#[test]
fn a_file_is_a_header_and_lines() {
    let text = "# why this is here\nscenario The title\nsection 7, 3\ndiffers one\ndiffers two\n\
                options btrfs compress=zstd\nsize 2G\n\nenable  # at once\nexpect btrfs: errno EBUSY";
    let scenario = parse(text).unwrap();
    assert_eq!(scenario.title, "The title");
    assert_eq!(scenario.section, "7, 3");
    assert_eq!(scenario.differs.as_deref(), Some("one two"));
    assert_eq!(scenario.options, [(Kind::Btrfs, "compress=zstd".to_owned())]);
    assert_eq!(scenario.bytes, 2 << 30);
    assert_eq!(scenario.lines[0].number, 9);
    assert_eq!(scenario.lines[0].action, Action::Step(Step::Enable));
    assert_eq!(scenario.lines[1].target, Some(Kind::Btrfs));
    assert!(!scenario.lines[1].is_for(Kind::Copyhold));
}

#[test]
fn steps_take_places_sizes_and_manners() {
    let text =
        "write a/f 8M at 4K by 64K direct fsync\noverwrite a/f\nsnapshot -r a s in 1/100 2/1";
    let lines = lines(text);
    let span = Span { at: 4096, bytes: Some(8 << 20), chunk: 64 << 10 };
    let how = How { direct: true, fsync: true, ..How::default() };
    let path = PathBuf::from("a/f");
    assert_eq!(lines[0].action, Action::Step(Step::Write { path: path.clone(), span, how }));
    let span = Span { at: 0, bytes: None, chunk: 1 << 20 };
    let how = How::default();
    assert_eq!(lines[1].action, Action::Step(Step::Overwrite { path, span, how }));
    let groups = [(1, 100), (2, 1)].map(|(level, id)| GroupName::Id(GroupId { level, id }));
    let snapshot = Step::Snapshot {
        source: "a".into(),
        path: "s".into(),
        readonly: true,
        groups: groups.to_vec(),
    };
    assert_eq!(lines[2].action, Action::Step(snapshot));
}

#[test]
fn a_rollback_keeps_the_old_state_where_it_says() {
    let step = |keep| {
        let (path, snapshot) = ("a".into(), "s".into());
        Action::Step(Step::Rollback { path, snapshot, keep })
    };
    let lines = lines("rollback a s\nrollback a s keep old/a");
    assert_eq!([&lines[0].action, &lines[1].action], [&step(None), &step(Some("old/a".into()))]);
    assert!(complaint("rollback a").contains("the snapshot's path is missing"));
}

#[test]
fn an_allocation_is_one_call_unless_it_says_by() {
    let lines = lines("fallocate a/f 8M\nfallocate a/f 8M by 4K");
    let chunks = lines.iter().filter_map(|line| match &line.action {
        Action::Step(Step::Fallocate { span, .. }) => Some(span.chunk),
        _ => None,
    });
    assert_eq!(chunks.collect::<Vec<_>>(), [8 << 20, 4096]);
}

#[test]
fn expectations_are_ranges_and_alternatives() {
    let group = GroupName::Subvolume("a".into());
    let usage = Expectation::Usage {
        group: group.clone(),
        data: Some(Range::parse("8M").unwrap()),
        metadata: Some(Range::parse("..64K").unwrap()),
        total: None,
    };
    assert_eq!(expectation("expect usage a 8M metadata ..64K"), usage);
    let errno = Expectation::Errno(vec![Errno::named("EDQUOT"), None]);
    assert_eq!(expectation("expect errno EDQUOT or none"), errno);
    let state = Expectation::State { group, states: vec![State::Tombstone] };
    assert_eq!(expectation("expect state a tombstone"), state);
    assert_eq!(expectation("expect rows none"), Expectation::Rows(vec![]));
}

#[test]
fn a_mistake_is_told_with_its_line() {
    assert_eq!(
        complaint("\nwrit a/f 1M"),
        "line 4: 'writ' is no step; docs/scenarios.md lists them"
    );
    let told = [
        ("write a/f", "how much to write is missing"),
        ("write ../f 1M", "PARSE-S3"),
        ("write /f 1M", "PARSE-S3"),
        ("write a/f 1Q", "'1Q' is no amount"),
        ("write a/f 1M sideways", "'sideways' is not understood"),
        ("write a/f 100 direct", "multiples of 4K"),
        ("chmod 99 a/f", "no mode"),
        ("qgroup crate 1/1", "create, destroy, assign or remove"),
        ("zfs: sync", "no target"),
        ("sync\nexpect btrfs: errno none", "PARSE-S1"),
        ("expect errno EPERM", "no step right before"),
        ("sync\nexpect usage a 1M\nexpect errno none", "no step right before"),
        ("sync\nexpect errno EWHATEVER", "no errno"),
        ("sync\nexpect state a gone", "no state"),
        ("sync\nsection 9", "before the first step"),
        ("sync now", "'now' is not understood"),
        ("write a/f 1M", "nothing is expected of the last step"),
        ("", "there is no step"),
    ];
    for (text, says) in told {
        let complaint = complaint(text);
        assert!(complaint.contains(says), "{text}: {complaint}");
    }
    assert_eq!(parse("sync").unwrap_err().to_string(), "line 1: the header says no 'scenario'");
}

#[test]
fn all_scenarios_of_the_suite_can_be_read() {
    let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let files = crate::library::files(&[directory]).unwrap();
    assert!(files.len() > 30, "{} files", files.len());
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        parse(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    }
}
