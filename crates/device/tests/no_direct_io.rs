//! A disk whose cached pages are not what it holds, as a failed flush leaves them, and a kernel
//! that refuses direct I/O. Needs root and loop devices.

#![allow(clippy::disallowed_methods, reason = "tests of the machine's own devices")]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use copyhold_device::{Device, FileDevice, OpenMode};
use copyhold_runtime::Executors;
use copyhold_runtime::executors::Config;
use copyhold_types::{DeviceId, Purpose};

const BLOCK: usize = 4096;
/// The block that the cache lies about.
const PLACE: u64 = 5;

/// A loop device over a file, detached at the end.
struct Loop(PathBuf);

impl Loop {
    fn of(image: &Path) -> Option<Loop> {
        let output = Command::new("losetup").args(["--find", "--show"]).arg(image).output().ok()?;
        let name = String::from_utf8(output.stdout).unwrap().trim().to_owned();
        output.status.success().then(|| Loop(name.into()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

/// Has `fcntl` refuse O_DIRECT with EINVAL, on this thread and those that it starts.
fn refuse_direct_io() {
    const SECOND_ARGUMENT: u32 = 24;
    const THIRD_ARGUMENT: u32 = 32;
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let load = |at| step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, at);
    let unless_equal =
        |k: i64, skip| step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, skip, k as u32);
    let unless_set =
        |k: i64, skip| step(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, 0, skip, k as u32);
    let end = |k| step(libc::BPF_RET | libc::BPF_K, 0, 0, k);
    let mut program = [
        load(0), // the call's number
        unless_equal(libc::SYS_fcntl, 5),
        load(SECOND_ARGUMENT),
        unless_equal(libc::F_SETFL.into(), 3),
        load(THIRD_ARGUMENT),
        unless_set(libc::O_DIRECT.into(), 1),
        end(libc::SECCOMP_RET_ERRNO | libc::EINVAL as u32),
        end(libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the program outlives the calls, and the kernel copies it.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_MODE_FILTER;
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const filter), 0);
    }
}

fn first_byte(file: &File) -> u8 {
    let mut block = [0; BLOCK];
    file.read_exact_at(&mut block, PLACE * BLOCK as u64).unwrap();
    block[0]
}

#[test]
fn what_the_disk_has_is_read_and_not_what_the_cache_says() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let disk = File::options().read(true).write(true).create_new(true).open(&image).unwrap();
    disk.set_len(1 << 20).unwrap();
    disk.write_all_at(&[1; BLOCK], PLACE * BLOCK as u64).unwrap();
    let Some(device) = Loop::of(&image) else {
        eprintln!("skipped: needs root and loop devices");
        return;
    };
    let path = device.0.clone();
    let thread = std::thread::spawn(move || {
        refuse_direct_io();
        // The pages stay as long as somebody has the device open.
        let cached = File::open(&path).unwrap();
        assert_eq!(first_byte(&cached), 1);
        disk.write_all_at(&[2; BLOCK], PLACE * BLOCK as u64).unwrap();
        assert_eq!(first_byte(&cached), 1, "the cache does not know");

        let config = Config { cpus: Some(1), ..Config::default() };
        let executors = Executors::start(config).unwrap();
        let mode = OpenMode::ReadWrite;
        let opened = FileDevice::open(executors.reactor(), DeviceId(0), &path, mode).unwrap();
        assert!(!opened.is_direct());
        let read = executors.block_on(opened.read(PLACE, 1, Purpose::Data)).unwrap();
        assert_eq!(read[0], 2);
        drop(opened);
        executors.shutdown();
    });
    thread.join().unwrap();
}
