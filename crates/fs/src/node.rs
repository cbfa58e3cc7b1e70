//! Node ids: subvolume and inode number in 64 bits, derived from nothing else (R40).

use std::fmt;

use copyhold_types::{InodeNo, SubvolId};

/// A file of the mounted pool. As a `u64`: 28 bits of `subvolume - 1`, 36 bits of inode number; so
/// the pool's root directory is 1, as FUSE numbers the root.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId {
    pub subvol: SubvolId,
    pub ino: InodeNo,
}

impl NodeId {
    /// The root directory of the pool's root subvolume.
    pub const ROOT: NodeId = NodeId { subvol: SubvolId::ROOT, ino: InodeNo::ROOT };

    /// `stat` shows it as inode number, too.
    pub fn raw(self) -> u64 {
        assert!(self.subvol.0 != 0, "subvolumes are numbered from 1");
        u64::from(self.subvol.0 - 1) << InodeNo::BITS | self.ino.0
    }

    /// `None` for numbers that no file can have.
    pub fn from_raw(raw: u64) -> Option<NodeId> {
        let ino = raw & ((1 << InodeNo::BITS) - 1);
        let subvol = SubvolId((raw >> InodeNo::BITS) as u32 + 1);
        (ino != 0 && subvol.0 < 1 << SubvolId::BITS).then_some(NodeId { subvol, ino: InodeNo(ino) })
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.subvol, self.ino)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_is_node_one_and_ids_survive_the_round_trip() {
        assert_eq!(NodeId::ROOT.raw(), 1);
        let last = NodeId { subvol: SubvolId((1 << 28) - 1), ino: InodeNo((1 << 36) - 1) };
        for node in [NodeId::ROOT, last] {
            assert_eq!(NodeId::from_raw(node.raw()), Some(node));
        }
        assert_eq!(NodeId::from_raw(0), None);
        assert_eq!(NodeId::from_raw(u64::MAX), None);
    }
}
