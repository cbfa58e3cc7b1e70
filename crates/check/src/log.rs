//! The log: the frames that recovery would use of it, in both copies.
//!
//! Recovery unites the copies, so damage to one goes unnoticed until the other goes, too: each
//! frame of the chain is looked for in both. Frames that are no part of the chain (cut by a crash,
//! of earlier laps, marks) may be in one copy, in both, or torn, and mean nothing.

use copyhold_device::DynDevice;
use copyhold_format::label::Label;
use copyhold_format::log::{FrameKind, Records};
use copyhold_format::uberblock::Uberblock;
use copyhold_log::{Found, Recovered, Ring, Scan, recover};
use copyhold_pool::PoolError;

use crate::problem::Problem;
use crate::report::Draft;

/// Checks the log from the head that `uberblock` names. Returns the result of recovery, unless it
/// cannot be read.
pub(crate) async fn check_log(
    device: &DynDevice,
    label: &Label,
    uberblock: &Uberblock,
    report: &mut Draft,
) -> Option<Recovered> {
    let name = device.geometry().name;
    let ring = Ring::new(device.clone(), label.log, label.log_blocks, label.pool, label.secret);
    let recovered = match recover(&ring, uberblock).await {
        Ok(recovered) => recovered,
        Err(error) => {
            let why = PoolError::from(error).to_string();
            report.add(Problem::LogUnreadable { device: name, why });
            return None;
        }
    };
    let scan = ring.scan(uberblock.head).await;
    let copies = Copies { name: &name, label, scan };
    copies.check(&recovered, report);
    check_records(&recovered, report);
    if let Some(damage) = &recovered.damage {
        let evidence = damage.evidence.clone();
        report.add(Problem::Log { last: damage.last, evidence });
    }
    Some(recovered)
}

struct Copies<'a> {
    name: &'a str,
    label: &'a Label,
    scan: Scan,
}

impl Copies<'_> {
    fn check(&self, recovered: &Recovered, report: &mut Draft) {
        let last = recovered.batches.last().map(|batch| batch.txg);
        for batch in &recovered.batches {
            let unproven = !recovered.confirmed && Some(batch.txg) == last;
            let of_batch = |found: &&Found| found.frame.digest == batch.digest;
            let own = self.scan.frames.values().find(of_batch);
            let pieces = batch.batch.pieces.iter().map(|piece| piece.position);
            for position in pieces.chain(own.map(|found| found.frame.position)) {
                self.check_frame(position, unproven, report);
            }
        }
    }

    fn check_frame(&self, position: u64, last: bool, report: &mut Draft) {
        let Some(Found { frame, lacks }) = self.scan.frames.get(&position) else { return };
        for copy in (0..2).filter(|copy| !lacks[*copy].is_empty()) {
            report.add(Problem::LogCopy {
                device: self.name.into(),
                copy,
                what: match frame.kind {
                    FrameKind::Piece => "piece",
                    FrameKind::Batch => "batch",
                    FrameKind::Mark => "mark",
                },
                txg: frame.txg,
                position,
                block: self.label.log[copy] + position % self.label.log_blocks,
                last,
            });
        }
    }
}

fn check_records(recovered: &Recovered, report: &mut Draft) {
    for batch in &recovered.batches {
        report.verified.log_batches += 1;
        for bytes in batch.records() {
            for record in Records::new(bytes) {
                match record {
                    Ok(_) => report.verified.log_records += 1,
                    Err(error) => {
                        let why = error.to_string();
                        report.add(Problem::LogRecord { txg: batch.txg, why });
                    }
                }
            }
        }
    }
}
