//! Going into the background, in such a way that the caller knows whether it worked.
//!
//! Problem.  `mount` must return when the mount can be used, and report an earlier failure; the
//!           process that serves it lives on. A process with threads cannot fork.
//! Idea.     [`fork`] comes first, before any thread. The child continues, with a pipe to its
//!           parent. The parent waits: for "ready" it prints the text of the message and exits
//!           with success, for a failure it prints that and fails; if the child ends without a
//!           message it fails with the child's exit code.
//! Order.    `fork`; open the pool, mount, start the session; [`Launch::ready`], which also
//!           detaches from the terminal; serve.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;

use rustix::pipe::{PipeFlags, pipe_with};

use crate::sys::{self, Fork};

const READY: u8 = 0;
const FAILED: u8 = 1;

/// Where [`fork`] returned.
#[derive(Debug)]
pub enum Side {
    /// In the process that was started; the other one serves, or has failed.
    Parent(Outcome),
    /// In the one that serves.
    Child(Launch),
}

/// The child's report to its parent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// With a warning for its user; mostly empty.
    Ready(String),
    /// Could not start, and why.
    Failed(String),
    /// Ended without a word, with this exit code.
    Died(i32),
}

/// The child's obligation to say how it went. Dropping it says nothing: see [`Outcome::Died`].
#[derive(Debug)]
pub struct Launch {
    pipe: File,
    /// The terminal's substitute from then on, opened while a failure can be reported.
    nothing: OwnedFd,
    log: OwnedFd,
}

/// Forks this process. Fails if it has more than one thread. Text written to standard output and
/// error after [`Launch::ready`] is written to `log`, or lost without one.
pub fn fork(log: Option<File>) -> io::Result<Side> {
    let threads = sys::threads()?;
    assert!(threads == 1, "fork before the first thread is started; there are {threads}");
    let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
    let nothing: OwnedFd = OpenOptions::new().read(true).write(true).open("/dev/null")?.into();
    let log = match log {
        Some(file) => file.into(),
        None => nothing.try_clone()?,
    };
    match sys::fork()? {
        Fork::Parent { child } => {
            drop(theirs);
            Ok(Side::Parent(listen(ours.into(), child)?))
        }
        Fork::Child => {
            drop(ours);
            // A session of its own: no signal of the terminal reaches it.
            rustix::process::setsid()?;
            Ok(Side::Child(Launch { pipe: theirs.into(), nothing, log }))
        }
    }
}

fn listen(mut pipe: File, child: i32) -> io::Result<Outcome> {
    let mut said = Vec::new();
    pipe.read_to_end(&mut said)?;
    match said.split_first() {
        Some((&READY, text)) => Ok(Outcome::Ready(String::from_utf8_lossy(text).into_owned())),
        Some((_, text)) => {
            sys::wait_for(child)?;
            Ok(Outcome::Failed(String::from_utf8_lossy(text).into_owned()))
        }
        None => Ok(Outcome::Died(sys::wait_for(child)?)),
    }
}

impl Launch {
    /// The mount can be used: lets the parent print `text`, if any, and go; and leaves terminal and
    /// working directory. The parent goes even after an error.
    pub fn ready(mut self, text: &str) -> io::Result<()> {
        let left = self.leave_terminal();
        // With any result of that, the pool is mounted, and the parent waits for this.
        self.pipe.write_all(&[&[READY], text.as_bytes()].concat())?;
        left
    }

    fn leave_terminal(&self) -> io::Result<()> {
        std::env::set_current_dir("/")?;
        rustix::stdio::dup2_stdin(&self.nothing)?;
        rustix::stdio::dup2_stdout(&self.log)?;
        rustix::stdio::dup2_stderr(&self.log)?;
        Ok(())
    }

    /// It could not start: the parent prints `text`. The child should end now.
    pub fn failed(mut self, text: &str) {
        let message = [&[FAILED], text.as_bytes()].concat();
        // Without a parent the message has no reader.
        let _ = self.pipe.write_all(&message);
    }
}
