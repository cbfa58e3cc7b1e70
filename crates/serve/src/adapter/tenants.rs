//! Questions about tenants, as they arrive: the caller's right to ask, and answers that fit.
//!
//! TENANTS-T1  A change of groups, limits, of memory too, or whether quotas are on is for
//!             administrators as `who` has them, and for the ordinary user who mounted the pool: he
//!             has the pool's file. So is the eviction of a group's caches.
//! TENANTS-T2  So is a change of subvolumes, unless the mount allows it to owners
//!             (`user_subvolumes`). Then the caller must own the directory that holds the entry,
//!             and the root of a subvolume that he snapshots, deletes or makes read-only; choosing
//!             groups (`-i`) and heirs stays a privilege, since with it one leaves one's limits.
//!             Root without privilege is no owner: most of all tenants is root's.
//! TENANTS-T3  Lists of subvolumes and groups, of memory too, are for administrators. Owners see
//!             their own living subvolumes in them, by name, and the usage and limits of these;
//!             with the option `public_lists` all callers see everything. A caller sees the
//!             properties of the subvolume of which it has a directory open, without its path. A
//!             look through a subvolume's files shows names and sizes wherever they are: that is
//!             for administrators and for the owner of the roots concerned. Owners are compared
//!             with callers only where that means anything: see `who`. The owners of an entry's
//!             directory and subvolume are checked by the filesystem, with the change
//!             (`copyhold_fs::Right`): an earlier look-up of the name proves nothing.
//! TENANTS-T4  A refusal is an answer: it says more than an errno can.
//! TENANTS-T5  A directory that is not the object of the request is named by a token, which proves
//!             that the caller has it open. A change needs a writable token of each directory whose
//!             entries or subvolume it changes (`tokens`): read-only mounts do not permit it.
//!
//! When an entry has come or gone, the kernel is notified before the answer: it may know better
//! for a day otherwise.

use copyhold_format::item::GroupId;
use copyhold_fs::{NodeId, Right};
use copyhold_runtime::Runtime;
use copyhold_types::{InodeNo, SubvolId};
use serde::Serialize;
use serde_json::{Value, json};

use super::rules::Rules;
use super::tokens::{Holder, Tokens};
use super::who::Who;
use crate::tenants::{Answer, NewEntry, Part, Tenants};
use crate::wire::{Asked, Group, Keep, Numbered, Page, Question, Refusal, Response, Token};

/// Rows that are looked up for one page.
const ROWS: usize = 128;
/// The bytes around the rows of a page.
const FRAME_BYTES: usize = 128;

const ROOT_ONLY: &str = "only root may do this, with CAP_SYS_ADMIN in the daemon's user, pid and \
                         mount namespaces (any mount namespace: `mount -o admin_namespaces=any`)";
const NO_TOKEN: &str = "a change needs a token of the directory that setxattr(2) has presented \
                        there; use the program that mounted the pool";
const NOT_OWNER: &str = "only the owner of the subvolume's root may do this";
const LISTS_OPTION: &str = "only root sees subvolumes and groups; with `mount -o user_subvolumes` \
                            owners see theirs, with `public_lists` all users see all";
const NO_LOOK: &str = "only root and the owner of the subvolume's root may look through it";
const OWNERS_OPTION: &str = "only root may do this, or owners with `mount -o user_subvolumes`";

impl Rules {
    /// Whether the caller sees all of the pool's properties (TENANTS-T3).
    pub(super) fn sees_all(&self, by: Option<Who>) -> bool {
        self.public_lists || self.privileges(by)
    }

    /// Whether the caller manages the pool (TENANTS-T1).
    pub(super) fn privileges(&self, by: Option<Who>) -> bool {
        by.is_some_and(|who| who.is_admin || (who.is_near && self.mounted_by == Some(who.uid)))
    }
}

/// The answer, and the names that the kernel should forget before.
#[derive(Debug, Default)]
pub(super) struct Answered {
    /// Ends with a zero.
    pub(super) text: Vec<u8>,
    pub(super) changed: Changed,
}

/// The changes behind the kernel's back.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Changed {
    /// Names in directories.
    pub(super) entries: Vec<(NodeId, Vec<u8>)>,
    /// Nodes that are gone, of whose content the kernel may know.
    pub(super) stale: Vec<NodeId>,
    /// The subvolume of which no absent name is to be known.
    pub(super) names: Option<SubvolId>,
}

/// The rules by which a mount answers.
#[derive(Clone, Copy)]
pub(super) struct Terms<'a> {
    pub(super) rules: Rules,
    pub(super) tokens: &'a Tokens,
    pub(super) rt: &'a dyn Runtime,
}

/// Answers what was asked on the directory `node`, in less than `room` bytes.
pub(super) async fn answer<T: Tenants>(
    tenants: &T,
    terms: Terms<'_>,
    by: Option<Who>,
    node: NodeId,
    question: &[u8],
    room: usize,
) -> Answered {
    let end = question.iter().position(|&byte| byte == 0).unwrap_or(question.len());
    let desk = Desk { tenants, terms, by, node, room };
    let mut changed = Changed::default();
    let told = match serde_json::from_slice(&question[..end]) {
        Ok(asked) => desk.answer(asked, &mut changed).await,
        Err(error) => Err(Refusal::new(
            "EINVAL",
            format!(
                "the daemon does not understand the request ({error}); use the program that mounted the pool"
            ),
        )),
    };
    let mut text = encode(told);
    if text.len() >= room {
        let why = format!("the answer has {} bytes, more than there is room for", text.len());
        text = encode(Err(Refusal::new("EOVERFLOW", why)));
    }
    text.push(0);
    Answered { text, changed }
}

impl Rules {
    /// The right of a caller to change subvolumes; `freely`: beyond the limits of an owner.
    pub(super) fn right(&self, by: Option<Who>, freely: bool) -> Answer<Right> {
        if self.privileges(by) {
            return Ok(Right::Administrator);
        }
        if !self.owners_may {
            let is_root = by.is_some_and(|who| who.uid == 0);
            let why = if is_root { ROOT_ONLY } else { OWNERS_OPTION };
            return Err(Refusal::new("EPERM", why));
        }
        if freely {
            return Err(Refusal::new("EPERM", "only root may choose quota groups and heirs"));
        }
        owner(by).map(Right::Owner)
    }
}

/// The id that a caller has as an owner.
fn owner(by: Option<Who>) -> Answer<u32> {
    let who = by.ok_or_else(unknown)?;
    if !who.knows_owners {
        return Err(Refusal::new("EPERM", OWNERS_OPTION));
    }
    if who.uid == 0 {
        return Err(Refusal::new("EPERM", ROOT_ONLY));
    }
    Ok(who.uid)
}

fn encode(told: Answer<Value>) -> Vec<u8> {
    let told = match told {
        Ok(answer) => Response::Answer(answer),
        Err(refusal) => Response::Error(refusal),
    };
    serde_json::to_vec(&told).expect("answers have string keys")
}

/// One question on its way.
struct Desk<'a, T> {
    tenants: &'a T,
    terms: Terms<'a>,
    by: Option<Who>,
    node: NodeId,
    room: usize,
}

impl<T: Tenants> Desk<'_, T> {
    async fn answer(&self, asked: Asked, changed: &mut Changed) -> Answer<Value> {
        let (tenants, Asked { token, question }) = (self.tenants, asked);
        if question.changes() {
            let token = token.ok_or_else(|| Refusal::new("EACCES", NO_TOKEN))?;
            if self.writable(&token)? != self.node {
                return Err(Refusal::new("EACCES", NO_TOKEN));
            }
        }
        Ok(match question {
            Question::Token => {
                let Terms { tokens, rt, .. } = self.terms;
                let tenant = tenants.tenant(self.node.subvol);
                json!(tokens.issue(rt, (tenant, self.holder()), self.node))
            }
            Question::Create { .. }
            | Question::Snapshot { .. }
            | Question::Delete { .. }
            | Question::RollBack { .. } => return self.change(question, changed).await,
            Question::SetReadOnly { on } => {
                // The descriptor names the root itself.
                if let Right::Owner(_) = self.right(false)? {
                    self.owns(&[self.node], NOT_OWNER).await?;
                }
                let subvol = root(self.node)?;
                json!(tenants.set_read_only(subvol, on).await?)
            }
            Question::Subvolume => {
                if !self.sees_all() {
                    let shown = tenants.shown(self.node.subvol, owner(self.by).ok()).await?;
                    return Ok(json!(shown));
                }
                let after = u64::from(self.node.subvol.0) - 1;
                let found = tenants.subvolumes(after, 1).await?.into_iter().next();
                let found = found.filter(|found| found.id == self.node.subvol.0);
                json!(found.ok_or_else(|| Refusal::new("ESTALE", "the subvolume is deleted"))?)
            }
            Question::Subvolumes { after } => {
                // The root is where they all are, not one of them.
                let after = after.max(SubvolId::ROOT.0.into());
                if !self.sees_all() {
                    let Part { rows, next } =
                        tenants.own_subvolumes(self.lister()?, after, ROWS).await?;
                    return self.page_until(rows, next);
                }
                self.page(tenants.subvolumes(after, ROWS).await?)?
            }
            Question::Leaving { after } => {
                // The daemon works at deletions and commits for the answer.
                self.privileged()?;
                self.page(tenants.leaving(after, ROWS).await?)?
            }
            Question::Groups { after } if !self.sees_all() => {
                let Part { rows, next } = tenants.own_groups(self.lister()?, after, ROWS).await?;
                return self.page_until(rows, next);
            }
            Question::Groups { after } => self.page(tenants.groups(after, ROWS).await?)?,
            Question::Scan { step } => {
                let subvol = root(self.node)?;
                let other = step.other().map(|token| self.opened(token)).transpose()?;
                let from = other.map(root).transpose()?;
                self.may_scan(&[Some(self.node), other]).await?;
                let room = self.room.saturating_sub(FRAME_BYTES);
                tenants.scan(subvol, from, &step, room).await?
            }
            Question::Room => json!(tenants.room(self.node).await?),
            Question::QuotaStatus => json!(tenants.quota_status().await?),
            Question::QuotaRescan => json!(tenants.quota_rescan().await?),
            Question::QuotaEnable { simple } => {
                self.privileged()?;
                json!(tenants.quota_enable(simple).await?)
            }
            Question::QuotaDisable => {
                self.privileged()?;
                json!(tenants.quota_disable().await?)
            }
            Question::Regroup { change } => {
                self.privileged()?;
                json!(tenants.regroup(&change).await?)
            }
            Question::GroupClearStale => {
                self.privileged()?;
                json!(tenants.clear_stale().await?)
            }
            Question::Memory { after } if !self.sees_all() => {
                let Part { rows, next } = tenants.own_memory(self.lister()?, after, ROWS).await?;
                return self.page_until(rows, next);
            }
            Question::Memory { after } => {
                self.page(tenants.memory(self.node.subvol, after, ROWS).await?)?
            }
            Question::MemoryGroup { shared } => {
                let sees_all = self.sees_all();
                if !sees_all && shared {
                    return Err(Refusal::new("EPERM", LISTS_OPTION));
                }
                if !sees_all {
                    let root = NodeId { ino: InodeNo::ROOT, ..self.node };
                    self.owns(&[root], NOT_OWNER).await?;
                }
                let of = (!shared).then_some(self.node.subvol);
                json!(tenants.memory_group(of, sees_all).await?)
            }
            Question::SetMemory { shared, change } => {
                self.privileged()?;
                json!(tenants.set_memory(self.memory_group(shared)?, &change).await?)
            }
            Question::ReclaimMemory { shared, bytes } => {
                self.privileged()?;
                json!(tenants.reclaim_memory(self.memory_group(shared)?, bytes).await?)
            }
            Question::Names { .. } | Question::NamesTotals if !self.sees_all() => {
                return Err(Refusal::new("EPERM", LISTS_OPTION));
            }
            Question::Names { after } => self.page(tenants.names(after, ROWS).await?)?,
            Question::NamesTotals => json!(tenants.names_totals()?),
            Question::SetNames { limit } => {
                self.privileged()?;
                json!(tenants.set_names(limit)?)
            }
            Question::Grow { size } => {
                self.privileged()?;
                json!(tenants.grow(size).await?)
            }
            Question::DropNames => {
                self.privileged()?;
                let subvol = root(self.node)?;
                changed.names = Some(subvol);
                json!(tenants.names_of(subvol)?)
            }
        })
    }

    /// Makes or takes away an entry of the directory.
    async fn change(&self, question: Question, changed: &mut Changed) -> Answer<Value> {
        let ids = |groups: &[Group]| groups.iter().map(|group| group.0).collect::<Vec<GroupId>>();
        match question {
            Question::Create { name, umask, groups } => {
                let right = self.right(!groups.is_empty())?;
                let by = copyhold_fs::Caller { umask, ..self.maker()? };
                let groups = ids(&groups);
                let (by, parent, groups) = (&by, self.node, &groups[..]);
                let place = NewEntry { right, by, parent, name: &name, groups };
                let made = self.tenants.create(place).await?;
                changed.entries.push((self.node, name));
                Ok(json!(made.0))
            }
            Question::Snapshot { source, name, read_only, groups } => {
                let source = self.opened(&source)?;
                let subvol = root(source)?;
                let right = self.right(!groups.is_empty())?;
                let (by, groups) = (self.maker()?, ids(&groups));
                let (by, parent, groups) = (&by, self.node, &groups[..]);
                let place = NewEntry { right, by, parent, name: &name, groups };
                let made = self.tenants.snapshot(subvol, place, read_only).await?;
                changed.entries.push((self.node, name));
                Ok(json!(made.0))
            }
            Question::Delete { name, heir } => {
                let right = self.right(heir.is_some())?;
                let heir = heir.map(|heir| root(self.opened(&heir)?)).transpose()?;
                let deleted = self.tenants.delete(right, self.node, &name, heir).await?;
                changed.stale = deleted.stale;
                changed.entries.push((self.node, name));
                Ok(json!(deleted.subvol.0))
            }
            Question::RollBack { name, snapshot, keep } => {
                let right = self.right(false)?;
                let snapshot = self.opened(&snapshot)?;
                let subvol = root(snapshot)?;
                let place = |Keep { directory, name }| Ok((self.writable(&directory)?, name));
                let keep = keep.map(place).transpose()?;
                let to = keep.as_ref().map(|(directory, name)| (*directory, &name[..]));
                let made = self.tenants.roll_back(right, self.node, &name, subvol, to).await?;
                changed.stale = made.stale;
                changed.entries.push((self.node, name));
                changed.entries.extend(keep);
                Ok(json!(made.subvol.0))
            }
            _ => unreachable!("only these make or take away an entry"),
        }
    }

    /// The memory group that is meant: the shared one, or that of the root that this directory is.
    fn memory_group(&self, shared: bool) -> Answer<Option<SubvolId>> {
        match shared {
            true => Ok(None),
            false => root(self.node).map(Some),
        }
    }

    /// The directory that the caller has open, by its token.
    fn opened(&self, token: &Token) -> Answer<NodeId> {
        Ok(self.found(token)?.0)
    }

    /// The same where the kernel has checked its mount for writing.
    fn writable(&self, token: &Token) -> Answer<NodeId> {
        match self.found(token)? {
            (node, true) => Ok(node),
            _ => Err(Refusal::new("EACCES", NO_TOKEN)),
        }
    }

    fn found(&self, token: &Token) -> Answer<(NodeId, bool)> {
        let found = self.terms.tokens.find(self.terms.rt, token);
        found.ok_or_else(|| {
            Refusal::new("EKEYEXPIRED", "the token of a directory has expired; ask for a new one")
        })
    }

    /// The holder of the caller's tokens.
    fn holder(&self) -> Holder {
        match self.by {
            _ if self.is_privileged() => Holder::Administrator,
            Some(who) => Holder::User(who.uid),
            None => Holder::Unknown,
        }
    }

    /// The owner of a new subvolume.
    fn maker(&self) -> Answer<copyhold_fs::Caller> {
        self.by.map(|who| who.caller()).ok_or_else(unknown)
    }

    fn right(&self, freely: bool) -> Answer<Right> {
        self.terms.rules.right(self.by, freely)
    }

    /// Whether lists are complete for the caller.
    fn sees_all(&self) -> bool {
        self.terms.rules.sees_all(self.by)
    }

    /// The owner whose subvolumes are listed.
    fn lister(&self) -> Answer<u32> {
        owner(self.by).map_err(|_| Refusal::new("EPERM", LISTS_OPTION))
    }

    fn is_privileged(&self) -> bool {
        self.terms.rules.privileges(self.by)
    }

    fn privileged(&self) -> Answer<()> {
        match self.is_privileged() {
            true => Ok(()),
            false => Err(Refusal::new("EPERM", ROOT_ONLY)),
        }
    }

    /// Whether the caller may look through all of these subvolumes.
    async fn may_scan(&self, roots: &[Option<NodeId>]) -> Answer<()> {
        match self.is_privileged() {
            true => Ok(()),
            false => self.owns(&roots.iter().flatten().copied().collect::<Vec<_>>(), NO_LOOK).await,
        }
    }

    /// Refuses with this reason unless the caller owns all of these nodes.
    async fn owns(&self, nodes: &[NodeId], why: &str) -> Answer<()> {
        let uid = owner(self.by)?;
        for &node in nodes {
            if self.tenants.owner(node).await? != uid {
                return Err(Refusal::new("EPERM", why));
            }
        }
        Ok(())
    }

    /// As many rows as fit.
    fn page<R: Numbered>(&self, rows: Vec<R>) -> Answer<Value> {
        let next = rows.last().filter(|_| rows.len() == ROWS).map(Numbered::number);
        self.page_until(rows, next)
    }

    /// As many rows as fit; the list continues behind `next`.
    fn page_until<R: Numbered>(&self, rows: Vec<R>, next: Option<u64>) -> Answer<Value> {
        let mut room = self.room.saturating_sub(FRAME_BYTES);
        let (all, mut shown, mut last) = (rows.len(), Vec::new(), None);
        for row in rows {
            let bytes = length(&row) + 1;
            if bytes > room {
                break;
            }
            room -= bytes;
            last = Some(row.number());
            shown.push(json!(row));
        }
        if shown.is_empty() && all > 0 {
            return Err(Refusal::new("EOVERFLOW", "one row is larger than an answer can be"));
        }
        let next = if shown.len() < all { last } else { next };
        Ok(json!(Page { rows: shown, next }))
    }
}

fn unknown() -> Refusal {
    Refusal::new("EPERM", "the daemon cannot identify the calling process")
}

fn length(row: &impl Serialize) -> usize {
    serde_json::to_vec(row).expect("rows have string keys").len()
}

/// The subvolume whose root this is.
fn root(node: NodeId) -> Answer<SubvolId> {
    match node.ino {
        InodeNo::ROOT => Ok(node.subvol),
        _ => Err(Refusal::new("EINVAL", "this is not the root of a subvolume")),
    }
}

#[cfg(test)]
mod tests;
