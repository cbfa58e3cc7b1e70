//! Making space maps anew.
//!
//! What is allocated in a metaslab is what something refers to there (S1), and the check finds all
//! of that. So a map whose copies are both damaged can be replaced, if every reference could be
//! read and none contradicts another: a block that was left out would be written over.

use copyhold_device::DynDevice;
use copyhold_pool::{OpenOptions, Pool, PoolError};
use copyhold_runtime::Rt;
use copyhold_space::MetaslabId;

use crate::Options;
use crate::checker::Checker;
use crate::problem::Severity;
use crate::report::Draft;

/// What a repair has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repaired {
    /// Metaslabs whose maps were made anew.
    pub maps: Vec<MetaslabId>,
    /// Why a map that cannot be read was not made anew.
    pub refused: Option<String>,
}

/// Makes space maps anew that cannot be read, in a pool that is not open. Opens it for writing.
///
/// # Errors
/// The pool cannot be opened, or not be written.
pub async fn repair_device(rt: Rt, device: DynDevice) -> Result<Repaired, PoolError> {
    // Announced, and never there: so no table is flushed, whose nodes may be shared.
    let options = OpenOptions { tenants: true, ..OpenOptions::default() };
    let pool = Pool::open(rt, device, options).await?;
    let mut repaired = Repaired::default();
    let aside = pool.space_map().set_aside();
    if !aside.is_empty() {
        let found = Checker::look(&pool, Options { data: false }, Draft::default()).await;
        repaired.refused = why_not(&found);
        for id in aside.into_iter().filter(|_| repaired.refused.is_none()) {
            let referred = found.reach.reached_in(found.blocks_of(id));
            pool.rebuild_map(id, referred).await?;
            repaired.maps.push(id);
        }
    }
    pool.close().await?;
    Ok(repaired)
}

/// Why what was found is no ground for a new map.
fn why_not(found: &Checker) -> Option<String> {
    if !found.has_read_all_references() {
        return Some("some nodes cannot be read, and may refer to any block".into());
    }
    let bad = [Severity::Fatal, Severity::DataLost, Severity::AtRisk];
    let worst = found.report.problems.iter().find(|problem| bad.contains(&problem.severity()))?;
    Some(format!("the pool has other damage: {worst}"))
}
