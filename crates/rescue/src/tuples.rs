//! Tuples beside the blocks of a device (`docs/integrity.md`, 2 to 5): where they are, and whether
//! data matches them.
//!
//! A pool may have the checksums of data there. The tuples are in the file or disk itself, behind
//! the data and as the header in its last blocks says; or the source gives the metadata of a drive.
//! Without a readable header the place of the tuples follows from the label and the size, and is
//! believed if the label's own tuple is there.

use crate::damage::{Damage, demand};
use crate::label::Label;
use crate::namespace::{Format, Header, Maker, Named};
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
        // A label without an identity is of a drive that gave none.
        let is_named =
            |given: Named| given.0 == named.0 && (named.1 == [0; 16] || given.1 == named.1);
        if let Some(given) = source.protection() {
            return is_named(given).then_some(Tuples { format, place: Place::Apart });
        }
        if let Some(header) = Header::find(source) {
            let is_same = is_named((header.format, header.identity));
            return is_same.then_some(Tuples { format, place: Place::Behind(header.data_blocks) });
        }
        let data_blocks = format.room(source.blocks())?;
        let found = Tuples { format, place: Place::Behind(data_blocks) };
        (data_blocks >= label.blocks && found.are_of_labels(source, label)).then_some(found)
    }

    /// Whether one of the labels has its tuple there.
    fn are_of_labels(&self, source: &dyn Source, label: &Label) -> bool {
        label.areas().into_iter().any(|at| {
            let block = read(source, at, 1);
            block.is_ok_and(|block| self.have(source, at, &block) == Ok(true))
        })
    }

    /// Whether this block of 4 KiB, without a birth, has its tuples.
    fn have(&self, source: &dyn Source, at: u64, block: &[u8]) -> Result<bool, Damage> {
        let metadata = self.metadata(source, at, 1)?;
        Ok(self.format.fits(at, None, Maker::Device, block, &metadata))
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
