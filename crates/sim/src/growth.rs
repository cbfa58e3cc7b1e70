//! Histories in which the pool becomes larger while clients use it ([`crate::Plan::grows`]).
//!
//! The dice of growth are a stream of their own, and a history without growth has none of it: its
//! seed means what it meant before.

use std::sync::Arc;
use std::time::Duration;

use copyhold_device::sim::SimImage;
use copyhold_format::label::{AREA_BLOCKS, Label};
use copyhold_pool::{GrowProblem, NewSize, Pool, PoolError, grow};
use copyhold_types::BLOCK_BYTES;

use crate::Plan;
use crate::dice::Dice;

/// Growths of one life, at most.
const GROWTHS_MAX: u64 = 3;

pub(crate) fn dice(plan: &Plan) -> Dice {
    Dice::new(plan.seed ^ 0x67_72_6f_77)
}

/// Grows the pool a few times, at some moments. `forgiving`: requests may fail.
pub(crate) async fn grow_sometimes(pool: Arc<Pool>, mut dice: Dice, forgiving: bool) {
    let mut is_longer = false;
    for _ in 0..1 + dice.below(GROWTHS_MAX) {
        pool.runtime().sleep(Duration::from_nanos(dice.magnitude(26))).await;
        let more = (AREA_BLOCKS + dice.magnitude(11)) * BLOCK_BYTES as u64;
        let size = if is_longer { NewSize::Max } else { NewSize::By(more) };
        is_longer = false;
        match grow(&pool, size).await {
            Ok(grown) if size == NewSize::Max => assert!(grown.now > grown.before),
            Ok(grown) => assert_eq!(grown.now, grown.before + more),
            // An interrupted growth has made the device longer.
            Err(PoolError::Grow { problem: GrowProblem::NoRoomBehind { .. }, .. }) => {
                is_longer = true;
            }
            Err(PoolError::Device(error)) if forgiving || error.is_host_full() => {}
            Err(PoolError::Stopped { .. }) if forgiving => {}
            Err(error) => panic!("the pool does not grow: {error}"),
        }
    }
}

/// The label that a recovery goes by: `known`, or that of the size that the pool has now.
pub(crate) fn label_now(plan: &Plan, known: &Label, image: &SimImage) -> Label {
    let ends = [0, image.blocks() - AREA_BLOCKS];
    let found = ends.iter().find_map(|at| Label::parse(&image.read_block(*at)).ok());
    found.filter(|_| plan.grows).unwrap_or_else(|| known.clone())
}
