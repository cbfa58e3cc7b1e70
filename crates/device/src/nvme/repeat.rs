//! Commands that are repeated: those that a reset of the controller, or a busy drive, has ended.
//!
//! Problem.  The kernel repeats requests of its block device, and no command of the character
//!           device. A command that times out makes it reset the controller, which ends all other
//!           commands in flight; one of them would stop the pool.
//! Idea.     The drive says which commands are useless to repeat (Do Not Retry). All others are
//!           repeated as the kernel does for its own, with a pause.
//!
//! NVMERE-R1  A command that is repeated has the same effect as once: its request has not ended,
//!            so no later request of its blocks was made, and the bytes are the same. (A network
//!            that delivers the first one later still is a danger to the block device, too.)
//! NVMERE-R2  A mismatch and an error of the medium are answers, and are not repeated here.
//! NVMERE-R3  The number of repetitions has a limit. Behind it the last answer counts, and EINTR
//!            is EIO: no signal has interrupted the engine's call.

use std::io;

use super::command::{Commands, Fields, Queue, Transfer};
use crate::pi::Status;

/// The times that a command is carried out, at most. The kernel repeats its own five times.
const TRIES: u32 = 6;
/// The bit of an answer that says that a repetition is useless.
const DO_NOT_RETRY: u16 = 0x4000;
/// The type of a status code, and the types whose commands are repeated.
const TYPE: u16 = 0x700;
const GENERIC: u16 = 0x000;
const PATH: u16 = 0x300;

/// Carries out a command, and repeats it where that may help.
pub(super) fn execute(
    commands: &dyn Commands,
    queue: Queue,
    fields: &Fields,
    mut transfer: Transfer<'_>,
) -> io::Result<u16> {
    for _ in 1..TRIES {
        let answer = commands.execute(queue, fields, transfer.again());
        if !is_worth_repeating(&answer) {
            return answer;
        }
        commands.pause();
    }
    match commands.execute(queue, fields, transfer) {
        Err(error) if is_interrupted(&error) => Err(io::Error::from_raw_os_error(libc::EIO)),
        answer => answer,
    }
}

/// NVMERE-R2. The generic and path-related statuses are those of resets, aborts and busy drives;
/// those with an errno of their own last.
fn is_worth_repeating(answer: &io::Result<u16>) -> bool {
    let code = match answer {
        Ok(code) => *code,
        Err(error) => return is_interrupted(error),
    };
    let is_final = matches!(code & 0x7ff, 0x000 | 0x001 | 0x020 | 0x081);
    !is_final
        && code & DO_NOT_RETRY == 0
        && matches!(code & TYPE, GENERIC | PATH)
        && Status::of_code(code).is_none()
}

/// The kernel's answer to a command that it has ended itself, by a reset.
fn is_interrupted(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EINTR)
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;

    type Answer = Result<u16, i32>;

    /// Gives these answers, and then 0; counts commands and pauses.
    #[derive(Default)]
    struct Script {
        answers: Mutex<Vec<Answer>>,
        commands: Mutex<u32>,
        pauses: Mutex<u32>,
    }

    impl Commands for Script {
        fn execute(&self, _: Queue, _: &Fields, transfer: Transfer<'_>) -> io::Result<u16> {
            let Transfer::ToHost { data, metadata } = transfer else { panic!("another transfer") };
            assert_eq!((data.len(), metadata.len()), (4096, 16), "NVMERE-R1");
            *self.commands.lock() += 1;
            data[0] += 1;
            let answer = self.answers.lock().pop().unwrap_or(Ok(0));
            answer.map_err(io::Error::from_raw_os_error)
        }

        fn pause(&self) {
            *self.pauses.lock() += 1;
        }
    }

    /// The last answer, and the number of commands, of a drive that answers like this.
    fn run(mut answers: Vec<Answer>) -> (Answer, u32) {
        answers.reverse();
        let script = Script { answers: answers.into(), ..Script::default() };
        let (mut data, mut metadata) = ([0; 4096], [0; 16]);
        let transfer = Transfer::ToHost { data: &mut data, metadata: &mut metadata };
        let answer = execute(&script, Queue::Io, &Fields::default(), transfer);
        let commands = script.commands.into_inner();
        assert_eq!(script.pauses.into_inner(), commands - 1);
        assert_eq!(u32::from(data[0]), commands);
        (answer.map_err(|error| error.raw_os_error().unwrap()), commands)
    }

    #[test]
    fn a_command_that_a_reset_has_ended_is_repeated() {
        // EINTR; internal error; aborted, by request and with its queue; not ready; path errors.
        for answer in [Err(libc::EINTR), Ok(0x006), Ok(0x007), Ok(0x008), Ok(0x082), Ok(0x370)] {
            assert_eq!(run(vec![answer; 3]), (Ok(0), 4), "{answer:?}");
        }
        // A repetition is an answer, too.
        assert_eq!(run(vec![Err(libc::EINTR), Ok(0x4281)]), (Ok(0x4281), 2));
    }

    #[test]
    fn a_command_is_not_repeated_for_ever() {
        assert_eq!(run(vec![Err(libc::EINTR); 9]), (Err(libc::EIO), TRIES), "NVMERE-R3");
        assert_eq!(run(vec![Ok(0x006); 9]), (Ok(0x006), TRIES), "NVMERE-R3");
    }

    #[test]
    fn other_answers_are_final() {
        // 0x286, access denied, has no name here.
        let of_medium_and_tuples = [0x280, 0x281, 0x282, 0x283, 0x284, 0x286, 0x287, 0x288];
        let of_requests = [0x001, 0x002, 0x020, 0x081, 0x181, 0x182, 0x183];
        let of_no_use = [0x4006, 0x4370, 0x4082];
        for code in [&of_medium_and_tuples[..], &of_requests, &of_no_use, &[0]].concat() {
            assert_eq!(run(vec![Ok(code)]), (Ok(code), 1), "NVMERE-R2: {code:#x}");
        }
        for errno in [libc::EIO, libc::EACCES, libc::EINVAL, libc::ENODEV] {
            assert_eq!(run(vec![Err(errno)]), (Err(errno), 1), "errno {errno}");
        }
    }
}
