//! Log lines on their way to where they are written.
//!
//! Problem.  A write of a line may fail, or wait for ever: the file is on a full filesystem, or on
//!           the very mount that the daemon serves; a pipe has no reader. A request that logs must
//!           not wait for that, and a line that is lost is no reason to end.
//! Idea.     A bounded queue and one thread that writes. A line that finds the queue full is
//!           dropped and counted, as is one whose write fails; the next one that is written comes
//!           behind a line that says how many are missing.
//!
//! LOGLINE-Q1  Logging neither waits nor fails.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use tracing_subscriber::fmt::MakeWriter;

/// Lines that may wait.
const LINES_MAX: usize = 1024;
/// How long [`LineQueue::flush`] waits for a place that does not take lines now.
const FLUSH_MAX: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(5);

enum Message {
    Line(Vec<u8>),
    /// All lines before are written, or lost.
    Flush(SyncSender<()>),
}

/// The way into the queue. Cheap to clone.
#[derive(Clone)]
pub(super) struct LineQueue {
    messages: SyncSender<Message>,
    lost: Arc<AtomicU64>,
}

impl LineQueue {
    /// Starts the thread that writes to `place`, a line at each call. It blocks no signals that
    /// are not blocked here.
    pub(super) fn start(place: impl Write + Send + 'static) -> io::Result<LineQueue> {
        let (messages, queue) = sync_channel(LINES_MAX);
        let lost = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&lost);
        let write = move || write_all(&queue, place, &counted);
        thread::Builder::new().name("log".into()).spawn(write)?;
        Ok(LineQueue { messages, lost })
    }

    /// Waits until what was logged before is written, but no longer than [`FLUSH_MAX`].
    pub(super) fn flush(&self) {
        let begin = Instant::now();
        let (tell, told) = sync_channel(1);
        while self.messages.try_send(Message::Flush(tell.clone())).is_err() {
            if begin.elapsed() >= FLUSH_MAX {
                return;
            }
            thread::sleep(PAUSE);
        }
        let _late = told.recv_timeout(FLUSH_MAX.saturating_sub(begin.elapsed()));
    }
}

/// The thread.
fn write_all(queue: &Receiver<Message>, mut place: impl Write, lost: &AtomicU64) {
    while let Ok(message) = queue.recv() {
        let line = match message {
            Message::Line(line) => line,
            Message::Flush(tell) => {
                let _gone = tell.try_send(());
                continue;
            }
        };
        let missing = lost.load(Relaxed);
        if missing > 0 && place.write_all(missing_line(missing).as_bytes()).is_ok() {
            lost.fetch_sub(missing, Relaxed);
        }
        if place.write_all(&line).and_then(|()| place.flush()).is_err() {
            lost.fetch_add(1, Relaxed);
        }
    }
}

fn missing_line(lines: u64) -> String {
    format!("{lines} lines of this log could not be written here\n")
}

impl<'a> MakeWriter<'a> for LineQueue {
    type Writer = &'a LineQueue;

    fn make_writer(&'a self) -> &'a LineQueue {
        self
    }
}

impl Write for &LineQueue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.messages.try_send(Message::Line(line.to_vec())).is_err() {
            self.lost.fetch_add(1, Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    /// Takes one line for each message of `allowed`, and fails for each `false`.
    struct Gate {
        allowed: Receiver<bool>,
        written: Sender<Vec<u8>>,
    }

    impl Write for Gate {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            if !self.allowed.recv().unwrap_or(true) {
                return Err(io::ErrorKind::StorageFull.into());
            }
            let _ = self.written.send(line.to_vec());
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn gate() -> (LineQueue, Sender<bool>, Receiver<Vec<u8>>) {
        let ((allow, allowed), (written, seen)) = (channel(), channel());
        (LineQueue::start(Gate { allowed, written }).unwrap(), allow, seen)
    }

    #[test]
    fn lines_that_fail_are_counted_before_the_next_one() {
        let (queue, allow, seen) = gate();
        for may in [false, false, false, true, true] {
            allow.send(may).unwrap();
        }
        for line in ["one\n", "two\n", "three\n"] {
            (&queue).write_all(line.as_bytes()).unwrap();
        }
        drop(queue);
        // The second does not even learn of the first, and fails itself.
        let said: Vec<_> = seen.iter().collect();
        assert_eq!(said, [missing_line(2).as_bytes(), b"three\n"]);
    }

    #[test]
    fn a_place_that_blocks_delays_nobody_and_costs_the_lines_beyond_the_queue() {
        let (queue, allow, seen) = gate();
        let more = 10;
        // The writer may hold one that it has taken out of the queue.
        for _ in 0..LINES_MAX + 1 + more {
            (&queue).write_all(b"line\n").unwrap();
        }
        drop(allow);
        let lost = Arc::clone(&queue.lost);
        drop(queue);
        let written = seen.iter().filter(|line| line == b"line\n").count();
        assert!([LINES_MAX, LINES_MAX + 1].contains(&written), "{written}");
        assert_eq!(lost.load(Relaxed), 0, "each lost line is counted in a message");
    }
}
