//! INIT: the kernel's offers, our wishes, and the agreement.
//!
//! Every wish is a field of [`Settings`] with a default and its reason; a feature that the kernel
//! does not offer is left out silently and can be seen in [`Negotiated`]. `/dev/fuse` figures that
//! led to the defaults are in the book, chapter "operating".

use super::flags::init as flag;
use super::parse::Dialect;
use super::request::Init;
use super::wire;

/// When directory reads bring attributes along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReaddirPlus {
    Never,
    /// On the first read of a directory and when its entries are then looked up.
    Adaptive,
    Always,
}

/// Our requests to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Largest WRITE and READ in bytes, 4 KiB to 1 MiB, whole pages. 128 KiB and 1 MiB cost the
    /// same CPU per byte, and each reader holds one buffer of this size: 256 KiB.
    pub max_write: u32,
    /// Background requests (direct AIO, read-ahead, writeback) of the whole connection; a single
    /// tenant must not fill it: 4,096. The kernel holds ordinary users to its own limit.
    pub max_background: u16,
    /// Most bytes of read-ahead; the mount's `bdi` starts at 128 KiB and may be raised to this.
    pub max_readahead: u32,
    pub readdirplus: ReaddirPlus,
    /// Small buffered writes gather in the kernel; quota and space errors then come at fsync: off.
    pub writeback_cache: bool,
    /// O_TRUNC is done by OPEN instead of by a SETATTR of its own. Saves that message, but the
    /// kernel then has a running program truncated before it finds that it must refuse
    /// (`O_RDONLY | O_TRUNC`), and OPEN may not be answered with ENOSYS: off.
    pub truncating_open: bool,
    /// The daemon gets fcntl(2) and flock(2) locks; else the kernel keeps them itself, as well.
    pub locks: bool,
    /// The kernel checks and caches POSIX ACLs, and we apply the umask where no default ACL is.
    pub posix_acl: bool,
    /// Mounts of this filesystem may map ids (Linux 6.12). The kernel then names the caller only in
    /// requests that make files, by ids as the filesystem has them: see [`super::Caller`]. Needs
    /// `posix_acl`, which has the kernel check permissions.
    pub idmapped_mounts: bool,
    /// A file handle finds its file, also when the kernel has forgotten it. overlayfs then keeps
    /// the target of a handle, and from Linux 6.16 on the kernel refuses that at the second use:
    /// the result of a look-up by handle has no epoch, and counts as older than any.
    pub file_handles: bool,
    /// Security labels travel with the request that creates a file.
    pub security_context: bool,
    /// Direct I/O files may be mapped.
    pub direct_io_mmap: bool,
    /// The kernel caches the targets of symbolic links.
    pub cache_symlinks: bool,
    /// Reading the device of an aborted connection says so.
    pub abort_error: bool,
    /// Requests come through a ring. A session decides that itself.
    pub over_io_uring: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            max_write: 256 << 10,
            max_background: 4096,
            max_readahead: 1 << 20,
            readdirplus: ReaddirPlus::Adaptive,
            writeback_cache: false,
            truncating_open: false,
            locks: true,
            posix_acl: true,
            idmapped_mounts: false,
            file_handles: true,
            security_context: false,
            direct_io_mmap: true,
            cache_symlinks: true,
            abort_error: true,
            over_io_uring: false,
        }
    }
}

/// The terms of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    pub minor: u32,
    /// See [`super::flags::init`].
    pub flags: u64,
    pub max_write: u32,
}

impl Negotiated {
    pub fn over_io_uring(&self) -> bool {
        self.flags & flag::OVER_IO_URING != 0
    }

    pub fn dialect(&self) -> Dialect {
        Dialect { setxattr_ext: self.flags & flag::SETXATTR_EXT != 0 }
    }
}

/// The answer to an INIT.
#[derive(Clone, Copy, Debug)]
pub enum InitAnswer {
    Agreed(wire::InitOut, Negotiated),
    /// The kernel speaks a newer major version: it comes again with ours.
    TryOlder(wire::InitOut),
    /// Its protocol is older than we can speak.
    TooOld,
}

const PAGE: u32 = 4096;
const MAX_WRITE_WITHOUT_MAX_PAGES: u32 = 32 * PAGE;

impl Settings {
    pub fn answer(&self, init: &Init) -> InitAnswer {
        if init.major > wire::MAJOR {
            let out = wire::InitOut { major: wire::MAJOR, ..Default::default() };
            return InitAnswer::TryOlder(out);
        }
        if init.major < wire::MAJOR || init.minor < wire::MINOR_MIN {
            return InitAnswer::TooOld;
        }
        let flags = self.wanted() & init.flags;
        let mut max_write = self.max_write.clamp(PAGE, 1 << 20).next_multiple_of(PAGE);
        if flags & flag::MAX_PAGES == 0 {
            max_write = max_write.min(MAX_WRITE_WITHOUT_MAX_PAGES);
        }
        let minor = init.minor.min(wire::MINOR);
        let out = wire::InitOut {
            major: wire::MAJOR,
            minor,
            max_readahead: init.max_readahead.max(self.max_readahead),
            flags: flags as u32,
            flags2: (flags >> 32) as u32,
            max_background: self.max_background,
            congestion_threshold: (u32::from(self.max_background) * 3 / 4) as u16,
            max_write,
            time_gran: 1,
            max_pages: (max_write / PAGE) as u16,
            ..Default::default()
        };
        InitAnswer::Agreed(out, Negotiated { minor, flags, max_write })
    }

    fn wanted(&self) -> u64 {
        // The kernel is the only writer behind this mount, and what changes otherwise is
        // announced: a changed mtime is no reason to drop pages.
        let always = flag::ASYNC_READ
            | flag::ASYNC_DIO
            | flag::BIG_WRITES
            | flag::MAX_PAGES
            | flag::PARALLEL_DIROPS
            | flag::HANDLE_KILLPRIV_V2
            | flag::SETXATTR_EXT
            | flag::HAS_IOCTL_DIR
            | flag::EXPLICIT_INVAL_DATA
            | flag::HAS_EXPIRE_ONLY
            | flag::NO_OPEN_SUPPORT
            | flag::NO_OPENDIR_SUPPORT
            | flag::INIT_EXT;
        let plus = match self.readdirplus {
            ReaddirPlus::Never => 0,
            ReaddirPlus::Adaptive => flag::DO_READDIRPLUS | flag::READDIRPLUS_AUTO,
            ReaddirPlus::Always => flag::DO_READDIRPLUS,
        };
        let when = |wish: bool, flags: u64| if wish { flags } else { 0 };
        always
            | plus
            | when(self.writeback_cache, flag::WRITEBACK_CACHE)
            | when(self.truncating_open, flag::ATOMIC_O_TRUNC)
            | when(self.locks, flag::POSIX_LOCKS | flag::FLOCK_LOCKS)
            | when(self.posix_acl, flag::POSIX_ACL | flag::DONT_MASK)
            | if self.file_handles { flag::EXPORT_SUPPORT } else { flag::NO_EXPORT_SUPPORT }
            | when(self.idmapped_mounts && self.posix_acl, flag::ALLOW_IDMAP)
            | when(self.security_context, flag::SECURITY_CTX)
            | when(self.direct_io_mmap, flag::DIRECT_IO_ALLOW_MMAP)
            | when(self.cache_symlinks, flag::CACHE_SYMLINKS)
            | when(self.abort_error, flag::ABORT_ERROR)
            | when(self.over_io_uring, flag::OVER_IO_URING)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(minor: u32, flags: u64) -> Init {
        Init { major: 7, minor, max_readahead: 128 << 10, flags }
    }

    #[test]
    fn only_what_the_kernel_offers_is_agreed() {
        let offered = flag::INIT_EXT | flag::MAX_PAGES | flag::DIRECT_IO_ALLOW_MMAP;
        let InitAnswer::Agreed(out, agreed) = Settings::default().answer(&kernel(45, offered))
        else {
            panic!("7.45 is spoken");
        };
        assert_eq!(agreed.flags, offered);
        assert_eq!(out.flags2, 1 << 4, "high flags travel in the second word");
        assert_eq!((out.max_pages, out.max_write), (64, 256 << 10));
        assert_eq!((out.max_background, out.congestion_threshold), (4096, 3072));
        assert!(!agreed.dialect().setxattr_ext);
    }

    #[test]
    fn without_max_pages_a_write_has_at_most_128_kib() {
        let InitAnswer::Agreed(out, _) = Settings::default().answer(&kernel(38, 0)) else {
            panic!("7.38 is spoken");
        };
        assert_eq!(out.max_write, 128 << 10);
    }

    #[test]
    fn truncation_is_left_to_open_only_on_demand() {
        let settings = Settings { truncating_open: true, ..Settings::default() };
        assert_ne!(settings.wanted() & flag::ATOMIC_O_TRUNC, 0);
        assert_eq!(Settings::default().wanted() & flag::ATOMIC_O_TRUNC, 0);
    }

    /// The kernel rejects a connection that allows them and does not check permissions.
    #[test]
    fn idmapped_mounts_are_allowed_where_the_kernel_checks_permissions() {
        let allows = |settings: Settings| settings.wanted() & flag::ALLOW_IDMAP != 0;
        let wish = Settings { idmapped_mounts: true, ..Settings::default() };
        assert!(allows(wish));
        assert!(!allows(Settings { posix_acl: false, ..wish }));
        assert!(!allows(Settings::default()));
    }

    #[test]
    fn other_major_versions_are_asked_again_or_refused() {
        let newer = Init { major: 8, ..kernel(0, 0) };
        assert!(matches!(Settings::default().answer(&newer), InitAnswer::TryOlder(_)));
        let older = Init { major: 6, ..kernel(0, 0) };
        assert!(matches!(Settings::default().answer(&older), InitAnswer::TooOld));
        assert!(matches!(Settings::default().answer(&kernel(9, 0)), InitAnswer::TooOld));
    }
}
