//! How large a rogue is: options of the job, which passes them on to the process of the rogue.

use crate::size;

#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
pub(super) struct Sizes {
    /// Threads of the rogues limit, rename, locks, interrupts and read
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(super) threads: u32,
    /// Threads of the rogues dirty and direct
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=16384))]
    pub(super) writers: u32,
    /// Threads of the rogues list, xattr, punch, snapshots, copy, deep and create
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(super) workers: u32,
    /// Direct writes of 1 MiB that the rogue queue has in flight
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(super) depth: u32,
    /// Entries of the directory that the rogue list lists, and files that the rogue create keeps
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) entries: u32,
    /// Quota limit of the rogue limit
    #[arg(long, default_value = "64M", value_parser = size::parse)]
    pub(super) limit: u64,
    /// Size of the sparse file that the rogue copy copies
    #[arg(long, default_value = "1024G", value_parser = size::parse)]
    pub(super) copy: u64,
    /// Size of the mapping that the rogue mmap dirties, and of the file that the rogue read reads
    #[arg(long, default_value = "256M", value_parser = size::parse)]
    pub(super) mapping: u64,
    /// Levels of the tree at whose lowest directory the rogue deep renames
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) levels: u32,
}

impl Sizes {
    /// The same on a command line.
    pub(super) fn arguments(&self) -> Vec<String> {
        let numbers = [
            ("--threads", u64::from(self.threads)),
            ("--writers", self.writers.into()),
            ("--workers", self.workers.into()),
            ("--depth", self.depth.into()),
            ("--entries", self.entries.into()),
            ("--limit", self.limit),
            ("--copy", self.copy),
            ("--mapping", self.mapping),
            ("--levels", self.levels.into()),
        ];
        numbers.into_iter().flat_map(|(name, number)| [name.into(), number.to_string()]).collect()
    }

    /// The data of the largest kind, twice: of the files, and of their blocks not yet free.
    pub(super) fn data_bytes(&self) -> u64 {
        const MIB: u64 = 1 << 20;
        let many = [self.writers, self.depth, 8 * self.workers].map(|count| u64::from(count) * MIB);
        let entries = u64::from(self.entries) * 4096;
        let all = many.into_iter().chain([entries, self.limit, self.mapping]);
        2 * all.max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        sizes: Sizes,
    }

    #[test]
    fn a_process_gets_the_sizes_of_its_job() {
        let given = ["x", "--threads", "3", "--copy", "2G", "--levels", "7", "--entries", "9"];
        let sizes = Line::parse_from(given).sizes;
        let passed = ["x".to_owned()].into_iter().chain(sizes.arguments());
        assert_eq!(Line::parse_from(passed).sizes, sizes);
        assert_eq!((sizes.copy, sizes.writers), (2 << 30, 1000));
    }
}
