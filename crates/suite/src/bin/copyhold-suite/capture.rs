//! The output of one script, line by line.
//!
//! Problem.  A log needs the time of each line of both streams, so they go through pipes. A process
//!           that a script leaves behind may keep a pipe open for ever, or fill it without end.
//! Idea.     The runner reads what is there, without waiting, each time it wakes. After the end of
//!           the script it reads the rest, at most as much as pipes hold, and closes them.
//!
//! CAPTURE-O1  `stdout` and `stderr` have the bytes of the script unchanged. `merged` has all lines
//!             in the order of their arrival.
//! CAPTURE-O2  No reading waits for a process.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{ChildStderr, ChildStdout};
use std::time::SystemTime;

use rustix::event::{PollFd, PollFlags};
use rustix::io::ioctl_fionbio;

use crate::clock::time_of_day;

/// Bytes of one reading.
const CHUNK: usize = 64 << 10;
/// Readings behind the end of a script. A pipe holds 64 KiB unless it was enlarged, to 1 MiB at
/// most.
const LAST_READINGS: usize = 17;

pub(crate) struct Capture {
    streams: Vec<Stream>,
    merged: File,
    /// Lines with their times, for the log of the run.
    timed: File,
}

struct Stream {
    pipe: File,
    is_open: bool,
    copy: File,
    /// The begin of a line whose end has not come.
    line: Vec<u8>,
}

impl Capture {
    /// Files are made in `directory`, which must exist.
    pub(crate) fn new(directory: &Path) -> io::Result<Capture> {
        let merged = File::create(directory.join("merged"))?;
        for name in ["stdout", "stderr"] {
            File::create(directory.join(name))?;
        }
        Ok(Capture { streams: Vec::new(), merged, timed: tempfile::tempfile()? })
    }

    /// Takes the pipes of a script that has been started.
    pub(crate) fn attach(
        &mut self,
        directory: &Path,
        stdout: Option<ChildStdout>,
        stderr: Option<ChildStderr>,
    ) -> io::Result<()> {
        let pipes = [("stdout", stdout.map(OwnedFd::from)), ("stderr", stderr.map(OwnedFd::from))];
        for (name, pipe) in pipes {
            let Some(pipe) = pipe else { continue };
            ioctl_fionbio(&pipe, true)?;
            let copy = File::options().append(true).open(directory.join(name))?;
            let pipe = File::from(pipe);
            self.streams.push(Stream { pipe, is_open: true, copy, line: Vec::new() });
        }
        Ok(())
    }

    /// A remark of the runner among the lines.
    pub(crate) fn remark(&mut self, text: &str) -> io::Result<()> {
        put_line(&mut self.merged, &mut self.timed, text.as_bytes())
    }

    /// The pipes that may have more.
    pub(crate) fn sources(&self) -> Vec<PollFd<'_>> {
        let open = self.streams.iter().filter(|stream| stream.is_open);
        open.map(|stream| PollFd::new(&stream.pipe, PollFlags::IN)).collect()
    }

    /// One reading of each pipe. Returns whether there was data.
    pub(crate) fn read(&mut self) -> io::Result<bool> {
        let mut chunk = vec![0; CHUNK];
        let mut any = false;
        for stream in self.streams.iter_mut().filter(|stream| stream.is_open) {
            let bytes = match stream.pipe.read(&mut chunk) {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            stream.is_open = bytes > 0;
            any |= bytes > 0;
            stream.copy.write_all(&chunk[..bytes])?;
            stream.line.extend_from_slice(&chunk[..bytes]);
            let Some(end) = stream.line.iter().rposition(|byte| *byte == b'\n') else { continue };
            let rest = stream.line.split_off(end + 1);
            let lines = std::mem::replace(&mut stream.line, rest);
            for line in lines[..end].split(|byte| *byte == b'\n') {
                put_line(&mut self.merged, &mut self.timed, line)?;
            }
        }
        Ok(any)
    }

    /// Reads the rest, and closes the pipes.
    pub(crate) fn detach(&mut self) -> io::Result<()> {
        for _ in 0..LAST_READINGS {
            if !self.read()? {
                break;
            }
        }
        for stream in std::mem::take(&mut self.streams) {
            if !stream.line.is_empty() {
                put_line(&mut self.merged, &mut self.timed, &stream.line)?;
            }
        }
        Ok(())
    }

    /// The lines with their times, from the first.
    pub(crate) fn into_lines(mut self) -> io::Result<File> {
        self.timed.rewind()?;
        Ok(self.timed)
    }
}

fn put_line(merged: &mut File, timed: &mut File, line: &[u8]) -> io::Result<()> {
    let time = time_of_day(SystemTime::now());
    merged.write_all(&[line, b"\n"].concat())?;
    timed.write_all(&[time.as_bytes(), b" ", line, b"\n"].concat())
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    fn start(script: &str) -> (tempfile::TempDir, Capture, Child) {
        let directory = tempfile::tempdir().unwrap();
        let mut capture = Capture::new(directory.path()).unwrap();
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = shell.spawn().unwrap();
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        capture.attach(directory.path(), stdout, stderr).unwrap();
        (directory, capture, child)
    }

    #[test]
    fn each_stream_is_kept_as_it_was_and_all_lines_are_merged() {
        let _turn = crate::alone::turn();
        let (directory, mut capture, mut child) =
            start(r"printf 'one\n\nfour'; printf 'two\377\n' >&2; printf tail >&2");
        child.wait().unwrap();
        capture.remark("the end").unwrap();
        capture.detach().unwrap();
        let read = |name| std::fs::read(directory.path().join(name)).unwrap();
        assert_eq!(read("stdout"), b"one\n\nfour");
        assert_eq!(read("stderr"), b"two\xff\ntail");
        let merged = read("merged");
        let mut lines: Vec<_> = merged.split(|byte| *byte == b'\n').collect();
        assert_eq!(lines.pop(), Some(&b""[..]));
        lines.sort();
        assert_eq!(lines, [&b""[..], b"four", b"one", b"tail", b"the end", b"two\xff"]);
        let mut timed = Vec::new();
        capture.into_lines().unwrap().read_to_end(&mut timed).unwrap();
        let timed = String::from_utf8_lossy(&timed).into_owned();
        assert!(
            timed.lines().all(|line| line.as_bytes()[2] == b':' && line.as_bytes()[11] == b' ')
        );
        assert_eq!(timed.lines().count(), 6);
    }

    #[test]
    fn a_process_that_floods_a_pipe_does_not_hold_the_runner() {
        let _turn = crate::alone::turn();
        let (_directory, mut capture, child) = start("yes & echo $! >&2; wait");
        while !capture.read().unwrap() {}
        capture.detach().unwrap();
        assert!(capture.sources().is_empty());
        // `yes` ends by SIGPIPE, and then the shell.
        assert!(child.wait_with_output().is_ok());
    }
}
