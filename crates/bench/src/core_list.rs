//! The core list: what a change is judged by, each job small enough that all of it takes minutes.
//!
//! Files fit in memory and names are counted in ten thousands, so this shows the way of a request
//! and not what happens when caches overflow: for that run a job by itself, with sizes of your own.

use crate::files::Files;
use crate::job::Job;
use crate::random_overwrite::RandomOverwrite;
use crate::random_read::RandomRead;
use crate::recovery::Recovery;
use crate::sequential::Sequential;
use crate::sqlite::Sqlite;
use crate::tree::Tree;

const BYTES: u64 = 256 << 20;
const SECONDS: u64 = 5;

/// In the order in which they run.
pub(crate) fn jobs() -> Vec<Box<dyn Job>> {
    vec![
        Box::new(RandomOverwrite::bounded(BYTES, SECONDS)),
        Box::new(RandomRead::bounded(BYTES, SECONDS)),
        Box::new(Sequential::bounded(2 * BYTES)),
        Box::new(Files::bounded(20_000)),
        Box::new(Tree::bounded(5_000)),
        Box::new(Sqlite::bounded(2_000)),
        Box::new(Recovery::bounded(BYTES, 2 * SECONDS)),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_job_is_there_once_and_bounded() {
        let jobs = jobs();
        let names: BTreeSet<&str> = jobs.iter().map(|job| job.name()).collect();
        assert_eq!(names.len(), jobs.len());
        assert!(jobs.iter().all(|job| job.data_bytes() <= 1 << 30));
    }
}
