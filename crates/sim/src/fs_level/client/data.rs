//! What a client does with the content of files.
//!
//! Where it is to be known who pays for what, content is whole blocks, each of which has a number
//! that no other has: its first bytes.

use copyhold_fs::{Caller, FallocateMode, NodeId, SetAttr, WriteFlags};

use super::{Client, Done, FILE_BYTES};
use crate::fs_level::content::Content;
use crate::fs_level::tree::ObjectId;

impl Client {
    /// The file will hold what `change` makes of it.
    fn begin_data(&self, name: &'static str, id: ObjectId, change: impl FnOnce(&mut Content)) {
        let mut world = self.world();
        if name == "write" {
            world.touch(self.id, &[id]);
        } else {
            // It may change nothing, or leave nothing of what was written before.
            world.forget_touch(id);
        }
        let versions = world.data.get_mut(&id).expect("a file has data");
        let mut content = versions.now().clone();
        change(&mut content);
        versions.begin(name, content);
    }

    /// The operation has ended. Where the pool was full, what it did is looked up.
    async fn end_data(&mut self, id: ObjectId, node: NodeId, done: bool) -> Done {
        if !done {
            let held = self.fs.read(node, 0, 4 << 20).await;
            let Some(held) = self.given("read", held)? else { panic!("a read needs no space") };
            let content = Content::from_bytes(&held.to_vec());
            self.world().data.get_mut(&id).expect("a file has data").begin("found", content);
        }
        {
            let mut world = self.world();
            world.data.get_mut(&id).expect("a file has data").end();
            world.touch_ends(self.id);
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
        let bytes = self.dice.bytes(len as usize);
        let room = self.room_for(id, offset, &bytes);
        self.begin_data("write", id, |content| content.write(offset, &bytes));
        let wrote = self.fs.write(node, offset, &bytes, WriteFlags::default()).await;
        self.check_room(room, &wrote);
        let wrote = self.given("write", wrote)?;
        self.end_data(id, node, wrote.is_some()).await?;
        // What an editor does, or a database.
        if self.dice.one_in(6) && self.world().logs[self.id].now().objects.contains_key(&id) {
            return self.fsync(id).await;
        }
        Ok(())
    }

    pub(super) async fn truncate(&mut self) -> Done {
        let Some((id, node)) = self.a_pliable_file() else { return Ok(()) };
        let size = if self.dice.one_in(3) { 0 } else { self.a_range().0 };
        self.begin_data("truncate", id, |content| content.set_size(size));
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        let cut = self.fs.setattr(&Caller::ROOT, node, &set).await;
        let cut = self.given("truncate", cut)?;
        self.end_data(id, node, cut.is_some()).await
    }

    pub(super) async fn fallocate(&mut self) -> Done {
        let Some((id, node)) = self.a_pliable_file() else { return Ok(()) };
        let (offset, len) = self.a_range();
        let keep_size = self.dice.one_in(2);
        let mode = match self.exact {
            // What is preallocated is written in place or not, as there is room.
            true => FallocateMode::Punch,
            false => self.dice.pick(&[
                FallocateMode::Allocate { keep_size },
                FallocateMode::Punch,
                FallocateMode::Zero { keep_size },
            ]),
        };
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
        let done = self.fs.fallocate(node, offset, len, mode).await;
        let done = self.given("fallocate", done)?;
        self.end_data(id, node, done.is_some()).await
    }

    pub(super) async fn copy(&mut self) -> Done {
        let (Some((source, from)), Some((target, to))) = (self.a_file(), self.a_pliable_file())
        else {
            return Ok(());
        };
        let ((from_offset, len), (to_offset, _)) = (self.a_range(), self.a_range());
        let bytes = self.world().data[&source].now().read(from_offset, len);
        if source == target || bytes.is_empty() {
            return Ok(());
        }
        self.begin_data("copy", target, |content| content.write(to_offset, &bytes));
        let copied =
            self.fs.copy_file_range(from, from_offset, to, to_offset, bytes.len() as u64).await;
        let whole = match self.given("copy", copied)? {
            Some(copied) => copied == bytes.len() as u64,
            None => false,
        };
        self.end_data(target, to, whole).await
    }
}
