//! Properties of all operations: the memory of one that waits, and the turns that they take.

use copyhold_fs::{OpenFlags, RenameFlags};
use copyhold_fuse::protocol::*;
use copyhold_fuse::{Operations, Payload};
use copyhold_memory::{GroupLimits, MemoryClass};
use copyhold_runtime::{Rt, SeededRuntime};
use copyhold_types::{BLOCK_BYTES, Buf, InodeNo, Nanos, SubvolId};

use super::kernel::{adapter, device, executors, open, poll};
use super::operations::O_TMPFILE;
use super::*;

fn bytes<'a, F: Future>(_: impl FnOnce(&'a Adapter) -> F) -> usize {
    size_of::<F>()
}

fn any<T>() -> T {
    unreachable!("the futures are never made: their types have the size")
}

/// A request that waits is in memory for as long, and tenants have many of them wait: large
/// state that is rarely needed is to be on the heap.
#[test]
fn a_request_that_waits_takes_little_memory() {
    let operations = [
        ("destroy", bytes(|fs| fs.destroy())),
        ("lookup", bytes(|fs| fs.lookup(any(), any(), any()))),
        ("getattr", bytes(|fs| fs.getattr(any(), any(), any()))),
        ("statx", bytes(|fs| fs.statx(any(), any(), any()))),
        ("setattr", bytes(|fs| fs.setattr(any(), any(), any()))),
        ("readlink", bytes(|fs| fs.readlink(any(), any()))),
        ("symlink", bytes(|fs| fs.symlink(any(), any(), any(), any(), any()))),
        ("mknod", bytes(|fs| fs.mknod(any(), any(), any(), any()))),
        ("mkdir", bytes(|fs| fs.mkdir(any(), any(), any(), any()))),
        ("create", bytes(|fs| fs.create(any(), any(), any(), any(), any()))),
        ("tmpfile", bytes(|fs| fs.tmpfile(any(), any(), any(), any()))),
        ("unlink", bytes(|fs| fs.unlink(any(), any(), any()))),
        ("rmdir", bytes(|fs| fs.rmdir(any(), any(), any()))),
        ("rename", bytes(|fs| fs.rename(any(), any(), any()))),
        ("link", bytes(|fs| fs.link(any(), any(), any(), any()))),
        ("open", bytes(|fs| fs.open(any(), any(), any()))),
        ("read", bytes(|fs| fs.read(any(), any(), any()))),
        ("write", bytes(|fs| fs.write(any(), any(), any(), any()))),
        ("flush", bytes(|fs| fs.flush(any(), any(), any(), any()))),
        ("release", bytes(|fs| fs.release(any(), any(), any()))),
        ("fsync", bytes(|fs| fs.fsync(any(), any(), any(), any()))),
        ("readdir", bytes(|fs| fs.readdir(any(), any(), any(), any()))),
        ("fsyncdir", bytes(|fs| fs.fsyncdir(any(), any(), any(), any()))),
        ("statfs", bytes(|fs| fs.statfs(any(), any()))),
        ("syncfs", bytes(|fs| fs.syncfs(any()))),
        ("setxattr", bytes(|fs| fs.setxattr(any(), any(), any()))),
        ("getxattr", bytes(|fs| fs.getxattr(any(), any(), any()))),
        ("listxattr", bytes(|fs| fs.listxattr(any(), any()))),
        ("removexattr", bytes(|fs| fs.removexattr(any(), any(), any()))),
        ("access", bytes(|fs| fs.access(any(), any(), any()))),
        ("fallocate", bytes(|fs| fs.fallocate(any(), any(), any()))),
        ("lseek", bytes(|fs| fs.lseek(any(), any(), any()))),
        ("copy_range", bytes(|fs| fs.copy_range(any(), any(), any()))),
        ("ioctl", bytes(|fs| fs.ioctl(any(), any(), any()))),
    ];
    let large: Vec<_> = operations.into_iter().filter(|(_, bytes)| *bytes > 2304).collect();
    assert!(large.is_empty(), "{large:?}");
}

const ROOT: NodeId = NodeId::ROOT;
const BY: Caller = Caller { unique: 1, ids: Some(Ids { uid: 0, gid: 0 }), pid: 0 };
const HANDLE: Handle = Handle(0);

fn new_node() -> NewNode<'static> {
    NewNode { mode: 0o644, umask: 0, rdev: 0, extensions: Extensions::default() }
}

fn write(offset: u64) -> Write {
    let (handle, size) = (HANDLE, BLOCK_BYTES as u32);
    let (lock_owner, cached, kill_suidgid) = (None, false, false);
    Write { handle, offset, size, flags: 1, lock_owner, cached, kill_suidgid }
}

fn block() -> Payload {
    Payload::new(Buf::from_bytes(&[7; BLOCK_BYTES]), BLOCK_BYTES)
}

/// Another tenant is there.
async fn crowd(fs: &Adapter) {
    let other = Share { tenant: 99, ..Share::default() };
    drop(fs.turns.take(&**fs.fs.pool().runtime(), SubvolId(99), || other, Load::of(0)).await);
}

/// The turns that operations take beside another tenant, by name; each succeeds.
async fn turns_taken(fs: &Adapter) -> Vec<(&'static str, usize)> {
    let mut taken = Vec::new();
    macro_rules! note {
        ($name:literal, $operation:expr) => {{
            crowd(fs).await;
            let before = fs.turns.taken();
            let answer = $operation.await;
            let answer = answer.unwrap_or_else(|error| panic!("{}: {error:?}", $name));
            taken.push(($name, fs.turns.taken() - before));
            answer
        }};
    }
    let opens = Open { flags: 2, kill_suidgid: false };
    let (entry, _) = note!("create", fs.create(BY, ROOT, b"file", new_node(), opens));
    let (file, target) = (
        entry.node,
        note!("mknod", fs.mknod(BY, ROOT, b"target", NewNode { mode: 0o100_644, ..new_node() }))
            .node,
    );
    note!("mkdir", fs.mkdir(BY, ROOT, b"dir", new_node()));
    note!("symlink", fs.symlink(BY, ROOT, b"link", b"file", new_node()));
    note!("link", fs.link(BY, file, ROOT, b"other"));
    note!("tmpfile", fs.tmpfile(BY, ROOT, new_node(), Open { flags: O_TMPFILE, ..opens }));
    note!("write", fs.write(BY, file, write(0), &mut block()));
    let (offset, size) = (0, BLOCK_BYTES as u32);
    let read = Read { handle: HANDLE, offset, size, flags: 0, lock_owner: None };
    note!("read", fs.read(BY, file, read));
    note!("setattr", fs.setattr(BY, file, SetAttr { mode: Some(0o600), ..SetAttr::default() }));
    note!("fsync", fs.fsync(BY, file, HANDLE, false));
    note!("fsyncdir", fs.fsyncdir(BY, ROOT, HANDLE, false));
    let (name, value) = (&b"user.x"[..], &b"1"[..]);
    note!("setxattr", fs.setxattr(BY, file, SetXattr { name, value, flags: 0, kill_sgid: false }));
    note!("getxattr", fs.getxattr(BY, file, name));
    note!("listxattr", fs.listxattr(BY, file));
    note!("removexattr", fs.removexattr(BY, file, name));
    let (handle, length) = (HANDLE, BLOCK_BYTES as u64);
    note!("fallocate", fs.fallocate(BY, file, Fallocate { handle, offset, length, mode: 0 }));
    let (target_handle, target_offset) = (HANDLE, 0);
    let copy = CopyRange { handle, offset, target, target_handle, target_offset, length, flags: 0 };
    note!("copy_range", fs.copy_range(BY, file, copy));
    let (new_parent, new_name) = (ROOT, &b"new"[..]);
    note!("rename", fs.rename(BY, ROOT, Rename { name: b"other", new_parent, new_name, flags: 0 }));
    note!("unlink", fs.unlink(BY, ROOT, b"new"));
    note!("rmdir", fs.rmdir(BY, ROOT, b"dir"));
    taken
}

#[test]
fn changes_and_transfers_take_one_turn_each_beside_another_tenant() {
    let executors = executors();
    let fs = executors.block_on(open(executors.clone(), device(executors.clone()), None));
    let adapter = adapter(&fs.expect("it opens"));
    let taken = executors.block_on(turns_taken(&adapter));
    let wrong: Vec<_> = taken.iter().filter(|(_, turns)| *turns != 1).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
fn the_tenant_of_a_subvolume_is_the_outermost_one_that_holds_it() {
    let executors = executors();
    executors.block_on(async {
        let fs = open(executors.clone(), device(executors.clone()), None).await.expect("it opens");
        let tenant = |subvol| copyhold_volume::tenant_of(fs.volumes(), subvol);
        let root_of = |subvol| FsNode { subvol, ino: InodeNo::ROOT };
        let (by, root) = (copyhold_fs::Caller::ROOT, root_of(SubvolId::ROOT));
        let outer = fs.create_subvolume(&by, root, b"outer", None).await.expect("there is room");
        let inner = fs.create_subvolume(&by, root_of(outer), b"inner", None).await;
        let inner = inner.expect("there is room");
        let last = fs.create_subvolume(&by, root_of(inner), b"last", None).await;
        let last = last.expect("there is room");
        let tenants = || [SubvolId::ROOT, outer, inner, last].map(tenant);
        assert_eq!(tenants(), [SubvolId::ROOT, outer, outer, outer]);
        let flags = RenameFlags::default();
        let moved = fs.rename(&by, root_of(outer), b"inner", root, b"moved", flags).await;
        moved.expect("the names differ");
        assert_eq!(tenants(), [SubvolId::ROOT, outer, inner, inner]);
    });
}

/// TURN-Q5.
#[test]
fn an_fsync_and_a_removal_do_not_stand_behind_delayed_requests_of_their_tenant() {
    const WRITERS: u64 = 100;
    const SHORT: Nanos = 10_000_000;
    let rt = SeededRuntime::new(1);
    rt.block_on(async {
        let rt = rt.clone() as Rt;
        let fs = open(rt.clone(), device(rt.clone()), None).await.expect("it opens");
        let adapter = adapter(&fs);
        let opens = Open { flags: 2, kill_suidgid: false };
        let (by, root) = (copyhold_fs::Caller::ROOT, fs.root());
        let tenant = fs.create_subvolume(&by, root, b"tenant", None).await.expect("there is room");
        let root = FsNode { subvol: tenant, ino: InodeNo::ROOT };
        let made = fs.create(&by, root, b"file", 0o600, OpenFlags::READ_WRITE, true).await;
        let (file, root) = (NodeId(made.unwrap().0.node.raw()), NodeId(root.raw()));
        let owner = fs.volumes().subvol(tenant).unwrap().owner().clone();
        owner.set_limits(&GroupLimits { high: 1 << 20, ..GroupLimits::default() });
        let used = owner.charge(MemoryClass::Lookup, 5 << 20);

        let begun = rt.now();
        let mut delayed: Vec<_> = (0..WRITERS)
            .map(|at| {
                let adapter = &adapter;
                let write = async move {
                    crowd(adapter).await;
                    let bytes = BLOCK_BYTES as u64;
                    adapter.write(BY, file, write(at * bytes), &mut block()).await
                };
                Box::pin(write)
            })
            .collect();
        let name = b"new";
        let mut created = Box::pin(adapter.create(BY, root, name, new_node(), opens));
        assert!(delayed.iter_mut().all(|write| poll(write.as_mut()).is_none()));
        assert!(poll(created.as_mut()).is_none());
        crowd(&adapter).await;
        adapter.fsync(BY, file, HANDLE, false).await.unwrap();
        adapter.unlink(BY, root, b"file").await.unwrap();
        assert!(rt.now() - begun < SHORT, "{} ns", rt.now() - begun);
        for write in delayed {
            write.await.unwrap();
        }
        created.await.unwrap();
        assert!(rt.now() - begun >= 2_000_000_000, "they are delayed");
        drop(used);
        adapter.destroy().await;
    });
}
