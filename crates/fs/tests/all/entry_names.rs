//! The names of subvolumes, as lists find them, also while directories change.

use std::sync::Arc;

use copyhold_fs::{Caller, Filesystem, NodeId, RenameFlags, kept_name, names_in};
use copyhold_types::{InodeNo, SubvolId};

use crate::common::*;

async fn subvolume(fs: &Arc<Filesystem>, dir: NodeId, name: &str) -> NodeId {
    let made = fs.create_subvolume(&Caller::ROOT, dir, name.as_bytes(), None).await;
    NodeId { subvol: made.unwrap(), ino: InodeNo::ROOT }
}

async fn found(fs: &Filesystem, dir: NodeId, node: NodeId) -> Option<String> {
    let name = match kept_name(fs, dir, node).await.unwrap() {
        Some(name) => Some(name),
        None => names_in(fs, dir, true).await.unwrap().remove(&node),
    };
    name.map(|name| String::from_utf8_lossy(&name).into_owned())
}

async fn rename(fs: &Arc<Filesystem>, from: (NodeId, &str), to: (NodeId, &str), exchange: bool) {
    let flags = RenameFlags { exchange, ..RenameFlags::default() };
    let ((dir, name), (new_dir, new_name)) = (from, to);
    let by = &Caller::ROOT;
    fs.rename(by, dir, name.as_bytes(), new_dir, new_name.as_bytes(), flags).await.unwrap();
}

/// ENTRYNAME-E1.
#[test]
fn a_name_that_was_kept_is_returned_only_while_its_entry_is_there() {
    let world = World::new(1, 1 << 14);
    world.run(async {
        let fs = world.open().await;
        let (dir, other) = (mkdir(&fs, ROOT, "many").await, mkdir(&fs, ROOT, "other").await);
        let (a, b) = (subvolume(&fs, dir, "a").await, subvolume(&fs, dir, "b").await);
        assert_eq!(found(&fs, dir, a).await.as_deref(), Some("a"));
        rename(&fs, (dir, "a"), (dir, "b"), true).await;
        let both = [found(&fs, dir, a).await, found(&fs, dir, b).await];
        assert_eq!(both.map(Option::unwrap), ["b", "a"], "they are exchanged");
        rename(&fs, (dir, "b"), (other, "c"), false).await;
        assert_eq!(found(&fs, dir, a).await, None, "it is moved");
        assert_eq!(found(&fs, other, a).await.as_deref(), Some("c"));
        let new = subvolume(&fs, dir, "new").await;
        assert_eq!(found(&fs, dir, new).await.as_deref(), Some("new"), "made after the read");
        fs.delete_subvolume(dir, b"new", None).await.unwrap();
        assert_eq!(found(&fs, dir, new).await, None, "it is deleted");
        assert_eq!(found(&fs, ROOT, dir).await.as_deref(), Some("many"), "a plain directory");
        assert!(kept_name(&fs, ROOT, other).await.unwrap().is_some(), "and one beside it");
        rename(&fs, (ROOT, "many"), (ROOT, "more"), false).await;
        assert_eq!(kept_name(&fs, ROOT, dir).await.unwrap(), None, "it has another name");
        let gone = NodeId { subvol: SubvolId(99), ino: InodeNo::ROOT };
        assert_eq!(kept_name(&fs, gone, a).await.unwrap(), None, "no such directory");
        assert!(kept_name(&fs, other, a).await.unwrap().is_some());
        drop(names_in(&fs, other, false).await.unwrap());
        assert!(kept_name(&fs, other, a).await.unwrap().is_some(), "ENTRYNAME-E3");
        fs.entry_names().drop_all();
        assert_eq!(kept_name(&fs, other, a).await.unwrap(), None, "the list has ended");
        world.close(fs).await;
    });
}
