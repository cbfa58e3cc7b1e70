//! A filesystem for unit tests of the mount: directories, symbolic links and files, all of which
//! stay. Integration tests mount the one of `copyhold-memfs`, which depends on this crate.

use std::collections::BTreeMap;

use copyhold_sync::{Mutex, of};

use crate::protocol::tests::entry;
use crate::protocol::{
    AttrReply, Caller, Data, Entry, Handle, Lookup, NewNode, NodeId, Read, Statfs, Write,
};
use crate::{Errno, Operations, Payload, Reply};

#[derive(Default)]
struct Inode {
    mode: u32,
    names: BTreeMap<Vec<u8>, NodeId>,
    bytes: Vec<u8>,
}

/// The inode of node n is at n - 1.
pub(crate) struct StubFs {
    inodes: Mutex<Vec<Inode>, of::MemfsTree>,
}

fn at(node: NodeId) -> usize {
    node.0 as usize - 1
}

impl Inode {
    fn entry(&self, node: NodeId) -> Entry {
        let mut entry = entry(node, self.mode);
        entry.attr.size = self.bytes.len() as u64;
        entry
    }
}

impl StubFs {
    pub(crate) fn new() -> StubFs {
        let root = Inode { mode: libc::S_IFDIR | 0o755, ..Inode::default() };
        StubFs { inodes: Mutex::new(vec![root]) }
    }

    fn make(&self, parent: NodeId, name: &[u8], mode: u32) -> Reply<Entry> {
        let mut inodes = self.inodes.lock();
        inodes.push(Inode { mode, ..Inode::default() });
        let node = NodeId(inodes.len() as u64);
        inodes[at(parent)].names.insert(name.to_vec(), node);
        Ok(inodes[at(node)].entry(node))
    }
}

impl Operations for StubFs {
    async fn lookup(&self, _: Caller, parent: NodeId, name: &[u8]) -> Reply<Lookup> {
        let inodes = self.inodes.lock();
        let node = *inodes[at(parent)].names.get(name).ok_or(Errno::ENOENT)?;
        Ok(Lookup::Found(inodes[at(node)].entry(node)))
    }

    async fn getattr(&self, _: Caller, node: NodeId, _: Option<Handle>) -> Reply<AttrReply> {
        let Entry { attr, attr_valid, .. } = self.inodes.lock()[at(node)].entry(node);
        Ok(AttrReply { attr, valid: attr_valid })
    }

    async fn symlink(
        &self,
        _: Caller,
        parent: NodeId,
        name: &[u8],
        _: &[u8],
        _: NewNode<'_>,
    ) -> Reply<Entry> {
        self.make(parent, name, libc::S_IFLNK | 0o777)
    }

    async fn mknod(
        &self,
        _: Caller,
        parent: NodeId,
        name: &[u8],
        new: NewNode<'_>,
    ) -> Reply<Entry> {
        self.make(parent, name, new.mode)
    }

    async fn mkdir(
        &self,
        _: Caller,
        parent: NodeId,
        name: &[u8],
        new: NewNode<'_>,
    ) -> Reply<Entry> {
        self.make(parent, name, new.mode | libc::S_IFDIR)
    }

    async fn read(&self, _: Caller, node: NodeId, read: Read) -> Reply<Data> {
        let inodes = self.inodes.lock();
        let bytes = inodes[at(node)].bytes.iter().skip(read.offset as usize);
        Ok(bytes.take(read.size as usize).copied().collect::<Vec<u8>>().into())
    }

    async fn write(&self, _: Caller, node: NodeId, write: Write, data: &mut Payload) -> Reply<u32> {
        let bytes = &mut self.inodes.lock()[at(node)].bytes;
        let (start, end) = (write.offset as usize, write.offset as usize + data.bytes().len());
        bytes.resize(bytes.len().max(end), 0);
        bytes[start..end].copy_from_slice(data.bytes());
        Ok(write.size)
    }

    async fn statfs(&self, _: Caller, _: NodeId) -> Reply<Statfs> {
        Ok(Statfs::default())
    }
}
