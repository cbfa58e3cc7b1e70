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
//! TOKENS-T4  At most [`TOKENS_MAX`] tokens are kept. Beyond that, the tenant in whose directories
//!            most are loses one: there, the user with the most loses its oldest. So the threads of
//!            one user cannot evict the tokens of others, nor can a tenant with many users evict
//!            those of another tenant. Administrators' tokens go last.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use copyhold_fs::NodeId;
use copyhold_runtime::Runtime;
use copyhold_sync::{Mutex, of};
use copyhold_types::SubvolId;

use crate::wire::Token;

const LIFETIME: Duration = Duration::from_secs(10);
const TOKENS_MAX: usize = 4096;

/// The user to whom tokens are issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Holder {
    Administrator,
    User(u32),
    /// A caller that the daemon cannot identify.
    Unknown,
}

/// The tokens of a mount.
#[derive(Default)]
pub(super) struct Tokens {
    /// By the tenant of the directory and the user; oldest first.
    issued: Mutex<BTreeMap<(SubvolId, Holder), VecDeque<Issued>>, of::Tokens>,
}

struct Issued {
    token: Token,
    node: NodeId,
    is_writable: bool,
    /// In nanoseconds of the runtime's clock.
    expires: u64,
}

impl Tokens {
    /// A new token for a directory of `tenant` that the caller has open.
    pub(super) fn issue(
        &self,
        rt: &dyn Runtime,
        (tenant, holder): (SubvolId, Holder),
        node: NodeId,
    ) -> Token {
        let (token, now) = (Token::from_random([rt.random(), rt.random()]), rt.now());
        let mut issued = self.issued.lock();
        issued.retain(|_, tokens| {
            while tokens.front().is_some_and(|one| one.expires < now) {
                tokens.pop_front();
            }
            !tokens.is_empty()
        });
        if issued.values().map(VecDeque::len).sum::<usize>() >= TOKENS_MAX {
            evict_one(&mut issued);
        }
        let expires = now + LIFETIME.as_nanos() as u64;
        let new = Issued { token: token.clone(), node, is_writable: false, expires };
        issued.entry((tenant, holder)).or_default().push_back(new);
        token
    }

    /// The kernel has checked the mount of this directory for writing (TOKENS-T3); false for a
    /// token that is not valid for it.
    pub(super) fn make_writable(&self, rt: &dyn Runtime, node: NodeId, token: &[u8]) -> bool {
        let now = rt.now();
        let mut issued = self.issued.lock();
        let is_meant = |one: &&mut Issued| {
            one.node == node && one.expires >= now && one.token.as_bytes() == token
        };
        let found = issued.values_mut().flatten().find(is_meant);
        found.map(|one| one.is_writable = true).is_some()
    }

    /// The directory of a token, and whether the token is writable.
    pub(super) fn find(&self, rt: &dyn Runtime, token: &Token) -> Option<(NodeId, bool)> {
        let now = rt.now();
        let issued = self.issued.lock();
        let is_meant = |one: &&Issued| one.expires >= now && one.token == *token;
        issued.values().flatten().find(is_meant).map(|one| (one.node, one.is_writable))
    }
}

/// TOKENS-T4.
fn evict_one(issued: &mut BTreeMap<(SubvolId, Holder), VecDeque<Issued>>) {
    let mut of_tenants: BTreeMap<SubvolId, usize> = BTreeMap::new();
    for ((tenant, holder), tokens) in issued.iter() {
        let count = if *holder == Holder::Administrator { 0 } else { tokens.len() };
        *of_tenants.entry(*tenant).or_default() += count;
    }
    let most = issued.iter_mut().max_by_key(|((tenant, holder), tokens)| {
        (*holder != Holder::Administrator, of_tenants[tenant], tokens.len())
    });
    let _evicted = most.and_then(|(_, tokens)| tokens.pop_front());
}

#[cfg(test)]
mod tests {
    use copyhold_runtime::SeededRuntime;
    use copyhold_types::InodeNo;

    use super::*;

    fn at(ino: u64) -> NodeId {
        NodeId { subvol: SubvolId(7), ino: InodeNo(ino) }
    }

    const TENANT: SubvolId = SubvolId(7);
    const ALICE: (SubvolId, Holder) = (TENANT, Holder::User(1000));

    #[test]
    fn a_token_is_writable_after_it_was_presented_on_its_own_directory() {
        let (rt, tokens) = (SeededRuntime::new(1), Tokens::default());
        let token = tokens.issue(&*rt, ALICE, at(1));
        assert_ne!(tokens.issue(&*rt, ALICE, at(1)), token);
        assert_eq!(tokens.find(&*rt, &token), Some((at(1), false)));
        assert!(!tokens.make_writable(&*rt, at(2), token.as_bytes()));
        assert!(!tokens.make_writable(&*rt, at(1), b"guessed"));
        assert_eq!(tokens.find(&*rt, &token), Some((at(1), false)));
        assert!(tokens.make_writable(&*rt, at(1), token.as_bytes()));
        assert_eq!(tokens.find(&*rt, &token), Some((at(1), true)));
        assert_eq!(tokens.find(&*rt, &Token::from_random([0, 0])), None);
    }

    #[test]
    fn a_flood_of_one_user_evicts_only_that_users_tokens() {
        let (rt, tokens) = (SeededRuntime::new(1), Tokens::default());
        let root = tokens.issue(&*rt, (TENANT, Holder::Administrator), at(1));
        let alice = tokens.issue(&*rt, ALICE, at(2));
        let flood = |n| tokens.issue(&*rt, (TENANT, Holder::User(1001)), at(n));
        let bob: Vec<Token> = (0..2 * TOKENS_MAX as u64).map(flood).collect();
        assert!(tokens.find(&*rt, &root).is_some() && tokens.find(&*rt, &alice).is_some());
        let kept = bob.iter().filter(|token| tokens.find(&*rt, token).is_some());
        assert_eq!(kept.count(), TOKENS_MAX - 2);
        assert!(tokens.find(&*rt, bob.last().unwrap()).is_some());
    }

    #[test]
    fn a_flood_of_many_users_evicts_only_tokens_of_their_tenant() {
        let (rt, tokens) = (SeededRuntime::new(1), Tokens::default());
        let alice = tokens.issue(&*rt, ALICE, at(2));
        for user in 0..2 * TOKENS_MAX as u32 {
            tokens.issue(&*rt, (SubvolId(8), Holder::User(2000 + user)), at(3));
        }
        assert!(tokens.find(&*rt, &alice).is_some());
    }

    #[test]
    fn tokens_expire() {
        let (rt, tokens) = (SeededRuntime::new(1), Tokens::default());
        let old =
            [ALICE, (TENANT, Holder::Unknown)].map(|holder| tokens.issue(&*rt, holder, at(1)));
        let sleeper = rt.clone();
        rt.block_on(async move { sleeper.sleep(LIFETIME + Duration::from_secs(1)).await });
        assert!(old.iter().all(|token| tokens.find(&*rt, token).is_none()));
        assert!(!tokens.make_writable(&*rt, at(1), old[0].as_bytes()));
        tokens.issue(&*rt, ALICE, at(1));
        assert_eq!(tokens.issued.lock().len(), 1);
    }
}
