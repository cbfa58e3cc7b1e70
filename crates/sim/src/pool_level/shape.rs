//! How a simulated pool is made: small, so that everything that has a limit reaches it.

use std::time::Duration;

use copyhold_pool::{CreateOptions, Limits, OpenOptions};
use copyhold_types::PoolId;

use crate::Sabotage;
use crate::dice::Dice;

/// Sizes of one pool, and the limits it runs under.
#[derive(Clone, Debug)]
pub struct Shape {
    pub blocks: u64,
    pub create: CreateOptions,
    pub limits: Limits,
    /// Nearly full from the beginning, so that what is freed is used again soon.
    pub crowded: bool,
}

impl Shape {
    pub fn by(dice: &mut Dice, broken: Option<Sabotage>) -> Shape {
        let create = CreateOptions {
            id: Some(PoolId([dice.below(256) as u8; 16])),
            name: "simulated".into(),
            log_bytes: Some(dice.pick(&[256 << 10, 512 << 10, 1 << 20])),
            metaslab_blocks: Some(dice.pick(&[256, 1024])),
            node_bytes: Some(4096),
            partition_leaves: Some(dice.pick(&[2, 8, 32])),
            ..CreateOptions::default()
        };
        let limits = Limits {
            txg_interval: Duration::from_millis(dice.pick(&[2, 20, 5000])),
            mark_after: Duration::from_millis(dice.pick(&[1, 10, 100])),
            delta_bytes: dice.pick(&[4 << 10, 16 << 10, 64 << 10]),
            replay_edits: dice.pick(&[100, 500, 4000]),
            node_cache_bytes: dice.pick(&[0, 16 << 10, 64 << 20]),
            tail_verify_bytes: dice.pick(&[16 << 10, 64 << 20, 64 << 20]),
            sabotage: broken.and_then(Sabotage::of_pool),
            scribble: None,
        };
        let crowded = dice.one_in(2);
        let blocks = if crowded { 2048 } else { dice.pick(&[2048, 4096, 8192]) };
        Shape { blocks, create, limits, crowded }
    }

    pub fn open_for_tenants(&self) -> OpenOptions {
        OpenOptions { tenants: true, ..self.open(false) }
    }

    pub fn open(&self, read_only: bool) -> OpenOptions {
        OpenOptions { read_only, limits: self.limits.clone(), ..OpenOptions::default() }
    }
}
