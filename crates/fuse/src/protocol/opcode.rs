//! The operation of a request, as the kernel numbers it.

macro_rules! opcodes {
    ($($name:ident = $number:literal),* $(,)?) => {
        /// The operations that a Linux kernel sends to a filesystem on `/dev/fuse`. DAX mappings
        /// and character devices are not among them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u32)]
        pub enum Opcode { $($name = $number),* }

        impl Opcode {
            pub const ALL: &[Opcode] = &[$(Opcode::$name),*];

            pub const fn new(number: u32) -> Option<Opcode> {
                match number {
                    $($number => Some(Opcode::$name),)*
                    _ => None,
                }
            }
        }
    };
}

opcodes! {
    Lookup = 1, Forget = 2, Getattr = 3, Setattr = 4, Readlink = 5, Symlink = 6, Mknod = 8,
    Mkdir = 9, Unlink = 10, Rmdir = 11, Rename = 12, Link = 13, Open = 14, Read = 15, Write = 16,
    Statfs = 17, Release = 18, Fsync = 20, Setxattr = 21, Getxattr = 22, Listxattr = 23,
    Removexattr = 24, Flush = 25, Init = 26, Opendir = 27, Readdir = 28, Releasedir = 29,
    Fsyncdir = 30, Getlk = 31, Setlk = 32, Setlkw = 33, Access = 34, Create = 35, Interrupt = 36,
    Bmap = 37, Destroy = 38, Ioctl = 39, Poll = 40, NotifyReply = 41, BatchForget = 42,
    Fallocate = 43, Readdirplus = 44, Rename2 = 45, Lseek = 46, CopyFileRange = 47, Syncfs = 50,
    Tmpfile = 51, Statx = 52, CopyFileRange64 = 53,
}

impl Opcode {
    /// Whether the kernel waits for an answer.
    pub const fn expects_reply(self) -> bool {
        !matches!(
            self,
            Opcode::Forget | Opcode::BatchForget | Opcode::Interrupt | Opcode::NotifyReply
        )
    }
}

/// The kind of a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum NotifyCode {
    Poll = 1,
    InvalInode = 2,
    InvalEntry = 3,
    Store = 4,
    Delete = 6,
    Prune = 9,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_leads_back_to_its_opcode() {
        for &opcode in Opcode::ALL {
            assert_eq!(Opcode::new(opcode as u32), Some(opcode));
        }
        for unknown in [0, 7, 19, 48, 49, 54, 4096, u32::MAX] {
            assert_eq!(Opcode::new(unknown), None);
        }
    }
}
