# shellcheck shell=bash
# Suites that others wrote to find faults in filesystems; acceptance.sh reads this and calls
# `run_pjdfstest`, `run_fsx` and `run_clone`.
#
# They come from crates.io, are built outside the source tree and stay there for the next run.

PJDFSTEST=0.2.2
FSX=0.3.2
# The 13 cases that remount, which have a run of their own, and link_count_max: it asks for fewer
# links than a file may have here. On btrfs and ext4 the same.
SKIPS_MAX=14

# suite NAME VERSION: builds it unless it is there.
suite() {
    local stamp=$DIR/suites/$1-$2
    if [ ! -e "$stamp" ]; then
        say "building $1 $2"
        CARGO_TARGET_DIR=$DIR/build cargo install --quiet --locked "$1" --version "$2" \
            --root "$DIR/suites" --force
        touch "$stamp"
    fi
}

# --- pjdfstest

# pjdfstest_in DIRECTORY REMOUNT PATTERN...: no failure and few skips. It runs under a short path,
# since the whole path of a socket has 107 bytes at most, but where cases remount.
pjdfstest_in() {
    local out=$PLACE/pjdfstest.out skipped directory=$1 at=$1 failed=false
    cat >"$PLACE/pjdfstest.toml" <<EOF
[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}
[settings]
naptime = 0.01
allow_remount = $2
[dummy_auth]
entries = [["nobody", "nogroup"], ["games", "games"]]
EOF
    if [ "$2" = false ]; then
        at=$(mktemp -d /tmp/XXX)
        mount --bind "$directory" "$at"
    fi
    shift 2
    "$DIR/suites/bin/pjdfstest" -c "$PLACE/pjdfstest.toml" -p "$at" \
        -s "$PLACE/second" "$@" >"$out" 2>&1 || failed=true
    if [ "$at" != "$directory" ]; then
        umount "$at"
        rmdir "$at"
    fi
    if $failed; then
        grep -aE '^[a-z0-9_:]+ +FAILED' "$out" >&2 || tail -n 20 "$out" >&2
        die "pjdfstest $* in $directory; all it said is in $out"
    fi
    skipped=$(grep -acE '^[a-z0-9_:]+ +skipped' "$out" || true)
    say "pjdfstest $* in ${directory#"$PLACE"/}: $(grep -a '^Summary:' "$out" || tail -n 1 "$out")"
    [ "$skipped" -le $SKIPS_MAX ] || die "$skipped cases were skipped"
}

run_pjdfstest() {
    local directory sbin
    suite pjdfstest $PJDFSTEST
    begin
    mkdir "$PLACE/second" "$PLACE/sbin"
    mount -t tmpfs tmpfs "$PLACE/second"
    sbin=$(realpath /sbin)
    ln -s "$COPYHOLD" "$PLACE/sbin/mount.fuse.copyhold"
    mount -t overlay overlay -o "lowerdir=$PLACE/sbin:$sbin" "$sbin"
    "$COPYHOLD" subvolume create "$MNT/subvolume" >/dev/null
    mkdir "$MNT/plain" "$MNT/subvolume/in"
    "$COPYHOLD" subvolume snapshot "$MNT/subvolume" "$MNT/clone" >/dev/null
    for directory in "$MNT/plain" "$MNT/subvolume/in" "$MNT/clone/in"; do
        pjdfstest_in "$directory" false
        # Alone: a case of before may still hold a file open for writing, which no read-only
        # remount on any filesystem survives.
        pjdfstest_in "$directory" true erofs
    done
    umount "$sbin" "$PLACE/second"
    finish
}

# --- fsx

# fsx_configuration NAME: a file of 256 KiB with operations of any length; the same without an
# msync behind each mapped write; a file of 8 MiB; and one whose operations are whole blocks (fsx
# then asks for allocations of no length, so none).
fsx_configuration() {
    local file=262144 most=65536 align=1 fallocate=2 lazy=false invalidate=1 fsync=0.3
    case $1 in
    lazy) lazy=true invalidate=0 fsync=0.1 ;;
    large) file=8388608 most=524288 ;;
    aligned) file=4194304 align=4096 fallocate=0 ;;
    esac
    cat >"$PLACE/$1.toml" <<EOF
flen = $file
nomsyncafterwrite = $lazy
[opsize]
max = $most
align = $align
[weights]
close_open = 1
read = 10
write = 10
mapread = 10
mapwrite = 10
invalidate = $invalidate
truncate = 5
fsync = $fsync
fdatasync = $fsync
posix_fallocate = $fallocate
punch_hole = 5
sendfile = 3
posix_fadvise = 2
copy_file_range = 5
EOF
}

# fsx_on FILE CONFIGURATION SEED OPERATIONS
fsx_on() {
    local out=$PLACE/fsx.$2.$3.out
    fsx_configuration "$2"
    if ! "$DIR/suites/bin/fsx" -f "$PLACE/$2.toml" -S "$3" -N "$4" -P "$PLACE" "$1" >"$out" 2>&1
    then
        head -n 3 "$out" >&2
        die "fsx $2, seed $3, in $1; all it said is in $out"
    fi
    say "fsx $2, seed $3, in ${1#"$MNT"/}: $4 operations"
}

run_fsx() {
    local seed
    suite fsx $FSX
    begin
    for seed in $SEEDS; do
        fsx_on "$MNT/file" lazy "$seed" "$OPS"
        fsx_on "$MNT/file" all "$seed" $((OPS / 4))
        fsx_on "$MNT/file" large "$seed" $((OPS / 4))
        fsx_on "$MNT/file" aligned "$seed" $((OPS / 4))
    done
    finish
}

# --- fsx in a clone, in a family that changes

# Snapshots of the clone are made, overwritten and deleted as long as it runs; so what fsx reads
# was shared with somebody a moment ago. The origin is overwritten, then deleted.
disturb() {
    local round origin=$MNT/origin clone=$MNT/clone
    for ((round = 0; ; round++)); do
        "$COPYHOLD" subvolume snapshot "$clone" "$MNT/s$round" >/dev/null
        dd if=/dev/urandom of="$MNT/s$round/file" bs=64k count=2 seek=$((round % 3)) \
            conv=notrunc status=none
        if [ -d "$origin" ]; then
            dd if=/dev/urandom of="$origin/file" bs=64k count=1 seek=$((round % 4)) \
                conv=notrunc status=none
            [ $round != 20 ] || "$COPYHOLD" subvolume delete "$origin" >/dev/null
        fi
        [ $round -lt 5 ] || "$COPYHOLD" subvolume delete "$MNT/s$((round - 5))" >/dev/null
        sleep 0.1
    done
}

run_clone() {
    local seed disturber
    suite fsx $FSX
    for seed in $SEEDS; do
        begin
        "$COPYHOLD" subvolume create "$MNT/origin" >/dev/null
        dd if=/dev/urandom of="$MNT/origin/file" bs=64k count=4 status=none
        "$COPYHOLD" subvolume snapshot "$MNT/origin" "$MNT/clone" >/dev/null
        disturb &
        disturber=$!
        CHILDREN=("$disturber")
        fsx_on "$MNT/clone/file" lazy "$seed" "$OPS"
        kill "$disturber" 2>/dev/null || die "what changes the family failed"
        wait "$disturber" || true
        CHILDREN=()
        [ ! -d "$MNT/origin" ] || say "too few operations: the origin was not deleted"
        finish
    done
}
