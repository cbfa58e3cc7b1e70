//! What `check` says of a disk that is switched off.

use copyhold_check::{Finding, Problem, Severity, check_device};
use copyhold_device::sim::SimImage;
use copyhold_pool::Pool;

use crate::machine::Machine;

/// Asserts that no transaction of this mount used more than its credit (ADMIT-A4).
pub(crate) fn check_credits(pool: &Pool) {
    assert_eq!(pool.overdrawn(), 0, "ADMIT-A4: transactions used more than their credit");
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
            // A crash tears the uberblock that is being written.
            let torn = |of: &Finding| matches!(of.problem, Problem::UberblockCopy { .. });
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
