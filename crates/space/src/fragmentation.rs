//! Free space by the length of its runs, and one figure for how fragmented it is.
//!
//! Problem.  A pool that has free space may have it in single blocks only. The mean length of a run
//!           hides that: one long run outweighs thousands of short ones.
//! Idea.     Each class of lengths has a penalty, and the figure is the mean penalty of a free
//!           block. The table is that of OpenZFS up to 2019, so figures compare with published
//!           ones: 95 where no two free blocks are adjacent, 0 where all runs have 16 MiB.
//!
//! FRAGMENTS-F1  Each free block counts once, in the class of its run.
//! FRAGMENTS-F2  The figure is between the penalties of the shortest and the longest run.

/// Percent, by class: runs of one block (4 KiB) to those of 4,096 blocks (16 MiB) and more.
const PENALTIES: [u64; 13] = [95, 90, 80, 70, 60, 50, 40, 30, 20, 15, 10, 5, 0];

/// Free blocks by the length of their run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FreeRuns {
    blocks_by_class: Vec<u64>,
}

impl FreeRuns {
    /// Adds a run of `blocks`, which is not zero.
    pub fn add(&mut self, blocks: u32) {
        let class = blocks.ilog2() as usize;
        let classes = self.blocks_by_class.len().max(class + 1);
        self.blocks_by_class.resize(classes, 0);
        self.blocks_by_class[class] += u64::from(blocks);
    }

    /// Adds the runs of another part of the pool.
    pub fn join(&mut self, other: &FreeRuns) {
        let classes = self.blocks_by_class.len().max(other.blocks_by_class.len());
        self.blocks_by_class.resize(classes, 0);
        for (sum, blocks) in self.blocks_by_class.iter_mut().zip(&other.blocks_by_class) {
            *sum += blocks;
        }
    }

    /// Element *i* counts the blocks in runs of 2^*i* to 2^(*i*+1) − 1 blocks. The last is not 0.
    pub fn blocks_by_class(&self) -> &[u64] {
        &self.blocks_by_class
    }

    /// The mean penalty of a free block, in percent; `None` where none is free.
    pub fn fragmentation(&self) -> Option<u64> {
        let blocks: u64 = self.blocks_by_class.iter().sum();
        let penalties = PENALTIES.iter().zip(&self.blocks_by_class);
        let sum: u64 = penalties.map(|(penalty, blocks)| penalty * blocks).sum();
        (blocks > 0).then(|| sum / blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(lengths: &[u32]) -> FreeRuns {
        let mut runs = FreeRuns::default();
        lengths.iter().for_each(|&blocks| runs.add(blocks));
        runs
    }

    #[test]
    fn each_length_of_the_published_table_has_its_penalty() {
        let expected = [95, 90, 80, 70, 60, 50, 40, 30, 20, 15, 10, 5, 0, 0, 0];
        for (class, penalty) in expected.into_iter().enumerate() {
            let longest = (2u64 << class) as u32 - 1;
            for blocks in [1 << class, longest] {
                assert_eq!(runs(&[blocks]).fragmentation(), Some(penalty), "{blocks} blocks");
            }
        }
        assert_eq!(FreeRuns::default().fragmentation(), None);
    }

    #[test]
    fn blocks_are_weighted_and_runs_are_not() {
        // FRAGMENTS-F1: 3 blocks of 95 and 5 of 80.
        let mixed = runs(&[1, 1, 1, 5]);
        assert_eq!(mixed.blocks_by_class(), [3, 0, 5]);
        assert_eq!(mixed.fragmentation(), Some((3 * 95 + 5 * 80) / 8));
    }

    #[test]
    fn parts_of_a_pool_add_up_in_any_order() {
        let lengths: Vec<u32> = (1..200).map(|seed: u32| seed * seed * 7919 % 5000 + 1).collect();
        let whole = runs(&lengths);
        for cut in [0, 1, 77, lengths.len()] {
            let (mut one, mut other) = (runs(&lengths[..cut]), runs(&lengths[cut..]));
            let copy = one.clone();
            one.join(&other);
            other.join(&copy);
            assert_eq!((&one, &other), (&whole, &whole));
        }
        let all: u64 = lengths.iter().map(|&blocks| u64::from(blocks)).sum();
        assert_eq!(whole.blocks_by_class().iter().sum::<u64>(), all);
        // FRAGMENTS-F2
        let [longest, shortest] = [lengths.iter().max(), lengths.iter().min()]
            .map(|blocks| runs(&[*blocks.unwrap()]).fragmentation());
        assert!((longest..=shortest).contains(&whole.fragmentation()));
    }
}
