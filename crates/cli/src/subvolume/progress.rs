//! The progress of a scan, for a user at a terminal.
//!
//! One line on standard error that is written over, and only there: a script sees nothing of it.

use std::io::{self, IsTerminal, Write};

use copyhold_serve::wire::scan::Done;

#[derive(Debug)]
pub(super) struct Progress {
    what: &'static str,
    shown: bool,
    percent: Option<u64>,
}

impl Progress {
    /// Shows nothing yet.
    pub(super) fn new(what: &'static str) -> Progress {
        Progress { what, shown: io::stderr().is_terminal(), percent: None }
    }

    pub(super) fn at(&mut self, Done { done, of }: Done) {
        let percent = (done.min(of) * 100).checked_div(of).unwrap_or(100);
        if self.shown && self.percent.replace(percent) != Some(percent) {
            let _ = write!(io::stderr(), "\r{} {percent:3} %", self.what);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.percent.is_some() {
            // To the end of the line, which is left empty.
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}
