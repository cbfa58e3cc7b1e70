//! Changes of subvolumes by owners: ownership is checked with the change.

use std::sync::Arc;

use copyhold_fs::{
    Caller, Filesystem, FsError, NodeId, RenameFlags, Right, SetAttr, SubvolumeCalls,
};
use copyhold_types::{InodeNo, SubvolId};
use futures_util::future::join;

use crate::common::*;

const ALICE: u32 = 1000;
const BOB: u32 = 1001;

fn root_of(subvol: SubvolId) -> NodeId {
    NodeId { subvol, ino: InodeNo::ROOT }
}

async fn give(fs: &Arc<Filesystem>, node: NodeId, uid: u32) {
    let owner = SetAttr { uid: Some(uid), ..SetAttr::default() };
    fs.setattr(&Caller::ROOT, node, &owner).await.unwrap();
}

/// A directory and a subvolume in it.
async fn home(fs: &Arc<Filesystem>, name: &str, uid: u32) -> (NodeId, SubvolId) {
    let dir = fs.mkdir(&Caller::ROOT, ROOT, name.as_bytes(), 0o755).await.unwrap().node;
    let subvol = fs.create_subvolume(&Caller::ROOT, dir, b"sub", None).await.unwrap();
    give(fs, dir, uid).await;
    give(fs, root_of(subvol), uid).await;
    (dir, subvol)
}

fn lives(fs: &Filesystem, subvol: SubvolId) -> bool {
    fs.subvolumes().iter().any(|one| one.id == subvol && !one.is_dying)
}

#[test]
fn an_owner_changes_only_own_directories_and_subvolumes() {
    let world = World::new(1, 16384);
    world.run(async {
        let fs = world.open().await;
        let (mine, sub) = home(&fs, "mine", ALICE).await;
        let (his, other) = home(&fs, "his", BOB).await;
        let alice = SubvolumeCalls::new(&fs, Right::Owner(ALICE));
        let by = Caller::new(ALICE, ALICE, 0);
        let not = |done: Result<(), FsError>| {
            assert!(matches!(done, Err(FsError::NotPermitted(_))), "{done:?}");
        };
        not(alice.create(&by, his, b"new", None).await.map(drop));
        not(alice.snapshot(sub, his, b"new", false, None).await.map(drop));
        not(alice.snapshot(other, mine, b"new", false, None).await.map(drop));
        not(alice.delete(his, b"sub", None).await.map(drop));
        // Without the right, a name that does not exist is refused alike.
        not(alice.delete(his, b"none", None).await.map(drop));
        not(alice.remove_empty(his, b"sub").await.map(drop));
        not(alice.roll_back(his, b"sub", sub, None).await.map(drop));
        not(alice.roll_back(mine, b"sub", other, None).await.map(drop));
        assert!(lives(&fs, sub) && lives(&fs, other));
        let snap = alice.snapshot(sub, mine, b"snap", false, None).await.unwrap();
        not(alice.roll_back(mine, b"sub", snap, Some((his, b"kept"))).await.map(drop));
        alice.roll_back(mine, b"sub", snap, Some((mine, b"kept"))).await.unwrap();
        alice.create(&by, mine, b"new", None).await.unwrap();
        for name in [&b"kept"[..], b"snap", b"sub"] {
            alice.delete(mine, name, None).await.unwrap();
        }
        alice.remove_empty(mine, b"new").await.unwrap();
        world.close(fs).await;
    });
}

/// Of two subvolumes that change places, the owner of one deletes his own or none.
#[test]
fn a_name_that_leads_elsewhere_meanwhile_is_not_deleted() {
    for seed in 0..40 {
        let world = World::new(seed, 16384);
        world.run(async {
            let fs = world.open().await;
            let (mine, _) = home(&fs, "mine", ALICE).await;
            let (his, other) = home(&fs, "his", BOB).await;
            let exchange = RenameFlags { no_replace: false, exchange: true, whiteout: false };
            let moves = async {
                for _ in 0..4 {
                    let _ = fs.rename(&Caller::ROOT, mine, b"sub", his, b"sub", exchange).await;
                }
            };
            let alice = SubvolumeCalls::new(&fs, Right::Owner(ALICE));
            let (deleted, ()) = join(alice.delete(mine, b"sub", None), moves).await;
            assert!(lives(&fs, other), "seed {seed}: {deleted:?}");
            world.close(fs).await;
        });
    }
}
