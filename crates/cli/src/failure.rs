//! The program's output when it fails: one line for a person, one object for a program, one exit
//! code for a script.
//!
//! The table of exit codes below is the only one: `copyhold help exit-codes`, the man page and
//! `docs/operating.md` (by a test) print it.

use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use copyhold_fuse::Errno;
use copyhold_fuse::mount::MountError;

use copyhold_serve::chain;
use copyhold_serve::wire::Refusal;

/// The kind of failure; decides the exit code and the `code` that `--json` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The operation failed for a reason that only the message gives.
    Failed,
    /// The pool, file or directory is missing.
    NotFound,
    /// There is something, but no pool.
    NotAPool,
    /// A newer program made this pool.
    NewerFormat,
    /// `create` would overwrite something.
    Exists,
    /// No space, in the pool or on the host.
    Full,
    /// The device answered with an error.
    Device,
    /// Nothing is mounted there.
    NotMounted,
    /// The system refuses this user.
    Permission,
    /// The command line makes no sense.
    Usage,
    /// Data read from the pool is not the data written.
    Damaged,
    /// Another process holds it, or programs still use it.
    InUse,
}

impl Kind {
    const ALL: [Kind; 12] = [
        Kind::Failed,
        Kind::NotFound,
        Kind::NotAPool,
        Kind::NewerFormat,
        Kind::Exists,
        Kind::Full,
        Kind::Device,
        Kind::NotMounted,
        Kind::Permission,
        Kind::Usage,
        Kind::Damaged,
        Kind::InUse,
    ];

    /// The stable word that `--json` shows.
    pub(crate) fn code(self) -> &'static str {
        match self {
            Kind::Failed => "failed",
            Kind::NotFound => "not-found",
            Kind::NotAPool => "not-a-pool",
            Kind::NewerFormat => "newer-format",
            Kind::Exists => "exists",
            Kind::Full => "full",
            Kind::Device => "device",
            Kind::NotMounted => "not-mounted",
            Kind::Permission => "permission",
            Kind::Usage => "usage",
            Kind::Damaged => "damaged",
            Kind::InUse => "in-use",
        }
    }

    /// The kind that `code` names.
    pub(crate) fn from_code(code: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.code() == code)
    }

    pub(crate) fn exit_status(self) -> u8 {
        match self {
            Kind::Usage => 2,
            Kind::Damaged => 3,
            Kind::InUse => 4,
            _ => 1,
        }
    }
}

/// Exit codes and what they mean, as `help exit-codes`, the man page and the book show them.
pub(crate) const EXIT_CODES: [(u8, &str); 5] = [
    (0, "it was done"),
    (1, "the operation failed; the message says why and what to do"),
    (2, "the command line is invalid"),
    (3, "damage was found: the stored content is not the written content"),
    (4, "in use: another process holds the pool, or programs still use the mount"),
];

/// A failed operation.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) kind: Kind,
    /// The name of an errno, which `--json` shows instead of the kind's word.
    errno: Option<String>,
    message: String,
}

impl Failure {
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Failure {
        Failure { kind, errno: None, message: message.into() }
    }

    /// This failure, of an operation that has changed something before.
    pub(crate) fn after(self, change: &str) -> Failure {
        Failure { message: format!("{change}; then: {}", self.message), ..self }
    }

    /// The engine refuses what concerns tenants.
    pub(crate) fn refused(refusal: Refusal) -> Failure {
        let kind = match refusal.code.as_str() {
            "ENOENT" => Kind::NotFound,
            "EEXIST" => Kind::Exists,
            "ENOSPC" => Kind::Full,
            "EIO" => Kind::Device,
            "EPERM" | "EACCES" => Kind::Permission,
            _ => Kind::Failed,
        };
        Failure { errno: Some(refusal.code), ..Failure::new(kind, refusal.message) }
    }

    /// A system call on `what` failed, in a verb that reports errnos.
    pub(crate) fn call(what: impl fmt::Display, error: &io::Error) -> Failure {
        let errno = error.raw_os_error().and_then(|code| Errno::new(code).name());
        Failure { errno: errno.map(str::to_owned), ..Failure::system(what, error) }
    }

    /// The `code` that `--json` shows.
    pub(crate) fn code(&self) -> &str {
        self.errno.as_deref().unwrap_or(self.kind.code())
    }

    pub(crate) fn usage(message: impl Into<String>) -> Failure {
        Failure::new(Kind::Usage, message)
    }

    /// A system call on `what` failed.
    pub(crate) fn system(what: impl fmt::Display, error: &io::Error) -> Failure {
        let kind = match error.kind() {
            ErrorKind::NotFound => Kind::NotFound,
            ErrorKind::PermissionDenied => Kind::Permission,
            ErrorKind::ResourceBusy => Kind::InUse,
            ErrorKind::StorageFull => Kind::Full,
            ErrorKind::AlreadyExists => Kind::Exists,
            _ => Kind::Failed,
        };
        Failure::new(kind, format!("{what}: {error}"))
    }

    /// For a pipe: the form that [`Self::from_text`] reads.
    pub(crate) fn to_text(&self) -> String {
        format!("{}\n{}", self.kind.code(), self.message)
    }

    /// The failure that another process of this program wrote with [`Self::to_text`].
    pub(crate) fn from_text(text: &str) -> Failure {
        let (code, message) = text.split_once('\n').unwrap_or(("", text));
        Failure::new(Kind::from_code(code).unwrap_or(Kind::Failed), message)
    }

    /// Prints to standard error, as text or as one JSON object, and returns the exit code.
    pub(crate) fn report(&self, json: bool) -> ExitCode {
        if json {
            let error = serde_json::json!({
                "error": { "code": self.code(), "message": self.message }
            });
            complain(&error);
        } else {
            complain(&format!("copyhold: {}", self.message));
        }
        ExitCode::from(self.kind.exit_status())
    }
}

/// Prints to standard error; errors of that are ignored.
pub(crate) fn complain(text: &impl fmt::Display) {
    let _full_or_closed = writeln!(io::stderr(), "{text}");
}

impl From<MountError> for Failure {
    fn from(error: MountError) -> Failure {
        let kind = match &error {
            MountError::Missing { .. } => Kind::NotFound,
            MountError::NotADirectory { .. } => Kind::Usage,
            MountError::AlreadyMounted { .. }
            | MountError::Busy { .. }
            | MountError::SourceBusy { .. } => Kind::InUse,
            MountError::NotMounted { .. } => Kind::NotMounted,
            MountError::Permission { .. } | MountError::AllowOther => Kind::Permission,
            _ => Kind::Failed,
        };
        Failure::new(kind, chain(&error))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// The table for people.
pub(crate) fn exit_codes_text() -> String {
    EXIT_CODES.iter().map(|(status, meaning)| format!("{status}  {meaning}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_exits_with_a_documented_code() {
        for kind in Kind::ALL {
            assert_eq!(Kind::from_code(kind.code()), Some(kind));
            assert!(EXIT_CODES.iter().any(|(status, _)| *status == kind.exit_status()));
        }
    }

    #[test]
    fn a_failure_survives_a_pipe() {
        let failure = Failure::from_text(&Failure::new(Kind::InUse, "it is\nlocked").to_text());
        assert_eq!((failure.kind, failure.to_string().as_str()), (Kind::InUse, "it is\nlocked"));
        assert_eq!(Failure::from_text("what").kind, Kind::Failed);
    }

    #[test]
    fn what_the_engine_refuses_is_told_by_its_errno() {
        let full = Failure::refused(Refusal::new("EDQUOT", "quota group 1/7 is at its limit"));
        assert_eq!((full.kind, full.code()), (Kind::Failed, "EDQUOT"));
        let gone = Failure::call("/x", &rustix::io::Errno::NOENT.into());
        assert_eq!((gone.kind, gone.code()), (Kind::NotFound, "ENOENT"));
        assert_eq!(Failure::usage("what").code(), "usage");
    }

    #[test]
    fn a_busy_directory_is_in_use() {
        let failure = Failure::system("/mnt", &rustix::io::Errno::BUSY.into());
        assert_eq!(failure.kind, Kind::InUse);
        assert!(failure.to_string().starts_with("/mnt: "));
    }

    #[test]
    fn the_book_has_the_same_exit_codes() {
        let book = include_str!("../../../docs/operating.md");
        for (status, meaning) in EXIT_CODES {
            let row = format!("| {status} | {meaning} |");
            assert!(book.contains(&row), "docs/operating.md lacks: {row}");
        }
    }
}
