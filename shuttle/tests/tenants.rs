//! Tenants of one pool whose files are written back, snapshotted, cut, unlinked while they are open
//! and set read-only, while others sync all and settle everything in tables. What a tenant finds in
//! a snapshot is what it had when that was made; what a sync had promised is there after a crash.

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use copyhold_fs::{Filesystem, NodeId, OpenFlags, Options, Sabotage, SetAttr};
use copyhold_runtime::Rt;
use copyhold_shuttle::{Order, ShuttleRuntime, explore};
use copyhold_types::{InodeNo, SubvolId};
use shuttle::future::yield_now;

use common::{CALLER, ROOT, device, empty, holds, look, pool, times};

const TENANTS: usize = 2;
const STEPS: usize = 6;
/// So little that what a tenant writes is written back while it writes.
const DIRTY_BYTES: u64 = 64 << 10;

/// A tenant with one file, and what that holds.
struct Tenant {
    fs: Arc<Filesystem>,
    number: usize,
    subvol: SubvolId,
    file: NodeId,
    content: Vec<u8>,
}

impl Tenant {
    async fn new(fs: &Arc<Filesystem>, number: usize) -> Tenant {
        let name = format!("t{number}");
        let made = fs.create_subvolume(&CALLER, ROOT, name.as_bytes(), None).await;
        let subvol = made.unwrap();
        let (fs, content) = (fs.clone(), Vec::new());
        let mut tenant = Tenant { fs, number, subvol, file: ROOT, content };
        tenant.make_file().await;
        tenant
    }

    fn root(&self) -> NodeId {
        NodeId { subvol: self.subvol, ino: InodeNo::ROOT }
    }

    async fn make_file(&mut self) {
        let flags = OpenFlags::READ_WRITE;
        let made = self.fs.create(&CALLER, self.root(), b"f", 0o644, flags, true).await;
        self.file = made.unwrap().0.node;
        self.content.clear();
    }

    async fn write(&mut self, offset: usize, len: usize, byte: u8) {
        let bytes = vec![byte; len];
        self.fs.write(self.file, offset as u64, &bytes, Default::default()).await.unwrap();
        let end = offset + len;
        self.content.resize(self.content.len().max(end), 0);
        self.content[offset..end].fill(byte);
    }

    async fn cut(&mut self, size: usize) {
        let set = SetAttr { size: Some(size as u64), ..SetAttr::default() };
        self.fs.setattr(&CALLER, self.file, &set).await.unwrap();
        self.content.resize(size, 0);
    }

    async fn step(&mut self, step: usize) {
        let byte = (16 * self.number + step + 1) as u8;
        self.write(9000 * (step % 3), 12_000, byte).await;
        match (step + self.number) % 5 {
            0 => self.fs.fsync(self.file, false).await.unwrap(),
            1 => {
                self.cut(700).await;
                self.write(5000, 3000, byte).await;
            }
            2 => self.replace_open_file(byte).await,
            3 => {
                self.fs.set_subvolume_read_only(self.subvol, true).await.unwrap();
                self.fs.set_subvolume_read_only(self.subvol, false).await.unwrap();
            }
            _ => self.cut(0).await,
        }
        self.snapshot(step).await;
    }

    /// The file loses its name while it is open, is changed once more, and goes.
    async fn replace_open_file(&mut self, byte: u8) {
        let gone = self.file;
        self.fs.unlink(self.root(), b"f").await.unwrap();
        self.write(0, 8000, byte).await;
        let read = self.fs.read(gone, 0, 8000).await.unwrap().to_vec();
        assert_eq!(read, vec![byte; 8000], "of an unlinked file that is open");
        self.make_file().await;
        self.fs.release(gone);
        self.fs.forget(gone, 1);
        self.write(100, 4000, byte).await;
    }

    async fn snapshot(&self, step: usize) {
        let name = format!("s{}-{step}", self.number);
        let made = self.fs.snapshot(self.subvol, ROOT, name.as_bytes(), step % 2 == 0, None).await;
        let root = NodeId { subvol: made.unwrap(), ino: InodeNo::ROOT };
        let found = self.fs.lookup(root, b"f").await.unwrap();
        assert_eq!(found.attr.size, self.content.len() as u64, "{name}: its size");
        let read = self.fs.read(found.node, 0, 1 << 20).await.unwrap().to_vec();
        assert!(read == self.content, "{name}: its content");
        self.fs.forget(found.node, 1);
    }
}

async fn history(rt: Arc<ShuttleRuntime>, sabotage: Option<Sabotage>) {
    let rt: Rt = rt;
    let device_one = device(&rt, empty(&rt).await);
    let pool_one = pool(&rt, device_one.clone(), None).await;
    let options = Options { dirty_bytes_max: DIRTY_BYTES, sabotage, ..Options::default() };
    let fs = Filesystem::open(pool_one, options).await.unwrap();
    let done = Arc::new(AtomicUsize::new(0));
    for number in 0..TENANTS + 2 {
        let (fs, done) = (fs.clone(), done.clone());
        rt.spawn(Box::pin(async move {
            if number < TENANTS {
                let mut tenant = Tenant::new(&fs, number).await;
                for step in 0..STEPS {
                    tenant.step(step).await;
                }
                fs.release(tenant.file);
                fs.forget(tenant.file, 1);
            } else if number == TENANTS {
                for _ in 0..4 {
                    fs.sync().await.unwrap();
                }
            } else {
                for _ in 0..4 {
                    fs.pool().flush_all().await.unwrap();
                    fs.reaper_idle().await;
                }
            }
            done.fetch_add(1, Ordering::Relaxed);
        }));
    }
    while done.load(Ordering::Relaxed) < TENANTS + 2 {
        yield_now().await;
    }
    fs.sync().await.unwrap();
    let shown = look(&fs).await;
    holds(&rt, device_one.crash(3), shown).await;
}

#[test]
fn tenants_find_in_snapshots_what_they_had() {
    explore(Order::Random, 1, times(40), |rt| history(rt, None));
    explore(Order::Priorities, 2, times(40), |rt| history(rt, None));
}

/// R33 broken on purpose: a batch installs what it took, also where the file was cut since.
#[test]
fn a_batch_that_installs_what_was_cut_is_noticed() {
    let broken = || {
        let rule = Some(Sabotage::InstallStale);
        explore(Order::Random, 3, times(400), move |rt| history(rt, rule));
    };
    assert!(catch_unwind(AssertUnwindSafe(broken)).is_err(), "no order of tasks showed it");
}
