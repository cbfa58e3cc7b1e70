//! The way of requests: chosen by the user, or by the kernel's offer.

use std::fmt;
use std::str::FromStr;

/// The transport that a session is to use. `docs/transport.md` has the differences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// The ring where the kernel offers it, else the device.
    #[default]
    Auto,
    /// `/dev/fuse` alone.
    Device,
    /// FUSE over io_uring, or an error.
    Uring,
}

impl Transport {
    /// Whether the ring is tried.
    pub(crate) fn tries_ring(self) -> bool {
        self != Transport::Device
    }
}

/// As the option has it.
impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Transport::Auto => "auto",
            Transport::Device => "dev",
            Transport::Uring => "uring",
        })
    }
}

impl FromStr for Transport {
    type Err = UnknownTransport;

    fn from_str(text: &str) -> Result<Transport, UnknownTransport> {
        match text {
            "auto" => Ok(Transport::Auto),
            "dev" => Ok(Transport::Device),
            "uring" => Ok(Transport::Uring),
            _ => Err(UnknownTransport),
        }
    }
}

/// A transport is `auto`, `dev` or `uring`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownTransport;

impl fmt::Display for UnknownTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a transport is auto, dev or uring")
    }
}

impl std::error::Error for UnknownTransport {}
