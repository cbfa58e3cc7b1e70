use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use copyhold_fs::{Caller as By, Deleted, RolledBack};
use copyhold_runtime::SeededRuntime;
use parking_lot::Mutex;

use super::*;
use crate::control::TENANTS;
use crate::namespaces::Namespaces;
use crate::wire::growth::PoolSize;
use crate::wire::memory::{Bound, Brief, Freed, MemoryChange, MemoryRow};
use crate::wire::scan::Scan;
use crate::wire::{GroupChange, GroupRow, Keep, Subvolume, SubvolumeState};

const ALICE: u32 = 1000;
const BOB: u32 = 1001;

/// Directories with owners; subvolumes 1 to `subvolumes`; notes of what was done.
#[derive(Default)]
struct Fake {
    owners: BTreeMap<NodeId, u32>,
    subvolumes: u32,
    path: String,
    done: Mutex<Vec<String>>,
    tokens: Tokens,
    rt: Clock,
}

/// A seeded runtime, for numbers and time.
struct Clock(Arc<SeededRuntime>);

impl Default for Clock {
    fn default() -> Clock {
        Clock(SeededRuntime::new(1))
    }
}

impl Fake {
    fn did(&self, what: String) {
        self.done.lock().push(what);
    }

    /// As the filesystem checks owners.
    fn permit(&self, right: Right, nodes: &[NodeId]) -> Answer<()> {
        let owner = |node| self.owners.get(node).copied().unwrap_or(0);
        match right {
            Right::Owner(uid) if nodes.iter().any(|node| owner(node) != uid) => Err(Refusal::new(
                "EPERM",
                "only the owner of the directory and the subvolume's root",
            )),
            _ => Ok(()),
        }
    }

    fn terms(&self, rules: Rules) -> Terms<'_> {
        Terms { rules, tokens: &self.tokens, rt: &*self.rt.0 }
    }

    /// A token of a caller that has this directory open.
    fn token(&self, node: NodeId) -> Token {
        self.tokens.issue(&*self.rt.0, (node.subvol, Holder::Administrator), node)
    }

    /// The same through a mount that permits writes.
    fn writable(&self, node: NodeId) -> Token {
        let token = self.token(node);
        assert!(self.tokens.make_writable(&*self.rt.0, node, token.as_bytes()));
        token
    }
}

impl Tenants for Fake {
    async fn owner(&self, node: NodeId) -> Answer<u32> {
        Ok(self.owners.get(&node).copied().unwrap_or(0))
    }

    async fn create(&self, place: NewEntry<'_>) -> Answer<SubvolId> {
        self.permit(place.right, &[place.parent])?;
        let By { uid, umask, .. } = place.by;
        self.did(format!("create in {} for {uid}, umask {umask:o}", place.parent));
        Ok(SubvolId(42))
    }

    async fn snapshot(&self, source: SubvolId, place: NewEntry<'_>, _: bool) -> Answer<SubvolId> {
        self.permit(place.right, &[place.parent, at(source.0, 1)])?;
        self.did(format!("snapshot {source}"));
        Ok(SubvolId(43))
    }

    async fn delete(
        &self,
        right: Right,
        parent: NodeId,
        _: &[u8],
        heir: Option<SubvolId>,
    ) -> Answer<Deleted> {
        self.permit(right, &[parent, at(7, 1)])?;
        self.did(format!("delete, heir {heir:?}"));
        Ok(Deleted { subvol: SubvolId(7), stale: vec![at(7, 12)] })
    }

    async fn roll_back(
        &self,
        right: Right,
        parent: NodeId,
        _: &[u8],
        snapshot: SubvolId,
        keep: Option<(NodeId, &[u8])>,
    ) -> Answer<RolledBack> {
        let there = keep.map_or(parent, |(directory, _)| directory);
        self.permit(right, &[parent, there, at(7, 1), at(snapshot.0, 1)])?;
        self.did(format!("roll back to {snapshot}, keep {}", keep.is_some()));
        Ok(RolledBack { subvol: SubvolId(44), stale: vec![at(7, 13)] })
    }

    async fn set_read_only(&self, subvol: SubvolId, on: bool) -> Answer<()> {
        self.did(format!("{subvol} ro {on}"));
        Ok(())
    }

    async fn memory(&self, top: SubvolId, after: u64, most: usize) -> Answer<Vec<Brief>> {
        let row = |id| MemoryRow { id, path: Some(self.path.clone()), ..MemoryRow::default() };
        let behind = (0..=self.subvolumes).filter(|id| u64::from(*id) >= after && *id >= top.0 - 1);
        Ok(behind.take(most).map(|id| Brief(row(id))).collect())
    }

    async fn own_memory(&self, owner: u32, _: u64, most: usize) -> Answer<Part<Brief>> {
        let path = Some(format!("of {owner}"));
        let rows = vec![Brief(MemoryRow { id: 7, path, ..MemoryRow::default() })];
        Ok(Part { rows, next: Some(most as u64) })
    }

    async fn memory_group(&self, of: Option<SubvolId>, named: bool) -> Answer<MemoryRow> {
        let path = named.then(|| self.path.clone());
        Ok(MemoryRow { id: of.map_or(0, |of| of.0), path, ..MemoryRow::default() })
    }

    async fn set_memory(&self, of: Option<SubvolId>, change: &MemoryChange) -> Answer<()> {
        self.did(format!("{of:?} low {:?}", change.low));
        Ok(())
    }

    async fn reclaim_memory(&self, of: Option<SubvolId>, bytes: u64) -> Answer<Freed> {
        self.did(format!("reclaim of {of:?}"));
        Ok(Freed::from([("node".into(), bytes / 2)]))
    }

    async fn own_subvolumes(&self, owner: u32, after: u64, most: usize) -> Answer<Part<Subvolume>> {
        let mut rows = self.subvolumes(after, most).await?;
        rows.truncate(1);
        rows.iter_mut().for_each(|row| row.path = Some(format!("of {owner}")));
        Ok(Part { rows, next: Some(after + most as u64) })
    }

    async fn subvolumes(&self, after: u64, most: usize) -> Answer<Vec<Subvolume>> {
        let ids = (after as u32 + 1..=self.subvolumes).take(most);
        Ok(ids
            .map(|id| Subvolume {
                id,
                path: Some(self.path.clone()),
                parent: Some(1),
                readonly: false,
                origin: None,
                created: "2026-11-21T10:00:00Z".into(),
                state: SubvolumeState::Live,
                generation: Some(1),
                freeing_bytes: None,
                freed_percent: None,
            })
            .collect())
    }

    async fn scan(
        &self,
        subvol: SubvolId,
        other: Option<SubvolId>,
        _: &Scan,
        _: usize,
    ) -> Answer<Value> {
        self.did(format!("scan {subvol} {other:?}"));
        Ok(json!(null))
    }

    async fn quota_disable(&self) -> Answer<()> {
        Err(Refusal::new("ENOTCONN", "quotas are off"))
    }

    async fn groups(&self, _: u64, _: usize) -> Answer<Vec<GroupRow>> {
        Ok(Vec::new())
    }
}

fn at(subvol: u32, ino: u64) -> NodeId {
    NodeId { subvol: SubvolId(subvol), ino: InodeNo(ino) }
}

fn now<T>(task: impl Future<Output = T>) -> T {
    match pin!(task).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => panic!("nothing here waits"),
    }
}

#[test]
fn only_owners_of_roots_look_through_subvolumes() {
    let owners = BTreeMap::from([(at(7, 1), ALICE), (at(8, 1), BOB), (at(7, 5), ALICE)]);
    let fake = Fake { owners, ..Fake::default() };
    let ask = |uid, node, step: Scan| {
        super::tests::ask(&fake, rules(false), uid, node, Question::Scan { step })
    };
    assert_eq!(ask(ALICE, at(7, 1), Scan::Begin), json!({"answer": null}));
    assert_eq!(ask(0, at(8, 1), Scan::Begin), json!({"answer": null}));
    assert_eq!(ask(BOB, at(7, 1), Scan::Begin)["error"]["code"], "EPERM");
    assert_eq!(ask(ALICE, at(7, 5), Scan::Begin)["error"]["code"], "EINVAL");
    let changes = |from: NodeId| Scan::Changes { from: fake.token(from), at: None };
    assert_eq!(ask(ALICE, at(7, 1), changes(at(8, 1)))["error"]["code"], "EPERM");
    assert_eq!(ask(0, at(7, 1), changes(at(8, 1))), json!({"answer": null}));
    assert_eq!(ask(0, at(7, 1), changes(at(8, 9)))["error"]["code"], "EINVAL");
    assert_eq!(fake.done.lock().len(), 3);
}

fn rules(owners_may: bool) -> Rules {
    let (mounted_by, public_lists, namespaces) = (None, false, Namespaces::Own);
    Rules { mounted_by, owners_may, sees_callers: true, public_lists, namespaces }
}

/// The answer to a question of `uid` on `node`, as text; and the names that the kernel forgets.
fn told(fake: &Fake, rules: Rules, uid: u32, node: NodeId, text: &[u8]) -> (Value, Changed) {
    let by = Some(Who { uid, gid: uid, is_admin: uid == 0, is_near: true, knows_owners: true });
    let room = TENANTS.bytes();
    let Answered { mut text, changed } = now(answer(fake, fake.terms(rules), by, node, text, room));
    assert!(text.len() <= room);
    assert_eq!(text.pop(), Some(0));
    (serde_json::from_slice(&text).unwrap(), changed)
}

fn ask(fake: &Fake, rules: Rules, uid: u32, node: NodeId, question: Question) -> Value {
    let mut text = asked(fake, node, question);
    text.resize(TENANTS.bytes(), 0);
    told(fake, rules, uid, node, &text).0
}

/// The text of a question with a writable token.
fn asked(fake: &Fake, node: NodeId, question: Question) -> Vec<u8> {
    let token = Some(fake.writable(node));
    serde_json::to_vec(&Asked { token, question }).unwrap()
}

#[track_caller]
fn refused(told: &Value, code: &str, says: &str) {
    assert_eq!(told["error"]["code"], code, "{told}");
    assert!(told["error"]["message"].as_str().unwrap().contains(says), "{told}");
}

fn create() -> Question {
    Question::Create { name: b"new".to_vec(), umask: 0o27, groups: vec![] }
}

fn roll_back(fake: &Fake, keep: Option<NodeId>) -> Question {
    let snapshot = fake.token(at(7, 1));
    let keep =
        keep.map(|directory| Keep { directory: fake.writable(directory), name: b"kept".to_vec() });
    Question::RollBack { name: b"sub".to_vec(), snapshot, keep }
}

fn snapshot(fake: &Fake) -> Question {
    let (name, source) = (b"new".to_vec(), fake.token(at(7, 1)));
    Question::Snapshot { source, name, read_only: false, groups: vec![] }
}

fn delete(name: &str) -> Question {
    Question::Delete { name: name.into(), heir: None }
}

#[test]
fn root_changes_everything_and_the_kernel_forgets_the_entry() {
    let fake = Fake::default();
    let text = asked(&fake, at(1, 5), create());
    let (told, changed) = told(&fake, rules(false), 0, at(1, 5), &text);
    let forgotten = Changed { entries: vec![(at(1, 5), b"new".to_vec())], ..Changed::default() };
    assert_eq!((told, changed), (json!({"answer": 42}), forgotten));
    assert_eq!(ask(&fake, rules(false), 0, at(1, 5), snapshot(&fake)), json!({"answer": 43}));
    assert_eq!(ask(&fake, rules(false), 0, at(1, 5), delete("sub")), json!({"answer": 7}));
    let done = ["create in 1/5 for 0, umask 27", "snapshot 7", "delete, heir None"];
    assert_eq!(*fake.done.lock(), done);
}

#[test]
fn the_kernel_forgets_both_names_and_what_is_gone() {
    let fake = Fake::default();
    let asked = |question: &Question| {
        let text = asked(&fake, at(1, 5), question.clone());
        told(&fake, rules(false), 0, at(1, 5), &text)
    };
    let (answer, changed) = asked(&roll_back(&fake, Some(at(1, 6))));
    assert_eq!(answer, json!({"answer": 44}));
    let entries = vec![(at(1, 5), b"sub".to_vec()), (at(1, 6), b"kept".to_vec())];
    assert_eq!(changed, Changed { entries, stale: vec![at(7, 13)], ..Changed::default() });
    let (_, changed) = asked(&delete("sub"));
    let entries = vec![(at(1, 5), b"sub".to_vec())];
    assert_eq!(changed, Changed { entries, stale: vec![at(7, 12)], ..Changed::default() });
    assert_eq!(*fake.done.lock(), ["roll back to 7, keep true", "delete, heir None"]);
}

/// Numbers of directories are not secret, and the kernel does not check mounts for ioctls.
#[test]
fn a_change_needs_writable_tokens_and_a_source_that_is_open() {
    let fake = Fake::default();
    let on = |token: Option<Token>, question: Question| {
        let text = serde_json::to_vec(&Asked { token, question }).unwrap();
        told(&fake, rules(false), 0, at(1, 5), &text).0
    };
    let changes = [
        create(),
        snapshot(&fake),
        delete("sub"),
        roll_back(&fake, None),
        Question::SetReadOnly { on: true },
        Question::QuotaEnable { simple: true },
        Question::QuotaDisable,
        Question::GroupClearStale,
    ];
    for question in changes {
        refused(&on(None, question.clone()), "EACCES", "token");
        refused(&on(Some(fake.token(at(1, 5))), question.clone()), "EACCES", "setxattr(2)");
        refused(&on(Some(fake.writable(at(1, 6))), question.clone()), "EACCES", "token");
        refused(&on(Some(Token::from_random([1, 2])), question), "EKEYEXPIRED", "expired");
    }
    let (source, name) = (Token::from_random([1, 2]), b"new".to_vec());
    let guessed = Question::Snapshot { source, name, read_only: false, groups: vec![] };
    refused(&on(Some(fake.writable(at(1, 5))), guessed), "EKEYEXPIRED", "expired");
    let keep = Some(Keep { directory: fake.token(at(1, 6)), name: b"kept".to_vec() });
    let (name, snapshot) = (b"sub".to_vec(), fake.token(at(7, 1)));
    let kept = Question::RollBack { name, snapshot, keep };
    refused(&on(Some(fake.writable(at(1, 5))), kept), "EACCES", "setxattr(2)");
    assert!(fake.done.lock().is_empty());
    assert!(on(None, Question::Token)["answer"].is_string());
}

#[test]
fn a_right_comes_from_privilege_or_from_ownership_with_the_option() {
    let alice = Who { uid: ALICE, gid: ALICE, is_admin: false, is_near: true, knows_owners: true };
    let right = |owners_may, by| rules(owners_may).right(by, false).map_err(|no| no.message);
    assert_eq!(right(true, Some(alice)), Ok(Right::Owner(ALICE)));
    let admin = Who { uid: 0, is_admin: true, knows_owners: false, ..alice };
    assert_eq!(right(false, Some(admin)), Ok(Right::Administrator));
    assert!(right(false, Some(alice)).unwrap_err().contains("user_subvolumes"));
    // By a mount that maps ids the owner's id is another user's.
    let mapped = right(true, Some(Who { knows_owners: false, ..alice }));
    assert!(mapped.unwrap_err().contains("user_subvolumes"));
    let powerless = right(true, Some(Who { uid: 0, ..alice }));
    assert!(powerless.unwrap_err().contains("CAP_SYS_ADMIN"));
    assert!(right(true, None).unwrap_err().contains("the calling process"));
    assert!(rules(true).right(Some(alice), true).unwrap_err().message.contains("heirs"));
}

#[test]
fn the_user_who_mounted_manages_the_pool_from_the_daemons_namespaces() {
    let mine = Rules { mounted_by: Some(ALICE), ..rules(false) };
    let near = Who { uid: ALICE, gid: ALICE, is_admin: false, is_near: true, knows_owners: true };
    assert!(mine.privileges(Some(near)));
    assert!(!mine.privileges(Some(Who { is_near: false, ..near })));
    assert!(!mine.privileges(Some(Who { uid: BOB, ..near })));
}

#[test]
fn who_mounted_the_pool_is_as_good_as_root() {
    let mine = Rules { mounted_by: Some(ALICE), ..rules(false) };
    assert_eq!(ask(&Fake::default(), mine, ALICE, at(1, 5), create())["answer"], 42);
    refused(&ask(&Fake::default(), mine, BOB, at(1, 5), create()), "EPERM", "user_subvolumes");
}

#[test]
fn owners_need_the_option_and_all_that_is_concerned() {
    let mine = [(at(1, 5), ALICE), (at(7, 1), ALICE), (at(1, 6), BOB)];
    let fake = Fake { owners: mine.into(), ..Fake::default() };
    for question in [create(), snapshot(&fake), delete("sub"), roll_back(&fake, None)] {
        let on = |rules, uid, node| ask(&fake, rules, uid, node, question.clone());
        refused(&on(rules(false), ALICE, at(1, 5)), "EPERM", "user_subvolumes");
        refused(&on(rules(true), BOB, at(1, 5)), "EPERM", "owner of the directory");
        assert!(on(rules(true), ALICE, at(1, 5))["answer"].is_u64());
    }
    let keep =
        |directory| ask(&fake, rules(true), ALICE, at(1, 5), roll_back(&fake, Some(directory)));
    assert!(keep(at(1, 5))["answer"].is_u64());
    refused(&keep(at(1, 6)), "EPERM", "owner of the directory");
    // His directory, her subvolume.
    for question in [snapshot(&fake), delete("sub"), roll_back(&fake, None)] {
        refused(&ask(&fake, rules(true), BOB, at(1, 6), question), "EPERM", "subvolume's root");
    }
    let set = Question::SetReadOnly { on: true };
    refused(&ask(&fake, rules(true), BOB, at(7, 1), set.clone()), "EPERM", "owner");
    assert_eq!(ask(&fake, rules(true), ALICE, at(7, 1), set), json!({"answer": null}));
}

#[test]
fn owners_cannot_leave_their_limits() {
    let mine = [(at(1, 5), ALICE), (at(7, 1), ALICE)];
    let fake = Fake { owners: mine.into(), ..Fake::default() };
    let group: Group = "1/100".parse().unwrap();
    let (name, groups) = (b"new".to_vec(), vec![group]);
    let heir = Some(fake.token(at(7, 1)));
    for question in [
        Question::Create { name: name.clone(), umask: 0, groups: groups.clone() },
        Question::Snapshot { source: fake.token(at(7, 1)), name, read_only: false, groups },
        Question::Delete { name: b"sub".to_vec(), heir },
    ] {
        refused(&ask(&fake, rules(true), ALICE, at(1, 5), question), "EPERM", "groups and heirs");
    }
    for question in [
        Question::QuotaEnable { simple: true },
        Question::QuotaDisable,
        Question::Regroup { change: GroupChange::Create { group } },
        Question::GroupClearStale,
    ] {
        refused(&ask(&fake, rules(true), ALICE, at(1, 5), question), "EPERM", "only root");
    }
    assert!(fake.done.lock().is_empty());
}

#[test]
fn lists_are_complete_for_administrators_and_by_an_option() {
    let fake = Fake { subvolumes: 3, ..Fake::default() };
    let public = Rules { public_lists: true, ..rules(false) };
    for (rules, uid) in [(rules(false), 0), (public, BOB)] {
        let list = ask(&fake, rules, uid, at(1, 5), Question::Subvolumes { after: 0 });
        assert_eq!(list["answer"]["rows"].as_array().unwrap().len(), 2, "the root is not listed");
        let show = ask(&fake, rules, uid, at(3, 8), Question::Subvolume);
        assert_eq!(show["answer"]["id"], 3);
        refused(&ask(&fake, rules, uid, at(9, 1), Question::Subvolume), "ESTALE", "deleted");
    }
    let leaving = ask(&fake, public, BOB, at(1, 5), Question::Leaving { after: 0 });
    refused(&leaving, "EPERM", "only root");
}

#[test]
fn an_owner_sees_his_own_rows_and_other_users_see_none() {
    let fake = Fake { subvolumes: 300, ..Fake::default() };
    let list = |by| {
        let text = br#"{"ask":"subvolumes","after":0}"#;
        let Answered { mut text, .. } =
            now(answer(&fake, fake.terms(rules(true)), by, at(1, 5), text, TENANTS.bytes()));
        text.pop();
        serde_json::from_slice::<Value>(&text).unwrap()
    };
    let alice = Who { uid: ALICE, gid: ALICE, is_admin: false, is_near: true, knows_owners: true };
    let own = &list(Some(alice))["answer"];
    assert_eq!(own["rows"][0]["path"], format!("of {ALICE}"));
    assert_eq!((own["rows"].as_array().unwrap().len(), own["next"].as_u64()), (1, Some(129)));
    for by in [None, Some(Who { knows_owners: false, ..alice }), Some(Who { uid: 0, ..alice })] {
        refused(&list(by), "EPERM", "public_lists");
    }
}

#[test]
fn lists_come_in_pages_that_fit_and_miss_nothing() {
    for path in ["p".to_owned(), "deep/".repeat(1000)] {
        let fake = Fake { subvolumes: 1000, path, ..Fake::default() };
        let (mut ids, mut after, mut pages) = (Vec::new(), 0, 0);
        loop {
            let question = Question::Subvolumes { after };
            let page = &ask(&fake, rules(false), 0, at(1, 1), question)["answer"];
            let rows = page["rows"].as_array().unwrap();
            ids.extend(rows.iter().map(|row| row["id"].as_u64().unwrap()));
            pages += 1;
            match page["next"].as_u64() {
                Some(next) => after = next,
                None => break,
            }
        }
        assert_eq!(ids, (2..=1000).collect::<Vec<u64>>());
        assert!(pages >= 8, "{pages}");
    }
}

#[test]
fn a_row_that_fits_nowhere_is_told() {
    let fake = Fake { subvolumes: 2, path: "x".repeat(20_000), ..Fake::default() };
    let list = ask(&fake, rules(false), 0, at(1, 1), Question::Subvolumes { after: 0 });
    refused(&list, "EOVERFLOW", "larger than an answer");
    let show = ask(&fake, rules(false), 0, at(2, 1), Question::Subvolume);
    refused(&show, "EOVERFLOW", "more than there is room for");
}

#[test]
fn only_subvolumes_are_treated_as_such() {
    let fake = Fake::default();
    let on = |question| ask(&fake, rules(false), 0, at(1, 5), question);
    refused(&on(Question::SetReadOnly { on: true }), "EINVAL", "root of a subvolume");
    let name = b"new".to_vec();
    let source = fake.token(at(3, 77));
    let inside = Question::Snapshot { source, name, read_only: true, groups: vec![] };
    refused(&on(inside), "EINVAL", "root of a subvolume");
    assert!(fake.done.lock().is_empty());
}

#[test]
fn refusals_are_answers_and_nonsense_is_refused() {
    let fake = Fake::default();
    refused(&ask(&fake, rules(false), 0, at(1, 1), Question::QuotaDisable), "ENOTCONN", "off");
    let room = ask(&fake, rules(false), 0, at(1, 1), Question::Room);
    refused(&room, "ENOSYS", "not implemented yet");
    for nonsense in ["", "{}", "{\"ask\": \"dance\"}", "\u{0}", "[[[["] {
        let (told, _) = told(&fake, rules(false), 0, at(1, 1), nonsense.as_bytes());
        refused(&told, "EINVAL", "does not understand");
    }
}

#[test]
fn limits_of_memory_and_evictions_are_for_administrators() {
    let fake = Fake::default();
    let low = Some(Bound(340));
    let set = |shared| Question::SetMemory {
        shared,
        change: MemoryChange { low, ..MemoryChange::default() },
    };
    let reclaim = |shared| Question::ReclaimMemory { shared, bytes: 64 };
    let root = at(7, 1);
    let fake = Fake { owners: BTreeMap::from([(root, ALICE), (at(1, 1), ALICE)]), ..fake };
    for question in [set(false), set(true), reclaim(false), reclaim(true)] {
        refused(&ask(&fake, rules(true), ALICE, root, question), "EPERM", "only root");
    }
    let inside = |question| ask(&fake, rules(false), 0, at(7, 5), question);
    refused(&inside(set(false)), "EINVAL", "root of a subvolume");
    refused(&inside(reclaim(false)), "EINVAL", "root of a subvolume");
    assert!(fake.done.lock().is_empty());
    assert_eq!(inside(set(true)), json!({ "answer": null }));
    assert_eq!(ask(&fake, rules(false), 0, root, set(false)), json!({ "answer": null }));
    assert_eq!(ask(&fake, rules(false), 0, root, reclaim(false))["answer"]["node"], 32);
    let wanted = [
        "None low Some(Bound(340))",
        "Some(SubvolId(7)) low Some(Bound(340))",
        "reclaim of Some(SubvolId(7))",
    ];
    assert_eq!(*fake.done.lock(), wanted);
}

#[test]
fn growth_of_the_pool_is_for_administrators() {
    let fake = Fake::default();
    let of = |uid| {
        let size = PoolSize::By(1 << 20);
        ask(&fake, rules(true), uid, at(1, 1), Question::Grow { size })
    };
    refused(&of(ALICE), "EPERM", "only root");
    refused(&of(0), "ENOSYS", "growing");
}

#[test]
fn figures_of_memory_are_for_administrators_and_for_the_owner_of_the_subvolume() {
    let owners = BTreeMap::from([(at(7, 1), ALICE), (at(1, 1), ALICE)]);
    let fake = Fake { owners, path: "deep/a".into(), ..Fake::default() };
    let one =
        |uid, shared| ask(&fake, rules(true), uid, at(7, 5), Question::MemoryGroup { shared });
    assert_eq!(one(0, false)["answer"]["path"], "deep/a");
    assert_eq!(one(0, true)["answer"]["id"], 0);
    let own = one(ALICE, false);
    assert_eq!((&own["answer"]["id"], &own["answer"]["path"]), (&json!(7), &json!(null)));
    refused(&one(BOB, false), "EPERM", "only the owner");
    refused(&one(ALICE, true), "EPERM", "only root");
    let list = ask(&fake, rules(true), ALICE, at(7, 5), Question::Memory { after: 0 });
    assert_eq!(list["answer"]["rows"][0]["path"], format!("of {ALICE}"));
}

/// Ten thousand idle groups in less than two hundred answers.
#[test]
fn the_rows_of_many_idle_groups_come_in_few_pages() {
    let fake = Fake { subvolumes: 10_000, path: "tenants/some-name".into(), ..Fake::default() };
    let (mut ids, mut after, mut pages) = (Vec::new(), 0, 0);
    loop {
        let page = &ask(&fake, rules(false), 0, at(1, 1), Question::Memory { after })["answer"];
        let page: Page<MemoryRow> = serde_json::from_value(page.clone()).unwrap();
        ids.extend(page.rows.iter().map(|row| row.id));
        pages += 1;
        match page.next {
            Some(next) => after = next,
            None => break,
        }
    }
    assert_eq!(ids, (0..=10_000).collect::<Vec<u32>>());
    assert!(pages < 200, "{pages}");
}
