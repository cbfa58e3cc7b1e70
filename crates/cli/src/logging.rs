//! Where the daemon's log goes: standard error in the foreground, the system log in the background,
//! or a file that was asked for.
//!
//! The system log is the datagram socket /dev/log (RFC 3164), which journald and every syslog
//! offer. Where there is none, /var/log/copyhold.log is appended to, if we may.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process;
use std::sync::Arc;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::failure::Failure;

/// Facility "daemon", severity "notice".
const SYSLOG_PRIORITY: u8 = 3 << 3 | 5;
const FALLBACK: &str = "/var/log/copyhold.log";

/// Logs to standard error.
pub(crate) fn to_stderr(filter: &str) -> Result<(), Failure> {
    let filter = parse(filter)?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(rustix::termios::isatty(io::stderr()))
        .with_target(false)
        .init();
    Ok(())
}

/// Logs to `file`, else to the system log.
pub(crate) fn in_background(filter: &str, file: Option<&Path>) -> Result<(), Failure> {
    let filter = parse(filter)?;
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false);
    match file {
        Some(path) => lines.with_writer(Arc::new(append(path)?)).init(),
        None => match SystemLog::connect() {
            Ok(log) => lines.without_time().with_target(false).with_writer(log).init(),
            Err(_) => match append(Path::new(FALLBACK)) {
                Ok(file) => lines.with_writer(Arc::new(file)).init(),
                Err(_) => return Ok(()),
            },
        },
    }
    Ok(())
}

fn parse(filter: &str) -> Result<EnvFilter, Failure> {
    EnvFilter::try_new(filter).map_err(|error| {
        Failure::usage(format!("--log {filter}: {error}; write a level: error, warn, info, debug"))
    })
}

fn append(path: &Path) -> Result<File, Failure> {
    File::options()
        .create(true)
        .append(true)
        .open(path)
        .map_err(|error| Failure::system(path.display(), &error))
}

/// Each line that is written is one message.
#[derive(Clone)]
struct SystemLog(Arc<UnixDatagram>);

impl SystemLog {
    fn connect() -> io::Result<SystemLog> {
        let socket = UnixDatagram::unbound()?;
        socket.connect("/dev/log")?;
        // The daemon must never wait for its log.
        socket.set_nonblocking(true)?;
        Ok(SystemLog(Arc::new(socket)))
    }
}

impl Write for SystemLog {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut message = format!("<{SYSLOG_PRIORITY}>copyhold[{}]: ", process::id()).into_bytes();
        message.extend_from_slice(line.trim_ascii_end());
        // A log that cannot keep up loses lines.
        let _ = self.0.send(&message);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for SystemLog {
    type Writer = SystemLog;

    fn make_writer(&'a self) -> SystemLog {
        self.clone()
    }
}
