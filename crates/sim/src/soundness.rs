//! The findings of `check` on a disk that is switched off.

use copyhold_check::{Finding, Problem, Severity, check_device};
use copyhold_device::sim::SimImage;
use copyhold_fs::Filesystem;
use copyhold_memory::{INODE_BYTES, LOOKUP_BYTES, Memory, MemoryClass, MemoryOwner};
use copyhold_pool::{Pool, cached_node_bytes};

use crate::machine::Machine;

/// Asserts that no transaction of this mount used more than its credit (ADMIT-A4).
pub(crate) fn check_credits(pool: &Pool) {
    assert_eq!(pool.overdrawn(), 0, "ADMIT-A4: transactions used more than their credit");
}

/// Asserts that edits, dirty and clean data, nodes, inodes and look-ups are charged exactly once,
/// the edits of each table to its owner, and that the table of a subvolume has the subvolume's
/// owner. No request is under way.
pub(crate) fn check_charges(fs: &Filesystem) {
    let pool = fs.pool();
    let charged = |class: MemoryClass| pool.memory().charged(class);
    let edits: i64 = pool.tables().iter().map(|table| table.weight().bytes).sum();
    assert_eq!(charged(MemoryClass::Edit), edits, "CHARGE-C1: edits of all tables");
    assert_eq!(charged(MemoryClass::Dirty), fs.dirty_bytes() as i64, "CHARGE-C1: dirty data");
    let clean = pool.devices().clean().stats();
    assert_eq!(charged(MemoryClass::Data), clean.bytes as i64, "CHARGE-C1: clean data");
    // The memory of the simulation is good: content from before a write was found.
    assert_eq!(clean.mismatches, 0, "CLEAN-D2: blocks in memory were overwritten on the device");
    assert_eq!(charged(MemoryClass::Node), cached_node_bytes(pool) as i64, "CHARGE-C1: nodes");
    let (inodes, lookups) = fs.inodes_and_lookups();
    let all = |count: usize, bytes: u64| count as i64 * bytes as i64;
    // A task of write-back may hold some that are gone; `are_inodes_at_rest` is exact.
    assert!(charged(MemoryClass::Inode) >= all(inodes, INODE_BYTES), "CHARGE-C1: inodes");
    assert_eq!(charged(MemoryClass::Lookup), all(lookups, LOOKUP_BYTES), "CHARGE-C1: look-ups");
    check_names(fs);
    for subvol in fs.volumes().list().into_iter().filter(|subvol| !subvol.is_dying()) {
        let owner = pool.table(subvol.files()).owner();
        assert_eq!(owner.as_ref(), Some(subvol.owner()), "the owner of {}'s table", subvol.id());
    }
    for owner in pool.memory().owners() {
        let tables = pool.tables().into_iter().filter(|table| table.owner() == Some(owner.clone()));
        let edits: i64 = tables.map(|table| table.weight().bytes).sum();
        assert_eq!(owner.charged(MemoryClass::Edit), edits, "CHARGE-C1: edits of {owner:?}");
    }
}

/// Whether each inode in memory is in the cache: no task and no list has another one. The
/// filesystem is closed.
pub(crate) fn are_inodes_at_rest(fs: &Filesystem) -> bool {
    let (inodes, _) = fs.inodes_and_lookups();
    let charged = fs.pool().memory().charged(MemoryClass::Inode);
    charged == (inodes as u64 * INODE_BYTES) as i64
}

/// Asserts that the entries of absent names are those that came and did not end (NAMES-N2), and
/// that no subvolume without entries is charged for some.
fn check_names(fs: &Filesystem) {
    let figures = fs.names().figures();
    for row in &figures {
        assert_eq!(row.counts.live(), row.live, "NAMES-N2: {row:?}");
    }
    assert_eq!(figures.iter().map(|row| row.live).sum::<u64>(), fs.names().live(), "NAMES-N2");
    for subvol in fs.volumes().list() {
        let has_some = figures.iter().any(|row| row.subvol == subvol.id() && row.live > 0);
        let charged = subvol.owner().charged(MemoryClass::Name);
        assert!(charged >= 0 && (has_some || charged == 0), "CHARGE-C1: {charged} for no name");
    }
}

/// Asserts that no charge is left after all objects of a pool have left memory.
pub(crate) fn check_nothing_charged(memory: &Memory) {
    let owners = memory.owners();
    let left =
        owners.iter().filter(|owner| MemoryClass::ALL.iter().any(|of| owner.charged(*of) != 0));
    let left: Vec<&MemoryOwner> = left.collect();
    assert!(left.is_empty(), "CHARGE-C1: nothing is in memory, but charged: {left:?}");
    assert_eq!(owners.len(), 1, "CHARGE-C2: owners without anything are gone");
}

/// Nothing is wrong with an image but what a crash leaves, or what damage does if it was damaged
/// on purpose.
///
/// # Panics
/// Something is wrong with it.
pub(crate) fn check(seed: u64, image: &SimImage, damaged: bool) {
    let machine = Machine::on(seed, image.clone());
    let checked = check_device(machine.rt(), machine.device(), Default::default());
    match machine.run(checked).expect("the power is on") {
        Ok(report) => {
            // A crash tears the uberblock that is being written, and comes between two labels.
            let torn = |of: &Finding| {
                matches!(of.problem, Problem::UberblockCopy { .. } | Problem::Label { .. })
            };
            let excused = |of: &Finding| match of.severity {
                Severity::Cosmetic => true,
                Severity::Repairable => torn(of) || damaged,
                _ => false,
            };
            let found = report.findings.iter().filter(|finding| !excused(finding));
            let found: Vec<String> = found.take(5).map(|of| of.problem.to_string()).collect();
            assert!(found.is_empty(), "check: {}", found.join("; "));
        }
        Err(error) => panic!("check: {error}"),
    }
}
