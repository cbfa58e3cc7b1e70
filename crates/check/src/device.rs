//! The check of a device that holds a pool which is not open: from the labels on.

use std::collections::BTreeSet;

use copyhold_device::DynDevice;
use copyhold_format::node::PartitionDescriptor;
use copyhold_format::uberblock::Uberblock;
use copyhold_log::Recovered;
use copyhold_pool::{OpenOptions, Pool, PoolError, newest_uberblock, read_labels};
use copyhold_runtime::Rt;
use copyhold_types::Txg;

use crate::checker::Checker;
use crate::options::Options;
use crate::problem::Problem;
use crate::report::{Draft, Report};
use crate::role::Role;
use crate::tree::TreeCheck;
use crate::{labels, log};

/// See [`crate::check_device`].
pub(crate) async fn check(
    rt: Rt,
    device: DynDevice,
    options: Options,
) -> Result<Report, PoolError> {
    let name = device.geometry().name;
    let mut report = Draft::default();
    let defects = device.defects();
    let has_bad_header = !defects.is_empty();
    for why in defects {
        report.add(Problem::HeaderCopy { device: name.clone(), why });
    }
    let areas = labels::read_areas(&device).await;
    let label = match read_labels(&device).await {
        Ok(found) => found.label,
        Err(error) => {
            let damaged = match error {
                PoolError::Damaged { .. } => true,
                PoolError::NotAPool { .. } => labels::was_a_pool(&areas),
                _ => false,
            };
            // The header may be the cause: it is a finding, and no error may hide it.
            if !damaged && !has_bad_header {
                return Err(error);
            }
            labels::check_labels(&name, &areas, &mut report);
            report.add(Problem::CannotOpen { device: name, why: error.to_string() });
            return Ok(report.finish(Vec::new()));
        }
    };
    labels::check_labels(&name, &areas, &mut report);
    labels::check_uberblocks(&name, &areas, &label, &mut report);
    let log = match newest_uberblock(&device, &label).await {
        Ok(uberblock) => {
            let recovered = log::check_log(&device, &label, &uberblock, &mut report).await;
            recovered.map(|recovered| (uberblock, recovered))
        }
        Err(_) => None,
    };
    let read_only = OpenOptions { read_only: true, ..OpenOptions::default() };
    match Pool::open(rt, device.clone(), read_only).await {
        Ok(pool) => Ok(Checker::run(&pool, options, report).await),
        Err(error) => {
            report.add(Problem::CannotOpen { device: name, why: error.to_string() });
            if let Some((uberblock, recovered)) = log {
                check_root(&device, &uberblock, &recovered, &mut report).await;
            }
            Ok(report.finish(Vec::new()))
        }
    }
}

/// Why a pool whose log is good does not open: mostly a node of the table of tables.
async fn check_root(
    device: &DynDevice,
    uberblock: &Uberblock,
    recovered: &Recovered,
    report: &mut Draft,
) {
    let root = recovered.batches.last().map_or(&uberblock.tables, |last| &last.batch.tables);
    let descriptor = match PartitionDescriptor::parse(root) {
        Ok(descriptor) => descriptor,
        Err(error) => {
            let why = format!("its descriptor: {error}");
            return report.add(Problem::Table { table: Pool::TABLES, why });
        }
    };
    let mut check = TreeCheck {
        device,
        table: Pool::TABLES,
        role: Role::Own,
        seen: None,
        unreadable: &mut BTreeSet::new(),
        newest: Txg::new(recovered.last).unwrap_or(Txg::FIRST),
        report,
        nodes: Vec::new(),
        lost: Vec::new(),
    };
    check.partitions(&[(0, descriptor)]).await;
}
