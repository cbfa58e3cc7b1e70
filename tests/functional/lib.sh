# shellcheck shell=sh
# The library of the functional tests: each script reads it first.
#
#   . "$(dirname "$0")/../lib.sh"
#
# A test states its facts by `must` and the verbs beside it, registers what it has to undo by
# `on_exit`, and ends by `pass`, `fail REASON` or `skip REASON`. A command outside of a fact that
# fails, such as an assignment or a write, ends the test, too (`set -e`). The argument "$(COMMAND)"
# of a fact loses the exit code of the command: so a fact with an empty side fails, and an empty
# answer is expected by `must_print ''`. The runner sets COPYHOLD (the program), SUITE_DIR (a
# directory for pools and mounts) and SUITE_ROOT. By hand:
#
#   COPYHOLD_POOL=/srv/test.img COPYHOLD_MOUNT=/mnt tests/functional/mount/setup
#   COPYHOLD_POOL=/srv/test.img COPYHOLD_MOUNT=/mnt tests/functional/mount/remount
#   COPYHOLD_POOL=/srv/test.img COPYHOLD_MOUNT=/mnt tests/functional/mount/cleanup
#
# A pool that is there is mounted, not made, and stays. Tests change it, and some kill its daemon:
# take one that holds nothing else. COPYHOLD_OPTIONS are mount options of each mount.

set -eu
export LC_ALL=C
SUITE_ROOT=${SUITE_ROOT:-$(cd "$(dirname "$0")/.." && pwd)}
SUITE_DIR=${SUITE_DIR:-/var/tmp/copyhold-functional}
COPYHOLD=${COPYHOLD:-$SUITE_ROOT/../../target/release/copyhold}
POOL=${COPYHOLD_POOL:-$SUITE_DIR/pool.img}
MNT=${COPYHOLD_MOUNT:-$SUITE_DIR/mnt}
# Of the tests of this directory; the root of the mount may have other things.
AREA=$(basename "$(dirname "$0")")
HERE=$MNT/functional-$AREA
EXIT_STACK=
VERDICT=

# --- the end of a test

# on_exit COMMAND: runs at the end, the last one first. Words are split as in `eval`.
on_exit() {
    EXIT_STACK="$*
$EXIT_STACK"
}

unwind() {
    status=$?
    trap - EXIT
    # A second signal ends the command that undoes, and the next one begins.
    trap : INT TERM
    if [ -z "$VERDICT" ]; then
        echo "FAIL: the script ends without a verdict, with exit code $status" >&2
        case $status in 0 | 4) status=1 ;; esac
    fi
    stack=$EXIT_STACK
    EXIT_STACK=
    while [ -n "$stack" ]; do
        command=${stack%%
*}
        stack=${stack#*
}
        eval "$command" || {
            echo "undoing failed: $command" >&2
            [ "$status" != 0 ] || status=1
        }
    done
    exit "$status"
}
trap unwind EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# A test that ends without a word has not shown anything.
pass() { VERDICT=PASS; exit 0; }
fail() { VERDICT=FAIL; echo "FAIL: $*" >&2; exit 1; }

# A run of skipped tests has exit code 0, so a test that skips itself fails in CI.
skip() {
    [ -z "${CI:-}" ] || fail "CI skips no test: $*"
    VERDICT=SKIP
    echo "SKIP: $*" >&2
    exit 4
}

# skip_without THING REASON: COPYHOLD_LACKS names the tools and devices that CI does without.
skip_without() {
    case " ${COPYHOLD_LACKS:-} " in *" $1 "*) CI= ;; esac
    skip "$2"
}

# --- facts

# must COMMAND...: it succeeds.
must() {
    "$@" || fail "exit code $?: $*"
}

# must_not COMMAND...: it refuses. A signal, or a program that is not there, is no refusal.
must_not() {
    status=0
    "$@" || status=$?
    [ "$status" != 0 ] || fail "it succeeds: $*"
    [ "$status" -lt 126 ] || fail "exit code $status is no refusal: $*"
}

# must_say TEXT COMMAND...: it succeeds, and prints the text.
must_say() {
    text=$1
    shift
    said=$("$@") || fail "exit code $?: $*"
    case $said in
    *"$text"*) ;;
    *) fail "no '$text' in the answer of $*: $said" ;;
    esac
}

# must_print TEXT COMMAND...: it succeeds, and prints exactly the text, or nothing for ''.
must_print() {
    text=$1
    shift
    said=$("$@") || fail "exit code $?: $*"
    [ "$said" = "$text" ] || fail "'$said' instead of '$text': $*"
}

# must_refuse CODE TEXT COMMAND...: it ends with this exit code, and prints the text as the reason.
must_refuse() {
    code=$1 text=$2
    shift 2
    status=0
    said=$("$@" 2>&1 >/dev/null) || status=$?
    [ "$status" = "$code" ] || fail "exit code $status instead of $code: $*: $said"
    case $said in
    *"$text"*) ;;
    *) fail "no '$text' in the reason of $*: $said" ;;
    esac
}

# must_report CODE TEXT ARGUMENT...: `copyhold --json` ends with exit code 1, and prints nothing but
# one line with this error code and a message that has the text.
must_report() {
    python3 - "$COPYHOLD" "$@" <<'END' || fail "no error $1 '$2' of $3 ${4:-}"
import json, subprocess, sys
program, code, text, *arguments = sys.argv[1:]
done = subprocess.run([program, "--json", *arguments], stdin=subprocess.DEVNULL,
                      capture_output=True, text=True)
try:
    error = json.loads(done.stderr)["error"]
    as_wanted = (done.returncode == 1 and not done.stdout and done.stderr.count("\n") == 1
                 and list(error) == ["code", "message"] and error["code"] == code
                 and text in error["message"])
except (ValueError, TypeError, KeyError):
    as_wanted = False
sys.exit(0 if as_wanted else str(done))
END
}

# must_equal LEFT RIGHT, must_differ LEFT RIGHT: no side is empty, as that of a failed question is.
must_equal() {
    must_have_sides "$@"
    [ "$1" = "$2" ] || fail "'$1' is not '$2'"
}

must_differ() {
    must_have_sides "$@"
    [ "$1" != "$2" ] || fail "both are '$1'"
}

must_have_sides() {
    for side; do
        case $side in *[!\ ]*) ;; *) fail "an empty side: '$1' and '$2'" ;; esac
    done
}

# must_be_sound: the pool of the area as it is, with all that the test has made.
must_be_sound() {
    on_exit "is_mounted $MNT || mount_pool"
    must unmount_pool
    must copyhold check "$POOL" >/dev/null
    must mount_pool
}

# wait_until COMMAND...: it succeeds within a minute.
wait_until() {
    for _ in $(seq 600); do
        ! ("$@") >/dev/null 2>&1 || return 0
        sleep 0.1
    done
    must "$@"
}

need() {
    for tool; do
        command -v "$tool" >/dev/null || skip_without "$tool" "$tool is not installed"
    done
}

# --- the pool of the area

copyhold() { "$COPYHOLD" "$@"; }

# On a file the kind is fuse.copyhold, on a block device fuseblk.copyhold.
is_mounted() { grep -qE "^[^ ]+ $1 fuse(blk)?\.copyhold " /proc/mounts; }

# field NAME COMMAND...: a field of the JSON that the command prints; NAME is a.b or a.0.b.
field() {
    name=$1
    shift
    "$@" | python3 -c 'import json, sys
value = json.load(sys.stdin)
for key in sys.argv[1].split("."):
    value = value[int(key)] if isinstance(value, list) else value[key]
print(json.dumps(value) if isinstance(value, (dict, list, bool)) else value)' "$name"
}

# ask EXPRESSION ARGUMENT...: prints a Python expression over `it`, the JSON of `copyhold --json`.
# `here` is $HERE as a path of the pool, `rows` are the rows of a list whose path is below it, each
# with the rest of its path, and row(id=5) is the first row of the list with this field.
ask() {
    expression=$1
    shift
    copyhold --json "$@" | python3 -c 'import json, sys
it, here = json.load(sys.stdin), sys.argv[2]
def row(**wanted):
    return next(row for row in it if wanted.items() <= row.items())
rows = []
for each in it if isinstance(it, list) else []:
    above, below, path = (each.get("path") or "").partition(here + "/")
    if below and not above:
        rows.append({**each, "path": path})
print(eval(sys.argv[1]))' "$expression" "${HERE#"$MNT"/}"
}

mount_pool() { mount_with_options "$@" "$POOL" "$MNT"; }

mount_with_options() { copyhold mount ${COPYHOLD_OPTIONS:+-o "$COPYHOLD_OPTIONS"} "$@"; }

# The area's tests see the pool mounted with these arguments, and their successors without.
remount_pool() {
    must unmount_pool
    on_exit "! is_mounted $MNT || unmount_pool; mount_pool"
    must mount_pool "$@"
}

unmount_pool() { copyhold umount "$MNT" >/dev/null; }

# place NAME: a directory for one more mount, at $SUITE_DIR/NAME, unmounted at the end.
place() {
    [ ! -d "$SUITE_DIR/$1" ] || must clear_place "$SUITE_DIR/$1"
    must mkdir "$SUITE_DIR/$1"
    on_exit "clear_place $SUITE_DIR/$1"
}

clear_place() {
    ! is_mounted "$1" || copyhold umount "$1" >/dev/null || return 1
    rmdir "$1"
}

# device_over FILE: a loop device at $DEVICE, until the end.
device_over() {
    need losetup
    DEVICE=$(losetup --find --show "$1" 2>/dev/null) || skip_without loop "there is no loop device"
    on_exit "losetup --detach $DEVICE"
}

# as_nobody COMMAND...: as an ordinary user. Needs setpriv.
as_nobody() { setpriv --reuid nobody --regid nogroup --clear-groups "$@"; }

# The options of the mount at a path, as the kernel has them.
options_of() { awk -v path="$1" '$2 == path { print $4 }' /proc/mounts; }

# No daemon changes the pool. udev has a shared lock on a device for a moment, behind a close.
must_be_closed() { must flock --shared --nonblock "$1" true; }

daemon_of() { field pid copyhold --json info "$1"; }

# As a crash: behind it the mount is dead, and no process has the pool.
kill_daemon() {
    pid=$(daemon_of "$MNT") || return 1
    kill -KILL "$pid" || return 1
    # A lock on the pool is free when the daemon is gone.
    flock "$POOL" true
}

# A pool that is new, or the user's, mounted, with an empty directory for the tests.
set_up_area() {
    [ "$(id -u)" = 0 ] || skip "mounting needs root"
    [ -c /dev/fuse ] || skip "there is no /dev/fuse"
    [ -x "$COPYHOLD" ] || fail "there is no $COPYHOLD; \`make build\` makes it"
    need python3 flock
    mkdir -p "$SUITE_DIR" "$MNT"
    if [ ! -e "$POOL" ]; then
        must copyhold create "$POOL" --size "${SIZE:-512M}" >/dev/null
        : >"$SUITE_DIR/made-pool"
    fi
    # Dead, if the cleanup of an area before did not come to its end.
    ! is_mounted "$MNT" || stat "$MNT" >/dev/null 2>&1 || must unmount_pool
    is_mounted "$MNT" || must mount_pool "$@"
    must mkdir "$HERE"
    # A test may kill the daemon.
    must copyhold sync "$MNT"
}

# Quotas are on until the end of the area. Those of a user's pool are off again behind it.
enable_quotas() {
    [ "$(ask 'it["enabled"]' quota status "$MNT")" != True ] || return 0
    must copyhold quota enable --simple "$MNT" >/dev/null
    : >"$SUITE_DIR/enabled-quotas"
}

# Removes all of it. Each test has removed its own trees: `must_be_sound` checks a pool with them.
clean_up_area() {
    if is_mounted "$MNT"; then
        stat "$MNT" >/dev/null 2>&1 || { must unmount_pool; must mount_pool; }
        [ ! -e "$SUITE_DIR/enabled-quotas" ] || must copyhold quota disable "$MNT" >/dev/null
        rm -f "$SUITE_DIR/enabled-quotas"
        [ ! -d "$HERE" ] || must remove_tree "$HERE"
        must unmount_pool
    fi
    [ ! -e "$POOL" ] || must copyhold check "$POOL" >/dev/null
    if [ -e "$SUITE_DIR/made-pool" ]; then
        rm -f "$POOL" "$SUITE_DIR/made-pool"
    fi
    [ -n "${COPYHOLD_MOUNT:-}" ] || rmdir "$MNT" 2>/dev/null || true
    rmdir "$SUITE_DIR" 2>/dev/null || true
}

# subvolume_here NAME: a subvolume for this test, removed at its end. Its id is $ID.
subvolume_here() {
    must remove_tree "$HERE/$1"
    ID=$(ask 'it["id"]' subvolume create "$HERE/$1") || fail "no subvolume $1"
    on_exit "remove_tree $HERE/$1"
}

# snapshot_here SOURCE NAME [-r]: likewise.
snapshot_here() {
    must remove_tree "$HERE/$2"
    # shellcheck disable=SC2086 # There may be no option.
    ID=$(ask 'it["id"]' subvolume snapshot ${3:-} "$HERE/$1" "$HERE/$2") || fail "no snapshot $2"
    on_exit "remove_tree $HERE/$2"
}

# group_here LEVEL: a quota group of a number that the pool does not have, at $GROUP, likewise.
group_here() {
    GROUP=$(free_group "$1")
    must copyhold qgroup create "$GROUP" "$MNT" >/dev/null
    on_exit "copyhold qgroup destroy $GROUP $MNT"
}

free_group() {
    ask "next(group for group in (f'$1/{number}' for number in range(1, 1 << 40))
        if all(each['id'] != group for each in it))" qgroup show "$MNT"
}

# A tree with subvolumes in it: rm removes empty ones, and stops at read-only ones. It does not see
# another mount of the pool, which has the same device number, and would empty it.
remove_tree() {
    [ -e "$1" ] || return 0
    if mounts_below "$1" | grep .; then
        echo "a tree with mounts in it stays: $1" >&2
        return 1
    fi
    copyhold --json subvolume list "$MNT" | python3 -c 'import json, sys
tree = sys.argv[1]
for row in json.load(sys.stdin):
    if row["readonly"] and row["path"] and (row["path"] + "/").startswith(tree + "/"):
        print(row["path"])' "${1#"$MNT"/}" | while read -r subvolume; do
        copyhold property set "$MNT/$subvolume" ro false >/dev/null
    done
    rm -rf "$1"
}

mounts_below() {
    awk -v tree="$1" '$2 == tree || index($2, tree "/") == 1 { print $2 }' /proc/mounts
}

# random_file PATH KIB
random_file() {
    dd if=/dev/urandom of="$1" bs=64K count=$(($2 * 1024)) iflag=count_bytes,fullblock status=none
}

# fill DIRECTORY: large files, small ones and tiny ones until nothing more is accepted; prints the
# name of the last error.
fill() {
    python3 - "$1" <<'END'
import errno, itertools, sys
for kind, size in (("large", 1 << 20), ("small", 4096), ("tiny", 10)):
    for number in itertools.count():
        try:
            with open(f"{sys.argv[1]}/{kind}{number}", "wb", buffering=0) as file:
                left = size
                while left:
                    left -= file.write(bytes([number % 256]) * left)
        except OSError as error:
            last = error.errno
            break
print(errno.errorcode[last])
END
}

# look_up DIRECTORY COUNT: so many names that do not exist.
look_up() {
    python3 - "$@" <<'END'
import os, sys
for number in range(int(sys.argv[2])):
    try:
        os.lstat(f"{sys.argv[1]}/absent-{number:012}")
    except FileNotFoundError:
        continue
    sys.exit(f"{number} is there")
END
}

# NAMES-N2: each name that does not exist is live or has ended, when none is just being removed.
must_add_up() { wait_until names_add_up; }

names_add_up() {
    must_equal "$(ask '[each for each in it["subvolumes"]
        if each["events"]["created"] != each["live"] + sum(each["events"][end] for end in
            ("pruned", "forced", "turned_positive", "dropped", "replaced"))]' \
        names show "$MNT")" '[]'
}

digest() { sha256sum <"$1"; }

# damage_block POOL FILE NUMBER: flips a bit of this block of the file, in each place of the pool
# that has its bytes, and prints their number.
damage_block() {
    python3 - "$@" <<'END'
import sys
pool, file, number = sys.argv[1:]
with open(file, "rb") as whole:
    whole.seek(int(number) * 4096)
    block = whole.read(4096)
with open(pool, "r+b") as image:
    found, content = 0, image.read()
    at = content.find(block)
    while at >= 0:
        image.seek(at)
        image.write(bytes([content[at] ^ 1]))
        found, at = found + 1, content.find(block, at + 1)
print(found)
sys.exit(0 if found else "the pool does not have the block")
END
}

# A pool of the test alone, at $SCRATCH, mounted at $SCRATCH_MNT by `mount_scratch`.
SCRATCH=$SUITE_DIR/scratch.img
SCRATCH_MNT=$SUITE_DIR/scratch
# scratch SIZE [OPTION...]
scratch() {
    size=$1
    shift
    mkdir -p "$SCRATCH_MNT"
    on_exit clear_scratch
    must copyhold create "$SCRATCH" --size "$size" "$@" >/dev/null
}

mount_scratch() { mount_with_options "$@" "$SCRATCH" "$SCRATCH_MNT"; }

unmount_scratch() { ! is_mounted "$SCRATCH_MNT" || copyhold umount "$SCRATCH_MNT" >/dev/null; }

clear_scratch() {
    unmount_scratch || return 1
    rm -f "$SCRATCH"
    [ ! -d "$SCRATCH_MNT" ] || rmdir "$SCRATCH_MNT"
}

must_have_sound_scratch() {
    must unmount_scratch
    must copyhold check "$SCRATCH" >/dev/null
}

# A scratch pool with a subvolume `a`, its snapshot `s`, and no room left. The digests of their
# file `old` are $new and $old.
full_scratch() {
    scratch 96M
    must mount_scratch
    must copyhold subvolume create "$SCRATCH_MNT/a" >/dev/null
    must random_file "$SCRATCH_MNT/a/old" 8192
    old=$(digest "$SCRATCH_MNT/a/old")
    must copyhold subvolume snapshot "$SCRATCH_MNT/a" "$SCRATCH_MNT/s" >/dev/null
    must random_file "$SCRATCH_MNT/a/old" 8192
    new=$(digest "$SCRATCH_MNT/a/old")
    must_equal "$(fill "$SCRATCH_MNT/a")" ENOSPC
}

# must_have_room_again DIRECTORY: a third of it, and a write gets it.
must_have_room_again() {
    must copyhold subvolume sync "$SCRATCH_MNT"
    must copyhold sync "$SCRATCH_MNT"
    must [ "$(ask 'it["available_bytes"]' df "$SCRATCH_MNT")" -gt $((32 << 20)) ]
    must random_file "$1/more" 24576
    must_have_sound_scratch
}
