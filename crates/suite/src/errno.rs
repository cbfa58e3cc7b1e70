//! Error numbers by name, and out of what programs say.

use std::fmt;
use std::io;

/// The errors that scenarios can name.
const NAMES: [(&str, rustix::io::Errno); 26] = {
    use rustix::io::Errno;
    [
        ("EACCES", Errno::ACCESS),
        ("EBUSY", Errno::BUSY),
        ("EDQUOT", Errno::DQUOT),
        ("EEXIST", Errno::EXIST),
        ("EFBIG", Errno::FBIG),
        ("EINVAL", Errno::INVAL),
        ("EIO", Errno::IO),
        ("EISDIR", Errno::ISDIR),
        ("ELOOP", Errno::LOOP),
        ("EMLINK", Errno::MLINK),
        ("ENAMETOOLONG", Errno::NAMETOOLONG),
        ("ENODATA", Errno::NODATA),
        ("ENOENT", Errno::NOENT),
        ("ENOSPC", Errno::NOSPC),
        ("ENOSYS", Errno::NOSYS),
        ("ENOTCONN", Errno::NOTCONN),
        ("ENOTDIR", Errno::NOTDIR),
        ("ENOTEMPTY", Errno::NOTEMPTY),
        ("ENOTTY", Errno::NOTTY),
        ("EOPNOTSUPP", Errno::OPNOTSUPP),
        ("EOVERFLOW", Errno::OVERFLOW),
        ("EPERM", Errno::PERM),
        ("ERANGE", Errno::RANGE),
        ("EROFS", Errno::ROFS),
        ("ESTALE", Errno::STALE),
        ("EXDEV", Errno::XDEV),
    ]
};

/// Words that Copyhold's program uses where no system call stands behind a failure. A command line
/// that makes no sense to it ("usage") is none that a scenario expects.
const WORDS: [(&str, &str); 5] = [
    ("not-found", "ENOENT"),
    ("exists", "EEXIST"),
    ("full", "ENOSPC"),
    ("permission", "EPERM"),
    ("in-use", "EBUSY"),
];

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Errno(i32);

impl Errno {
    pub(crate) fn named(name: &str) -> Option<Errno> {
        NAMES.iter().find(|(known, _)| *known == name).map(|(_, errno)| Errno(errno.raw_os_error()))
    }

    /// From the `code` of a failure that Copyhold's program prints as JSON.
    pub(crate) fn of_code(code: &str) -> Option<Errno> {
        let name = WORDS.iter().find(|(word, _)| *word == code).map_or(code, |(_, name)| name);
        Errno::named(name)
    }

    /// From the system's text for it, as programs print it at the end of a line.
    pub(crate) fn in_text(text: &str) -> Option<Errno> {
        let errnos = NAMES.iter().map(|(_, errno)| Errno(errno.raw_os_error()));
        let ends_with = |says: &str| text.lines().any(|line| line.trim_end().ends_with(says));
        errnos.into_iter().find(|errno| ends_with(&errno.text()))
    }

    /// Of a failed system call; `None` where no system call failed.
    pub(crate) fn of(error: &io::Error) -> Option<Errno> {
        error.raw_os_error().map(Errno)
    }

    fn text(self) -> String {
        let text = io::Error::from_raw_os_error(self.0).to_string();
        text.split(" (os error").next().unwrap_or_default().to_owned()
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMES.iter().find(|(_, errno)| errno.raw_os_error() == self.0) {
            Some((name, _)) => f.write_str(name),
            None => write!(f, "errno {}", self.0),
        }
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_words_and_texts_mean_the_same_numbers() {
        let quota = Errno::named("EDQUOT").unwrap();
        let said = "ERROR: cannot create subvolume: Disk quota exceeded\n";
        assert_eq!(Errno::in_text(said), Some(quota));
        assert_eq!(Errno::of_code("EDQUOT"), Some(quota));
        assert_eq!(Errno::of_code("in-use"), Errno::named("EBUSY"));
        assert_eq!(Errno::of_code("usage"), None);
        assert_eq!(quota.to_string(), "EDQUOT");
        assert_eq!(Errno::in_text("all went well"), None);
        assert_eq!(Errno::named("EWHATEVER"), None);
    }
}
