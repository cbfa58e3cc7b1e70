//! The second reader of the format on a damaged image: everything that it gives of a pool.

use std::io;

use copyhold_device::sim::SimImage;
use copyhold_rescue::{BLOCK, Chunk, FileKind, Files, Inode, Place, Pool, Source};

/// An image that is only read.
struct Image<'a>(&'a SimImage);

impl Source for Image<'_> {
    fn blocks(&self) -> u64 {
        self.0.blocks()
    }

    fn read(&self, block: u64, bytes: &mut [u8]) -> io::Result<()> {
        for (place, nth) in bytes.chunks_exact_mut(BLOCK).zip(0..) {
            place.copy_from_slice(&self.0.read_block(block + nth));
        }
        Ok(())
    }
}

/// Reads all files of all subvolumes, as far as they can be read.
pub(crate) fn read_all(image: &SimImage) {
    let Ok(pool) = Pool::open(Image(image)) else { return };
    for subvolume in pool.subvolumes() {
        let files = pool.files(subvolume);
        pool.walk(subvolume, |step| {
            if let Place::File(inode) = step.place {
                read_file(&files, &inode);
            }
        });
    }
}

fn read_file(files: &Files<'_>, inode: &Inode) {
    let _ = files.attributes(inode);
    if inode.kind == FileKind::Symlink {
        let _ = files.target(inode);
    }
    files.content(inode, |chunk| {
        let (offset, length) = match chunk {
            Chunk::Data { offset, bytes } => (offset, bytes.len() as u64),
            Chunk::Lost { offset, length, .. } => (offset, length),
        };
        let end = offset.checked_add(length).expect("it ends");
        assert!(end <= inode.size, "{offset}+{length} of {} bytes", inode.size);
    });
    let _ = files.extents(inode, |run| assert!(run.blocks > 0, "{run:?}"));
}
