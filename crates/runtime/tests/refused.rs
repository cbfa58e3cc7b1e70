//! A container that denies io_uring, made with a real seccomp filter.

#![allow(clippy::disallowed_methods, reason = "tests of the machine's own runtime")]

use std::os::fd::OwnedFd;
use std::sync::Arc;

use copyhold_runtime::executors::Config;
use copyhold_runtime::{Executors, Op, ReactorKind};
use copyhold_types::Buf;

/// Lets a call fail with `errno` on this thread and those that it starts.
fn deny(call: libc::c_long, errno: i32) {
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut program = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0), // the call's number
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, call as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | errno as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the program outlives the calls, and the kernel copies it.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_MODE_FILTER;
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const filter), 0);
    }
}

#[test]
fn where_io_uring_is_refused_threads_do_the_work() {
    let cases = [
        (libc::SYS_io_uring_setup, libc::EPERM),
        (libc::SYS_io_uring_setup, libc::ENOSYS),
        (libc::SYS_io_uring_enter, libc::EACCES),
    ];
    for (call, errno) in cases {
        let thread = std::thread::spawn(move || {
            deny(call, errno);
            let config = |reactor| Config { cpus: Some(2), reactor, ..Config::default() };
            let demanded = Executors::start(config(ReactorKind::Ring));
            assert_eq!(demanded.err().unwrap().raw_os_error(), Some(errno));

            let executors = Executors::start(config(ReactorKind::Auto)).unwrap();
            assert!(!executors.has_rings());
            assert_eq!(executors.refusal().unwrap().raw_os_error(), Some(errno));
            write_and_read(&executors);
        });
        thread.join().unwrap();
    }
}

/// A ring that is a thread's alone is made idle, and begun by that thread, which is such a call;
/// a kernel without such rings refuses to make one.
#[test]
fn where_only_plain_rings_are_had_they_do_the_work() {
    let thread = std::thread::spawn(|| {
        deny(libc::SYS_io_uring_register, libc::EINVAL);
        let config = Config { cpus: Some(2), reactor: ReactorKind::Auto, ..Config::default() };
        let executors = Executors::start(config).unwrap();
        assert!(executors.has_rings());
        write_and_read(&executors);
    });
    thread.join().unwrap();
}

fn write_and_read(executors: &Executors) {
    let fd = Arc::new(OwnedFd::from(tempfile::tempfile().unwrap()));
    let bufs = Buf::from_bytes(b"written").into();
    let reactor = executors.reactor();
    let read = executors.block_on(async {
        let write = Op::Write { fd: fd.clone(), bufs, offset: 0 };
        reactor.submit(write).await.result.unwrap();
        reactor.submit(Op::Read { fd, buf: Buf::zeroed(1), offset: 0 }).await
    });
    read.result.unwrap();
    assert_eq!(&read.buf.unwrap()[..7], b"written");
}
