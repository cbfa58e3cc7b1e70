#!/usr/bin/env bash
# Other people's suites and programs on a mount, as root. Each part gets a fresh pool, which is
# verified behind it.
#
#   scripts/acceptance.sh [PART...]     all of them unless some are named
#
#   pjdfstest   what POSIX says of names, modes, times and errors
#   fsx         random reads, writes, maps, truncations, holes and copies of one file
#   clone       the same in a clone, whose family changes
#   postgres    transactions, while the daemon is killed
#   git         clone, gc, fsck, and the same bytes as elsewhere
#   build       a project of many crates, compiled by cargo; its tests run
#   container   containers that runc starts from clones of one root
#   dbench      what clients of a file server do
#   overlay     overlayfs over layers on a mount, compared with layers on ext4
#   stress      the filesystem stressors of stress-ng, which verify what they do
#
#   OPS=100000        operations of fsx for each configuration and seed
#   SEEDS="1 2"       its seeds
#   KILLS=3           how often the daemon is killed under PostgreSQL
#   TIME=10           seconds before each kill, for each number of clients, for each stressor
#   OPTIONS=          what to mount with, such as transport=uring
#   ACCEPTANCE_DIR    where the suites are built and pools are made (/var/tmp/copyhold-acceptance)
#   COPYHOLD          the program; target/release/copyhold unless set
#
# Everything is mounted in a mount namespace of its own, which ends with this script; what mount(8)
# needs for `-o remount`, a helper in /sbin, is laid over /sbin there only.
set -euo pipefail

PARTS=(pjdfstest fsx clone postgres git build container dbench overlay stress)

if [ "$(id -u)" != 0 ]; then
    echo "acceptance: needs root, to mount and to become other users" >&2
    exit 1
fi
if [ -z "${ACCEPTANCE_INSIDE:-}" ]; then
    ACCEPTANCE_INSIDE=1 exec unshare --mount --propagation private "$0" "$@"
fi
cd "$(dirname "$0")/.."
export PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
OPS=${OPS:-100000} SEEDS=${SEEDS:-1 2} KILLS=${KILLS:-3} TIME=${TIME:-10} OPTIONS=${OPTIONS:-}
COPYHOLD=$(realpath "${COPYHOLD:-${CARGO_TARGET_DIR:-target}/release/copyhold}")
DIR=${ACCEPTANCE_DIR:-/var/tmp/copyhold-acceptance}
mkdir -p "$DIR"
PLACE=$(mktemp -d "$DIR/run.XXXXXX")
chmod 755 "$PLACE" # for other users, which cases become
POOL=$PLACE/pool.img MNT=$PLACE/mnt
CHILDREN=()

say() { printf 'acceptance: %s\n' "$*"; }
die() { say "FAILED: $*" >&2; exit 1; }

clean_up() {
    local status=$?
    trap - EXIT INT TERM
    [ ${#CHILDREN[@]} = 0 ] || kill -KILL "${CHILDREN[@]}" 2>/dev/null || true
    wait || true
    if mountpoint -q "$MNT" || grep -qF " $MNT " /proc/mounts; then
        "$COPYHOLD" umount "$MNT" >/dev/null 2>&1 || "$COPYHOLD" umount --lazy "$MNT" || true
    fi
    if [ $status = 0 ]; then rm -rf "$PLACE"; else say "kept: $PLACE" >&2; fi
    exit $status
}
trap clean_up EXIT
[ -x "$COPYHOLD" ] || die "there is no $COPYHOLD; \`make build\` makes it"
trap 'exit 130' INT
trap 'exit 143' TERM

mount_pool() {
    "$COPYHOLD" mount ${OPTIONS:+-o "$OPTIONS"} --log-file "$PLACE/daemon.log" "$POOL" "$MNT"
}

begin() {
    mkdir -p "$MNT"
    "$COPYHOLD" create "$POOL" --size 4G >/dev/null
    mount_pool
}

# Unmounts, and verifies the whole pool.
finish() {
    "$COPYHOLD" umount "$MNT" >/dev/null
    "$COPYHOLD" check "$POOL" || die "the pool is damaged"
    rm "$POOL"
}

# As a crash of the daemon; who was writing gets errors.
kill_daemon() {
    local pid
    pid=$("$COPYHOLD" --json info "$MNT" |
        python3 -c 'import json, sys; print(json.load(sys.stdin)["pid"])')
    kill -KILL "$pid"
}

# Behind that: what is on the device is whole, recovered or not.
recover() {
    "$COPYHOLD" umount "$MNT" >/dev/null
    "$COPYHOLD" check "$POOL" || die "the pool is damaged by the kill"
    mount_pool
}

for file in suites databases programs overlay loads; do
    # shellcheck source=/dev/null
    . "scripts/acceptance/$file.sh"
done

[ $# != 0 ] || set -- "${PARTS[@]}"
for part in "$@"; do
    case " ${PARTS[*]} " in
    *" $part "*) ;;
    *) die "unknown part '$part'; use ${PARTS[*]}" ;;
    esac
done
for part in "$@"; do "run_$part"; done
say "all of it passes"
