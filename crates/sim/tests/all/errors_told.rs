//! An error that a background write has met is told by the next fsync of the file, once, also where
//! a later try was successful (R34); and what this is seen by sees it when it is not.

use std::time::Duration;

use copyhold_device::sim::{Fault, SimImage, Trigger};
use copyhold_fs::{Caller, FsError, OpenFlags, Options, Sabotage, WriteFlags};
use copyhold_sim::Machine;
use copyhold_types::{BLOCK_BYTES, Purpose};

const EIO: i32 = 5;
static BYTES: [u8; 8 * BLOCK_BYTES] = [7; 8 * BLOCK_BYTES];
/// By then the write is tried, and tried again.
const WHILE: Duration = Duration::from_secs(5);

/// What two fsyncs say of a file whose first background write has failed, and what it is then.
async fn told(
    machine: &Machine,
    sabotage: Option<Sabotage>,
) -> Result<([bool; 2], Vec<u8>), FsError> {
    let root = &Caller::ROOT;
    let writeback_interval = Duration::from_millis(5);
    let options = Options { writeback_interval, sabotage, ..Options::default() };
    let fs = machine.mount_new(options).await?;
    let (made, _) = fs.create(root, fs.root(), b"f", 0o600, OpenFlags::READ_WRITE, true).await?;
    let of_data = Trigger::Write { nth: 0, why: Some(Purpose::Data) };
    machine.disk.arm(of_data, Fault::Error(EIO));
    fs.write(made.node, 0, &BYTES, WriteFlags::default()).await?;
    machine.rt().sleep(WHILE).await;
    assert_eq!(fs.dirty_bytes(), 0, "a later try was successful");
    let mut errors = [false; 2];
    for error in &mut errors {
        *error = fs.fsync(made.node, false).await.is_err();
    }
    fs.release(made.node);
    let content = fs.read(made.node, 0, BYTES.len()).await?.to_vec();
    fs.close().await?;
    fs.pool().close().await?;
    Ok((errors, content))
}

fn errors(sabotage: Option<Sabotage>) -> [bool; 2] {
    let machine = Machine::on(34, SimImage::empty(8192));
    let told = machine.run(told(&machine, sabotage)).expect("the power is on");
    let (errors, content) = told.expect("nothing else fails");
    assert!(content == BYTES, "what was accepted is there");
    errors
}

#[test]
fn an_error_of_a_background_write_is_told_once() {
    assert_eq!(errors(None), [true, false]);
}

#[test]
fn r34_an_error_that_nobody_is_told_of_is_noticed() {
    assert_ne!(errors(Some(Sabotage::ForgetErrors)), [true, false]);
}
