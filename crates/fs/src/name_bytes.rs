//! The bytes of the names of an inode's extended attributes, as listxattr returns them.
//!
//! The item of an inode counts its attributes, but not these bytes. They are counted at most once,
//! and kept with the inode in memory.

use std::num::NonZeroU32;

/// Bytes of the list of an inode's names, once they were counted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NameBytes(Option<NonZeroU32>);

impl NameBytes {
    pub(crate) fn get(self) -> Option<usize> {
        self.0.map(|bytes| bytes.get() as usize)
    }

    pub(crate) fn set(&mut self, bytes: usize) {
        self.0 = u32::try_from(bytes).ok().and_then(NonZeroU32::new);
    }

    /// A change of attributes is logged.
    pub(crate) fn change(&mut self, bytes: i64) {
        if let Some(before) = self.get() {
            self.set(before.saturating_add_signed(bytes as isize));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_changes_once_it_is_known() {
        let mut bytes = NameBytes::default();
        bytes.change(7);
        assert_eq!(bytes.get(), None);
        bytes.set(20);
        bytes.change(7);
        bytes.change(-10);
        assert_eq!(bytes.get(), Some(17));
    }
}
