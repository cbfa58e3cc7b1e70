//! Results of tests, their counts, and the exit code of the run.
//!
//! VERDICT-C1  Exit code 0 of a test is PASS, 4 is SKIP, the time limit is KILLED, all else is
//!             FAIL: so is a signal, and a script that cannot be started.
//! VERDICT-C2  Setups and cleanups count as tests, and skipped tests lower the percentage.

use std::fmt::Write;
use std::time::Duration;

use serde::Serialize;

/// The exit code of a test that does not apply here.
const UNSUPPORTED: i32 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub(crate) enum Verdict {
    Skip,
    Killed,
    Fail,
    Pass,
}

impl Verdict {
    pub(crate) const ALL: [Verdict; 4] =
        [Verdict::Skip, Verdict::Killed, Verdict::Fail, Verdict::Pass];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Verdict::Skip => "SKIP",
            Verdict::Killed => "KILLED",
            Verdict::Fail => "FAIL",
            Verdict::Pass => "PASS",
        }
    }
}

/// The end of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Exited(i32),
    Signalled(i32),
    /// `slept`: the machine was suspended, and the script did not have its time.
    TimedOut {
        slept: bool,
    },
    NotStarted(String),
}

impl End {
    pub(crate) fn verdict(&self) -> Verdict {
        match self {
            End::Exited(0) => Verdict::Pass,
            End::Exited(UNSUPPORTED) => Verdict::Skip,
            End::TimedOut { .. } => Verdict::Killed,
            End::Exited(_) | End::Signalled(_) | End::NotStarted(_) => Verdict::Fail,
        }
    }

    /// For people, where the verdict alone does not say it.
    pub(crate) fn reason(&self) -> Option<String> {
        match self {
            End::NotStarted(reason) => Some(reason.clone()),
            End::Signalled(signal) => Some(format!("ended by signal {signal}")),
            End::Exited(_) | End::TimedOut { .. } => None,
        }
    }
}

/// The exit codes of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Good = 0,
    Failed = 1,
    NothingRan = 2,
    OnlyReran = 3,
    RunnerFailed = 255,
}

/// Counts of one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    skipped: u32,
    killed: u32,
    failed: u32,
    passed: u32,
    reran: u32,
}

impl Counts {
    pub(crate) fn add(&mut self, verdict: Verdict, reran: bool) {
        *self.count_mut(verdict) += 1;
        self.reran += u32::from(reran);
    }

    fn count_mut(&mut self, verdict: Verdict) -> &mut u32 {
        match verdict {
            Verdict::Skip => &mut self.skipped,
            Verdict::Killed => &mut self.killed,
            Verdict::Fail => &mut self.failed,
            Verdict::Pass => &mut self.passed,
        }
    }

    fn total(&self) -> u32 {
        self.skipped + self.killed + self.failed + self.passed
    }

    /// `expected` results are failures that a list explains; `unexpected` ones contradict the list.
    pub(crate) fn status(&self, expected: u32, unexpected: u32) -> Status {
        let failed = (self.failed + self.killed).saturating_sub(expected) + unexpected;
        match () {
            () if self.total() == 0 => Status::NothingRan,
            () if failed > 0 => Status::Failed,
            () if self.reran > 0 => Status::OnlyReran,
            () => Status::Good,
        }
    }

    /// The counts above zero, the time, the percentage of all that passed, and the directory.
    pub(crate) fn summary(&self, time: Duration, directory: &str) -> String {
        let mut text = "\nResults Summary\n".to_owned();
        let mut counts = *self;
        let of_verdicts = Verdict::ALL.map(|verdict| (verdict.name(), *counts.count_mut(verdict)));
        for (name, count) in [("RERAN", self.reran)].into_iter().chain(of_verdicts) {
            if count > 0 {
                let count = format!(" {count}");
                let _ = writeln!(text, "{name}\t{count:>4}");
            }
        }
        let seconds = time.as_secs();
        let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        let percent = f64::from(self.passed) / f64::from(self.total()) * 100.0;
        let _ = writeln!(text, "\nRunning Time:\t{hours:02}:{minutes:02}:{seconds:02}");
        let _ = writeln!(text, "Percent passed:\t{percent:.1}%");
        let _ = writeln!(text, "Log directory:\t{directory}");
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(skipped: u32, killed: u32, failed: u32, passed: u32, reran: u32) -> Counts {
        Counts { skipped, killed, failed, passed, reran }
    }

    /// The sample of OpenZFS's tests/README.md: 52 skipped and 1129 passed of 1181 in 2:35:33.
    #[test]
    fn the_summary_is_that_of_the_documented_sample() {
        let time = Duration::from_secs(2 * 3600 + 35 * 60 + 33);
        let directory = "/var/tmp/test_results/20180515T054509";
        let summary = counts(52, 0, 0, 1129, 0).summary(time, directory);
        let sample = "
Results Summary
SKIP\t  52
PASS\t 1129

Running Time:\t02:35:33
Percent passed:\t95.6%
Log directory:\t/var/tmp/test_results/20180515T054509
";
        assert_eq!(summary, sample);
        assert_eq!(counts(52, 0, 0, 1129, 0).status(0, 0), Status::Good);
    }

    #[test]
    fn exit_codes_are_those_of_the_table() {
        assert_eq!(counts(0, 0, 0, 0, 0).status(0, 0), Status::NothingRan);
        assert_eq!(counts(3, 0, 0, 0, 0).status(0, 0), Status::Good);
        assert_eq!(counts(0, 0, 1, 9, 0).status(0, 0), Status::Failed);
        assert_eq!(counts(0, 1, 0, 9, 1).status(0, 0), Status::Failed);
        assert_eq!(counts(0, 0, 0, 9, 1).status(0, 0), Status::OnlyReran);
        assert_eq!(counts(0, 0, 1, 9, 0).status(1, 0), Status::Good);
        assert_eq!(counts(0, 0, 0, 9, 0).status(0, 1), Status::Failed);
    }

    #[test]
    fn each_end_of_a_script_has_its_verdict() {
        for (end, verdict) in [
            (End::Exited(0), Verdict::Pass),
            (End::Exited(4), Verdict::Skip),
            (End::Exited(1), Verdict::Fail),
            (End::Exited(139), Verdict::Fail),
            (End::Signalled(11), Verdict::Fail),
            (End::TimedOut { slept: false }, Verdict::Killed),
            (End::NotStarted("it is no file".into()), Verdict::Fail),
        ] {
            assert_eq!(end.verdict(), verdict, "{end:?}");
        }
    }
}
