//! Logs refused calls, and the limits that refused them.
//!
//! A refused call is one line. A caller that retries could fill the log of the host, so a group
//! has [`LINES`] of them in [`PERIOD`]; the next one logged says how many were not.

use std::collections::BTreeMap;
use std::time::Duration;

use copyhold_sync::{Mutex, of};
use copyhold_types::Nanos;
use copyhold_volume::quota::{Exceeded, GroupId, QuotaError};

use crate::refusal_pace::RefusalPaces;
use crate::subvol::Subvol;
use crate::{Filesystem, FsError};

const LINES: u32 = 8;
const PERIOD: Duration = Duration::from_secs(10);
/// Groups that are remembered; beyond, the history of all begins anew.
const GROUPS: usize = 256;

/// The groups that refused calls lately.
#[derive(Default)]
pub(crate) struct Refusals {
    reported: Mutex<BTreeMap<GroupId, Reported>, of::Refusals>,
    pub(crate) paces: RefusalPaces,
}

#[derive(Clone, Copy, Default)]
struct Reported {
    since: Nanos,
    lines: u32,
    untold: u64,
}

impl Refusals {
    /// Whether this one is to be logged; if so, how many were not since the last that was.
    fn note(&self, group: GroupId, now: Nanos) -> Option<u64> {
        let mut groups = self.reported.lock();
        if groups.len() >= GROUPS && !groups.contains_key(&group) {
            groups.clear();
        }
        let reported =
            groups.entry(group).or_insert(Reported { since: now, ..Reported::default() });
        if now.saturating_sub(reported.since) >= PERIOD.as_nanos() as Nanos {
            (reported.since, reported.lines) = (now, 0);
        }
        if reported.lines == LINES {
            reported.untold += 1;
            return None;
        }
        reported.lines += 1;
        Some(std::mem::take(&mut reported.untold))
    }
}

impl Filesystem {
    /// A call fails with this: logged once, with the group that refused.
    pub(crate) fn report_refusal(&self, subvol: &Subvol, refused: &FsError) {
        let FsError::Quota(QuotaError::Exceeded(exceeded)) = refused else { return };
        let Some(untold) = self.refusals.note(exceeded.group, self.rt.now()) else { return };
        let Exceeded { group, wanted, used, reserved, unflushed, limit, .. } = *exceeded;
        let subvol = subvol.id().0;
        tracing::info!(
            subvol, %group, wanted, used, reserved, unflushed, limit, untold, "{refused}"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_of_refused_calls_does_not_fill_the_log_and_is_counted() {
        let refusals = Refusals::default();
        let [one, other] = [1, 2].map(|id| GroupId::new(1, id).unwrap());
        let reported = (0..1000).filter(|now| refusals.note(one, *now) == Some(0)).count();
        assert_eq!(reported, LINES as usize);
        assert_eq!(refusals.note(other, 1000), Some(0), "it has lines of its own");
        let later = PERIOD.as_nanos() as Nanos;
        assert_eq!(refusals.note(one, later), Some(1000 - u64::from(LINES)));
        assert_eq!(refusals.note(one, later), Some(0));
        for id in 3..GROUPS as u64 * 2 {
            refusals.note(GroupId::new(1, id).unwrap(), later);
        }
        assert!(refusals.reported.lock().len() <= GROUPS);
    }
}
