//! Error numbers as the kernel wants them: the one place of this crate that knows errno.

use std::fmt;
use std::io;

/// A positive errno below 512, the largest that the kernel takes from a FUSE reply.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(i32);

macro_rules! errnos {
    ($($name:ident),* $(,)?) => {
        impl Errno {
            $(pub const $name: Errno = Errno(libc::$name);)*
            const ALL: &[Errno] = &[$(Errno::$name),*];

            /// As programmers write it, of those that are known here.
            pub fn name(self) -> Option<&'static str> {
                match self.0 {
                    $(libc::$name => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

errnos! {
    EPERM, ENOENT, EINTR, EIO, ENXIO, E2BIG, EBADF, EAGAIN, ENOMEM, EACCES, EBUSY, EEXIST, EXDEV,
    ENODEV, ENOTDIR, EISDIR, EINVAL, ENFILE, EMFILE, ENOTTY, ETXTBSY, EFBIG, ENOSPC, ESPIPE, EROFS,
    EMLINK, ERANGE, EDEADLK, ENAMETOOLONG, ENOLCK, ENOSYS, ENOTEMPTY, ELOOP, ENODATA, EPROTO,
    EKEYEXPIRED, EOVERFLOW, EOPNOTSUPP, ETIMEDOUT, ECONNABORTED, ENOTCONN, ESTALE, EDQUOT, ECANCELED,
    EMEDIUMTYPE,
}

impl Errno {
    const MAX: i32 = 511;

    /// `code` as the kernel counts it; a number that it would not take becomes `EIO`.
    pub const fn new(code: i32) -> Errno {
        if code > 0 && code <= Errno::MAX { Errno(code) } else { Errno::EIO }
    }

    /// The error that is written so.
    pub fn named(name: &str) -> Option<Errno> {
        Errno::ALL.iter().copied().find(|errno| errno.name() == Some(name))
    }

    pub const fn code(self) -> i32 {
        self.0
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "errno {}", self.0),
        }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", io::Error::from_raw_os_error(self.0))
    }
}

impl std::error::Error for Errno {}

impl From<io::Error> for Errno {
    fn from(error: io::Error) -> Errno {
        error.raw_os_error().map_or(Errno::EIO, Errno::new)
    }
}

impl From<rustix::io::Errno> for Errno {
    fn from(error: rustix::io::Errno) -> Errno {
        Errno::new(error.raw_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_that_the_kernel_refuses_become_eio() {
        assert_eq!(Errno::new(0), Errno::EIO);
        assert_eq!(Errno::new(-5), Errno::EIO);
        assert_eq!(Errno::new(512), Errno::EIO);
        assert_eq!(Errno::new(libc::ENOSPC), Errno::ENOSPC);
        assert_eq!(format!("{:?}", Errno::EDQUOT), "EDQUOT");
    }
}
