//! Results of one run: the console, the log, the counts, and the lines of JSON.
//!
//! On disk.  `OUTPUTDIR/YYYYMMDDTHHMMSS/log` has the line of each result with the output behind it,
//!           each line with its time; `…/GROUP/TEST/{stdout,stderr,merged}` has the output alone.
//!           `OUTPUTDIR/current` leads to the newest run. All times are in UTC.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::Serialize;

use crate::clock::stamp;
use crate::console;
use crate::error::{On, RunnerError};
use crate::junit::{Case, Outcome};
use crate::known::{Judgement, Known};
use crate::run::{Done, Report};
use crate::verdict::{Counts, Status, Verdict};

/// How results are shown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Show {
    /// Lines of results that are not PASS only.
    pub(crate) quiet: bool,
    pub(crate) json: bool,
}

pub(crate) struct Results<'a> {
    directory: PathBuf,
    log: File,
    show: Show,
    known: &'a Known,
    own: &'a str,
    counts: Counts,
    /// Results other than PASS and SKIP that the list explains.
    expected: u32,
    contradictions: Vec<String>,
    cases: Vec<Case>,
}

#[derive(Serialize)]
struct Line<'a> {
    test: &'a str,
    user: &'a str,
    result: Verdict,
    seconds: f64,
    log: &'a Path,
}

impl<'a> Results<'a> {
    /// Makes the directory of a run that begins at `now`.
    pub(crate) fn begin(
        outputdir: &Path,
        now: SystemTime,
        show: Show,
        known: &'a Known,
        own: &'a str,
    ) -> Result<Results<'a>, RunnerError> {
        fs::create_dir_all(outputdir).on(outputdir.display())?;
        let outputdir = outputdir.canonicalize().on(outputdir.display())?;
        let directory = dated(&outputdir, &stamp(now)).on(outputdir.display())?;
        let log = File::create(directory.join("log")).on(directory.display())?;
        let (counts, expected) = (Counts::default(), 0);
        let (contradictions, cases) = (Vec::new(), Vec::new());
        Ok(Results { directory, log, show, known, own, counts, expected, contradictions, cases })
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Prints the summary. Returns the exit code and the cases for JUnit.
    pub(crate) fn end(mut self, took: Duration) -> Result<(Status, Vec<Case>), RunnerError> {
        let contradictions = u32::try_from(self.contradictions.len()).unwrap_or(u32::MAX);
        let status = self.counts.status(self.expected, contradictions);
        if status != Status::NothingRan {
            let mut text = self.counts.summary(took, &self.directory.to_string_lossy());
            if self.expected > 0 {
                text.push_str(&format!("Known failures:\t{}\n", self.expected));
            }
            self.log.write_all(text.as_bytes()).on(self.directory.display())?;
            if !self.show.json {
                print(&text)?;
            }
        }
        for contradiction in std::mem::take(&mut self.contradictions) {
            self.warn(&contradiction)?;
        }
        Ok((status, self.cases))
    }

    /// Compares a result with the list of known failures. Returns the outcome for JUnit.
    fn judge(&mut self, done: &Done<'_>) -> Outcome {
        let (test, verdict) = (&done.step.name, done.verdict);
        match self.known.judge(test, verdict) {
            Judgement::Expected(reason) => {
                self.expected += u32::from(verdict != Verdict::Skip);
                Outcome::Skipped(format!("known: {reason}"))
            }
            Judgement::Unlisted => Outcome::of(verdict, done.reason.as_deref()),
            Judgement::Contradicts { listed, reason } => {
                let contradiction = format!(
                    "{test} is {}, but the list of known failures has {} ({reason})",
                    verdict.name(),
                    listed.name()
                );
                self.contradictions.push(contradiction.clone());
                Outcome::Failed(contradiction)
            }
        }
    }
}

impl Report for Results<'_> {
    fn report(&mut self, mut done: Done<'_>) -> Result<(), RunnerError> {
        self.counts.add(done.verdict, done.reran);
        let outcome = self.judge(&done);
        let line = console::line(&done, self.own);
        let on_log = self.directory.join("log");
        self.log.write_all(line.as_bytes()).on(on_log.display())?;
        if let Some(lines) = &mut done.lines {
            io::copy(lines, &mut self.log).on(on_log.display())?;
        }
        let is_quiet = self.show.quiet || done.group.quiet;
        if self.show.json {
            let line = Line {
                test: &done.step.name,
                user: console::user(&done, self.own),
                result: done.verdict,
                seconds: done.took.as_secs_f64(),
                log: &done.directory,
            };
            let line = serde_json::to_string(&line).expect("names and numbers are JSON");
            print(&format!("{line}\n"))?;
        } else if !is_quiet || done.verdict != Verdict::Pass {
            print(&line)?;
        }
        if let Some(reason) = &done.reason {
            self.warn(&format!("{}: {reason}", done.step.name))?;
        }
        self.cases.push(Case {
            group: done.group.title(),
            test: done.step.name.clone(),
            outcome,
            took: done.took,
            directory: done.directory,
        });
        Ok(())
    }

    fn warn(&mut self, text: &str) -> Result<(), RunnerError> {
        eprintln!("copyhold-suite: {text}");
        writeln!(self.log, "{text}").on(self.directory.join("log").display())
    }
}

fn print(text: &str) -> Result<(), RunnerError> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).on("standard output")
}

/// A new directory, and the link `current` to it. A second run in one second gets a number.
fn dated(outputdir: &Path, stamp: &str) -> io::Result<PathBuf> {
    let mut name = stamp.to_owned();
    let mut number = 1;
    while let Err(error) = fs::create_dir(outputdir.join(&name)) {
        if error.kind() != ErrorKind::AlreadyExists {
            return Err(error);
        }
        number += 1;
        name = format!("{stamp}.{number}");
    }
    let link = outputdir.join(format!(".current.{name}"));
    symlink(&name, &link)?;
    fs::rename(link, outputdir.join("current"))?;
    Ok(outputdir.join(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_run_has_a_directory_and_current_leads_to_the_newest() {
        let outputdir = tempfile::tempdir().unwrap();
        let known = Known::default();
        let show = Show { quiet: false, json: false };
        let begin = || {
            let now = SystemTime::UNIX_EPOCH;
            let results = Results::begin(outputdir.path(), now, show, &known, "root").unwrap();
            results.directory().file_name().unwrap().to_string_lossy().into_owned()
        };
        assert_eq!([begin(), begin()], ["19700101T000000", "19700101T000000.2"]);
        let current = outputdir.path().join("current");
        assert_eq!(fs::read_link(&current).unwrap(), Path::new("19700101T000000.2"));
        assert!(current.join("log").is_file());
    }
}
