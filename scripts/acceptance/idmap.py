#!/usr/bin/env python3
"""Mounts a directory once more, with other owners: idmap.py SOURCE TARGET POOL:HERE:COUNT

COUNT users and groups from POOL on, as the filesystem has them, are those from HERE on at TARGET.
It is `mount --bind -o X-mount.idmap`, which util-linux has from 2.39 on.
"""
import ctypes
import os
import signal
import struct
import sys

SYS_OPEN_TREE, SYS_MOVE_MOUNT, SYS_MOUNT_SETATTR = 428, 429, 442
OPEN_TREE_CLONE, AT_EMPTY_PATH, MOVE_MOUNT_F_EMPTY_PATH = 1, 0x1000, 4
MOUNT_ATTR_IDMAP = 0x0010_0000
CLONE_NEWUSER = 0x1000_0000
AT_FDCWD = -100
libc = ctypes.CDLL(None, use_errno=True)


def call(what, number, *arguments):
    result = libc.syscall(number, *arguments)
    if result < 0:
        sys.exit(f"idmap: {what}: {os.strerror(ctypes.get_errno())}")
    return result


def namespace(mapping):
    """A descriptor of a user namespace that maps ids so."""
    ready, unshared = os.pipe()
    child = os.fork()
    if child == 0:
        if libc.unshare(CLONE_NEWUSER):
            os._exit(1)
        os.write(unshared, b"x")
        signal.pause()
    os.close(unshared)
    if not os.read(ready, 1):
        sys.exit("idmap: no user namespace can be made here")
    for kind in ("uid", "gid"):
        with open(f"/proc/{child}/{kind}_map", "w") as table:
            table.write(mapping.replace(":", " "))
    found = os.open(f"/proc/{child}/ns/user", os.O_RDONLY)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return found


def main():
    source, target, mapping = sys.argv[1:]
    users = namespace(mapping)
    tree = call("open_tree", SYS_OPEN_TREE, AT_FDCWD, source.encode(), OPEN_TREE_CLONE)
    attributes = struct.pack("<QQQQ", MOUNT_ATTR_IDMAP, 0, 0, users)
    call("mount_setattr", SYS_MOUNT_SETATTR, tree, b"", AT_EMPTY_PATH, attributes, len(attributes))
    call("move_mount", SYS_MOVE_MOUNT, tree, b"", AT_FDCWD, target.encode(),
         MOVE_MOUNT_F_EMPTY_PATH)


main()
