//! A filesystem as plainly as can be: maps and vectors.

use std::collections::BTreeMap;

pub(crate) type Id = usize;
pub(crate) const ROOT: Id = 0;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    Dir(BTreeMap<Vec<u8>, Id>),
    File(Vec<u8>),
    Link(Vec<u8>),
    Other,
}

#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) body: Body,
    pub(crate) mode: u32,
    pub(crate) nlink: u32,
    pub(crate) parent: Id,
    pub(crate) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// What an operation answers, as far as the model says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fail {
    NotFound,
    Exists,
    NotDirectory,
    IsDirectory,
    NotEmpty,
    Invalid,
    NoAttribute,
    NotPermitted,
}

#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) nodes: BTreeMap<Id, Node>,
    next: Id,
}

pub(crate) type Answer<T> = Result<T, Fail>;

impl Model {
    pub(crate) fn new() -> Model {
        let root = Node {
            body: Body::Dir(BTreeMap::new()),
            mode: 0o755,
            nlink: 2,
            parent: ROOT,
            xattrs: BTreeMap::new(),
        };
        Model { nodes: BTreeMap::from([(ROOT, root)]), next: 1 }
    }

    fn node_mut(&mut self, id: Id) -> &mut Node {
        self.nodes.get_mut(&id).unwrap()
    }

    pub(crate) fn is_dir(&self, id: Id) -> bool {
        matches!(self.nodes[&id].body, Body::Dir(_))
    }

    pub(crate) fn entries(&self, dir: Id) -> Answer<&BTreeMap<Vec<u8>, Id>> {
        match &self.nodes[&dir].body {
            Body::Dir(entries) => Ok(entries),
            _ => Err(Fail::NotDirectory),
        }
    }

    fn entries_mut(&mut self, dir: Id) -> &mut BTreeMap<Vec<u8>, Id> {
        match &mut self.node_mut(dir).body {
            Body::Dir(entries) => entries,
            _ => panic!("checked before"),
        }
    }

    pub(crate) fn lookup(&self, dir: Id, name: &[u8]) -> Answer<Id> {
        self.entries(dir)?.get(name).copied().ok_or(Fail::NotFound)
    }

    pub(crate) fn make(&mut self, dir: Id, name: &[u8], body: Body, mode: u32) -> Answer<Id> {
        if self.entries(dir)?.contains_key(name) {
            return Err(Fail::Exists);
        }
        let id = self.next;
        self.next += 1;
        let is_dir = matches!(body, Body::Dir(_));
        let nlink = if is_dir { 2 } else { 1 };
        self.node_mut(dir).nlink += u32::from(is_dir);
        self.entries_mut(dir).insert(name.to_vec(), id);
        self.nodes.insert(id, Node { body, mode, nlink, parent: dir, xattrs: BTreeMap::new() });
        Ok(id)
    }

    pub(crate) fn link(&mut self, id: Id, dir: Id, name: &[u8]) -> Answer<()> {
        if self.is_dir(id) {
            return Err(Fail::NotPermitted);
        }
        if self.entries(dir)?.contains_key(name) {
            return Err(Fail::Exists);
        }
        self.entries_mut(dir).insert(name.to_vec(), id);
        self.node_mut(id).nlink += 1;
        Ok(())
    }

    pub(crate) fn remove(&mut self, dir: Id, name: &[u8], want_dir: bool) -> Answer<()> {
        let id = self.lookup(dir, name)?;
        match (self.is_dir(id), want_dir) {
            (true, false) => return Err(Fail::IsDirectory),
            (false, true) => return Err(Fail::NotDirectory),
            _ => {}
        }
        if want_dir && !self.entries(id)?.is_empty() {
            return Err(Fail::NotEmpty);
        }
        self.entries_mut(dir).remove(name);
        self.drop_link(dir, id);
        Ok(())
    }

    /// An entry of `dir` for `id` is gone.
    fn drop_link(&mut self, dir: Id, id: Id) {
        if self.is_dir(id) {
            self.node_mut(dir).nlink -= 1;
            self.nodes.remove(&id);
            return;
        }
        let node = self.node_mut(id);
        node.nlink -= 1;
        if node.nlink == 0 {
            self.nodes.remove(&id);
        }
    }

    fn is_under(&self, mut dir: Id, top: Id) -> bool {
        loop {
            if dir == top {
                return true;
            }
            if dir == ROOT {
                return false;
            }
            dir = self.nodes[&dir].parent;
        }
    }

    pub(crate) fn rename(
        &mut self,
        (dir, name): (Id, &[u8]),
        (to, new): (Id, &[u8]),
        no_replace: bool,
        exchange: bool,
    ) -> Answer<()> {
        self.entries(dir)?;
        self.entries(to)?;
        let id = self.lookup(dir, name)?;
        let target = self.lookup(to, new).ok();
        if no_replace && target.is_some() {
            return Err(Fail::Exists);
        }
        if target == Some(id) {
            return Ok(());
        }
        if exchange && target.is_none() {
            return Err(Fail::NotFound);
        }
        if dir != to && self.is_dir(id) && self.is_under(to, id) {
            return Err(Fail::Invalid);
        }
        if let Some(other) = target {
            if exchange {
                if dir != to && self.is_dir(other) && self.is_under(dir, other) {
                    return Err(Fail::Invalid);
                }
            } else {
                match (self.is_dir(id), self.is_dir(other)) {
                    (false, true) => return Err(Fail::IsDirectory),
                    (true, false) => return Err(Fail::NotDirectory),
                    (true, true) if !self.entries(other)?.is_empty() => return Err(Fail::NotEmpty),
                    _ => {}
                }
            }
        }
        self.entries_mut(dir).remove(name);
        if let Some(other) = target {
            self.entries_mut(to).remove(new);
            if exchange {
                self.place(other, dir, name, to);
            } else {
                self.drop_link(to, other);
            }
        }
        self.place(id, to, new, dir);
        Ok(())
    }

    /// Puts `id` under a name, coming from the directory `from`.
    fn place(&mut self, id: Id, dir: Id, name: &[u8], from: Id) {
        self.entries_mut(dir).insert(name.to_vec(), id);
        if self.is_dir(id) {
            self.node_mut(from).nlink -= 1;
            self.node_mut(dir).nlink += 1;
            self.node_mut(id).parent = dir;
        }
    }

    pub(crate) fn file(&mut self, id: Id) -> Answer<&mut Vec<u8>> {
        match &mut self.node_mut(id).body {
            Body::File(data) => Ok(data),
            Body::Dir(_) => Err(Fail::IsDirectory),
            _ => Err(Fail::Invalid),
        }
    }

    pub(crate) fn write(&mut self, id: Id, at: usize, bytes: &[u8]) -> Answer<()> {
        let data = self.file(id)?;
        if !bytes.is_empty() {
            if data.len() < at + bytes.len() {
                data.resize(at + bytes.len(), 0);
            }
            data[at..at + bytes.len()].copy_from_slice(bytes);
        }
        Ok(())
    }

    pub(crate) fn truncate(&mut self, id: Id, size: usize) -> Answer<()> {
        self.file(id)?.resize(size, 0);
        Ok(())
    }

    pub(crate) fn zero(&mut self, id: Id, at: usize, len: usize, grow: bool) -> Answer<()> {
        let data = self.file(id)?;
        if grow && data.len() < at + len {
            data.resize(at + len, 0);
        }
        let end = data.len().min(at + len);
        if at < end {
            data[at..end].fill(0);
        }
        Ok(())
    }

    pub(crate) fn allocate(&mut self, id: Id, end: usize, grow: bool) -> Answer<()> {
        let data = self.file(id)?;
        if grow && data.len() < end {
            data.resize(end, 0);
        }
        Ok(())
    }

    pub(crate) fn set_xattr(&mut self, id: Id, name: &[u8], value: &[u8]) {
        self.node_mut(id).xattrs.insert(name.to_vec(), value.to_vec());
    }

    pub(crate) fn remove_xattr(&mut self, id: Id, name: &[u8]) -> Answer<()> {
        self.node_mut(id).xattrs.remove(name).map(drop).ok_or(Fail::NoAttribute)
    }

    pub(crate) fn chmod(&mut self, id: Id, mode: u32) {
        self.node_mut(id).mode = mode;
    }
}
