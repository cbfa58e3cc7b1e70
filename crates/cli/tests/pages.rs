//! Pages that the kernel caches of a file: beside direct writes they do not show what is no more,
//! and what is dirty in them is neither refused nor taken for a hole.

#![allow(clippy::disallowed_methods, reason = "it looks at processes from outside")]

mod site;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use copyhold_runtime::executors::Config;
use copyhold_runtime::{Executors, Op};
use copyhold_types::{BLOCK_BYTES, Buf};

use site::*;

const PAGES: usize = 8;
/// Asynchronous writes in flight.
const DEPTH: usize = 4;
const O_DIRECT: i32 = rustix::fs::OFlags::DIRECT.bits() as i32;

fn direct(site: &Site, name: &str) -> Arc<File> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).custom_flags(O_DIRECT);
    Arc::new(options.open(site.path(name)).unwrap())
}

/// Writes page after page asynchronously, each time with the next number, `rounds` times;
/// `acknowledged` of a page is the number that is there at least.
fn write_pages(file: &Arc<File>, rounds: u64, acknowledged: &[AtomicU64]) {
    let executors = Executors::start(Config { cpus: Some(1), ..Config::default() }).unwrap();
    let reactor = executors.reactor();
    let write = |page: usize, round: u64| {
        let mut buf = Buf::zeroed(1);
        buf.make_mut()[..8].copy_from_slice(&round.to_le_bytes());
        let offset = (page * BLOCK_BYTES) as u64;
        reactor.submit(Op::Write { fd: file.clone(), bufs: buf.into(), offset })
    };
    for round in 1..=rounds {
        for first in (0..PAGES).step_by(DEPTH) {
            let writes: Vec<_> =
                (first..first + DEPTH).map(|page| (page, write(page, round))).collect();
            for (page, write) in writes {
                executors.block_on(write).result.unwrap();
                acknowledged[page].store(round, Ordering::SeqCst);
            }
        }
    }
    executors.shutdown();
}

/// Names of the daemon's threads.
fn threads(site: &Site) -> Vec<String> {
    let pid = site.pid();
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.map(|name| name.trim().to_owned()).collect()
}

/// `stop(pid)` returns when every thread of the process has stopped. (A signal is only sent when
/// `kill` returns: until it is taken, a thread may still answer a request.)
const STOP: &str = r#"
import glob, os, signal, time
def stop(pid):
    os.kill(pid, signal.SIGSTOP)
    def stopped(stat):
        try:
            return open(stat).read().rsplit(")", 1)[1].split()[0] == "T"
        except (FileNotFoundError, ProcessLookupError): # The thread has ended.
            return True
    while not all(stopped(stat) for stat in glob.glob(f"/proc/{pid}/task/*/stat")):
        time.sleep(.01)
"#;

fn python(script: &str, arguments: &[&str]) {
    let script = format!("{STOP}{script}");
    let run = Command::new("python3").args(["-c", &script]).args(arguments).output().unwrap();
    assert!(run.status.success(), "{run:?}");
}

/// As xfstests generic/451 has it.
#[test]
fn a_buffered_read_sees_every_asynchronous_direct_write_that_has_ended() {
    let Some(site) = Site::mounted(&[]) else { return };
    let file = direct(&site, "f");
    file.write_all_at(&vec![0; PAGES * BLOCK_BYTES], 0).unwrap();
    let acknowledged: [AtomicU64; PAGES] = Default::default();
    let ended = AtomicBool::new(false);
    let read_all = || {
        let file = File::open(site.path("f")).unwrap();
        let mut reads = 0_u64;
        while !ended.load(Ordering::Relaxed) {
            let page = reads as usize % PAGES;
            let least = acknowledged[page].load(Ordering::SeqCst);
            let mut found = [0; 8];
            file.read_exact_at(&mut found, (page * BLOCK_BYTES) as u64).unwrap();
            let found = u64::from_le_bytes(found);
            assert!(found >= least, "page {page} shows {found}, and {least} was acknowledged");
            reads += 1;
        }
    };
    thread::scope(|scope| {
        let readers = [scope.spawn(read_all), scope.spawn(read_all)];
        write_pages(&file, 1500, &acknowledged);
        ended.store(true, Ordering::Relaxed);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
    drop(file);
    site.checked();
}

#[test]
fn a_file_that_is_only_open_for_direct_io_has_nothing_dropped() {
    let Some(site) = Site::mounted(&[]) else { return };
    // Cached and closed before.
    fs::write(site.path("f"), vec![0; PAGES * BLOCK_BYTES]).unwrap();
    assert_eq!(fs::read(site.path("f")).unwrap().len(), PAGES * BLOCK_BYTES);
    let file = direct(&site, "f");
    let acknowledged: [AtomicU64; PAGES] = Default::default();
    let drops = |site: &Site| threads(site).iter().any(|name| name == "pages");
    write_pages(&file, 20, &acknowledged);
    let mut back = vec![0; BLOCK_BYTES];
    assert!(!drops(&site), "{:?}", threads(&site));
    File::open(site.path("f")).unwrap().read_exact_at(&mut back, 0).unwrap();
    write_pages(&file, 20, &acknowledged);
    assert!(drops(&site), "{:?}", threads(&site));
    drop(file);
    site.checked();
}

/// Writes to `/dev/fuse`, or to wherever, of the threads that drop pages.
fn page_drops(site: &Site) -> u64 {
    let pid = site.pid();
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().map(|task| task.unwrap().path());
    let droppers = tasks.filter(|task| {
        fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == "pages")
    });
    let writes = |io: String| {
        let line = io.lines().find_map(|line| line.strip_prefix("syscw:")).unwrap();
        line.trim().parse::<u64>().unwrap()
    };
    droppers.map(|task| writes(fs::read_to_string(task.join("io")).unwrap())).sum()
}

#[test]
fn direct_writes_drop_nothing_when_readers_through_the_cache_have_gone() {
    let Some(site) = Site::mounted(&[]) else { return };
    let file = direct(&site, "f");
    let acknowledged: [AtomicU64; PAGES] = Default::default();
    write_pages(&file, 1, &acknowledged);
    let reader = File::open(site.path("f")).unwrap();
    let mut back = vec![0; BLOCK_BYTES];
    reader.read_exact_at(&mut back, 0).unwrap();
    write_pages(&file, 10, &acknowledged);
    let before = page_drops(&site);
    assert!(before > 0, "the reader's pages were dropped");
    write_pages(&file, 20, &acknowledged);
    assert_eq!(page_drops(&site), before, "a reader that has read once costs nothing any more");
    for page in 0..PAGES {
        reader.read_exact_at(&mut back, (page * BLOCK_BYTES) as u64).unwrap();
        assert_eq!(back[0], 20, "page {page}");
    }
    write_pages(&file, 21, &acknowledged);
    reader.read_exact_at(&mut back, 0).unwrap();
    assert_eq!(back[0], 21, "it is seen again");
    drop((file, reader));
    site.checked();
}

#[test]
fn what_a_mapping_has_dirty_is_kept_when_the_file_becomes_immutable_or_append_only() {
    let Some(site) = Site::mounted(&[]) else { return };
    let script = "import mmap,os,subprocess,sys\nflag,path=sys.argv[1:]\n\
                  f=os.open(path,os.O_RDWR|os.O_CREAT)\nos.ftruncate(f,10000)\n\
                  m=mmap.mmap(f,10000)\nm[:]=b'x'*10000\n\
                  subprocess.run(['chattr',flag,path],check=True)\nm.flush()\n\
                  m[5000:5005]=b'later'\nm.close()\nos.fsync(f)\n";
    for (flag, off) in [("+i", "-i"), ("+a", "-a")] {
        let path = site.at(flag);
        python(script, &[flag, &path]);
        let refused = File::options().write(true).open(&path);
        assert!(refused.is_err(), "{flag}: nobody new may write");
        site.done(&["umount", &site.at("")]);
        site.mount(&[]);
        let mut wanted = vec![b'x'; 10_000];
        wanted[5000..5005].copy_from_slice(b"later");
        assert!(fs::read(&path).unwrap() == wanted, "{flag}");
        assert!(Command::new("chattr").args([off, &path]).status().unwrap().success());
    }
    site.checked();
}

#[test]
fn what_is_appended_through_a_writeback_cache_to_an_append_only_file_is_there() {
    let Some(site) = Site::mounted(&["-o", "writeback_cache"]) else { return };
    let script = "import os,subprocess,sys\npath=sys.argv[1]\nopen(path,'w').close()\n\
                  subprocess.run(['chattr','+a',path],check=True)\n\
                  for n in range(5):\n with open(path,'a') as f:\n  f.write(f'line {n}\\n')\n\
                  \x20 if n==3: f.flush(); os.fsync(f.fileno())\n";
    python(script, &[&site.at("log")]);
    site.done(&["umount", &site.at("")]);
    site.mount(&[]);
    let lines: String = (0..5).map(|n| format!("line {n}\n")).collect();
    assert_eq!(fs::read_to_string(site.path("log")).unwrap(), lines);
    let off = Command::new("chattr").args(["-a", &site.at("log")]).status().unwrap();
    assert!(off.success());
    site.checked();
}

/// A buffered write of part of a page keeps the page locked until it is answered. It waits for the
/// lock of the file while its descriptor becomes one for direct I/O.
const TURNED_DIRECT: &str = r#"
import fcntl, os, signal, subprocess, sys, threading, time
mnt, daemon = sys.argv[1], int(sys.argv[2])
first, second = (os.open(mnt + "/f", os.O_RDWR | os.O_CREAT) for _ in range(2))
def write(fd, at):
    thread = threading.Thread(target=os.pwrite, args=(fd, b"x" * 100, at), daemon=True)
    thread.start()
    return thread
def state(thread, file):
    return open(f"/proc/self/task/{thread.native_id}/{file}").read()
def until(condition):
    while not condition():
        time.sleep(.01)
os.pwrite(first, b"x", 0)
stop(daemon)
try:
    holder = write(first, 4096)
    # A system call with this descriptor, position and so many bytes.
    until(lambda: state(holder, "syscall").split()[1:5:2] == [hex(first), hex(100)])
    waiter = write(second, 8192)
    until(lambda: state(waiter, "stat").rsplit(")", 1)[1].split()[0] == "D")
    fcntl.fcntl(second, fcntl.F_SETFL, os.O_DIRECT)
finally:
    os.kill(daemon, signal.SIGCONT)
for thread in (holder, waiter):
    thread.join(60)
if holder.is_alive() or waiter.is_alive():
    subprocess.run(["umount", "--force", mnt])
    sys.exit("a buffered write is not answered")
"#;

#[test]
fn a_buffered_write_whose_descriptor_becomes_direct_is_answered() {
    let Some(site) = Site::mounted(&[]) else { return };
    python(TURNED_DIRECT, &[&site.at(""), &site.pid()]);
    site.checked();
}

/// A daemon is killed while a READ waits for its device, and SEEK_DATA wants pages of that READ
/// dropped. The device is a file on another pool, whose daemon does not run meanwhile.
const KILLED: &str = r#"
import os, signal, subprocess, sys, threading, time
mnt, device, daemon = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
PAGE = 4096
first, second = os.open(mnt + "/f", os.O_RDWR), os.open(mnt + "/f", os.O_RDONLY)
assert os.lseek(first, 0, os.SEEK_HOLE) == 80 * PAGE
def ask(system_call, *arguments):
    def run():
        try:
            system_call(*arguments)
        except OSError:
            pass
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    file = f"/proc/self/task/{thread.native_id}/syscall"
    while open(file).read().split()[1:2] != [hex(arguments[0])]:
        time.sleep(.01)
    return thread
stop(device)
try:
    read = ask(os.pread, second, 128 * PAGE, 0)
    time.sleep(.3)
    seek = ask(os.lseek, first, 90 * PAGE, os.SEEK_DATA)
    time.sleep(.3)
    os.kill(daemon, signal.SIGKILL)
finally:
    os.kill(device, signal.SIGCONT)
read.join(60)
seek.join(60)
if read.is_alive() or seek.is_alive():
    subprocess.run(["umount", "--force", mnt])
    sys.exit("the calls do not end with the daemon")
"#;

#[test]
fn a_daemon_that_is_killed_beside_a_read_and_a_drop_of_its_pages_ends() {
    let Some(outer) = Site::mounted(&[]) else { return };
    let (pool, inner) = (outer.at("pool.img"), tempfile::tempdir().unwrap());
    let place = inner.path().to_str().unwrap();
    let pid = |place: &str| outer.daemon(place).pid().to_string();
    outer.done(&["create", &pool, "--size", "128M"]);
    outer.done(&["mount", &pool, place]);
    let file = File::create(inner.path().join("f")).unwrap();
    let data: Vec<u8> = (0..80 * BLOCK_BYTES as u64 / 8)
        .flat_map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).to_le_bytes())
        .collect();
    file.write_all_at(&data, 0).unwrap();
    file.set_len(128 * BLOCK_BYTES as u64).unwrap();
    file.sync_all().unwrap();
    drop(file);
    // Its cache is to be empty.
    outer.done(&["umount", place]);
    outer.done(&["mount", &pool, place]);
    python(KILLED, &[place, &pid(&outer.at("")), &pid(place)]);
    outer.done(&["mount", &pool, place]);
    assert!(fs::read(inner.path().join("f")).unwrap()[..data.len()] == data[..]);
    outer.done(&["umount", place]);
    outer.checked();
}

/// Mounts as the daemon of a pool does, and is then like one that was killed and cannot end: its
/// first thread is gone, another one keeps the connection, and nobody reads requests.
const ORPHAN: &str = r#"
import ctypes, os, sys, threading, time
pool, mnt = map(os.fsencode, sys.argv[1:])
libc = ctypes.CDLL(None, use_errno=True)
device = os.open("/dev/fuse", os.O_RDWR)
options = b"fd=%d,rootmode=40000,user_id=0,group_id=0" % device
assert libc.mount(pool, mnt, b"fuse.copyhold", 0, options) == 0, os.strerror(ctypes.get_errno())
threading.Thread(target=time.sleep, args=(3600,)).start()
libc.syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)
"#;

#[test]
fn mount_and_umount_clear_the_mount_of_a_killed_daemon_that_cannot_end() {
    let Some(site) = Site::mounted(&[]) else { return };
    site.done(&["umount", &site.at("")]);
    for verbs in [&["umount", "mount"][..], &["mount"]] {
        let mut script = Command::new("python3");
        script.args(["-c", ORPHAN, &site.pool(), &site.at("")]);
        let mut orphan = script.spawn().unwrap();
        let stat = format!("/proc/{}/stat", orphan.id());
        while !fs::read_to_string(&stat).unwrap().contains(") Z ") {
            thread::yield_now();
        }
        for verb in verbs {
            let (pool, place) = (site.pool(), site.at(""));
            let of_pool = (*verb == "mount").then_some(&pool);
            let mut command = Command::new("timeout");
            command.args(["--signal=KILL", "60", PROGRAM, verb]).args(of_pool).arg(&place);
            let run = command.output().unwrap();
            assert!(run.status.success(), "{verb}: {run:?}");
        }
        orphan.kill().unwrap();
        orphan.wait().unwrap();
        fs::write(site.path("f"), "served").unwrap();
        site.done(&["umount", &site.at("")]);
    }
    site.mount(&[]);
    site.checked();
}

/// Positions that are data in the kernel's memory alone, found by another descriptor.
const SEEK: &str = r#"
import mmap, os, sys
mnt, = sys.argv[1:]
PAGE, SIZE = 4096, 4 << 20
path = mnt + "/f"
f = os.open(path, os.O_RDWR | os.O_CREAT)
os.ftruncate(f, SIZE)
other = os.open(path, os.O_RDONLY)
def data(at):
    try:
        return os.lseek(other, at, os.SEEK_DATA)
    except OSError as error:
        return error.strerror
hole = lambda at: os.lseek(other, at, os.SEEK_HOLE)
NONE = os.strerror(6)
assert (data(0), hole(0)) == (NONE, 0)
m = mmap.mmap(f, SIZE)
m[0]  # cached as a hole
m[PAGE * 7] = 1
assert data(0) == PAGE * 7, data(0)
assert hole(PAGE * 7) == PAGE * 8, hole(PAGE * 7)
m[PAGE * 8] = m[PAGE * 10] = 2
assert hole(PAGE * 7) == PAGE * 9, hole(PAGE * 7)
m[PAGE * 9] = 3
assert hole(PAGE * 7) == PAGE * 11
m[SIZE - 1] = 4
assert data(PAGE * 20) == SIZE - PAGE
assert (hole(SIZE - 5), data(SIZE - 5)) == (SIZE, SIZE - 5)
assert (m[PAGE * 7], m[PAGE * 8], m[PAGE * 9], m[SIZE - 1]) == (1, 2, 3, 4)
m[PAGE * 30] = 5
os.system(f"cp --sparse=auto {path} {mnt}/copy")
copy = open(mnt + "/copy", "rb").read()
assert copy == m[:], [n for n in range(SIZE // PAGE) if copy[n*PAGE] != m[n*PAGE]]
# What was only written, not mapped; with a writeback cache that is in the kernel, too.
g = os.open(mnt + "/g", os.O_RDWR | os.O_CREAT)
os.pwrite(g, b"y" * 5000, PAGE * 3)
assert os.lseek(g, 0, os.SEEK_DATA) == PAGE * 3
assert os.lseek(g, PAGE * 3, os.SEEK_HOLE) == PAGE * 3 + 5000
"#;

#[test]
fn what_the_kernel_has_not_written_back_is_no_hole() {
    for options in [&[][..], &["-o", "writeback_cache"]] {
        let Some(site) = Site::mounted(options) else { return };
        python(SEEK, &[&site.at("")]);
        site.checked();
    }
}

#[test]
fn a_file_that_was_truncated_by_an_open_is_empty_behind_the_close_and_a_kill() {
    let Some(site) = Site::mounted(&[]) else { return };
    let path = site.path("f");
    fs::write(&path, vec![1; 100_000]).unwrap();
    File::open(&path).unwrap().sync_all().unwrap();
    drop(File::create(&path).unwrap());
    site.crash();
    site.mount(&[]);
    assert_eq!(fs::metadata(&path).unwrap().len(), 0);
    site.checked();
}
