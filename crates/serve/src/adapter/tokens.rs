//! Tokens: short-lived proofs that a caller has a directory open, and may write to its mount.
//!
//! Problem.  An ioctl names its own file by a descriptor, and every other file by a number in its
//!           data. A number proves nothing: any caller can guess the root of another tenant's
//!           subvolume. The kernel also passes ioctls on from read-only mounts: it does not know
//!           that they change something.
//! Idea.     The daemon issues a random token for the directory on which the caller asks. A request
//!           names other directories by their tokens. The caller presents the token of a directory
//!           by setxattr(2) on it: there the kernel asks the mount for write access first.
//!
//! The verb itself is not carried by setxattr(2): the kernel holds the lock of the directory
//! during that call, and the daemon's notification about the new entry would wait for this lock.
//!
//! TOKENS-T1  A token is 128 random bits, and valid for [`LIFETIME`].
//! TOKENS-T2  A token proves an open descriptor of its directory: it is issued on that only.
//! TOKENS-T3  A token is writable once setxattr(2) of [`CHECKED`](crate::control::CHECKED) on its
//!            own directory has presented it. The kernel has then checked that a mount through
//!            which the caller has the directory permits writes.
//! TOKENS-T4  At most [`TOKENS_MAX`] tokens are kept. A new one takes the place of the oldest:
//!            then its owner is refused and can ask for another one.

use std::collections::VecDeque;
use std::time::Duration;

use copyhold_fs::NodeId;
use copyhold_runtime::Runtime;
use copyhold_sync::{Mutex, of};

use crate::wire::Token;

const LIFETIME: Duration = Duration::from_secs(10);
/// A token that is used at once is not evicted even by callers that do nothing else than ask.
const TOKENS_MAX: usize = 4096;

/// The tokens of a mount.
#[derive(Default)]
pub(super) struct Tokens {
    /// Oldest first.
    issued: Mutex<VecDeque<Issued>, of::Tokens>,
}

struct Issued {
    token: Token,
    node: NodeId,
    is_writable: bool,
    /// In nanoseconds of the runtime's clock.
    expires: u64,
}

impl Tokens {
    /// A new token for a directory that the caller has open.
    pub(super) fn issue(&self, rt: &dyn Runtime, node: NodeId) -> Token {
        let token = Token::from_random([rt.random(), rt.random()]);
        let expires = rt.now() + LIFETIME.as_nanos() as u64;
        let mut issued = self.issued.lock();
        while issued.len() >= TOKENS_MAX || issued.front().is_some_and(|one| one.expires < rt.now())
        {
            issued.pop_front();
        }
        issued.push_back(Issued { token: token.clone(), node, is_writable: false, expires });
        token
    }

    /// The kernel has checked the mount of this directory for writing (TOKENS-T3); false for a
    /// token that is not valid for it.
    pub(super) fn make_writable(&self, rt: &dyn Runtime, node: NodeId, token: &[u8]) -> bool {
        let mut issued = self.issued.lock();
        let is_meant = |one: &&mut Issued| {
            one.node == node && one.expires >= rt.now() && one.token.as_bytes() == token
        };
        let found = issued.iter_mut().rev().find(is_meant);
        found.map(|one| one.is_writable = true).is_some()
    }

    /// The directory of a token, and whether the token is writable.
    pub(super) fn find(&self, rt: &dyn Runtime, token: &Token) -> Option<(NodeId, bool)> {
        let issued = self.issued.lock();
        let is_meant = |one: &&Issued| one.expires >= rt.now() && one.token == *token;
        issued.iter().rev().find(is_meant).map(|one| (one.node, one.is_writable))
    }
}

#[cfg(test)]
mod tests {
    use copyhold_runtime::SeededRuntime;
    use copyhold_types::{InodeNo, SubvolId};

    use super::*;

    fn at(ino: u64) -> NodeId {
        NodeId { subvol: SubvolId(7), ino: InodeNo(ino) }
    }

    #[test]
    fn a_token_is_writable_after_it_was_presented_on_its_own_directory() {
        let (rt, tokens) = (SeededRuntime::new(1), Tokens::default());
        let token = tokens.issue(&*rt, at(1));
        assert_ne!(tokens.issue(&*rt, at(1)), token);
        assert_eq!(tokens.find(&*rt, &token), Some((at(1), false)));
        assert!(!tokens.make_writable(&*rt, at(2), token.as_bytes()));
        assert!(!tokens.make_writable(&*rt, at(1), b"guessed"));
        assert_eq!(tokens.find(&*rt, &token), Some((at(1), false)));
        assert!(tokens.make_writable(&*rt, at(1), token.as_bytes()));
        assert_eq!(tokens.find(&*rt, &token), Some((at(1), true)));
        assert_eq!(tokens.find(&*rt, &Token::from_random([0, 0])), None);
    }

    #[test]
    fn tokens_expire_and_the_oldest_make_room() {
        let (rt, tokens) = (SeededRuntime::new(1), Tokens::default());
        let first = tokens.issue(&*rt, at(1));
        let more: Vec<Token> = (0..TOKENS_MAX as u64).map(|n| tokens.issue(&*rt, at(n))).collect();
        assert_eq!(tokens.find(&*rt, &first), None);
        assert!(more.iter().all(|token| tokens.find(&*rt, token).is_some()));
        let sleeper = rt.clone();
        rt.block_on(async move { sleeper.sleep(LIFETIME + Duration::from_secs(1)).await });
        assert!(more.iter().all(|token| tokens.find(&*rt, token).is_none()));
        tokens.issue(&*rt, at(1));
        assert_eq!(tokens.issued.lock().len(), 1);
    }
}
