//! A connection without a kernel: its owner sends requests as bytes and reads the answers.
//!
//! For tests without a mount: fuzzing, tests of orders of events that a kernel would hardly
//! produce. A pair of sockets stands for `/dev/fuse`, and the code behind it is that of a mount:
//! INIT, the reader, the desk, parked operations. Only threads are missing: a request is read and
//! polled once within [`Loopback::ask`], and waiting operations continue where the spawner runs
//! them.

use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::desk::{Channel, Connection};
use crate::device::{Device, End};
use crate::operations::Operations;
use crate::payload::Buffers;
use crate::protocol::Settings;
use crate::reader;
use crate::session::{Agreed, SessionError, buffer_bytes, shake_hands};
use crate::spawn::Spawner;

/// A longer answer is replaced by EIO.
const ANSWER_MAX: usize = 160 << 10;

/// The kernel's end of a connection, and one reader at the other.
pub struct Loopback {
    kernel: OwnedFd,
    turn: Box<dyn FnMut() -> Option<End> + Send>,
    answer: Vec<u8>,
}

impl Loopback {
    /// Agrees with a kernel whose first request is `init`.
    pub fn start<O: Operations>(
        fs: Arc<O>,
        spawner: Arc<dyn Spawner>,
        settings: &Settings,
        init: &[u8],
    ) -> Result<Loopback, SessionError> {
        let failed = |error: rustix::io::Errno| SessionError::Device(error.into());
        let kind = SocketType::SEQPACKET;
        let flags = SocketFlags::CLOEXEC;
        let (kernel, served) =
            rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None).map_err(failed)?;
        rustix::net::send(&kernel, init, SendFlags::NOSIGNAL).map_err(failed)?;
        let device = Device::new(served);
        let agreed: Agreed<O> = shake_hands(&device, settings, 0, None)?;
        fs.init(&agreed.negotiated);
        let negotiated = agreed.negotiated;
        let buffers = Buffers::new(buffer_bytes(negotiated.max_write), 64 << 20, usize::MAX);
        let connection = Connection::new(fs, negotiated.dialect(), spawner, buffers, None);
        let turn = reader::by_turns(Channel::new(device, &connection));
        Ok(Loopback { kernel, turn: Box::new(turn), answer: vec![0; ANSWER_MAX] })
    }

    /// Sends one request and has it polled once. False: it was not taken, being empty or longer
    /// than a socket takes.
    ///
    /// Hear all answers before the next one: a full socket makes the answering thread wait.
    pub fn ask(&mut self, message: &[&[u8]]) -> bool {
        if message.iter().all(|part| part.is_empty()) {
            return false;
        }
        let parts: Vec<IoSlice<'_>> = message.iter().map(|part| IoSlice::new(part)).collect();
        if rustix::io::writev(&self.kernel, &parts).is_err() {
            return false;
        }
        (self.turn)().is_none()
    }

    /// An available answer, from its header on.
    pub fn hear(&mut self) -> Option<&[u8]> {
        let flags = RecvFlags::DONTWAIT;
        let (len, _) = rustix::net::recv(&self.kernel, &mut self.answer[..], flags).ok()?;
        Some(&self.answer[..len])
    }
}
