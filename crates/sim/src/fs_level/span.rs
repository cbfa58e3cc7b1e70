//! When something happened, as far as it is known: between the begin and the end of an operation.

use copyhold_types::Timestamp;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Span {
    /// By the operation that is about to begin.
    Now,
    /// By one that has begun then.
    Since(Timestamp),
    Between(Timestamp, Timestamp),
    /// Set to that, or found by a machine whose clock may be behind that of the one before.
    At(Timestamp),
    /// The number is not known.
    Any,
}

impl Span {
    pub(crate) fn begin(&mut self, now: Timestamp) {
        if *self == Span::Now {
            *self = Span::Since(now);
        }
    }

    pub(crate) fn end(&mut self, now: Timestamp) {
        if let Span::Since(begun) = *self {
            *self = Span::Between(begun, now);
        }
    }

    pub(crate) fn holds(self, time: Timestamp) -> bool {
        match self {
            Span::Now | Span::Any => true,
            Span::Since(begun) => begun <= time,
            Span::Between(begun, ended) => (begun..=ended).contains(&time),
            Span::At(only) => only == time,
        }
    }

    /// Whether it surely begins behind `time`, by the same clock.
    pub(crate) fn is_behind(self, time: Timestamp) -> bool {
        matches!(self, Span::Since(begun) | Span::Between(begun, _) if begun > time)
    }
}
