//! The result of a check: findings, worst first, and the amounts verified.

use std::collections::BTreeMap;

use crate::problem::{Problem, Severity};

/// Findings of one kind that are kept in full; of more only the number.
const KEPT_PER_KIND: u64 = 200;

/// A file that a problem is about.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct AffectedFile {
    pub subvolume: u32,
    pub inode: u64,
    /// One of its paths from the subvolume's root; `None`: it has none, or it could not be found
    /// out. Bytes that are not UTF-8 are replaced.
    pub path: Option<String>,
}

/// A problem in words.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Finding {
    #[serde(skip)]
    pub problem: Problem,
    /// Stable name of the kind of damage.
    pub kind: &'static str,
    pub severity: Severity,
    /// The damaged part, and its place.
    pub what: String,
    /// The meaning for the user, and the remedy.
    pub meaning: String,
    pub files: Vec<AffectedFile>,
}

/// How much was verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Verified {
    pub labels: u64,
    pub uberblocks: u64,
    pub log_batches: u64,
    pub log_records: u64,
    pub tables: u64,
    pub partitions: u64,
    /// Sorted runs of edits over the trees of partitions.
    pub layers: u64,
    /// Copies of nodes, each read and digested.
    pub node_copies: u64,
    pub map_copies: u64,
    pub items: u64,
    pub allocated_blocks: u64,
    pub subvolumes: u64,
    pub inodes: u64,
    pub names: u64,
    pub attributes: u64,
    pub extents: u64,
    /// Blocks of file contents whose checksums were compared.
    pub data_blocks: u64,
    /// Files without a name that the next mount removes: not damage.
    pub orphans: u64,
}

impl Verified {
    /// Names and counts, in the order in which they are shown.
    pub fn counts(&self) -> [(&'static str, u64); 18] {
        [
            ("labels", self.labels),
            ("uberblocks", self.uberblocks),
            ("log_batches", self.log_batches),
            ("log_records", self.log_records),
            ("tables", self.tables),
            ("partitions", self.partitions),
            ("layers", self.layers),
            ("node_copies", self.node_copies),
            ("map_copies", self.map_copies),
            ("items", self.items),
            ("allocated_blocks", self.allocated_blocks),
            ("subvolumes", self.subvolumes),
            ("inodes", self.inodes),
            ("names", self.names),
            ("attributes", self.attributes),
            ("extents", self.extents),
            ("data_blocks", self.data_blocks),
            ("orphans", self.orphans),
        ]
    }
}

/// The outcome of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Report {
    /// The worst first.
    pub findings: Vec<Finding>,
    /// By kind, how many more there are than are listed.
    pub more: BTreeMap<&'static str, u64>,
    pub verified: Verified,
}

impl Report {
    /// Whether nothing is wrong that matters: cosmetic findings are left out.
    pub fn is_clean(&self) -> bool {
        self.worst().is_none_or(|worst| worst == Severity::Cosmetic)
    }

    pub fn worst(&self) -> Option<Severity> {
        self.findings.iter().map(|finding| finding.severity).min()
    }

    /// The problems found, as values.
    pub fn problems(&self) -> impl Iterator<Item = &Problem> {
        self.findings.iter().map(|finding| &finding.problem)
    }
}

/// A report during the check.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    pub(crate) problems: Vec<Problem>,
    pub(crate) verified: Verified,
    counts: BTreeMap<&'static str, u64>,
}

impl Draft {
    pub(crate) fn add(&mut self, problem: Problem) {
        let count = self.counts.entry(problem.kind()).or_default();
        *count += 1;
        if *count <= KEPT_PER_KIND {
            self.problems.push(problem);
        }
    }

    /// Puts it in words. `files`: which files each problem affects, in their order.
    pub(crate) fn finish(self, files: Vec<Vec<AffectedFile>>) -> Report {
        let files = files.into_iter().chain(std::iter::repeat(Vec::new()));
        let mut findings: Vec<Finding> = self
            .problems
            .into_iter()
            .zip(files)
            .map(|(problem, files)| Finding {
                kind: problem.kind(),
                severity: problem.severity(),
                what: problem.to_string(),
                meaning: problem.meaning(),
                files,
                problem,
            })
            .collect();
        findings.sort_by_key(|finding| finding.severity);
        let beyond = self.counts.into_iter().filter(|(_, count)| *count > KEPT_PER_KIND);
        let more = beyond.map(|(kind, count)| (kind, count - KEPT_PER_KIND)).collect();
        Report { findings, more, verified: self.verified }
    }
}
