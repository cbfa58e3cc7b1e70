//! The destination of the daemon's log: standard error in the foreground, the system log in the
//! background, or a requested file.
//!
//! The system log is the datagram socket /dev/log (RFC 3164), which journald and every syslog
//! offer. Where there is none, /var/log/copyhold.log is appended to, if we may.
//!
//! No thread writes its own lines (`line_queue`): a log that is full, closed or slow costs lines,
//! and nothing else.

mod line_queue;

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process;

use tracing_subscriber::EnvFilter;

use self::line_queue::LineQueue;
use crate::failure::Failure;

/// Facility "daemon", severity "notice".
const SYSLOG_PRIORITY: u8 = 3 << 3 | 5;
const FALLBACK: &str = "/var/log/copyhold.log";
/// The target of a panic's line, which no filter leaves out.
const PANIC: &str = "panic";

/// A log that is being written. Dropping it writes what is left, if the place takes it.
#[must_use]
pub(crate) struct Log(Option<LineQueue>);

impl Drop for Log {
    fn drop(&mut self) {
        self.flush();
    }
}

impl Log {
    /// Writes what is left, if the place takes it within a moment.
    fn flush(&self) {
        if let Some(lines) = &self.0 {
            lines.flush();
        }
    }

    /// From here on a panic in any thread is logged and ends the process: the daemon never
    /// continues in part.
    pub(crate) fn end_on_panic(&self) {
        let log = Log(self.0.clone());
        std::panic::set_hook(Box::new(move |panic| {
            let thread = std::thread::current();
            let thread = thread.name().unwrap_or("unnamed");
            let trace = std::backtrace::Backtrace::capture();
            tracing::error!(target: PANIC, "thread {thread}: {panic}\n{trace}");
            log.flush();
            process::abort();
        }));
    }
}

/// Logs to standard error.
pub(crate) fn to_stderr(filter: &str) -> Result<Log, Failure> {
    let filter = parse(filter)?;
    let is_terminal = rustix::termios::isatty(io::stderr());
    // Not through its lock, which a message at the end needs.
    let own = rustix::io::dup(io::stderr());
    let own = own.map_err(|errno| Failure::system("standard error", &errno.into()))?;
    let lines = start(File::from(own))?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(is_terminal)
        .with_target(false)
        .with_writer(lines.clone())
        .init();
    Ok(Log(Some(lines)))
}

/// Logs to `file`, else to the system log.
pub(crate) fn in_background(filter: &str, file: Option<&Path>) -> Result<Log, Failure> {
    let filter = parse(filter)?;
    let fmt = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false);
    let lines = match file {
        Some(path) => start(append(path)?)?,
        None => match SystemLog::connect() {
            Ok(log) => {
                let lines = start(log)?;
                fmt.without_time().with_target(false).with_writer(lines.clone()).init();
                return Ok(Log(Some(lines)));
            }
            Err(_) => match append(Path::new(FALLBACK)) {
                Ok(file) => start(file)?,
                Err(_) => return Ok(Log(None)),
            },
        },
    };
    fmt.with_writer(lines.clone()).init();
    Ok(Log(Some(lines)))
}

fn start(place: impl Write + Send + 'static) -> Result<LineQueue, Failure> {
    LineQueue::start(place).map_err(|error| Failure::system("starting a thread", &error))
}

fn parse(filter: &str) -> Result<EnvFilter, Failure> {
    let parsed = EnvFilter::try_new(filter).map_err(|error| {
        Failure::usage(format!("--log {filter}: {error}; write a level: error, warn, info, debug"))
    })?;
    Ok(parsed.add_directive(format!("{PANIC}=error").parse().expect("a target and a level")))
}

/// Opens a log that others may write to as well.
pub(crate) fn append(path: &Path) -> Result<File, Failure> {
    File::options()
        .create(true)
        .append(true)
        .mode(0o640)
        .open(path)
        .map_err(|error| Failure::system(path.display(), &error))
}

/// Each line that is written is one message.
struct SystemLog(UnixDatagram);

impl SystemLog {
    fn connect() -> io::Result<SystemLog> {
        let socket = UnixDatagram::unbound()?;
        socket.connect("/dev/log")?;
        Ok(SystemLog(socket))
    }
}

impl Write for SystemLog {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut message = format!("<{SYSLOG_PRIORITY}>copyhold[{}]: ", process::id()).into_bytes();
        message.extend_from_slice(line.trim_ascii_end());
        if self.0.send(&message).is_err() {
            // The system log was started anew: its socket is another one.
            self.0.connect("/dev/log")?;
            self.0.send(&message)?;
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;
    use std::thread;

    use super::*;

    /// Set for the process that panics, to the filter of its log.
    const PANICS: &str = "COPYHOLD_TEST_PANICS";

    #[test]
    fn a_panic_in_any_thread_is_logged_and_ends_the_process() {
        if let Ok(filter) = std::env::var(PANICS) {
            to_stderr(&filter).unwrap().end_on_panic();
            let hand = thread::Builder::new().name("a hand".to_owned());
            let _ = hand.spawn(|| panic!("on purpose")).unwrap().join();
            return;
        }
        for filter in ["info", "copyhold_fs=debug", "off"] {
            let mut process = Command::new(std::env::current_exe().unwrap());
            process.args(["a_panic_in_any_thread_is_logged_and_ends_the_process", "--nocapture"]);
            let output = process.env(PANICS, filter).output().unwrap();
            assert_eq!(output.status.signal(), Some(rustix::process::Signal::ABORT.as_raw()));
            let log = String::from_utf8_lossy(&output.stderr);
            assert!(log.contains("thread a hand") && log.contains("on purpose"), "{filter}: {log}");
        }
    }
}
