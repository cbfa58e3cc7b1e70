//! A client's operations on the content of files.
//!
//! Where it is to be known who pays for what, content is whole blocks, each of which has a number
//! that no other has: its first bytes.

use copyhold_fs::{Caller, FallocateMode, FileFlags, FsError, NodeId, SetAttr, WriteFlags};

use copyhold_types::BLOCK_BYTES;

use super::{Client, Done, FILE_BYTES};
use crate::fs_level::content::Content;
use crate::fs_level::tree::{Kind, ObjectId, Tree};

/// Where hoarded space is, behind all content.
const HOARD: u64 = 1 << 32;

type File = (ObjectId, NodeId);

impl Client {
    /// The file will hold what `change` makes of it.
    pub(super) fn begin_data(
        &self,
        name: &'static str,
        id: ObjectId,
        change: impl FnOnce(&mut Content),
    ) {
        let mut world = self.world();
        if name == "write" {
            world.touch(self.id, &[id]);
        } else {
            // It may change nothing, or leave nothing of what was written before.
            world.forget_touch(id);
        }
        let mut content = world.data[&id].now().clone();
        change(&mut content);
        world.begin_data(id, name, content);
    }

    /// The operation has ended. Where the pool was full, its effect is looked up.
    pub(super) async fn end_data(&mut self, id: ObjectId, node: NodeId, done: bool) -> Done {
        if !done {
            let held = self.fs.read(node, 0, 4 << 20).await;
            let Some(held) = self.given("read", held)? else { panic!("a read needs no space") };
            let content = Content::from_bytes(&held.to_vec());
            self.world().found_data(id, content);
        }
        {
            let mut world = self.world();
            world.end_data(id);
            match done {
                true => world.touch_ends(self.id),
                false => world.touch_fails(self.id),
            }
        }
        if done { Ok(()) } else { self.make_room().await }
    }

    pub(super) fn a_range(&mut self) -> (u64, u64) {
        let far = if self.dice.one_in(12) { 4 * FILE_BYTES } else { FILE_BYTES };
        let mut offset = self.dice.below(far);
        let mut len = 1 + self.dice.magnitude(16);
        if self.exact || self.dice.one_in(2) {
            (offset, len) = (offset & !4095, (len + 4095) & !4095);
        }
        (offset, len)
    }

    pub(super) async fn write(&mut self) -> Done {
        let Some((id, node)) = self.a_pliable_file() else { return Ok(()) };
        let (offset, len) = self.a_range();
        // Often where something is, so that it is overwritten.
        let offset = if self.dice.one_in(2) { offset % (16 << 10) } else { offset };
        self.write_at((id, node), offset, len).await?;
        // The operations of an editor, or a database.
        if self.dice.one_in(6) && self.world().logs[self.id].now().objects.contains_key(&id) {
            return self.fsync(id).await;
        }
        Ok(())
    }

    pub(super) async fn write_at(&mut self, file: File, offset: u64, len: u64) -> Done {
        let kill_priv = self.habits.careful && self.habits.dice.one_in(2);
        let flags = WriteFlags { kill_priv, ..WriteFlags::default() };
        self.write_by(file, offset, len, flags).await
    }

    /// Where it is to be appended, `offset` is the end.
    pub(super) async fn write_by(
        &mut self,
        (id, node): File,
        offset: u64,
        len: u64,
        flags: WriteFlags,
    ) -> Done {
        let bytes = self.dice.bytes(len as usize);
        let room = self.room_for(id, offset, &bytes);
        let left = if flags.kill_priv { self.begin_kill(id, None) } else { None };
        self.begin_data("write", id, |content| content.write(offset, &bytes));
        let at = if flags.append { 0 } else { offset };
        let wrote = self.fs.write(node, at, &bytes, flags).await;
        {
            let mut world = self.world();
            let moment = world.tick();
            world.usage.wrote(moment, &bytes);
        }
        self.check_room(room, &wrote);
        let wrote = self.given("write", wrote)?.is_some();
        self.end_kill(node, left, wrote).await?;
        self.end_data(id, node, wrote).await?;
        self.is_synced_by_flag(id, wrote);
        Ok(())
    }

    /// A change of the content of a file with the flag SYNC is durable, if it was done.
    fn is_synced_by_flag(&self, id: ObjectId, done: bool) {
        if !done {
            return;
        }
        let mut world = self.world();
        let object = world.logs[self.id].now().objects.get(&id);
        if object.is_some_and(|object| object.has_flag(FileFlags::SYNC)) {
            let fsync = world.before_fsync(id);
            world.after_fsync(&fsync);
        }
    }

    pub(super) async fn truncate(&mut self) -> Done {
        let Some((id, node)) = self.a_pliable_file() else { return Ok(()) };
        let size = if self.dice.one_in(3) { 0 } else { self.a_range().0 };
        let kill_priv = self.habits.careful && self.habits.dice.one_in(2);
        let left = if kill_priv { self.begin_kill(id, None) } else { None };
        self.begin_data("truncate", id, |content| content.set_size(size));
        let set = SetAttr { size: Some(size), kill_priv, ..SetAttr::default() };
        let cut = self.fs.setattr(&Caller::ROOT, node, &set).await;
        let cut = self.given("truncate", cut)?.is_some();
        self.end_kill(node, left, cut).await?;
        self.end_data(id, node, cut).await?;
        self.is_synced_by_flag(id, cut);
        Ok(())
    }

    /// Preallocated blocks that a snapshot shares are written on both sides, when there is no other
    /// space (R10): only then is anything written in place.
    pub(super) async fn part_preallocated(&mut self, tree: Tree, subvol: ObjectId) -> Done {
        let files = tree.within(subvol).into_iter();
        let files = files.filter(|id| tree.objects[id].kind == Kind::File && tree.may_change(*id));
        let files: Vec<ObjectId> = files.collect();
        let Some(id) = (!files.is_empty()).then(|| self.dice.pick(&files)) else { return Ok(()) };
        let node = self.world().nodes[&id];
        let len = BLOCK_BYTES as u64 * (1 + self.dice.below(8));
        let mode = FallocateMode::Allocate { keep_size: false };
        let from = self.world().data[&id].now().size().next_multiple_of(BLOCK_BYTES as u64);
        self.fallocate_at((id, node), from, len, mode).await?;
        let tree = self.tree();
        if !tree.objects.contains_key(&id) || !tree.objects.contains_key(&subvol) {
            return Ok(());
        }
        self.fsync(id).await?;
        self.snapshot(tree, subvol).await?;
        let copies: Vec<File> = {
            let world = self.world();
            let copies = world.nodes.iter().filter(|(_, other)| other.ino == node.ino);
            copies.map(|(id, node)| (*id, *node)).collect()
        };
        self.hog((id, node)).await;
        for file in copies {
            let tree = self.tree();
            let is_copy = tree.objects.get(&file.0).is_some_and(|of| of.kind == Kind::File);
            if is_copy && tree.may_change(file.0) {
                self.write_at(file, from, len).await?;
                self.fsync(file.0).await?;
            }
        }
        drop(self.hoard((id, node), HOARD, FallocateMode::Punch).await);
        Ok(())
    }

    /// Takes all space that a write can get, behind the end of a file. The reserve is not there for
    /// that (R21).
    async fn hog(&self, file: File) {
        let space = self.fs.pool().space();
        for blocks in [space.free, space.available()] {
            let mode = FallocateMode::Allocate { keep_size: true };
            let bytes = blocks * BLOCK_BYTES as u64;
            if bytes > 0 && self.hoard(file, bytes, mode).await.is_ok() {
                return;
            }
        }
    }

    /// Preallocation far behind the end changes no content, but perhaps times.
    async fn hoard(&self, (id, node): File, len: u64, mode: FallocateMode) -> Result<(), FsError> {
        self.begin_data("hoard", id, |_| {});
        let done = self.fs.fallocate(node, HOARD, len, mode).await;
        self.world().end_data(id);
        done
    }

    pub(super) async fn fallocate(&mut self) -> Done {
        let Some((id, node)) = self.a_pliable_file() else { return Ok(()) };
        let (offset, len) = self.a_range();
        let keep_size = self.dice.one_in(2);
        let mode = match self.exact {
            // Preallocated blocks are written in place or not, depending on the free space.
            true => FallocateMode::Punch,
            false => self.dice.pick(&[
                FallocateMode::Allocate { keep_size },
                FallocateMode::Punch,
                FallocateMode::Zero { keep_size },
            ]),
        };
        self.fallocate_at((id, node), offset, len, mode).await
    }

    async fn fallocate_at(
        &mut self,
        (id, node): File,
        offset: u64,
        len: u64,
        mode: FallocateMode,
    ) -> Done {
        let caller = self.a_changer();
        let by = Some(&caller).filter(|by| !by.is_privileged());
        let left = by.and_then(|by| self.begin_kill(id, Some(by)));
        self.begin_data("fallocate", id, |content| {
            let grows = match mode {
                FallocateMode::Allocate { keep_size } => !keep_size,
                FallocateMode::Punch => false,
                FallocateMode::Zero { keep_size } => !keep_size,
            };
            if !matches!(mode, FallocateMode::Allocate { .. }) {
                content.zero(offset, len);
            }
            if grows && offset + len > content.size() {
                content.set_size(offset + len);
            }
        });
        let done = self.fs.fallocate_by(&caller, node, offset, len, mode).await;
        let done = self.given("fallocate", done)?.is_some();
        self.end_kill(node, left, done).await?;
        self.end_data(id, node, done).await?;
        self.is_synced_by_flag(id, done);
        Ok(())
    }

    /// Copies, which shares whole blocks, and changes what is shared on one side or the other.
    pub(super) async fn copy(&mut self) -> Done {
        let (Some(source), Some(target)) = (self.a_file(), self.a_pliable_file()) else {
            return Ok(());
        };
        self.copy_to(source, target).await
    }

    /// Copies to a file with the flag SYNC, which is then durable.
    pub(super) async fn copy_durably(&mut self) -> Done {
        let (Some(source), Some(target)) = (self.a_file(), self.a_pliable_file()) else {
            return Ok(());
        };
        self.set_flags_of(self.tree(), target.0, FileFlags::SYNC.0).await?;
        self.copy_to(source, target).await
    }

    async fn copy_to(&mut self, (source, from): File, (target, to): File) -> Done {
        let ((from_offset, len), (to_offset, _)) = (self.a_range(), self.a_range());
        let bytes = self.world().data[&source].now().read(from_offset, len);
        let overlaps = from_offset.abs_diff(to_offset) < len;
        // Within a file nothing is shared, but copied.
        if bytes.is_empty() || (source == target && (overlaps || self.exact)) {
            return Ok(());
        }
        let caller = self.a_changer();
        let by = Some(&caller).filter(|by| !by.is_privileged());
        let left = by.and_then(|by| self.begin_kill(target, Some(by)));
        self.begin_data("copy", target, |content| content.write(to_offset, &bytes));
        self.world().modes.share(source, target);
        let (fs, len_there) = (&self.fs, bytes.len() as u64);
        let (there, here) = ((from, from_offset), (to, to_offset));
        let copied = fs.copy_file_range_by(&caller, there, here, len_there).await;
        let whole = match self.given("copy", copied)? {
            Some(copied) => copied == bytes.len() as u64,
            None => false,
        };
        self.end_kill(to, left, whole).await?;
        self.end_data(target, to, whole).await?;
        self.is_synced_by_flag(target, whole);
        for _ in 0..if whole { self.dice.below(4) } else { 0 } {
            let sides = [((source, from), from_offset), ((target, to), to_offset)];
            let (file, offset) = self.dice.pick(&sides);
            self.change_part(file, offset, len).await?;
        }
        Ok(())
    }

    /// Overwrites a part of a range, or punches a hole there.
    async fn change_part(&mut self, file: File, offset: u64, len: u64) -> Done {
        let tree = self.tree();
        let is_there = tree.objects.contains_key(&file.0) && tree.may_change(file.0);
        if !is_there {
            return Ok(());
        }
        let from = offset + self.dice.below(len);
        let len = 1 + self.dice.below(offset + len - from);
        let (from, len) = match self.exact {
            true => (from & !4095, (len + 4095) & !4095),
            false => (from, len),
        };
        if self.dice.one_in(3) {
            return self.fallocate_at(file, from, len, FallocateMode::Punch).await;
        }
        self.write_at(file, from, len).await
    }
}
