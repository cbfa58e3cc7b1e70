//! How a simulated pool is made: small, so that everything that has a limit reaches it.

use std::time::Duration;

use copyhold_pool::{CreateOptions, Limits, OpenOptions};
use copyhold_types::PoolId;

use crate::dice::Dice;
use crate::{Plan, Sabotage};

/// The nodes that a pool of tenants keeps in any case, and a few more.
const NODES: usize = 40;

/// Memory of two or three maps.
const FEW_MAPS: u64 = 4 << 10;

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
    pub fn by(dice: &mut Dice, plan: &Plan) -> Shape {
        let id = dice.below(256);
        // Of four pools one has its free space in short runs: most nodes are longer.
        let short = [1, 1, 1, 2, 2, 3, 5, 7][(id / 4 % 8) as usize];
        let run_max = id.is_multiple_of(4).then_some(short);
        let create = CreateOptions {
            id: Some(PoolId([id as u8; 16])),
            name: "simulated".into(),
            // The smallest ring most often.
            log_bytes: Some(dice.pick(&[1, 1, 1 << 20])),
            metaslab_blocks: Some(dice.pick(&[256, 1024])),
            node_bytes: Some(if run_max.is_some() { 16 << 10 } else { 4096 }),
            partition_leaves: Some(dice.pick(&[2, 8, 32])),
            ..CreateOptions::default()
        };
        // One pool of sixteen has few maps in memory in any case.
        let few_maps = plan.few_maps || id % 16 == 5;
        let limits = Limits {
            txg_interval: Duration::from_millis(dice.pick(&[2, 20, 5000])),
            mark_after: Duration::from_millis(dice.pick(&[1, 10, 100])),
            delta_bytes: dice.pick(&[4 << 10, 16 << 10, 64 << 10]),
            replay_edits: dice.pick(&[100, 500, 4000]),
            replay: None,
            flush: plan.flush,
            space_log: !plan.stock,
            node_cache_bytes: dice.pick(&[0, 16 << 10, 64 << 20]),
            clean_data_bytes: 0,
            // Tables rest and are opened all the time.
            open_tables: (id % 4) as usize,
            log_bytes: u64::MAX,
            maps_bytes: if few_maps { FEW_MAPS } else { 64 << 20 },
            run_max,
            prefer_deltas: id % 2 == 1,
            tail_verify_bytes: dice.pick(&[16 << 10, 64 << 20, 64 << 20]),
            handover_edits: if create.partition_leaves == Some(2) { 1 } else { 1024 },
            carried_runs: if create.partition_leaves == Some(2) { 2 } else { 512 },
            blocks_max: u64::MAX / 4096,
            sabotage: plan.broken.and_then(Sabotage::of_pool),
            scribble: None,
        };
        let crowded = dice.one_in(2);
        let blocks = if crowded { 2048 } else { dice.pick(&[2048, 4096, 8192]) };
        Shape { blocks, create, limits, crowded }
    }

    /// With clean data in memory, more often than not so little that it is evicted.
    pub fn open_for_tenants(&self) -> OpenOptions {
        let mut limits = self.limits.clone();
        let number = self.create.id.map_or(0, |id| id.0[0]);
        limits.clean_data_bytes = [0, 64 << 10, 1 << 20][usize::from(number % 3)];
        if limits.clean_data_bytes > 0 {
            let nodes = NODES * self.create.node_bytes.unwrap_or_default() as usize;
            limits.node_cache_bytes = limits.node_cache_bytes.max(nodes + limits.clean_data_bytes);
        }
        OpenOptions { tenants: true, limits, ..OpenOptions::default() }
    }

    pub fn open(&self, read_only: bool) -> OpenOptions {
        OpenOptions { read_only, limits: self.limits.clone(), ..OpenOptions::default() }
    }
}
