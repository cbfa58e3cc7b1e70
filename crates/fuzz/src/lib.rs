//! Everything that reads bytes which others wrote, given any bytes: an answer or an error, never a
//! panic, a hang, or memory beyond the budget.
//!
//! A [`Target`] is a function of bytes. Two drivers call it: libFuzzer, which looks for new paths
//! as long as it is let (`make fuzz`, the workspace in `fuzz`), and `tests/bounded.rs`, which runs
//! in each test run: all kept inputs (`fuzz/seeds`), then a number of changed ones ([`mutate`])
//! that follow from a seed.
//!
//! ```text
//!   formats    structures of the disk, each by itself
//!   requests   what a kernel may send to a mount, any order and content
//!   control    questions of `copyhold`, as they arrive at the daemon
//!   image      a whole pool: damaged, opened, walked, checked, changed, and read by `rescue`
//! ```

#![forbid(unsafe_code)]

mod base;
mod control;
mod formats;
mod image;
mod input;
mod machine;
pub mod mutate;
mod requests;
mod rescue;
mod walk;

/// The target.
pub struct Target {
    pub name: &'static str,
    /// One input; panics when something is wrong.
    pub run: fn(&[u8]),
    /// Good inputs to begin with.
    pub begin: fn() -> Vec<Vec<u8>>,
    /// Changed inputs in a bounded run.
    pub rounds: u64,
}

const QUICK: u64 = 4_000;

const fn quick(name: &'static str, run: fn(&[u8]), begin: fn() -> Vec<Vec<u8>>) -> Target {
    Target { name, run, begin, rounds: QUICK }
}

/// All targets.
pub const TARGETS: [Target; 18] = [
    quick("label", formats::label, formats::labels),
    quick("uberblock", formats::uberblock, formats::uberblocks),
    quick("frame", formats::frame, formats::frames),
    quick("batch", formats::batch, formats::batches),
    quick("records", formats::records, formats::record_lists),
    quick("node", formats::node, formats::node_blocks),
    quick("fragments", formats::fragments, formats::fragment_lists),
    quick("descriptors", formats::descriptors, formats::descriptor_list),
    quick("space_map", formats::space_map, formats::space_maps),
    quick("map_delta", formats::map_delta, formats::map_deltas),
    quick("items", formats::items, formats::item_values),
    quick("families", formats::families, formats::family_values),
    quick("quota", formats::quota, formats::quota_values),
    quick("protection", formats::protection, formats::protections),
    quick("identify", formats::identify, formats::identities),
    Target { name: "requests", run: requests::run, begin: requests::begin, rounds: 400 },
    Target { name: "control", run: control::run, begin: control::begin, rounds: 400 },
    Target { name: "image", run: image::run, begin: image::begin, rounds: 150 },
];

/// Runs the target of this name on an input.
pub fn run(name: &str, input: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name);
    (target.expect("the name of a target").run)(input);
}
