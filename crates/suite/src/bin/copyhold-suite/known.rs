//! The list of tests that are known not to pass.
//!
//! A line is `TEST RESULT REASON`, as in `space/full FAIL the reserve is not yet counted`. `#`
//! begins a comment.
//!
//! KNOWN-L1  Each entry has a reason, names a test of the runfiles, and is the only one for it.
//! KNOWN-L2  An entry stays true: a listed test with another result fails the run, unless the test
//!           was skipped, which says nothing of it.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{On, RunnerError};
use crate::plan::Group;
use crate::verdict::Verdict;

#[derive(Debug, Default)]
pub(crate) struct Known {
    entries: Vec<Entry>,
}

#[derive(Debug, PartialEq, Eq)]
struct Entry {
    test: String,
    verdict: Verdict,
    reason: String,
}

/// A result beside the list.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Judgement<'a> {
    /// The list says nothing of it.
    Unlisted,
    /// As the list says, for this reason.
    Expected(&'a str),
    /// The list is not true any more.
    Contradicts { listed: Verdict, reason: &'a str },
}

impl Known {
    pub(crate) fn read(file: &Path, groups: &[Group]) -> Result<Known, RunnerError> {
        let text = fs::read_to_string(file).on(file.display())?;
        let mut known = Known::default();
        for (line, text) in (1..).zip(text.lines()) {
            let text = text.split('#').next().unwrap_or_default().trim();
            if !text.is_empty() {
                let wrong =
                    |message| RunnerError::Line { file: PathBuf::from(file), line, message };
                known.add(text, groups).map_err(wrong)?;
            }
        }
        Ok(known)
    }

    fn add(&mut self, line: &str, groups: &[Group]) -> Result<(), String> {
        let mut words = line.split_whitespace();
        let (test, result) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let reason = words.collect::<Vec<_>>().join(" ");
        let verdict = [Verdict::Fail, Verdict::Killed, Verdict::Skip];
        let verdict = verdict.into_iter().find(|verdict| verdict.name() == result);
        let verdict =
            verdict.ok_or_else(|| format!("'{result}' is none of FAIL, KILLED and SKIP"))?;
        if reason.is_empty() {
            return Err(format!("{test} has no reason"));
        }
        if self.entries.iter().any(|entry| entry.test == test) {
            return Err(format!("{test} is there twice"));
        }
        if !groups.iter().any(|group| group.steps().any(|step| step.name == test)) {
            return Err(format!("no runfile has the test {test}"));
        }
        self.entries.push(Entry { test: test.to_owned(), verdict, reason });
        Ok(())
    }

    pub(crate) fn judge(&self, test: &str, verdict: Verdict) -> Judgement<'_> {
        let Some(entry) = self.entries.iter().find(|entry| entry.test == test) else {
            return Judgement::Unlisted;
        };
        match verdict {
            same if same == entry.verdict => Judgement::Expected(&entry.reason),
            Verdict::Skip => Judgement::Unlisted,
            _ => Judgement::Contradicts { listed: entry.verdict, reason: &entry.reason },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan;
    use crate::runfile::{Options, Runfile, Section};

    fn groups() -> Vec<Group> {
        let options = Options { pre: "setup".into(), ..Options::default() };
        let tests = Some(vec!["a".into(), "b".into()]);
        let section = Section { path: "space".into(), identifier: None, tests, options };
        let sections = vec![section];
        plan::groups(&Runfile { sections, ..Runfile::default() }, Path::new("/suite"))
    }

    fn read(text: &str) -> Result<Known, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        let known = Known::read(file.path(), &groups());
        known.map_err(|error| error.to_string().split_once(':').unwrap().1.to_owned())
    }

    #[test]
    fn a_list_must_stay_true() {
        let known = read("# why\n\nspace/a FAIL no room  yet\nspace/b SKIP no device # here\n");
        let known = known.unwrap();
        assert_eq!(known.judge("space/a", Verdict::Fail), Judgement::Expected("no room yet"));
        let listed = Verdict::Fail;
        let contradicts = Judgement::Contradicts { listed, reason: "no room yet" };
        assert_eq!(known.judge("space/a", Verdict::Pass), contradicts);
        assert_eq!(known.judge("space/a", Verdict::Killed), contradicts);
        assert_eq!(known.judge("space/a", Verdict::Skip), Judgement::Unlisted);
        assert_eq!(known.judge("space/b", Verdict::Skip), Judgement::Expected("no device"));
        let contradicts = Judgement::Contradicts { listed: Verdict::Skip, reason: "no device" };
        assert_eq!(known.judge("space/b", Verdict::Pass), contradicts);
        assert_eq!(known.judge("space/setup", Verdict::Fail), Judgement::Unlisted);
    }

    #[test]
    fn bad_lists_are_refused_with_the_line() {
        for (text, says) in [
            ("space/a\n", "1: '' is none of FAIL, KILLED and SKIP"),
            ("\nspace/a PASS always\n", "2: 'PASS' is none of"),
            ("space/a FAIL\n", "1: space/a has no reason"),
            ("space/c FAIL for a reason\n", "1: no runfile has the test space/c"),
            ("space/a FAIL one\nspace/a SKIP two\n", "2: space/a is there twice"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
