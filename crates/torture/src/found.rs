//! What a thread's names are on the mount, and what is in its files.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::file::Content;
use copyhold_torture::content::{BLOCK, token};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Directory,
    /// With its inode's number.
    File(u64),
}

/// By tree, by path in it.
pub(crate) type Everything = BTreeMap<String, BTreeMap<String, Found>>;

/// All names of the thread `owner`: trees are called so, with something behind it, and so are its
/// files in `common`.
pub(crate) fn everything(root: &Path, common: &str, owner: &str) -> io::Result<Everything> {
    let mut found = Everything::new();
    for entry in fs::read_dir(root)? {
        let name = name_of(&entry?);
        if name == common {
            let mut entries = BTreeMap::new();
            let own = |path: &str| path.starts_with(owner);
            list(&root.join(common), "", &own, &mut entries)?;
            found.insert(name, entries);
        } else if name.starts_with(owner) {
            let mut entries = BTreeMap::new();
            list(&root.join(&name), "", &|_| true, &mut entries)?;
            found.insert(name, entries);
        }
    }
    Ok(found)
}

fn list(
    directory: &Path,
    prefix: &str,
    is_own: &dyn Fn(&str) -> bool,
    found: &mut BTreeMap<String, Found>,
) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let path = format!("{prefix}{}", name_of(&entry));
        if !is_own(&path) {
            continue;
        }
        let metadata = entry.metadata()?;
        if metadata.is_dir() {
            list(&entry.path(), &format!("{path}/"), is_own, found)?;
            found.insert(path, Found::Directory);
        } else {
            found.insert(path, Found::File(inode(&metadata)));
        }
    }
    Ok(())
}

/// A file's number in its subvolume, which is also its copies': above these bits is which it is.
pub(crate) fn inode(metadata: &fs::Metadata) -> u64 {
    metadata.ino() & ((1 << 36) - 1)
}

fn name_of(entry: &fs::DirEntry) -> String {
    entry.file_name().to_string_lossy().into_owned()
}

/// The content of a file, or the first block that nobody has written.
pub(crate) fn content(path: &Path) -> io::Result<Content> {
    let bytes = fs::read(path)?;
    let blocks = bytes.chunks(BLOCK).enumerate();
    let tokens = blocks.map(|(number, block)| {
        let what = || format!("block {number} is nothing that was ever written");
        token(block).ok_or_else(|| io::Error::other(what()))
    });
    tokens.collect()
}
