//! One file, changed in every way that the kernel has, in any order: what is read is what was
//! written. In the manner of fsx, with what its crate leaves out: direct I/O between buffered and
//! mapped, zeroed ranges, allocations beyond the end, and snapshots, which must stay as they were.

#![allow(clippy::disallowed_methods, reason = "it looks at processes from outside")]

mod site;

use std::process::Command;

use site::*;

const SCRIPT: &str = r#"
import ctypes, mmap, os, random, subprocess, sys
program, mnt, seed, steps = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
os.chdir(mnt)
libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
KEEP, PUNCH, ZERO = 1, 2, 16
MOST, BLOCK = 700_000, 512
dice = random.Random(seed)

def copyhold(*words):
    subprocess.run([program, "subvolume", *words], check=True, stdout=subprocess.DEVNULL)

copyhold("create", "a")
plain = os.open("a/file", os.O_RDWR | os.O_CREAT)
direct = os.open("a/file", os.O_RDWR | os.O_DIRECT)
# Direct I/O wants memory that is aligned; a map of nothing is.
aligned = mmap.mmap(-1, 1 << 20)
model = bytearray()
snapshots, log = {}, []

def span(unit=1):
    "A place in the file or a bit behind it, and a length."
    at = dice.randrange(min(len(model) + 50_000, MOST)) // unit * unit
    length = dice.choice((1, 100, 4096, 5000, 40_000, 150_000))
    return at, max(unit, dice.randrange(1, length + 1) // unit * unit)

def data(length):
    return dice.randbytes(length)

def put(at, bytes):
    if len(model) < at:
        model.extend(b"\0" * (at - len(model)))
    model[at:at + len(bytes)] = bytes

def write():
    at, length = span()
    bytes = data(length)
    assert os.pwrite(plain, bytes, at) == length
    put(at, bytes)

def write_directly():
    at, length = span(BLOCK)
    bytes = data(length)
    aligned[:length] = bytes
    assert os.pwritev(direct, [memoryview(aligned)[:length]], at) == length
    put(at, bytes)

def compare(found, at, length):
    assert found == model[at:at + length], first_difference(found, at)

def first_difference(found, at):
    wanted = model[at:at + len(found)]
    for n, (a, b) in enumerate(zip(found, wanted)):
        if a != b:
            return f"byte {at + n} is {a}, not {b}"
    return f"{len(found)} bytes, not {len(wanted)}"

def read():
    at, length = span()
    compare(os.pread(plain, length, at), at, length)

def read_directly():
    at, length = span(BLOCK)
    count = os.preadv(direct, [memoryview(aligned)[:length]], at)
    compare(aligned[:count], at, length)

def in_map(change):
    if not model:
        return
    at, length = span()
    at = min(at, len(model) - 1)
    length = min(length, len(model) - at)
    with mmap.mmap(plain, len(model)) as memory:
        compare(memory[at:at + length], at, length)
        if change:
            bytes = data(length)
            memory[at:at + length] = bytes
            put(at, bytes)

def truncate():
    size = dice.randrange(MOST)
    os.ftruncate(plain, size)
    put(size, b"")
    del model[size:]

def allocate(mode, fills):
    at, length = span()
    if libc.fallocate(plain, mode, at, length) != 0:
        raise OSError(ctypes.get_errno(), "fallocate")
    end = at + length
    if mode & KEEP == 0 and len(model) < end:
        put(end, b"")
    if fills:
        inside = max(0, min(end, len(model)) - at)
        model[at:at + inside] = b"\0" * inside

def copy():
    source, length = span()
    target, _ = span()
    length = max(0, min(length, len(model) - source))
    # The kernel refuses ranges of one file that overlap.
    if length == 0 or abs(source - target) < length:
        return
    bytes = model[source:source + length]
    done = 0
    while done < length:
        done += os.copy_file_range(plain, plain, length - done, source + done, target + done)
    put(target, bytes)

def snapshot():
    name = f"s{len(log)}"
    copyhold("snapshot", "a", name)
    snapshots[name] = bytes(model)
    if len(snapshots) > 4:
        verify(dice.choice(list(snapshots)))

def verify(name):
    with open(f"{name}/file", "rb") as file:
        assert file.read() == snapshots.pop(name), f"{name} has changed"
    copyhold("delete", name)

WAYS = {
    "write": write, "write directly": write_directly, "read": read,
    "read directly": read_directly, "read a map": lambda: in_map(False),
    "write to a map": lambda: in_map(True), "truncate": truncate, "copy": copy,
    "allocate": lambda: allocate(0, False), "allocate behind": lambda: allocate(KEEP, False),
    "punch": lambda: allocate(KEEP | PUNCH, True), "zero": lambda: allocate(ZERO, True),
    "zero inside": lambda: allocate(KEEP | ZERO, True), "sync": lambda: os.fsync(plain),
    "snapshot": snapshot,
}
OFTEN = [3 if "write" in way else 2 if "read" in way else 1 for way in WAYS]
try:
    for step in range(steps):
        way = dice.choices(list(WAYS), OFTEN)[0]
        log.append(way)
        WAYS[way]()
        size = os.fstat(plain).st_size
        assert size == len(model), f"{size} bytes, not {len(model)}"
    compare(os.pread(plain, MOST * 2, 0), 0, MOST * 2)
    for name in list(snapshots):
        verify(name)
except BaseException:
    print(f"seed {seed}, step {len(log)}, behind {log[-12:]}", file=sys.stderr)
    raise
with open("copy", "wb") as file:
    file.write(model)
print("as it should be")
"#;

#[test]
fn a_file_is_what_was_written_to_it_in_whatever_way() {
    let Some(site) = Site::mounted(&[]) else { return };
    for seed in ["1", "2", "3"] {
        let mut python = Command::new("python3");
        let arguments = [PROGRAM, &site.at(""), seed, "400"];
        let run = python.args(["-c", SCRIPT]).args(arguments).output().unwrap();
        let told = String::from_utf8_lossy(&run.stdout);
        assert!(run.status.success() && told.contains("as it should be"), "{run:?}");
        site.done(&["umount", &site.at("")]);
        site.mount(&[]);
        let found = std::fs::read(site.path("a/file")).unwrap();
        assert!(found == std::fs::read(site.path("copy")).unwrap(), "seed {seed}");
        site.delete("a");
    }
    site.checked();
}
