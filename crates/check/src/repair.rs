//! Making space maps anew.
//!
//! A block of a metaslab is allocated if a reference leads to it (REACH-S1), and the check finds
//! all references. So a map whose copies are both damaged can be replaced, if every reference could
//! be read and none contradicts another: a block that was left out would be written over.
//!
//! A pool is first looked at without writing. It is opened for writing, which may begin
//! a new incarnation of it, if there is a map to be made anew and no reason against it.

use std::sync::Arc;

use copyhold_device::DynDevice;
use copyhold_pool::{OpenOptions, Pool, PoolError};
use copyhold_runtime::Rt;
use copyhold_space::MetaslabId;

use crate::checker::Checker;
use crate::options::Options;
use crate::problem::Severity;
use crate::report::Draft;

/// The outcome of a repair.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Repaired {
    /// Blocks of the file or disk to which a header of protection information was written.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<u64>,
    /// Metaslabs whose maps were made anew.
    #[serde(rename = "repaired", serialize_with = "names")]
    pub maps: Vec<MetaslabId>,
    /// Why a map that cannot be read was not made anew.
    pub refused: Option<String>,
}

fn names<S: serde::Serializer>(maps: &[MetaslabId], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(maps.iter().map(MetaslabId::to_string))
}

/// Makes space maps anew that cannot be read, in a pool that is not open. Writes nothing if there
/// are none, or if one cannot be made.
///
/// # Errors
/// The pool cannot be opened, or not be written.
pub async fn repair_device(rt: Rt, device: DynDevice) -> Result<Repaired, PoolError> {
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    let pool = Pool::open(rt.clone(), device.clone(), options).await?;
    // Without a plan nothing is to be done, and nothing was refused.
    let refused = Plan::of(&pool).await.map(|plan| plan.refused);
    pool.close().await?;
    drop(pool);
    if refused != Some(None) {
        return Ok(Repaired { refused: refused.flatten(), ..Repaired::default() });
    }
    // Announced, and never there: so no table is flushed, whose nodes may be shared.
    let options = OpenOptions { tenants: true, ..OpenOptions::default() };
    let pool = Pool::open(rt, device, options).await?;
    let mut repaired = Repaired::default();
    // Opening for writing has changed the pool: references to space are found once more.
    if let Some(plan) = Plan::of(&pool).await {
        repaired.refused = plan.refused;
        for id in plan.aside.into_iter().filter(|_| repaired.refused.is_none()) {
            let referred = plan.found.reach.reached_in(plan.found.blocks_of(id));
            pool.rebuild_map(id, referred).await?;
            repaired.maps.push(id);
        }
    }
    pool.close().await?;
    Ok(repaired)
}

/// The space maps to be made anew, and their source.
struct Plan {
    aside: Vec<MetaslabId>,
    found: Checker,
    refused: Option<String>,
}

impl Plan {
    /// `None`: every map can be read.
    async fn of(pool: &Arc<Pool>) -> Option<Plan> {
        let aside = pool.space_map().set_aside();
        if aside.is_empty() {
            return None;
        }
        let found = Checker::look(pool, Options { data: false }, Draft::default()).await;
        let refused = why_not(&found);
        Some(Plan { aside, found, refused })
    }
}

/// Why the findings are no ground for a new map.
fn why_not(found: &Checker) -> Option<String> {
    if !found.has_read_all_references() {
        return Some("some nodes cannot be read, and may refer to any block".into());
    }
    let bad = [Severity::Fatal, Severity::DataLost, Severity::AtRisk];
    let worst = found.report.problems.iter().find(|problem| bad.contains(&problem.severity()))?;
    Some(format!("the pool has other damage: {worst}"))
}
