//! What came of all scenarios: a table for people, a line of JSON for each play for programs.

use std::fmt::Write;

use serde::Serialize;

use crate::library::Entry;
use crate::play::Problem;
use crate::scenario::Kind;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Verdict {
    /// The target does not have what the scenario is about.
    NotHere,
    /// As expected, and the other target does not have it.
    OnlyHere,
    /// As expected, and the same is expected of all targets.
    Agree,
    /// As expected, and something else is expected of the other target.
    DiffersOnPurpose,
    Fail,
}

impl Verdict {
    fn text(self) -> &'static str {
        match self {
            Verdict::NotHere => "not here",
            Verdict::OnlyHere => "only here",
            Verdict::Agree => "agree",
            Verdict::DiffersOnPurpose => "differ on purpose",
            Verdict::Fail => "FAIL",
        }
    }
}

/// One scenario on one target.
pub(crate) struct Play<'a> {
    entry: &'a Entry,
    kind: Kind,
    verdict: Verdict,
    problems: Vec<String>,
}

#[derive(Serialize)]
struct Line<'a> {
    scenario: String,
    title: &'a str,
    section: &'a str,
    target: &'a str,
    verdict: Verdict,
    because: Option<&'a str>,
    problems: &'a [String],
}

impl<'a> Play<'a> {
    pub(crate) fn of(entry: &'a Entry, kind: Kind, problems: &[Problem]) -> Play<'a> {
        let verdict = match &entry.scenario.differs {
            _ if !problems.is_empty() => Verdict::Fail,
            Some(_) => Verdict::DiffersOnPurpose,
            None if entry.scenario.only.is_some() => Verdict::OnlyHere,
            None => Verdict::Agree,
        };
        let file = entry.file.display();
        let problem = |it: &Problem| format!("{file}:{}: {}", it.line, it.message);
        Play { entry, kind, verdict, problems: problems.iter().map(problem).collect() }
    }

    /// The target could not even be made, or asked.
    pub(crate) fn failed(entry: &'a Entry, kind: Kind, says: String) -> Play<'a> {
        let problems = vec![format!("{}: {says}", entry.file.display())];
        Play { entry, kind, verdict: Verdict::Fail, problems }
    }

    pub(crate) fn not_here(entry: &'a Entry, kind: Kind) -> Play<'a> {
        Play { entry, kind, verdict: Verdict::NotHere, problems: Vec::new() }
    }

    fn because(&self) -> Option<&str> {
        let scenario = &self.entry.scenario;
        scenario.differs.as_deref().or(scenario.only.as_ref().map(|(_, reason)| reason.as_str()))
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.verdict == Verdict::Fail
    }

    /// For the person who waits.
    pub(crate) fn progress(&self) -> String {
        let mut text =
            format!("{:8}  {:38}  {}", self.kind.name(), self.entry.name(), self.verdict.text());
        for problem in &self.problems {
            let _ = write!(text, "\n    {problem}");
        }
        text
    }

    pub(crate) fn json(&self) -> String {
        let line = Line {
            scenario: self.entry.name(),
            title: &self.entry.scenario.title,
            section: &self.entry.scenario.section,
            target: self.kind.name(),
            verdict: self.verdict,
            because: self.because(),
            problems: &self.problems,
        };
        serde_json::to_string(&line).expect("names and texts are JSON")
    }
}

/// One row a scenario; `plays` has those of one scenario beside each other.
pub(crate) fn table(plays: &[Play<'_>]) -> String {
    let mut text = String::new();
    let of_one = |one: &Play<'_>, other: &Play<'_>| std::ptr::eq(one.entry, other.entry);
    for plays in plays.chunk_by(of_one) {
        let worst = plays.iter().max_by_key(|play| play.verdict).expect("chunks have a play");
        let failed: Vec<_> =
            plays.iter().filter(|play| play.has_failed()).map(|play| play.kind.name()).collect();
        let verdict = match failed.as_slice() {
            [] => worst.verdict.text().to_owned(),
            _ => format!("FAIL: {}", failed.join(", ")),
        };
        let scenario = &worst.entry.scenario;
        let name = worst.entry.name();
        let _ =
            writeln!(text, "{name:38}  {:8}  {verdict:17}  {}", scenario.section, scenario.title);
        if let Some(because) = worst.because() {
            let _ = writeln!(text, "{:38}  {:8}  {:17}  {because}", "", "", "");
        }
    }
    let count = |verdict| plays.iter().filter(|play| play.verdict == verdict).count();
    let _ = writeln!(
        text,
        "{} plays: {} agree, {} differ on purpose, {} only here, {} not here, {} FAIL",
        plays.len(),
        count(Verdict::Agree),
        count(Verdict::DiffersOnPurpose),
        count(Verdict::OnlyHere),
        count(Verdict::NotHere),
        count(Verdict::Fail),
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::parse;

    fn entry(header: &str, line: &str) -> Entry {
        let text = format!("scenario A title\nsection 7\n{header}\nsync\n{line}");
        Entry { file: "x/some-case.scenario".into(), scenario: parse(&text).unwrap() }
    }

    #[test]
    fn a_row_tells_the_worst_of_its_targets() {
        let same = entry("", "");
        let other = entry("differs we refund at once", "expect btrfs: errno none");
        let problem = Problem { line: 5, message: "something else".into() };
        let plays = [
            Play::of(&same, Kind::Copyhold, &[]),
            Play::of(&same, Kind::Btrfs, &[]),
            Play::of(&other, Kind::Copyhold, &[problem]),
            Play::of(&other, Kind::Btrfs, &[]),
        ];
        let table = table(&plays);
        let rows: Vec<_> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        let rows: Vec<String> = rows.into_iter().map(|words: Vec<_>| words.join(" ")).collect();
        let expected = [
            "some-case 7 agree A title",
            "some-case 7 FAIL: copyhold A title",
            "we refund at once",
            "4 plays: 2 agree, 1 differ on purpose, 0 only here, 0 not here, 1 FAIL",
        ];
        assert_eq!(rows, expected);
    }

    #[test]
    fn a_line_of_json_is_as_documented() {
        let other = entry("differs for a reason", "expect btrfs: errno none");
        let play = Play::of(&other, Kind::Btrfs, &[]);
        let line = concat!(
            r#"{"scenario":"some-case","title":"A title","section":"7","target":"btrfs","#,
            r#""verdict":"differs-on-purpose","because":"for a reason","problems":[]}"#
        );
        assert_eq!(play.json(), line);
    }
}
