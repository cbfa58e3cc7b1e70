#!/usr/bin/env python3
"""Programs that write, and know afterwards what they were promised.

Each client writes below DIR and, after each promise (a commit of SQLite, an fsync), appends a line
to ACK, a file elsewhere. A client ends quietly when the filesystem goes away under it. `verify`
compares what is there with what was promised: everything acknowledged must be there, and nothing
may be there that was never written.

    demo_clients.py run  sqlite-wal|sqlite-journal|files|replace|scribble|runaway DIR ACK
    demo_clients.py verify ...the same...
"""

import errno
import hashlib
import os
import sqlite3
import sys
import time
from pathlib import Path

ACCOUNTS, BALANCE = 50, 1000
BLOCK = 4096


class Acks:
    """Promises, one a line, in the page cache of the host: it does not crash here."""

    def __init__(self, path):
        self.path = path

    def add(self, line):
        with open(self.path, "a") as file:
            file.write(line + "\n")

    def lines(self):
        return self.path.read_text().splitlines() if self.path.exists() else []


def must(condition, what):
    if not condition:
        sys.exit(f"verify: {what}")


def fsync_directory(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class Sqlite:
    """Transfers between accounts: each transaction also inserts a row with its number."""

    def __init__(self, directory, acks, mode):
        self.acks, self.mode = acks, mode
        self.path = directory / f"bank-{mode}.db"

    def connect(self):
        db = sqlite3.connect(self.path, isolation_level=None, timeout=30)
        db.execute(f"pragma journal_mode={self.mode}")
        # With "full", a rollback journal's unlink, which is the commit, is not synced: SQLite's own
        # documentation lets the last transaction go then. "extra" syncs the directory, too.
        db.execute("pragma synchronous=extra")
        return db

    def run(self):
        db = self.connect()
        db.execute("create table if not exists account(id integer primary key, balance integer)")
        db.execute("create table if not exists done(id integer primary key, text blob)")
        if db.execute("select count(*) from account").fetchone()[0] == 0:
            rows = [(i, BALANCE) for i in range(ACCOUNTS)]
            db.execute("begin")
            db.executemany("insert into account values(?, ?)", rows)
            db.execute("commit")
        number = db.execute("select coalesce(max(id), 0) from done").fetchone()[0]
        while True:
            number += 1
            source, target = number % ACCOUNTS, (number * 7 + 3) % ACCOUNTS
            db.execute("begin immediate")
            db.execute("update account set balance = balance - 1 where id = ?", (source,))
            db.execute("update account set balance = balance + 1 where id = ?", (target,))
            db.execute("insert into done values(?, ?)", (number, self.text(number)))
            db.execute("commit")
            # SQLite takes a directory that it cannot open for one that need not be synced, also
            # when the daemon is gone since the unlink. If it opens now, it did then.
            os.close(os.open(self.path.parent, os.O_RDONLY))
            self.acks.add(str(number))

    @staticmethod
    def text(number):
        return hashlib.sha256(str(number).encode()).digest() * (1 + number % 60)

    def verify(self):
        db = self.connect()
        verdict = db.execute("pragma integrity_check").fetchall()
        must(verdict == [("ok",)], f"{self.path} is damaged: {verdict[:3]}")
        total = db.execute("select sum(balance) from account").fetchone()[0]
        must(total == ACCOUNTS * BALANCE, f"{self.path}: half a transaction, {total} in all")
        rows = dict(db.execute("select id, text from done"))
        for number, text in rows.items():
            must(text == self.text(number), f"{self.path}: row {number} has changed")
        promised = [int(line) for line in self.acks.lines()]
        lost = [number for number in promised if number not in rows]
        must(not lost, f"{self.path}: {len(lost)} committed transactions are lost: {lost[:5]}")
        more = len(rows) - len(promised)
        return f"{len(promised)} committed transactions, all there; {more} more"


class Files:
    """Small files, each fsynced, with its directory, before it is promised."""

    def __init__(self, directory, acks):
        self.acks, self.directory = acks, directory / "files"

    def run(self):
        self.directory.mkdir(exist_ok=True)
        number = sum(1 for _ in self.directory.rglob("f*"))
        while True:
            number += 1
            directory = self.directory / str(number % 17)
            directory.mkdir(exist_ok=True)
            path = directory / f"f{number}-{os.getpid()}"
            content = os.urandom(1 + (number * 977) % 30000)
            with open(path, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            fsync_directory(directory)
            digest = hashlib.sha256(content).hexdigest()
            self.acks.add(f"{digest} {path.relative_to(self.directory)}")

    def verify(self):
        lines = self.acks.lines()
        for line in lines:
            digest, name = line.split(" ", 1)
            path = self.directory / name
            must(path.is_file(), f"{path}: synced, and gone")
            found = hashlib.sha256(path.read_bytes()).hexdigest()
            must(found == digest, f"{path}: synced, and different now")
        return f"{len(lines)} synced files, all there and unchanged"


class Replace:
    """A setting, renamed over the old one each time: never half, never older than promised."""

    def __init__(self, directory, acks):
        self.acks, self.path = acks, directory / "setting"

    @staticmethod
    def content(version):
        return f"version {version}\n".encode() * 2000

    def run(self):
        version = self.found() or 0
        new = self.path.with_suffix(".new")
        while True:
            version += 1
            # No fsync before the rename: the new content comes first all the same.
            new.write_bytes(self.content(version))
            os.rename(new, self.path)
            if version % 5 == 0:
                fsync_directory(self.path.parent)
                self.acks.add(str(version))

    def found(self):
        if not self.path.exists():
            return None
        content = self.path.read_bytes()
        must(content, f"{self.path} is empty after a rename")
        version = int(content.split(b"\n", 1)[0].split()[1])
        must(content == self.content(version), f"{self.path} is half of version {version}")
        return version

    def verify(self):
        found = self.found()
        promised = max((int(line) for line in self.acks.lines()), default=0)
        must(promised == 0 or found, f"{self.path} is gone")
        must((found or 0) >= promised, f"{self.path}: version {found}, {promised} was synced")
        return f"whole, version {found}, at least the {promised} that was synced"


class Scribble:
    """Writes without fsync; promised is only that a block is old, new or empty, never foreign."""

    SIZE = 512

    def __init__(self, directory, acks):
        self.acks, self.path = acks, directory / "scribble"

    @staticmethod
    def block(number, version):
        return f"block {number} version {version} ".encode().ljust(64, b".") * (BLOCK // 64)

    def run(self):
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT)
        version = 0
        while True:
            version += 1
            number = (version * 7919) % self.SIZE
            os.pwrite(fd, self.block(number, version), number * BLOCK)

    def verify(self):
        if not self.path.exists():
            return "nothing there yet"
        content = self.path.read_bytes()
        must(len(content) % BLOCK == 0, f"{self.path} ends inside a block")
        filled = 0
        for start in range(0, len(content), BLOCK):
            block, number = content[start : start + BLOCK], start // BLOCK
            if block == bytes(BLOCK):
                continue
            words = block[:64].split()
            ours = words[:2] == [b"block", str(number).encode()]
            must(ours, f"{self.path}: foreign block {number}")
            must(block == self.block(number, int(words[3])), f"{self.path}: mixed block {number}")
            filled += 1
        return f"{filled} blocks, none of them mixed or foreign"


class Runaway:
    """Takes all it can get, and does not stop when it is refused. Noted are the refusals."""

    def __init__(self, directory, acks):
        self.acks, self.path = acks, directory / "flood"

    def run(self):
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        block = os.urandom(1 << 20)
        while True:
            try:
                os.write(fd, block)
            except OSError as error:
                if error.errno != errno.EDQUOT:
                    raise
                self.acks.add(str(os.fstat(fd).st_size))
                time.sleep(0.01)

    def verify(self):
        refusals = self.acks.lines()
        must(refusals, f"{self.path} was never refused anything")
        return f"EDQUOT {len(refusals)} times, first at {int(refusals[0]) >> 20} MiB"


def client(name, directory, acks):
    if name.startswith("sqlite-"):
        return Sqlite(directory, acks, {"wal": "wal", "journal": "delete"}[name.split("-")[1]])
    others = {"files": Files, "replace": Replace, "scribble": Scribble, "runaway": Runaway}
    return others[name](directory, acks)


def main():
    action, name, directory, acks = sys.argv[1:]
    chosen = client(name, Path(directory), Acks(Path(acks)))
    if action == "verify":
        print(chosen.verify())
        return
    try:
        chosen.run()
    except (OSError, sqlite3.Error) as error:
        # The filesystem went away, as it was meant to; the caller knows when that was due.
        print(f"{name}: ended by: {error}")


if __name__ == "__main__":
    main()
