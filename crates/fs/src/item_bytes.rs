//! Sizes of items, for the credit of transactions.

use copyhold_format::item::InodeItem;
use copyhold_types::Key;

/// Bytes of a key, and of an inode item with its key.
pub(crate) const KEY_BYTES: usize = Key::BYTES;
pub(crate) const INODE_BYTES: usize = KEY_BYTES + InodeItem::BYTES;
