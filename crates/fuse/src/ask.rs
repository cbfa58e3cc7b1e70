//! Private ioctls: how a program asks the daemon of a mount, through the mount itself.
//!
//! So there is nothing to find and nothing to clean up: a program that can open a directory of the
//! mount can ask, and the kernel identifies it to the daemon.
//!
//! The kernel copies as many bytes as the command's number says, both ways. Question and answer
//! are text, padded with zeros.

use std::os::fd::AsFd;

use rustix::ioctl::{Direction, opcode};

use crate::{Errno, sys};

/// A command that only one kind of filesystem knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command(u32);

impl Command {
    /// The most that a number can say.
    pub const BYTES_MAX: usize = (1 << 14) - 1;

    /// With neither a question nor an answer.
    pub const fn bare(group: u8, number: u8) -> Command {
        Command(opcode::none(group, number))
    }

    /// Without a question; the answer takes `bytes`, the zero behind it included.
    pub const fn answering(group: u8, number: u8, bytes: usize) -> Command {
        Command::of(Direction::Read, group, number, bytes)
    }

    /// Question and answer may take `bytes` each, the zero behind them included.
    pub const fn exchanging(group: u8, number: u8, bytes: usize) -> Command {
        Command::of(Direction::ReadWrite, group, number, bytes)
    }

    const fn of(direction: Direction, group: u8, number: u8, bytes: usize) -> Command {
        assert!(bytes > 0 && bytes <= Command::BYTES_MAX);
        Command(opcode::from_components(direction, group, number, bytes))
    }

    /// As the daemon sees it.
    pub const fn number(self) -> u32 {
        self.0
    }

    /// The room for a question or an answer, the zero behind it included.
    pub const fn bytes(self) -> usize {
        (self.0 >> 16) as usize & Command::BYTES_MAX
    }
}

/// Asks the daemon that serves `directory`; returns the answer without its padding.
///
/// # Errors
/// E2BIG for a question that has no room, ENOTTY from filesystems that do not know the command,
/// ENOTCONN where the daemon is gone, and the daemon's own errors.
pub fn ask(directory: impl AsFd, command: Command, question: &[u8]) -> Result<Vec<u8>, Errno> {
    let mut text = question.to_vec();
    if text.len() > command.bytes() {
        return Err(Errno::E2BIG);
    }
    text.resize(command.bytes(), 0);
    sys::ioctl_sized(directory.as_fd(), command.number(), &mut text)?;
    let end = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
    text.truncate(end);
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_kernels_macros() {
        // _IO('C', 1), _IOR('C', 2, char[8192]), _IOWR('C', 3, char[16376])
        let commands = [
            (Command::bare(b'C', 1), 0x4301, 0),
            (Command::answering(b'C', 2, 8192), 0xa000_4302, 8192),
            (Command::exchanging(b'C', 3, 16_376), 0xfff8_4303, 16_376),
        ];
        for (command, number, bytes) in commands {
            assert_eq!((command.number(), command.bytes()), (number, bytes));
        }
    }

    #[test]
    fn who_does_not_know_the_command_says_so() {
        let directory = std::fs::File::open("/").unwrap();
        assert_eq!(ask(&directory, Command::bare(b'C', 77), b""), Err(Errno::ENOTTY));
        assert_eq!(ask(&directory, Command::bare(b'C', 77), b"x"), Err(Errno::E2BIG));
    }
}
