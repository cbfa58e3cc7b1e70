//! One program opens a file with O_TRUNC while another closes it: what the close forgets is not
//! what the other's close has to make durable.

mod common;

use std::sync::Arc;

use copyhold_fs::{Filesystem, OpenFlags, Options};
use copyhold_runtime::Rt;
use copyhold_shuttle::{Order, ShuttleRuntime, explore};
use copyhold_types::BLOCK_BYTES;

use common::{CALLER, ROOT, device, empty, pool, times};

async fn history(rt: Arc<ShuttleRuntime>) {
    let rt: Rt = rt;
    let before = device(&rt, empty(&rt).await);
    let fs = Filesystem::open(pool(&rt, before.clone(), None).await, Options::default());
    let fs = fs.await.unwrap();
    let flags = OpenFlags::READ_WRITE;
    let file = fs.create(&CALLER, ROOT, b"f", 0o644, flags, true).await.unwrap().0.node;
    fs.write(file, 0, &[1; BLOCK_BYTES], Default::default()).await.unwrap();
    fs.sync().await.unwrap();
    let other = fs.clone();
    rt.spawn(Box::pin(async move { other.release(file) }));
    fs.open_node(file, OpenFlags { truncate: true, ..flags }).await.unwrap();
    fs.flush(file).await.unwrap();

    let after = device(&rt, before.crash(3));
    let fs = Filesystem::open(pool(&rt, after, None).await, Options::default()).await.unwrap();
    let found = fs.lookup(ROOT, b"f").await.unwrap();
    assert_eq!(found.attr.size, 0, "the truncation was not durable behind the close");
}

#[test]
fn a_close_beside_an_open_that_empties_the_file_takes_nothing_from_it() {
    explore(Order::Random, 1, times(1000), history);
    explore(Order::Priorities, 2, times(100), history);
}
