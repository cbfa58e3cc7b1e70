//! A client's view while it lives: of its own files exactly its own changes, of others their
//! possible changes; and refused operations.

use copyhold_fs::{Caller, DirEntry, FsError, NodeId};

use super::{Client, Done, Stopped};

impl Client {
    pub(super) async fn read(&mut self) -> Done {
        let Some((id, node)) = self.a_file() else { return Ok(()) };
        let (offset, len) = self.a_range();
        let read = self.fs.read(node, offset, len as usize).await;
        let Some(read) = self.given("read", read)? else { panic!("a read needs no space") };
        let expected = self.world().data[&id].now().read(offset, len);
        let same = read.to_vec() == expected;
        assert!(same || self.forgiving, "object {id}: read of {len} bytes at {offset} is wrong");
        Ok(())
    }

    /// Reads a file that another client may be changing or removing, without opening it. Each block
    /// has a content that it had at some time.
    pub(super) async fn read_anothers(&mut self) -> Done {
        let Some((id, node)) = self.anybodys_file() else { return Ok(()) };
        let (offset, len) = self.a_range();
        let offset = offset & !4095;
        let fs = self.fs.clone();
        let read = self.with_patience(fs.read(node, offset, len as usize)).await;
        let Some(read) = read.filter(|read| !matches!(read, Err(FsError::Stale))) else {
            return Ok(());
        };
        let Some(read) = self.given("read", read)? else { panic!("a read needs no space") };
        let world = self.world();
        let ever = world.data.get(&id).is_none_or(|data| data.ever_held(offset, &read.to_vec()));
        assert!(ever || self.forgiving, "object {id}: never held what is read at {offset}");
        Ok(())
    }

    /// All names of a directory, some at a time.
    async fn list_in_parts(&mut self, dir: NodeId) -> Result<Vec<(Vec<u8>, NodeId)>, Stopped> {
        let at_a_time = self.habits.dice.pick(&[1, 2, usize::MAX]);
        let with_attributes = self.habits.careful && self.habits.dice.one_in(2);
        let (mut found, mut cookie) = (Vec::new(), 0);
        loop {
            let before = found.len();
            let after = cookie;
            let mut take = |entry: &DirEntry<'_>| {
                let takes = found.len() < before.saturating_add(at_a_time);
                if takes {
                    found.push((entry.name.to_vec(), entry.node));
                    cookie = entry.cookie;
                }
                takes
            };
            let listed = match with_attributes {
                true => self.fs.readdirplus(dir, after, &mut take).await,
                false => self.fs.readdir(dir, after, &mut take).await,
            };
            if with_attributes {
                let is_counted = |name: &[u8]| name != b"." && name != b"..";
                let counted = found[before..].iter().filter(|(name, _)| is_counted(name));
                counted.for_each(|(_, node)| self.fs.forget(*node, 1));
            }
            self.given("readdir", listed)?;
            if found.len() == before {
                return Ok(found);
            }
        }
    }

    /// A directory lists each of this client's names once.
    pub(super) async fn list(&mut self) -> Done {
        let tree = self.tree();
        let dir = self.a_dir(&tree);
        let node = self.node(dir);
        let own = format!("c{}-", self.id).into_bytes();
        let mut found = self.list_in_parts(node).await?;
        found.retain(|(name, _)| name.starts_with(&own));
        found.sort_unstable();
        let world = self.world();
        let names = tree.entries.iter().filter(|((of, _), _)| *of == dir);
        let expected: Vec<_> =
            names.map(|((_, name), id)| (name.clone(), world.nodes.get(id).copied())).collect();
        let all = found.len() == expected.len()
            && found.iter().zip(&expected).all(|((name, node), (expected, known))| {
                name == expected && known.is_none_or(|known| known == *node)
            });
        assert!(all, "client {}: a list of {dir:?}: {found:?}, not {expected:?}", self.id);
        Ok(())
    }

    pub(super) async fn expect_refusals(&mut self) -> Done {
        let tree = self.tree();
        let Some((place, _)) = self.an_entry(&tree) else { return Ok(()) };
        let (parent, root) = (self.node(place.0), &Caller::ROOT);
        if !tree.is_writable(place.0) {
            let made = self.fs.mkdir(root, parent, b"never", 0o755).await;
            assert!(self.forgiving || matches!(made, Err(FsError::ReadOnly { .. })), "{made:?}");
            return Ok(());
        }
        let made = self.fs.mkdir(root, parent, &place.1, 0o755).await;
        assert!(self.forgiving || matches!(made, Err(FsError::Exists)), "{made:?}");
        let removed = self.fs.unlink(parent, b"never").await;
        assert!(self.forgiving || matches!(removed, Err(FsError::NotFound)), "{removed:?}");
        Ok(())
    }
}
