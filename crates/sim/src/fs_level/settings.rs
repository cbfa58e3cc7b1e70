//! The operator's changes between the lives of a filesystem: quotas are turned on and off, groups
//! made, members assigned and removed.

use std::sync::Arc;

use copyhold_fs::{Filesystem, FsError};
use copyhold_volume::quota::{GroupId, GroupUse, Ledger};

use super::usage::Shown;
use crate::dice::Dice;

/// Groups of level 1 and 2.
const GROUPS: u64 = 3;

/// The changes that an operator has made.
pub(crate) struct Changed {
    /// The state in between: a crash may restore it.
    pub(crate) between: Option<Shown>,
    /// No crash undoes it.
    pub(crate) lasting: bool,
}

/// Makes some changes.
pub(crate) async fn change(fs: &Arc<Filesystem>, dice: &mut Dice) -> Result<Changed, FsError> {
    let mut between = None;
    // Before and behind it nothing is dirty: so it is known what counts.
    fs.sync().await?;
    let on = fs.volumes().ledger().is_on();
    match dice.below(6) {
        0 if on => {
            fs.disable_quotas().await?;
            if dice.one_in(2) {
                between = Some(Shown::of(fs.volumes().ledger()));
                fs.enable_quotas().await?;
            }
        }
        0..4 if !on => fs.enable_quotas().await?,
        _ if on => {
            for _ in 0..1 + dice.below(4) {
                change_groups(fs, dice).await?;
            }
        }
        _ => {}
    }
    let lasting = dice.one_in(2);
    if lasting {
        fs.sync().await?;
    }
    Ok(Changed { between, lasting })
}

async fn change_groups(fs: &Arc<Filesystem>, dice: &mut Dice) -> Result<(), FsError> {
    let groups = Shown::of(fs.volumes().ledger()).groups;
    let members = groups.iter().filter(|group| group.id.level() < 2);
    let members: Vec<GroupId> = members.map(|group| group.id).collect();
    let (level, number) = (1 + dice.below(2) as u16, 1 + dice.below(GROUPS));
    let group = GroupId::new(level, number).expect("a small number");
    let member = dice.pick(&members);
    let has = |id: GroupId| groups.iter().find(|group| group.id == id);
    let nth = dice.below(4);
    let change = |ledger: &Ledger| match has(group) {
        None => ledger.create(group),
        Some(GroupUse { members, .. }) if members.is_empty() && nth == 0 => ledger.destroy(group),
        Some(GroupUse { members, .. }) if members.contains(&member) => ledger.remove(member, group),
        Some(_) => ledger.assign(member, group),
    };
    match fs.change_quotas(change).await {
        // A level that is not above, a group that is one's own.
        Err(FsError::Quota(_)) => Ok(()),
        other => other,
    }
}
