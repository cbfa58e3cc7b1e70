//! Two tenants of a filesystem, each with a file that is larger than the cache.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use copyhold_harness::Interrupt;

use super::group::Group;
use crate::direct::{self, Page, Way};
use crate::error::{BenchError, On};
use crate::places::{BLOCK, Places, fill_file};
use crate::target::Target;
use crate::unshare::copies;

/// The files, in hundredths of the cache.
const FILE: u64 = 108;

pub(super) struct Pair {
    /// Subvolumes: the tenant that is measured, and its rival.
    tenants: [PathBuf; 2],
    /// Blocks that the cache keeps, and the bytes that it counts for each.
    pub(super) cache_blocks: u64,
    pub(super) block_bytes: u64,
    pub(super) file_blocks: u64,
}

impl Pair {
    /// Makes both, with at most so many bytes of files.
    pub(super) fn make(
        target: &Target<'_>,
        files_max: u64,
        interrupt: &Interrupt,
    ) -> Result<Pair, BenchError> {
        let tenants = ["tenant", "rival"].map(|name| target.directory().join(name));
        tenants.iter().try_for_each(|path| copies::make_original(target, path))?;
        let [set, rival] = tenants.each_ref().map(|path| path.join("file"));
        let most = files_max / BLOCK as u64 / 2;
        fill_file(&rival, most, 2, interrupt)?;
        target.cool()?;
        let (cache_blocks, block_bytes) = cache_room(target, &rival, most, interrupt)?;
        let file_blocks = cache_blocks * FILE / 100;
        if file_blocks > most {
            let least = 2 * file_blocks * BLOCK as u64;
            return Err(BenchError::FilesTooSmall { bytes: files_max, least });
        }
        fill_file(&set, file_blocks, 1, interrupt)?;
        Ok(Pair { tenants, cache_blocks, block_bytes, file_blocks })
    }

    pub(super) fn groups<'a>(&self, target: &'a Target<'a>) -> [Group<'a>; 2] {
        self.tenants.each_ref().map(|path| Group::new(target, path))
    }

    /// Both files, for [`read`].
    pub(super) fn open(&self) -> Result<[File; 2], BenchError> {
        let open = |path: &PathBuf| direct::open(&path.join("file"), Way::Read);
        Ok([open(&self.tenants[0])?, open(&self.tenants[1])?])
    }
}

/// Blocks that the cache keeps of a file that is larger, and the bytes that it counts for each.
fn cache_room(
    target: &Target<'_>,
    path: &Path,
    blocks: u64,
    interrupt: &Interrupt,
) -> Result<(u64, u64), BenchError> {
    let file = direct::open(path, Way::Read)?;
    let mut places = Places::sequential(BLOCK, blocks, 1);
    (0..blocks).try_for_each(|_| read(&file, &mut places, interrupt))?;
    let info = target.info()?;
    let number = |name: &str| info.get("memory")?.pointer(name)?.as_u64();
    let kept = number("/data/blocks").zip(number("/data_bytes")).filter(|(kept, _)| *kept > 0);
    let (kept, bytes) = kept.ok_or_else(|| target.no_counters())?;
    Ok((kept, bytes / kept))
}

/// Reads the next block of a file.
pub(super) fn read(
    file: &File,
    places: &mut Places,
    interrupt: &Interrupt,
) -> Result<(), BenchError> {
    interrupt.check()?;
    let mut page = Page([0; BLOCK]);
    file.read_exact_at(&mut page.0, places.next_offset()).on("direct read")
}
