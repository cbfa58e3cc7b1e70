#!/usr/bin/env python3
"""What overlayfs shows on given layers: the same operations, told the same way, wherever it lies.

    overlay.py LOWER UPPER MERGED OPTIONS

LOWER and UPPER are empty directories, of two filesystems or one; MERGED is where the overlay is
mounted; OPTIONS is what overlayfs gets besides the layers. It writes a report without anything that
may differ between two correct filesystems (inode numbers, the size of directories, the order of
entries), so two reports are compared by diff(1). acceptance.sh does that, with ext4 as the other.

Each file of the lower layers has one time, long ago: what a copy-up does not keep is told apart.
"""
import ctypes
import errno
import hashlib
import os
import shutil
import socket
import stat
import struct
import subprocess
import sys

LOWER, UPPER, MERGED = (os.path.abspath(path) for path in sys.argv[1:4])
OPTIONS = sys.argv[4]
LONG_AGO = 1_000_000_000 * 10**9
SAME = os.stat(LOWER).st_dev == os.stat(UPPER).st_dev
RENAME_NOREPLACE, RENAME_EXCHANGE, RENAME_WHITEOUT = 1, 2, 4
AT_SYMLINK_FOLLOW = 0x400
ANY = 0xFFFF_FFFF
USER = 1000
PREFIX = "user.overlay." if "userxattr" in OPTIONS else "trusted.overlay."
# Handles and ids, different everywhere; that they are there is compared.
HANDLES = {PREFIX + name for name in ("origin", "upper", "uuid", "nlink")}
CAPABILITY = struct.pack("<IIIII", 0x0200_0001, 1 << 10, 0, 0, 0)
libc = ctypes.CDLL(None, use_errno=True)


def acl(*entries):
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


GRANTING = acl((1, 6, ANY), (2, 4, USER), (4, 4, ANY), (0x10, 6, ANY), (0x20, 0, ANY))
INHERITED = acl((1, 7, ANY), (2, 7, USER), (4, 5, ANY), (0x10, 7, ANY), (0x20, 0, ANY))


# --- the layers


def write(path, content=None, mode=0o644, owner=(0, 0), xattrs=()):
    """One file, as a package would install it."""
    content = os.path.basename(path).encode() if content is None else content
    with open(path, "wb") as file:
        file.write(content)
    os.chown(path, *owner)
    os.chmod(path, mode)
    for name, value in xattrs:
        os.setxattr(path, name, value)


def make_base(base):
    """The lowest layer: every kind of file."""
    for directory, mode in [
        ("bin", 0o755), ("etc", 0o755), ("tmp", 0o1777), ("group", 0o2775), ("deep/a/b/c", 0o755),
        ("gone", 0o755), ("opaque", 0o755), ("acl", 0o755), ("moved", 0o755), ("home", 0o700),
    ]:
        os.makedirs(f"{base}/{directory}")
        os.chmod(f"{base}/{directory}", mode)
    os.chown(f"{base}/group", 0, 50)
    os.chown(f"{base}/home", USER, USER)
    os.setxattr(f"{base}/acl", "system.posix_acl_default", INHERITED)
    for name, mode in [
        ("su", 0o4755), ("passwd", 0o4755), ("mount", 0o4755), ("wall", 0o2755), ("both", 0o6755),
        ("locked", 0o2644), ("chowned", 0o6755), ("written", 0o6777), ("cut", 0o6755),
    ]:
        write(f"{base}/bin/{name}", mode=mode, owner=(0, 5))
    write(f"{base}/bin/owned", mode=0o6755, owner=(USER, USER))
    for name in ("ping", "ping-chowned", "ping-written", "ping-linked"):
        write(f"{base}/bin/{name}", mode=0o755, xattrs=[("security.capability", CAPABILITY)])
    write(f"{base}/etc/plain", xattrs=[("user.note", b"kept"), ("user.empty", b"")])
    write(f"{base}/etc/granting", xattrs=[("system.posix_acl_access", GRANTING)])
    write(f"{base}/etc/large", b"0123456789abcdef" * 100_000)
    write(f"{base}/etc/{'n' * 255}")
    for name in ("appended", "cut", "removed", "renamed", "replaced", "replacing", "swapped",
                 "mapped", "held", "stay", "again", "linked", "meta"):
        write(f"{base}/etc/{name}")
    write(f"{base}/group/file", mode=0o664, owner=(USER, 50))
    write(f"{base}/home/mine", mode=0o600, owner=(USER, USER))
    write(f"{base}/deep/a/b/c/file")
    write(f"{base}/moved/inside")
    write(f"{base}/gone/file")
    write(f"{base}/opaque/below")
    with open(f"{base}/etc/sparse", "wb") as sparse:
        sparse.truncate(3 << 20)
        os.pwrite(sparse.fileno(), b"end", (3 << 20) - 3)
    for name in ("one", "two", "three"):
        os.link(f"{base}/etc/linked", f"{base}/etc/linked-{name}")
    os.symlink("plain", f"{base}/etc/symlink")
    os.symlink("/nowhere/" + "x" * 200, f"{base}/etc/dangling")
    os.lchown(f"{base}/etc/symlink", USER, 5)
    os.mkfifo(f"{base}/etc/fifo", 0o640)
    os.mknod(f"{base}/etc/device", stat.S_IFCHR | 0o620, os.makedev(1, 3))
    with socket.socket(socket.AF_UNIX) as listening:
        here = os.open(f"{base}/etc", os.O_PATH)
        listening.bind(f"/proc/self/fd/{here}/socket")
        os.close(here)


def make_middle(middle):
    """A layer over it: a replaced file, a whiteout, an opaque directory."""
    os.makedirs(f"{middle}/etc")
    os.makedirs(f"{middle}/opaque")
    write(f"{middle}/etc/stay", b"of the middle layer", mode=0o4711, owner=(3, 4))
    os.mknod(f"{middle}/etc/whiteout", stat.S_IFCHR, 0)
    os.mknod(f"{middle}/gone", stat.S_IFCHR, 0)
    os.setxattr(f"{middle}/opaque", PREFIX + "opaque", b"y")
    write(f"{middle}/opaque/above")


def freeze(layer):
    for path, directories, files in os.walk(layer, topdown=False):
        for name in files + directories:
            os.utime(f"{path}/{name}", ns=(LONG_AGO, LONG_AGO), follow_symlinks=False)
    os.utime(layer, ns=(LONG_AGO, LONG_AGO))


def mount():
    layers = f"lowerdir={LOWER}/middle:{LOWER}/base,upperdir={UPPER}/upper,workdir={UPPER}/work"
    options = ",".join(filter(None, [layers, OPTIONS]))
    made = subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, MERGED],
                          capture_output=True, text=True)
    if made.returncode:
        say("mount", made.stderr.strip().splitlines()[0])
        sys.exit(0)
    with open("/proc/self/mounts") as table:
        shown = [line.split()[3] for line in table if line.split()[1] == MERGED][-1]
    paths = ("lowerdir", "upperdir", "workdir")
    say("options", *(one for one in shown.split(",") if one.split("=")[0] not in paths))


def again():
    """As on another day: nothing of it is in memory."""
    subprocess.run(["umount", MERGED], check=True)
    # A volatile upper layer is not taken again unless this is removed.
    shutil.rmtree(f"{UPPER}/work/work/incompat", ignore_errors=True)
    with open("/proc/sys/vm/drop_caches", "w") as drop:
        drop.write("3")
    mount()
    # Before anything is listed, which would show overlayfs the files of the lower layers by name.
    for name in ("etc/renamed-to", "etc/again-moved", "etc/plain", "bin/su"):
        for _ in range(2):
            do("look at " + name, lambda: len(open(at(name), "rb").read()))


# --- the report


def say(what, *result):
    print(what + ":", *result, flush=True)


def number(error):
    return errno.errorcode.get(error.errno, error.errno)


def do(what, action, *arguments):
    """One operation and what came of it."""
    try:
        result = action(*arguments)
    except OSError as error:
        result = number(error)
    say(what, "" if result is None else result)


def xattrs_of(path):
    found = []
    for name in sorted(os.listxattr(path, follow_symlinks=False)):
        value = os.getxattr(path, name, follow_symlinks=False)
        # What a redirect says is a path, or a name that exists once.
        found.append(name if name in HANDLES else f"{name}={value.hex()}")
    return found


def line_of(path):
    """All that a file shows, but for what may differ."""
    found = os.lstat(path)
    kind = stat.S_IFMT(found.st_mode)
    line = [stat.filemode(found.st_mode), f"{found.st_uid}:{found.st_gid}"]
    if kind != stat.S_IFDIR:
        line += [f"links={found.st_nlink}", f"size={found.st_size}"]
        line.append("old" if found.st_mtime_ns == LONG_AGO else "new")
    if kind in (stat.S_IFCHR, stat.S_IFBLK):
        line.append(f"device={os.major(found.st_rdev)},{os.minor(found.st_rdev)}")
    if kind == stat.S_IFLNK:
        line.append("-> " + os.readlink(path))
    if kind == stat.S_IFREG:
        with open(path, "rb") as file:
            line.append(hashlib.sha256(file.read()).hexdigest()[:16])
    return " ".join(line + xattrs_of(path))


def tell_tree(what, root):
    say(what)
    paths = []
    for directory, directories, files in os.walk(root):
        directories.sort()
        listed = {entry.name: entry.inode() for entry in os.scandir(directory)}
        for name in sorted(directories + files):
            path = f"{directory}/{name}"
            paths.append(path)
            try:
                same = listed[name] == os.lstat(path).st_ino
            except OSError as error:
                same = number(error)
            # Over two filesystems overlayfs lists other numbers than it shows where it has handles.
            if same is not True and root == MERGED and SAME:
                say("  listed under another number", path.removeprefix(root), same)
    # The second look finds what the first has made the kernel remember.
    for path in sorted(paths) + sorted(paths):
        try:
            told = line_of(path)
        except OSError as error:
            told = number(error)
        say("  " + path.removeprefix(root).replace("n" * 255, "n..."), told)


# --- what is done


def at(name):
    return f"{MERGED}/{name}"


def rename(old, new, flags=0):
    failed = libc.renameat2(-100, at(old).encode(), -100, at(new).encode(), flags)
    if failed:
        raise OSError(ctypes.get_errno(), "")


def append(name, data=b"more"):
    with open(at(name), "ab") as file:
        file.write(data)


def as_user(action, *arguments):
    """In a process of an ordinary user; its errno."""
    child = os.fork()
    if child == 0:
        code = 0
        try:
            os.setgroups([])
            os.setresgid(USER, USER, USER)
            os.setresuid(USER, USER, USER)
            action(*arguments)
        except OSError as error:
            code = error.errno
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return errno.errorcode.get(code, code) if code else "done"


def numbered(name, action, *arguments):
    """Whether a file keeps its number through this."""
    before = os.lstat(at(name))
    action(*arguments)
    after = os.lstat(at(name))
    return before.st_ino == after.st_ino, before.st_dev == after.st_dev


def held(name):
    """A file that was open before its copy-up, and after."""
    with open(at(name), "rb") as before:
        append(name)
        with open(at(name), "rb") as after:
            return os.path.sameopenfile(before.fileno(), after.fileno()), len(after.read())


def chown_nameless(name):
    """fchown(2) of an O_TMPFILE takes setuid away, whose ever it is."""
    file = os.open(MERGED, os.O_TMPFILE | os.O_RDWR, 0o600)
    os.fchmod(file, 0o6755)
    os.fchown(file, USER, USER)
    mode = oct(os.fstat(file).st_mode)
    if libc.linkat(-100, b"/proc/self/fd/%d" % file, -100, at(name).encode(), AT_SYMLINK_FOLLOW):
        raise OSError(ctypes.get_errno(), "")
    os.close(file)
    return mode


def sync(name):
    directory = os.open(at(name), os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)


def write_at(name, data, offset):
    file = os.open(at(name), os.O_WRONLY)
    os.pwrite(file, data, offset)
    os.fsync(file)
    os.close(file)


def map_and_write(name):
    import mmap
    with open(at(name), "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[0:4] = b"MMAP"
        mapped.flush()


def privileges():
    """Modes and capabilities through each kind of copy-up."""
    do("touch su", os.utime, at("bin/su"))
    do("chmod passwd", os.chmod, at("bin/passwd"), 0o4711)
    do("append mount", append, "bin/mount")
    do("touch wall", os.utime, at("bin/wall"))
    do("touch both", os.utime, at("bin/both"))
    do("touch locked", os.utime, at("bin/locked"))
    do("chown chowned", os.chown, at("bin/chowned"), USER, USER)
    do("write to written", as_user, write_at, "bin/written", b"x", 0)
    # Not by another user: FUSE does not tell from whom a truncation comes through overlayfs.
    do("cut", os.truncate, at("bin/cut"), 3)
    do("touch owned as owner", as_user, os.utime, at("bin/owned"))
    do("touch ping", os.utime, at("bin/ping"))
    do("chown ping", os.chown, at("bin/ping-chowned"), USER, USER)
    do("append ping", append, "bin/ping-written")
    do("link ping", os.link, at("bin/ping-linked"), at("bin/ping-two"))
    do("touch stay", os.utime, at("etc/stay"))
    do("nameless", chown_nameless, "bin/nameless")
    do("chown su behind its copy-up", os.chown, at("bin/su"), 7, 7)


def changes():
    """Everything else that copies up, or hides."""
    do("append", append, "etc/appended")
    do("cut", os.truncate, at("etc/cut"), 2)
    do("held", held, "etc/held")
    do("map", map_and_write, "etc/mapped")
    do("number by append", numbered, "etc/plain", append, "etc/plain")
    do("number by chmod", numbered, "etc/meta", os.chmod, at("etc/meta"), 0o600)
    do("number of a link", numbered, "etc/linked-one", append, "etc/linked-one")
    do("number by rename", lambda: rename("etc/again", "etc/again-moved"))
    do("write in the middle", write_at, "etc/large", b"MIDDLE", 777_777)
    do("write into the hole", write_at, "etc/sparse", b"data", 1 << 20)
    do("long name", os.chmod, at("etc/" + "n" * 255), 0o600)
    do("setxattr", os.setxattr, at("etc/plain"), "user.new", b"1")
    do("removexattr", os.removexattr, at("etc/plain"), "user.note")
    do("chmod with an ACL", os.chmod, at("etc/granting"), 0o600)
    do("owner of a symlink", lambda: os.lchown(at("etc/symlink"), 8, 9))
    do("mode of a fifo", os.chmod, at("etc/fifo"), 0o600)
    do("mode of a device", os.chmod, at("etc/device"), 0o600)
    do("mode of a socket", os.chmod, at("etc/socket"), 0o600)
    do("unlink", os.unlink, at("etc/removed"))
    do("unlink one link", os.unlink, at("etc/linked-two"))
    do("rename", rename, "etc/renamed", "etc/renamed-to")
    do("replace", rename, "etc/replacing", "etc/replaced")
    do("exchange", rename, "etc/swapped", "etc/stay", RENAME_EXCHANGE)
    do("no replace", rename, "etc/cut", "etc/appended", RENAME_NOREPLACE)
    do("whiteout", rename, "etc/cut", "etc/cut-moved", RENAME_WHITEOUT)
    do("rename a directory", rename, "moved", "moved-to")
    do("rename a deep one", rename, "deep/a", "deep/z")
    do("new file over a whiteout", write, at("etc/removed"), b"new")
    do("new directory over a whiteout", os.mkdir, at("gone"))
    do("new file there", write, at("gone/new"), b"new")
    do("rmdir of what is not empty", os.rmdir, at("opaque"))
    do("unlink above", os.unlink, at("opaque/above"))
    do("rmdir", os.rmdir, at("opaque"))
    do("mkdir again", os.mkdir, at("opaque"))
    do("in the group's directory", write, at("group/new"), b"new")
    do("sub of the group's", os.mkdir, at("group/sub"))
    do("in the directory with an ACL", lambda: os.close(os.open(at("acl/new"), os.O_CREAT, 0o666)))
    do("device", os.mknod, at("etc/null"), stat.S_IFCHR | 0o600, os.makedev(1, 3))
    do("link", os.link, at("etc/renamed-to"), at("etc/renamed-link"))
    do("user in home", as_user, append, "home/mine")
    do("user elsewhere", as_user, append, "etc/appended")
    do("user in tmp", as_user, write, at("tmp/his"), b"his", 0o600, (USER, USER))
    do("sync", sync, "etc")


def later():
    """On files that an earlier mount copied up or moved."""
    do("append to renamed", append, "etc/renamed-to")
    do("append to moved", append, "etc/again-moved")
    do("into the moved directory", write, at("moved-to/new"), b"new")
    do("inside of the moved", append, "moved-to/inside")
    do("inside of the deep", append, "deep/z/b/c/file")
    do("data behind metadata", append, "etc/meta")
    do("data of a setuid file", append, "bin/passwd")
    do("other link", append, "etc/linked-three")
    do("chown of what had setuid", os.chown, at("bin/both"), USER, USER)
    do("unlink renamed", os.unlink, at("etc/renamed-link"))
    do("rename back", rename, "moved-to", "moved")


def main():
    os.umask(0o022)
    for directory in (f"{LOWER}/base", f"{LOWER}/middle", f"{UPPER}/upper", f"{UPPER}/work"):
        os.mkdir(directory)
    make_base(f"{LOWER}/base")
    make_middle(f"{LOWER}/middle")
    freeze(LOWER)
    mount()
    tell_tree("untouched", MERGED)
    privileges()
    changes()
    tell_tree("changed", MERGED)
    again()
    tell_tree("mounted again", MERGED)
    later()
    again()
    tell_tree("changed again", MERGED)
    subprocess.run(["umount", MERGED], check=True)
    tell_tree("upper layer", f"{UPPER}/upper")
    tell_tree("lower layers", LOWER)


main()
