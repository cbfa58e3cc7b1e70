//! What the kernel keeps of a mount, its pages, names, attributes and maps, never shows what is no
//! more: after a snapshot, a rollback, a deletion, an exchange, whatever was looked at before.

#![allow(clippy::disallowed_methods, reason = "it looks at processes from outside")]

mod site;

use std::fs;
use std::process::Command;

use site::*;

/// Looks at everything in every way before each step, so that the kernel remembers all of it; then
/// again behind the step. `V(n)` is a whole content, told by its first and last byte.
const SCRIPT: &str = r#"
import mmap, os, subprocess, sys
program, mnt = sys.argv[1:]
os.chdir(mnt)
SIZE = 300_000
V = lambda n: bytes([n]) * SIZE

def copyhold(*words):
    subprocess.run([program, "subvolume", *words], check=True, stdout=subprocess.DEVNULL)

def write(path, n):
    with open(path, "r+b" if os.path.exists(path) else "wb") as file:
        file.write(V(n))

def mapped(path, writable=False, size=SIZE):
    fd = os.open(path, os.O_RDWR if writable else os.O_RDONLY)
    access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
    memory = mmap.mmap(fd, size, access=access)
    os.close(fd)
    return memory

maps = []
def look(path, n, size=SIZE):
    "Buffered, by a map of its own that stays, by its size."
    with open(path, "rb") as file:
        found = file.read()
    assert found == V(n)[:size], (path, n, found[:1], found[-1:], len(found))
    memory = mapped(path, size=size)
    assert memory[:size] == V(n)[:size], (path, n, memory[0])
    maps.append(memory)
    assert os.stat(path).st_size == size, path

def names(path, *wanted):
    assert sorted(os.listdir(path)) == sorted(wanted), (path, os.listdir(path))
    for name in ("f", "gone", "late"):
        assert os.path.lexists(f"{path}/{name}") == (name in wanted), (path, name)

copyhold("create", "a")
write("a/f", 1)
write("a/gone", 1)
names("a", "f", "gone")
look("a/f", 1)
shared = mapped("a/f", writable=True)

# A snapshot has what was dirty in a map, and nothing of what is written later.
shared[:] = V(2)
copyhold("snapshot", "-r", "a", "s")
look("s/f", 2)
shared[:] = V(3)
look("a/f", 3)
look("s/f", 2)
copyhold("snapshot", "a", "t")
look("t/f", 3)
write("a/f", 4)
assert shared[:] == V(4)
os.remove("a/gone")
write("a/late", 4)
names("a", "f", "late")
for path, n in (("a/f", 4), ("s/f", 2), ("t/f", 3)):
    look(path, n)
write("t/f", 5)
for path, n in (("a/f", 4), ("s/f", 2), ("t/f", 5)):
    look(path, n)

# A rollback: other content, other names, under the same paths; and back to the snapshot's names.
os.stat("a/late")
assert not os.path.exists("a/gone")
copyhold("rollback", "a", "s")
names("a", "f", "gone")
look("a/f", 2)
look("s/f", 2)
fresh = mapped("a/f", writable=True)
fresh[:] = V(6)
look("a/f", 6)
look("s/f", 2)

# The same, where the old state is kept: who has it open goes on with it.
with open("a/f", "r+b") as file:
    copyhold("rollback", "--keep", "kept", "a", "t")
    assert file.read() == V(6)
    file.seek(0)
    file.write(V(7))
names("kept", "f", "gone")
names("a", "f", "gone")
look("kept/f", 7)
assert fresh[:] == V(7)
look("a/f", 5)

# A deletion, and another subvolume with the same names and numbers of inodes.
assert not os.path.exists("t/late")
copyhold("delete", "t")
assert not os.path.exists("t") and not os.path.exists("t/f")
copyhold("create", "t")
names("t")
with open("t/f", "wb") as file:
    file.write(V(8)[:5000])
look("t/f", 8, 5000)
copyhold("delete", "t")
copyhold("snapshot", "s", "t")
names("t", "f", "gone")
look("t/f", 2)

# Two that change places.
look("a/f", 5)
os.rename("a", "x")
os.rename("kept", "a")
os.rename("x", "kept")
look("a/f", 7)
look("kept/f", 5)
print("as it should be")
"#;

#[test]
fn the_kernel_never_shows_what_is_no_more() {
    let Some(site) = Site::mounted(&[]) else { return };
    let mut python = Command::new("python3");
    let run = python.args(["-c", SCRIPT, PROGRAM, &site.at("")]).output().unwrap();
    let told = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success() && told.contains("as it should be"), "{run:?}");
    assert_eq!(fs::read(site.path("s/f")).unwrap(), vec![2; 300_000]);
    site.checked();
}
