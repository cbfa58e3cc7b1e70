//! Notifications from the daemon to the kernel: drop a name, drop or fill cached data, wake a
//! poll.

use std::io::IoSlice;

use smallvec::SmallVec;
use zerocopy::IntoBytes;

use super::opcode::NotifyCode;
use super::request::NodeId;
use super::{flags, wire};

/// Nodes in one message. The kernel takes any number, and looks at one after the other.
pub const PRUNE_MAX: usize = 256;

/// One notification. Names are without NUL.
#[derive(Clone, Copy, Debug)]
pub enum Notification<'a> {
    /// Cached attributes of `node`, and its data from `offset` on (`len` 0: to the end; a negative
    /// `offset`: attributes only).
    InvalInode { node: NodeId, offset: i64, len: i64 },
    /// The name and the entries below it, positive or negative. `expire`: ask again, but keep it.
    InvalEntry { parent: NodeId, name: &'a [u8], expire: bool },
    /// The name is gone, and `child` with it if the name still refers to it.
    Delete { parent: NodeId, child: NodeId, name: &'a [u8] },
    /// Puts `data` into the page cache of `node`.
    Store { node: NodeId, offset: u64, data: &'a [u8] },
    /// Nodes that the kernel may forget unless it uses them (protocol 7.45). All at once: at most
    /// [`PRUNE_MAX`].
    Prune { nodes: &'a [NodeId] },
    /// Something happened that a POLL with `kernel_handle` waits for.
    Poll { kernel_handle: u64 },
}

impl Notification<'_> {
    /// Hands `send` the whole message in pieces, as `writev` takes them.
    pub fn with_message<R>(&self, send: impl FnOnce(&[IoSlice<'_>]) -> R) -> R {
        match *self {
            Notification::InvalInode { node, offset, len } => {
                let out = wire::NotifyInvalInode { ino: node.0, off: offset, len };
                message(NotifyCode::InvalInode, out.as_bytes(), &[], send)
            }
            Notification::InvalEntry { parent, name, expire } => {
                let flags = if expire { flags::EXPIRE_ONLY } else { 0 };
                let namelen = name.len() as u32;
                let out = wire::NotifyInvalEntry { parent: parent.0, namelen, flags };
                message(NotifyCode::InvalEntry, out.as_bytes(), &[name, &[0]], send)
            }
            Notification::Delete { parent, child, name } => {
                let (parent, child, namelen) = (parent.0, child.0, name.len() as u32);
                let out = wire::NotifyDelete { parent, child, namelen, padding: 0 };
                message(NotifyCode::Delete, out.as_bytes(), &[name, &[0]], send)
            }
            Notification::Store { node, offset, data } => {
                let size = data.len() as u32;
                let out = wire::NotifyStore { nodeid: node.0, offset, size, padding: 0 };
                message(NotifyCode::Store, out.as_bytes(), &[data], send)
            }
            Notification::Prune { nodes } => {
                assert!(nodes.len() <= PRUNE_MAX);
                let ids: SmallVec<[u64; PRUNE_MAX]> = nodes.iter().map(|node| node.0).collect();
                let out = wire::NotifyPrune { count: ids.len() as u32, padding: 0, spare: 0 };
                message(NotifyCode::Prune, out.as_bytes(), &[ids.as_bytes()], send)
            }
            Notification::Poll { kernel_handle } => {
                let out = wire::NotifyPoll { kh: kernel_handle };
                message(NotifyCode::Poll, out.as_bytes(), &[], send)
            }
        }
    }
}

fn message<R>(
    code: NotifyCode,
    fixed: &[u8],
    tail: &[&[u8]],
    send: impl FnOnce(&[IoSlice<'_>]) -> R,
) -> R {
    let body = fixed.len() + tail.iter().map(|piece| piece.len()).sum::<usize>();
    let len = (size_of::<wire::OutHeader>() + body) as u32;
    let header = wire::OutHeader { len, error: code as i32, unique: 0 };
    let mut pieces: SmallVec<[IoSlice<'_>; 4]> = SmallVec::new();
    pieces.push(IoSlice::new(header.as_bytes()));
    pieces.push(IoSlice::new(fixed));
    pieces.extend(tail.iter().map(|piece| IoSlice::new(piece)));
    send(&pieces)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_name_ends_with_a_nul_and_says_its_length() {
        let drop = Notification::InvalEntry { parent: NodeId(3), name: b"abc", expire: false };
        let bytes: Vec<u8> =
            drop.with_message(|pieces| pieces.iter().flat_map(|piece| piece.to_vec()).collect());
        assert_eq!(bytes.len(), 16 + 16 + 4);
        assert_eq!(bytes[..4], 36u32.to_ne_bytes());
        assert_eq!(bytes[4..8], 3i32.to_ne_bytes(), "the code stands where errors do");
        assert_eq!(&bytes[32..], b"abc\0");
    }

    #[test]
    fn nodes_to_forget_follow_their_number() {
        let nodes = [NodeId(7), NodeId(9)];
        let bytes: Vec<u8> = Notification::Prune { nodes: &nodes }
            .with_message(|pieces| pieces.iter().flat_map(|piece| piece.to_vec()).collect());
        assert_eq!(bytes.len(), 16 + 16 + 2 * 8);
        assert_eq!(bytes[4..8], 9i32.to_ne_bytes());
        assert_eq!(bytes[16..20], 2u32.to_ne_bytes());
        assert_eq!(bytes[32..40], 7u64.to_ne_bytes());
        assert_eq!(bytes[40..], 9u64.to_ne_bytes());
    }
}
