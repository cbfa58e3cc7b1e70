//! A frame whose blocks are good in one copy of the log or in the other (`docs/format.md`, 6.2).

use crate::source::{BLOCK, Source, read};

/// Blocks in which the copies may differ: each doubles the number of frames to try.
const CHOICES: usize = 8;

/// The blocks that make up content that `verifies`: each at the same distance behind the beginning
/// of one of the `copies`, and the first one `head`.
pub(crate) fn find(
    source: &dyn Source,
    copies: [u64; 2],
    head: u64,
    blocks: u64,
    verifies: impl Fn(&[u8]) -> bool,
) -> Option<Vec<u64>> {
    let mut at = vec![head];
    let mut bytes = read(source, head, 1).ok()?;
    let mut open = Vec::new();
    for nth in 1..blocks {
        let [first, second] = copies.map(|copy| read(source, copy + nth, 1).ok());
        let (from, block) = match (first, second) {
            (None, None) => return None,
            (Some(first), Some(second)) => {
                if first != second {
                    open.push((nth as usize, [first.clone(), second]));
                }
                (copies[0], first)
            }
            (Some(first), None) => (copies[0], first),
            (None, Some(second)) => (copies[1], second),
        };
        at.push(from + nth);
        bytes.extend(block);
    }
    if open.len() > CHOICES {
        return None;
    }
    for choice in 0..1_usize << open.len() {
        for (bit, (nth, contents)) in open.iter().enumerate() {
            let copy = choice >> bit & 1;
            at[*nth] = copies[copy] + *nth as u64;
            bytes[nth * BLOCK..(nth + 1) * BLOCK].copy_from_slice(&contents[copy]);
        }
        if verifies(&bytes) {
            return Some(at);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    /// Copies at 10 and 20 of the blocks 1, 2, 3 and so on, with other bytes where they are bad.
    struct Log {
        bad: Vec<u64>,
        unreadable: Vec<u64>,
    }

    impl Source for Log {
        fn blocks(&self) -> u64 {
            30
        }

        fn read(&self, block: u64, bytes: &mut [u8]) -> io::Result<()> {
            if self.unreadable.contains(&block) {
                return Err(io::ErrorKind::InvalidData.into());
            }
            bytes.fill(block as u8 % 10 + if self.bad.contains(&block) { 100 } else { 1 });
            Ok(())
        }
    }

    fn found(bad: &[u64], unreadable: &[u64], head: u64) -> Option<Vec<u64>> {
        let log = Log { bad: bad.to_vec(), unreadable: unreadable.to_vec() };
        let good: Vec<u8> = (1..=4).flat_map(|byte| vec![byte; BLOCK]).collect();
        find(&log, [10, 20], head, 4, |bytes| bytes == good)
    }

    #[test]
    fn each_block_comes_from_the_copy_that_has_it() {
        assert_eq!(found(&[11, 23], &[], 10), Some(vec![10, 21, 12, 13]));
        assert_eq!(found(&[10, 23], &[11], 20), Some(vec![20, 21, 12, 13]));
    }

    #[test]
    fn a_block_that_no_copy_has_is_not_made_up() {
        assert_eq!(found(&[11, 21], &[], 10), None);
        assert_eq!(found(&[11], &[21], 10), None);
        assert_eq!(found(&[], &[11, 21], 10), None);
    }
}
