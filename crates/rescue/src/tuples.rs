//! Tuples beside the blocks of a device (`docs/integrity.md`, 2 to 5): where they are, and whether
//! data matches them.
//!
//! A pool may have the checksums of data there. The tuples are in the file or disk itself, behind
//! the data and as the header in its last blocks says; or the source gives the metadata of a drive.
//! Without a readable header the place of the tuples follows from the label and the size, and is
//! believed if each good label has its own tuple there.

use crate::damage::{Damage, demand};
use crate::label::Label;
use crate::namespace::{Format, Header, Maker};
use crate::source::{BLOCK, Source, read};

/// The tuples of a device.
#[derive(Debug)]
pub(crate) struct Tuples {
    format: Format,
    place: Place,
}

#[derive(Debug)]
enum Place {
    /// Behind so many blocks of data.
    Behind(u64),
    /// The source reads them.
    Apart,
}

impl Tuples {
    /// The tuples that the label names, if they are there.
    pub(crate) fn find(source: &dyn Source, label: &Label) -> Option<Tuples> {
        let named = label.protection?;
        let format = Format::parse(named.0).ok()?;
        if let Some(given) = source.protection() {
            return (given == named).then_some(Tuples { format, place: Place::Apart });
        }
        if let Some(header) = Header::find(source) {
            let is_same = named == (header.format, header.identity);
            return is_same.then_some(Tuples { format, place: Place::Behind(header.data_blocks) });
        }
        let data_blocks = format.room(source.blocks())?;
        let found = Tuples { format, place: Place::Behind(data_blocks) };
        (data_blocks >= label.blocks && found.are_of(source, &label.copies(source)))
            .then_some(found)
    }

    /// Whether each of these blocks of 4 KiB, which have no birth, has its tuples there, and there
    /// are some. One tuple may be where it is by chance: of a copy, or of an older namespace.
    fn are_of(&self, source: &dyn Source, blocks: &[(u64, Vec<u8>)]) -> bool {
        let has_tuples = |(at, block): &(u64, Vec<u8>)| {
            let metadata = self.metadata(source, *at, 1);
            metadata
                .is_ok_and(|metadata| self.format.fits(*at, None, Maker::Device, block, &metadata))
        };
        !blocks.is_empty() && blocks.iter().all(has_tuples)
    }

    /// Which of the blocks from `at` on have the content that was written at `birth`.
    pub(crate) fn verify(
        &self,
        source: &dyn Source,
        at: u64,
        birth: u32,
        maker: Maker,
        bytes: &[u8],
    ) -> Result<Vec<bool>, Damage> {
        let metadata = self.metadata(source, at, (bytes.len() / BLOCK) as u64)?;
        let entries = metadata.chunks_exact(self.format.entry());
        let blocks = (at..).zip(bytes.chunks_exact(BLOCK)).zip(entries);
        let fits = |((at, block), entry)| self.format.fits(at, Some(birth), maker, block, entry);
        Ok(blocks.map(fits).collect())
    }

    /// The metadata of blocks, one after the other.
    fn metadata(&self, source: &dyn Source, at: u64, blocks: u64) -> Result<Vec<u8>, Damage> {
        let entry = self.format.entry();
        let Place::Behind(data_blocks) = self.place else {
            let mut metadata = vec![0; blocks as usize * entry];
            return match source.read_metadata(at, &mut metadata) {
                Ok(()) => Ok(metadata),
                Err(why) => Err(Damage::new(format!("the tuples of blocks {at}+{blocks}"), why)),
            };
        };
        let what = || format!("the tuples of blocks {at}+{blocks}");
        let per_block = (BLOCK / entry) as u64;
        let is_data = at.checked_add(blocks).is_some_and(|end| end <= data_blocks);
        demand(is_data, "they are not of data").map_err(|why| Damage::new(what(), why))?;
        let mut metadata = Vec::new();
        let (mut next, end) = (at, at + blocks);
        while next < end {
            let (block, nth) = (data_blocks + next / per_block, next % per_block);
            let count = (per_block - nth).min(end - next);
            let stored = read(source, block, 1).map_err(|damage| Damage::new(what(), damage))?;
            let stored = &stored[nth as usize * entry..][..count as usize * entry];
            // Stored as the complement, so that a hole is an escape.
            metadata.extend(stored.iter().map(|byte| !byte));
            next += count;
        }
        Ok(metadata)
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    const FORMAT: [u8; 8] = [0, 16, 16, 64, 2, 1, 0, 0];
    /// The guard of 4096 zeros.
    const OF_ZEROS: u64 = 0x6482_d367_eb22_b64e;

    /// Zeros, whose tuples are apart; those of the block `other` are of another place.
    struct Zeros {
        other: Option<u64>,
    }

    impl Source for Zeros {
        fn blocks(&self) -> u64 {
            100
        }

        fn read(&self, _: u64, bytes: &mut [u8]) -> io::Result<()> {
            bytes.fill(0);
            Ok(())
        }

        fn read_metadata(&self, block: u64, metadata: &mut [u8]) -> io::Result<()> {
            let place = if self.other == Some(block) { block + 1 } else { block };
            metadata[..8].copy_from_slice(&OF_ZEROS.to_be_bytes());
            metadata[8..10].fill(0);
            metadata[10..].copy_from_slice(&place.to_be_bytes()[2..]);
            Ok(())
        }
    }

    #[test]
    fn tuples_are_found_where_every_good_label_has_its_own() {
        let tuples = Tuples { format: Format::parse(FORMAT).unwrap(), place: Place::Apart };
        let found = |other, labels: &[u64]| {
            let labels: Vec<_> = labels.iter().map(|at| (*at, vec![0; BLOCK])).collect();
            tuples.are_of(&Zeros { other }, &labels)
        };
        assert!(found(None, &[0, 36]) && found(Some(36), &[0]));
        assert!(!found(Some(36), &[0, 36]), "the second label has the tuple of another block");
        assert!(!found(Some(0), &[0, 36]), "the first label has the tuple of another block");
        assert!(!found(None, &[]), "no label shows the place");
    }
}
