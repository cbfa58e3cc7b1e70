//! The operations that fill a pool: each kind of operation, in any clone.

use copyhold_fs::{
    FallocateMode, FileFlags, FsError, NodeId, RenameFlags, SetAttr, WriteFlags, XattrSet,
};
use copyhold_volume::quota::QuotaError;

use super::{BLOCK, Client, FILES, LARGE_BLOCKS, ROOT, create};

/// How far into the reserve an operation may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    Fill,
    Change,
    Delete,
}

impl Class {
    /// The least that must be left: the floor of the next tier, since background flushes may use
    /// the difference.
    pub(crate) fn leaves(self, reserve: u64) -> u64 {
        match self {
            Class::Fill => reserve / 4 * 3,
            Class::Change => reserve / 2,
            Class::Delete => reserve / 4,
        }
    }

    /// The kinds of operations that take no more of the reserve than this class.
    pub(crate) fn kinds(self) -> &'static [Kind] {
        match self {
            Class::Fill => &[
                Kind::Write,
                Kind::Create,
                Kind::Mkdir,
                Kind::Symlink,
                Kind::Whiteout,
                Kind::Tmpfile,
                Kind::Link,
                Kind::SetXattr,
                Kind::SetAcl,
                Kind::Preallocate,
                Kind::Copy,
                Kind::Snapshot,
                Kind::Read,
            ],
            Class::Change => &[
                Kind::Punch,
                Kind::Zero,
                Kind::Rename,
                Kind::Chmod,
                Kind::SetFlags,
                Kind::WriteInPlace,
                Kind::RemoveXattr,
            ],
            Class::Delete => &[Kind::Truncate, Kind::Unlink],
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Write,
    Create,
    Mkdir,
    Symlink,
    Whiteout,
    Tmpfile,
    Link,
    SetXattr,
    SetAcl,
    Preallocate,
    Copy,
    Snapshot,
    Read,
    Punch,
    Zero,
    Rename,
    Chmod,
    SetFlags,
    WriteInPlace,
    Truncate,
    Unlink,
    RemoveXattr,
}

/// An ACL that grants user `uid` read and write.
fn acl(uid: u32) -> Vec<u8> {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    let entries = [(1, 6, u32::MAX), (2, 6, uid), (4, 4, u32::MAX), (16, 6, u32::MAX)];
    for (tag, perm, id) in entries.into_iter().chain([(32, 4, u32::MAX)]) {
        bytes.extend(u16::to_le_bytes(tag));
        bytes.extend(u16::to_le_bytes(perm));
        bytes.extend(u32::to_le_bytes(id));
    }
    bytes
}

impl Client<'_> {
    /// Until it is refused for space three times, or `most` times. How often.
    pub(crate) async fn go_on(&mut self, kind: Kind, most: u64) -> u64 {
        let mut refused = 0;
        for n in 0..most {
            match self.step(kind).await {
                Ok(()) => {}
                Err(FsError::NoSpace(_) | FsError::Kept { .. }) => {
                    let frees = self.fs.volumes().free_step().await;
                    assert!(!frees, "U3: {kind:?} is refused although a step frees space");
                    refused += 1;
                }
                Err(FsError::Quota(QuotaError::Exceeded(_))) => refused += 1,
                // Another operation of this kind has removed or made it.
                Err(
                    FsError::NotFound
                    | FsError::Exists
                    | FsError::NoAttribute
                    | FsError::Invalid("not a regular file")
                    | FsError::Crowded { .. }
                    | FsError::TooManyLinks { .. },
                ) => {}
                Err(error) => panic!("{kind:?}: {error}"),
            }
            if refused == 3 {
                return n + 1;
            }
        }
        most
    }

    fn name(&mut self) -> Vec<u8> {
        self.fresh += 1;
        format!("{:0>40}", self.fresh).into_bytes()
    }

    async fn clone_root(&mut self) -> Result<NodeId, FsError> {
        let name = self.dice.pick_ref(self.clones).clone();
        Ok(self.fs.lookup(self.fs.root(), &name).await?.node)
    }

    /// A block somewhere in the large file, mostly.
    fn range(&mut self) -> (u64, u64) {
        let len = 1 + self.dice.magnitude(3);
        (self.dice.below(LARGE_BLOCKS) * BLOCK, len * BLOCK)
    }

    async fn step(&mut self, kind: Kind) -> Result<(), FsError> {
        let dir = self.clone_root().await?;
        let fs = self.fs;
        let name = format!("f{}", self.dice.below(FILES)).into_bytes();
        let small = format!("small{}", self.dice.below(200)).into_bytes();
        let of_any = if self.dice.one_in(2) { &name } else { &small };
        let large = async { Ok::<NodeId, FsError>(fs.lookup(dir, b"f0").await?.node) };
        let any = async { Ok::<NodeId, FsError>(fs.lookup(dir, of_any).await?.node) };
        match kind {
            Kind::Write => {
                let (at, len) = self.range();
                let data = self.dice.bytes(len as usize);
                fs.write(large.await?, at, &data, WriteFlags::default()).await
            }
            Kind::Create => create(fs, dir, &self.name()).await.map(drop),
            Kind::Mkdir => fs.mkdir(&ROOT, dir, &self.name(), 0o755).await.map(drop),
            Kind::Symlink => fs.symlink(&ROOT, dir, &self.name(), &[b'x'; 900]).await.map(drop),
            Kind::Whiteout => {
                let flags = RenameFlags { whiteout: true, ..RenameFlags::default() };
                fs.rename(&ROOT, dir, of_any, dir, &self.name(), flags).await
            }
            Kind::Tmpfile => {
                let made = fs.tmpfile(&ROOT, dir, 0o600).await?;
                fs.release(made.node);
                Ok(())
            }
            Kind::Link => fs.link(any.await?, dir, &self.name()).await.map(drop),
            Kind::SetXattr => {
                let value = self.dice.bytes(3000);
                let name = format!("user.{}", self.dice.below(40));
                fs.set_xattr(&ROOT, any.await?, name.as_bytes(), &value, XattrSet::Any, false).await
            }
            Kind::SetAcl => {
                let acl = acl(self.dice.below(1000) as u32);
                let name = b"system.posix_acl_access";
                fs.set_xattr(&ROOT, any.await?, name, &acl, XattrSet::Any, false).await
            }
            Kind::Preallocate => {
                let (at, len) = self.range();
                let mode = FallocateMode::Allocate { keep_size: self.dice.one_in(2) };
                let far = self.dice.below(4) * LARGE_BLOCKS * BLOCK;
                fs.fallocate(large.await?, far + at, len, mode).await
            }
            Kind::Copy => {
                let from = large.await?;
                let to = self.clone_root().await?;
                let to = fs.lookup(to, &name).await?.node;
                let ((at, len), (to_at, _)) = (self.range(), self.range());
                if from == to {
                    return Ok(());
                }
                fs.copy_file_range(from, at, to, to_at, len).await.map(drop)
            }
            Kind::Snapshot => {
                let name = self.name();
                fs.snapshot(dir.subvol, fs.root(), &name, false, None).await?;
                self.clones.push(name);
                Ok(())
            }
            Kind::Read => fs.read(any.await?, 0, 10).await.map(drop),
            Kind::Punch => {
                let (at, len) = self.range();
                fs.fallocate(large.await?, at, len, FallocateMode::Punch).await
            }
            Kind::Zero => {
                let (at, len) = self.range();
                let mode = FallocateMode::Zero { keep_size: true };
                fs.fallocate(large.await?, at, len, mode).await
            }
            Kind::Rename => {
                let (from, to) = (self.dice.below(200), self.dice.below(200));
                let (from, to) = (format!("small{from}"), format!("small{to}"));
                let flags = RenameFlags { exchange: self.dice.one_in(2), ..RenameFlags::default() };
                fs.rename(&ROOT, dir, from.as_bytes(), dir, to.as_bytes(), flags).await
            }
            Kind::Chmod => {
                let mode = Some(0o600 + self.dice.below(64) as u32);
                let mode = SetAttr { mode, ..SetAttr::default() };
                fs.setattr(&ROOT, any.await?, &mode).await.map(drop)
            }
            Kind::SetFlags => {
                let flags = self.dice.pick(&[FileFlags(0), FileFlags::NODUMP]);
                fs.set_flags(&ROOT, any.await?, flags, None).await
            }
            Kind::WriteInPlace => {
                let (at, _) = self.range();
                let far = (1 + self.dice.below(3)) * LARGE_BLOCKS * BLOCK;
                let data = self.dice.bytes(BLOCK as usize);
                fs.write(large.await?, far + at, &data, WriteFlags::default()).await
            }
            Kind::Truncate => {
                let size = Some(self.dice.below(4 * LARGE_BLOCKS) * BLOCK);
                let size = SetAttr { size, ..SetAttr::default() };
                fs.setattr(&ROOT, any.await?, &size).await.map(drop)
            }
            Kind::Unlink => fs.unlink(dir, of_any).await,
            Kind::RemoveXattr => {
                let name = format!("user.{}", self.dice.below(40));
                fs.remove_xattr(any.await?, name.as_bytes()).await
            }
        }
    }
}
