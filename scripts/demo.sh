#!/usr/bin/env bash
# The main job: real programs on a mounted pool whose daemon is killed while they write.
#
# Makes a pool in a file, mounts it, unpacks a real source tree, compiles it, commits it to git,
# runs SQLite and other writers, kills the daemon with SIGKILL, mounts again and verifies every
# promise. Then three tenants share the pool, each in a clone and with a limit (demo_tenants.sh).
# Any failure ends it with a non-zero status; whatever happens, it unmounts and removes what it
# made.
#
#   DEMO_DIR=/var/tmp   where the pool file and the mount point go
#   DEMO_KILLS=3        how often the daemon is killed
#   DEMO_SECONDS=6      how long the writers run before each kill
#   DEMO_ON=directory   the same on a plain directory, without a pool (to try this script)
set -euo pipefail
cd "$(dirname "$0")/.."

DEMO_ON=${DEMO_ON:-pool}
KILLS=${DEMO_KILLS:-3}
SECONDS_EACH=${DEMO_SECONDS:-6}
CLIENTS=(sqlite-wal sqlite-journal files replace scribble)
export PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH" GIT_CONFIG_GLOBAL=/dev/null
export GIT_AUTHOR_NAME=demo GIT_AUTHOR_EMAIL=demo@localhost
export GIT_COMMITTER_NAME=demo GIT_COMMITTER_EMAIL=demo@localhost

now_ms() { echo $((${EPOCHREALTIME/[.,]/} / 1000)); }
BEGAN=$(now_ms)
say() { printf '[%6.1f s] %s\n' "$(($(now_ms) - BEGAN))e-3" "$*"; }
die() { say "FAILED: $*" >&2; exit 1; }
# took NAME COMMAND...: runs it and keeps the milliseconds in TOOK.
took() { local from; from=$(now_ms); "$@"; TOOK=$(($(now_ms) - from)); }
# total CLIENT: how much it was promised so far.
total() { cat "$ACKS/$1" 2>/dev/null | wc -l; }
per_second() { echo $(($1 * 1000 / ($2 > 0 ? $2 : 1))); }

# --- what differs between a pool and a plain directory

fs_build() {
    [ "$DEMO_ON" = pool ] || return 0
    cargo build --release --locked -p copyhold-cli
    COPYHOLD=${CARGO_TARGET_DIR:-target}/release/copyhold
    COPYHOLD=$(realpath "$COPYHOLD")
}
fs_create() { [ "$DEMO_ON" != pool ] || "$COPYHOLD" create "$POOL" --size 4G >/dev/null; }
fs_mount() { [ "$DEMO_ON" != pool ] || "$COPYHOLD" mount --log-file "$LOG" "$POOL" "$MNT"; }
fs_sync() { if [ "$DEMO_ON" = pool ]; then "$COPYHOLD" sync "$MNT"; else sync -f "$MNT"; fi; }
# fs_info PYTHON: runs it with what `copyhold info` says in `info`.
fs_info() {
    "$COPYHOLD" --json info "$MNT" | python3 -c "import json, sys; info = json.load(sys.stdin); $1"
}
fs_kill() {
    if [ "$DEMO_ON" != pool ]; then kill -KILL "${WRITERS[@]}"; return; fi
    local daemon
    daemon=$(fs_info 'print(info["pid"])')
    kill -KILL "$daemon"
}
fs_umount() { [ "$DEMO_ON" != pool ] || "$COPYHOLD" umount "$MNT" >/dev/null; }
fs_check() { [ "$DEMO_ON" != pool ] || "$COPYHOLD" check "$POOL"; }
fs_traffic() {
    [ "$DEMO_ON" = pool ] || return 0
    fs_info '
written = {purpose: count["written_bytes"] / 2**20 for purpose, count in info["counters"].items()}
parts = ", ".join(f"{purpose} {size:.1f}" for purpose, size in written.items() if size)
print(f"written before the last kill: {sum(written.values()):.1f} MiB ({parts})")'
}

# --- set-up, and the way out

fs_build
BEGAN=$(now_ms)
PLACE=$(mktemp -d "${DEMO_DIR:-/var/tmp}/copyhold-demo.XXXXXX")
POOL=$PLACE/pool.img MNT=$PLACE/mnt ACKS=$PLACE/acks LOG=$PLACE/daemon.log OUT=$PLACE/out
mkdir "$MNT" "$ACKS" "$OUT"
WRITERS=()

clean_up() {
    local status=$?
    trap - EXIT INT TERM
    [ ${#WRITERS[@]} = 0 ] || kill -KILL "${WRITERS[@]}" 2>/dev/null || true
    wait 2>/dev/null || true
    if [ "$DEMO_ON" = pool ] && grep -qF " $MNT " /proc/mounts; then
        "$COPYHOLD" umount "$MNT" >/dev/null 2>&1 || "$COPYHOLD" umount --lazy "$MNT" || true
    fi
    if [ $status != 0 ]; then
        tail -n 20 "$LOG" "$OUT"/* 2>/dev/null >&2 || true
        if [ -n "${DEMO_KEEP:-}" ]; then say "kept: $PLACE" >&2; exit $status; fi
    fi
    rm -rf "$PLACE"
    [ $status = 0 ] || say "FAILED (status $status); everything is removed" >&2
    exit $status
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# --- the work

# The packages that this build was made from: real sources, already fetched.
unpack() {
    local package
    mkdir -p "$1"
    for package in "${PACKAGES[@]}"; do tar -xzf "$package" -C "$1" || return 1; done
}

# A C library out of that tree, and a program that uses it.
compile() {
    local source=$1 out=$2 object part
    mkdir -p "$out"
    for part in "$source"/lib/{common,compress,decompress}/*.c; do
        object=$out/$(basename "$part" .c).o
        cc -O1 -fPIC -DZSTD_DISABLE_ASM -c "$part" -o "$object" || return 1
    done
    cc -shared -o "$out/libzstd.so" "$out"/*.o -lpthread
    cc -I"$source/lib" scripts/demo_zstd.c -o "$out/zstd" -L"$out" -lzstd "-Wl,-rpath,$out"
    "$out/zstd" "$source/lib/compress/zstd_compress.c"
}

manifest() {
    cd "$1" && find . -type f -not -path './.git/*' -print0 | sort -z | xargs -0 sha256sum
}

# By default git does not sync loose objects, and it never syncs the directory of the branch. So a
# commit is promised once that is synced, which makes all earlier names durable, too.
SYNCED=(-c core.fsync=all -c core.fsyncMethod=fsync -c gc.auto=0)
commit_forever() {
    local number=0 commit
    while true; do
        number=$((number + 1))
        echo "$number $RANDOM" >>"$MNT/src/notes-$((number % 5)).txt"
        git -C "$MNT/src" "${SYNCED[@]}" add -A . || break
        git -C "$MNT/src" "${SYNCED[@]}" commit -qm "note $number" || break
        commit=$(git -C "$MNT/src" rev-parse HEAD) || break
        sync "$MNT/src/.git/refs/heads" || break
        echo "$commit" >>"$ACKS/git"
    done
    echo "git: ended by an error"
}

compile_forever() {
    while compile "$ZSTD" "$MNT/build-loop"; do :; done
    echo "cc: ended by an error"
}

start_writers() {
    WRITERS=()
    local name
    for name in "${CLIENTS[@]}"; do
        python3 scripts/demo_clients.py run "$name" "$MNT" "$ACKS/$name" >"$OUT/$name" 2>&1 &
        WRITERS+=($!)
    done
    commit_forever >"$OUT/git" 2>&1 &
    WRITERS+=($!)
    compile_forever >"$OUT/cc" 2>&1 &
    WRITERS+=($!)
}

verify() {
    local name result
    for name in "${CLIENTS[@]}"; do
        result=$(python3 scripts/demo_clients.py verify "$name" "$MNT" "$ACKS/$name" 2>&1) ||
            die "$name: $result"
        say "    $name: $result"
    done
    # What git itself leaves behind when it is killed.
    rm -f "$MNT/src/.git/index.lock" "$MNT/src/.git/HEAD.lock" "$MNT"/src/.git/refs/heads/*.lock
    git -C "$MNT/src" fsck --full --no-dangling --no-progress || die "git fsck"
    local commit count=0
    while read -r commit; do
        git -C "$MNT/src" merge-base --is-ancestor "$commit" HEAD || die "commit $commit is lost"
        count=$((count + 1))
    done < <(tail -n 50 "$ACKS/git")
    say "    git: fsck clean, $(total git) acknowledged commits (the last $count looked up)"
    (manifest "$MNT/src") | grep -v ' \./notes-' | cmp -s - "$PLACE/manifest" ||
        die "a source has changed"
    say "    source tree: $(wc -l <"$PLACE/manifest") synced files, all unchanged"
    "$MNT/build/zstd" "$ZSTD/lib/zstd.h" >/dev/null || die "the program that was built here"
}

# shellcheck source=scripts/demo_tenants.sh
. scripts/demo_tenants.sh

NAMES='zstd-sys|zstd|rustix|libc|syn|serde|serde_json|clap|clap_builder|zerocopy|regex-automata'
NAMES="$NAMES|tracing|tracing-subscriber|io-uring|async-lock|parking_lot|uuid|smallvec|getrandom"
mapfile -t PACKAGES < <(find "${CARGO_HOME:-$HOME/.cargo}/registry/cache" -name '*.crate' | sort |
    grep -E "/($NAMES)-[0-9]")
[ ${#PACKAGES[@]} -gt 5 ] || die "cargo's package cache holds too little; run \`cargo fetch\`"

say "a pool of 4 GiB in $POOL"
took fs_create
CREATE_MS=$TOOK
took fs_mount
say "created in $CREATE_MS ms, mounted in $TOOK ms"

say "unpacking ${#PACKAGES[@]} source packages"
took unpack "$MNT/src"
UNPACK_MS=$TOOK
FILES=$(find "$MNT/src" -type f | wc -l) BYTES=$(du -sb "$MNT/src" | cut -f1)
say "$FILES files, $((BYTES >> 20)) MiB in $UNPACK_MS ms"
ZSTD=$(find "$MNT/src" -maxdepth 2 -path '*/zstd-sys-*' -name zstd -type d | head -n 1)
[ -d "$ZSTD" ] || die "no zstd among the packages"

say "compiling the C library among them"
took compile "$ZSTD" "$MNT/build" >"$OUT/compile"
CC_MS=$TOOK
say "$(cat "$OUT/compile"); compiled and run in $CC_MS ms"

say "git init, add, commit"
first_commit() {
    git -C "$MNT/src" init -q
    git -C "$MNT/src" add -A .
    git -C "$MNT/src" -c core.fsync=none -c gc.auto=0 commit -qm "everything"
}
took first_commit
GIT_MS=$TOOK
(manifest "$MNT/src") >"$PLACE/manifest"
took fs_sync
say "committed $FILES files in $GIT_MS ms, synced in $TOOK ms"

RECOVERIES=()
for ((kill = 1; kill <= KILLS; kill++)); do
    say "kill $kill of $KILLS: SQLite, git, cc and others write for $SECONDS_EACH s"
    start_writers
    sleep "$SECONDS_EACH"
    for writer in "${WRITERS[@]}"; do
        kill -0 "$writer" 2>/dev/null || die "a writer ended before the kill; see below"
    done
    TRAFFIC=$(fs_traffic)
    fs_kill
    for writer in "${WRITERS[@]}"; do wait "$writer" 2>/dev/null || true; done
    WRITERS=()
    fs_umount
    took fs_mount
    RECOVERIES+=("$TOOK")
    say "daemon killed; mounted again in $TOOK ms; verifying what was promised"
    verify
done

if [ "$DEMO_ON" = pool ]; then tenants_work; fi
say "one more mount, after a clean umount"
fs_umount
say "checking the pool"
took fs_check
CHECK_MS=$TOOK
fs_mount
verify
if [ "$DEMO_ON" = pool ]; then
    tenants_leave
    fs_umount
    fs_check
else
    fs_umount
fi

UNPACK_RATE=$(($(per_second "$BYTES" "$UNPACK_MS") >> 20))
WROTE_MS=$((KILLS * SECONDS_EACH * 1000))
cat <<END

measured here, with all writers at once on $(nproc) CPUs:
  create              $CREATE_MS ms
  unpack              $(per_second "$FILES" "$UNPACK_MS") files/s, $UNPACK_RATE MiB/s
  git add and commit  $(per_second "$FILES" "$GIT_MS") files/s
  SQLite, WAL         $(per_second "$(total sqlite-wal)" $WROTE_MS) transactions/s
  SQLite, journal     $(per_second "$(total sqlite-journal)" $WROTE_MS) transactions/s
  synced small files  $(per_second "$(total files)" $WROTE_MS) files/s
  synced git commits  $(total git)
  mount after a kill  ${RECOVERIES[*]} ms
  check               $CHECK_MS ms
  clones for tenants  ${CLONE_MS[*]:-none} ms
  work by the second  ${BESIDES:-} (while carol ran away)
  ${TRAFFIC:-}
END
say "all promises held over $KILLS kills; everything is unmounted and removed"
