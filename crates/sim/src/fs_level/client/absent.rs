//! A front end that keeps the names that do not exist, and the look-ups that it passes on
//! (`fs::names`).
//!
//! Each client looks at names of its own: one that its tree has is found, all others are absent
//! (NAMES-N1). A task makes the front end forget absent names, as the pruner of a mount does. The
//! front end knows a name again if it asks while it is being made to forget it: the entry must
//! stay then (NAMES-N3).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use copyhold_fs::{Filesystem, Looked, NameEvent, NodeId, Victim};
use parking_lot::Mutex;

use super::{Client, Done};
use crate::dice::Dice;

/// Names that are removed from the front end in one round.
const AT_ONCE: usize = 8;

/// How a client looks at names.
pub(crate) struct Looker {
    pub(crate) dice: Dice,
    /// None: it never does.
    pub(crate) front_end: Option<Arc<FrontEnd>>,
}

/// The state of the front end that decides whether an entry may end.
#[derive(Default)]
pub(crate) struct FrontEnd {
    /// Names that were found absent since the last flight began.
    asked: Mutex<BTreeSet<(NodeId, Vec<u8>)>>,
    in_flight: AtomicUsize,
}

impl Client {
    /// Mostly nothing.
    pub(super) async fn look_at_names(&mut self) -> Done {
        let Some(front_end) = self.looker.front_end.clone() else { return Ok(()) };
        if !self.looker.dice.one_in(2) {
            return Ok(());
        }
        std::mem::swap(&mut self.dice, &mut self.looker.dice);
        let tree = self.tree();
        let dir = self.a_dir(&tree);
        let mut names: Vec<Vec<u8>> = (0..6).map(|_| self.a_name()).collect();
        std::mem::swap(&mut self.dice, &mut self.looker.dice);
        let node = self.node(dir);
        for name in names.drain(..) {
            let looked = self.fs.look(node, &name).await;
            let looked = self.given("look", looked)?.expect("a look-up needs no space");
            let expected = tree.entries.get(&(dir, name.clone()));
            match looked {
                Looked::Found(entry) => {
                    let known = expected.map(|id| self.world().nodes.get(id).copied());
                    let is_right = known.is_some_and(|of| of.is_none_or(|of| of == entry.node));
                    assert!(is_right, "{name:?} in {dir:?} is {}, not {known:?}", entry.node);
                    self.meet(entry);
                }
                Looked::Absent(_) => {
                    assert!(expected.is_none(), "NAMES-N1: {name:?} in {dir:?} is absent");
                    front_end.asked.lock().insert((node, name));
                }
            }
        }
        Ok(())
    }

    /// Whether a rename may be refused because the front end is forgetting its new name.
    pub(super) fn may_be_in_flight(&self) -> bool {
        let front_end = self.looker.front_end.as_ref();
        front_end.is_some_and(|front_end| front_end.in_flight.load(Relaxed) > 0)
    }
}

/// Makes the front end forget names for some rounds.
pub(crate) async fn prune(fs: Arc<Filesystem>, front_end: Arc<FrontEnd>, mut dice: Dice) {
    for _ in 0..dice.magnitude(7) {
        let victims = match dice.one_in(2) {
            true => fs.names().pick(AT_ONCE),
            false => {
                let subvols = fs.volumes().list();
                let subvol = dice.pick_ref(&subvols);
                fs.names().pick_all(subvol.owner(), AT_ONCE)
            }
        };
        let forgotten =
            victims.iter().filter(|victim| !victim.expires && fs.names().confirm(victim));
        front_end.forget(&fs, &forgotten.collect::<Vec<_>>(), &mut dice).await;
        pause(&fs, &mut dice, 20).await;
    }
}

async fn pause(fs: &Filesystem, dice: &mut Dice, bits: u64) {
    let nanos = dice.magnitude(bits);
    fs.pool().runtime().sleep(Duration::from_nanos(nanos)).await;
}

impl FrontEnd {
    /// The front end forgets these names, and the daemon learns that a while later.
    async fn forget(&self, fs: &Filesystem, victims: &[&Victim], dice: &mut Dice) {
        self.asked.lock().clear();
        self.in_flight.store(victims.len(), Relaxed);
        pause(fs, dice, 26).await;
        for victim in victims {
            match dice.one_in(4) {
                true => fs.names().put_back(victim),
                false => self.finish(fs, victim),
            }
        }
        self.in_flight.store(0, Relaxed);
    }

    fn finish(&self, fs: &Filesystem, victim: &Victim) {
        let names = fs.names();
        let before = names.live();
        names.finish(victim, NameEvent::Pruned);
        let name = (victim.dir, victim.name().to_vec());
        let was_asked = self.asked.lock().contains(&name);
        let subvol = fs.volumes().subvol(victim.dir.subvol);
        let may_stay = names.limit() > 0 && subvol.is_some_and(|subvol| !subvol.is_dying());
        assert!(
            !(was_asked && may_stay) || names.live() == before,
            "NAMES-N3: the front end knows {name:?} again, and its entry ended"
        );
    }
}
