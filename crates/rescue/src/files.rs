//! The files of a subvolume, by inode number.

use crate::damage::Damage;
use crate::inode::Inode;
use crate::key::{INODE, Key, SYMLINK};
use crate::source::Source;
use crate::tables::{Found, Tables, Window};
use crate::tuples::Tuples;

/// The files of a subvolume.
#[derive(Clone, Copy)]
pub struct Files<'a> {
    pub(crate) source: &'a dyn Source,
    pub(crate) tuples: Option<&'a Tuples>,
    pub(crate) tables: &'a Tables,
    pub(crate) table: u64,
}

impl Files<'_> {
    /// # Errors
    /// It is lost, or there is none.
    pub fn inode(&self, number: u64) -> Result<Inode, Damage> {
        let what = || format!("inode {number}");
        let value = self.get(Key::new(number, INODE, 0))?;
        let value = value.ok_or_else(|| Damage::new(what(), "there is none"))?;
        Inode::parse(number, &value).map_err(|why| Damage::new(what(), why))
    }

    /// The target of a symlink.
    ///
    /// # Errors
    /// It is lost.
    pub fn target(&self, inode: &Inode) -> Result<Vec<u8>, Damage> {
        let target = self.get(Key::new(inode.number, SYMLINK, 0))?.unwrap_or_default();
        let is_target = (1..=4095).contains(&target.len()) && !target.contains(&0);
        match is_target {
            true => Ok(target.into()),
            false => Err(Damage::new("the target of a symlink", "it is none")),
        }
    }

    pub(crate) fn get(&self, key: Key) -> Result<Option<Box<[u8]>>, Damage> {
        self.tables.get(self.source, self.table, key)
    }

    pub(crate) fn window(&self, first: Key, last: Key) -> Window {
        self.tables.window(self.source, self.table, first, last)
    }

    pub(crate) fn scan(&self, first: Key, last: Key, take: impl FnMut(Found<'_>)) {
        self.tables.scan(self.source, self.table, first, last, take);
    }
}
