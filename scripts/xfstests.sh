#!/usr/bin/env bash
# xfstests' generic tests on copyhold, through the helpers that mount(8), mkfs(8) and fsck(8) call.
#
#   XFSTESTS=DIR scripts/xfstests.sh [TEST...]     such as 001 or 013; else all that are quick
#   SUITE=generic     or overlay: overlayfs, with copyhold as the filesystem of all of its layers
#   FIRST=1 LAST=     the lowest and the highest number of those
#   LIMIT=300         seconds until a test counts as hanging
#   OPTIONS=export    options of every mount, such as transport=uring; export is for file handles
#   TEST_SIZE=8G SCRATCH_SIZE=12G
#                     of the two devices: loop devices on files, with room for what is written
#   XFSTESTS_OUT      where results go (/var/tmp/copyhold-xfstests)
#   COPYHOLD          the program; target/release/copyhold unless set
#
# DIR is a tree of xfstests that is already built; nothing is changed in it. As root, with the
# users that its README asks for. Everything is mounted in a mount namespace of its own, which ends
# with this script: the helpers are laid over /sbin there only. The file `results` in XFSTESTS_OUT
# has a line for each test: its number, pass, fail, notrun or hang, and the reason; `out/` has what
# the failing ones said. Exit code 0: all ran, whatever came of them.
set -euo pipefail

if [ "$(id -u)" != 0 ]; then
    echo "xfstests: needs root, to mount and to become other users" >&2
    exit 1
fi
cd "$(dirname "$0")/.."
if [ -z "${XFSTESTS_INSIDE:-}" ]; then
    XFSTESTS_INSIDE=1 exec unshare --mount --propagation slave --pid --fork --kill-child \
        --mount-proc "$0" "$@"
fi
XFSTESTS=$(realpath "${XFSTESTS:?the directory of a built tree of xfstests}")
COPYHOLD=$(realpath "${COPYHOLD:-${CARGO_TARGET_DIR:-target}/release/copyhold}")
SUITE=${SUITE:-generic} FIRST=${FIRST:-1} LAST=${LAST:-9999}
LIMIT=${LIMIT:-300}
if [ "$SUITE" = generic ]; then OPTIONS=${OPTIONS-export}; else OPTIONS=${OPTIONS-}; fi
RC=$PWD/scripts/xfstests_rc.sh
OUT=${XFSTESTS_OUT:-/var/tmp/copyhold-xfstests}
mkdir -p "$OUT/out"
OUT=$(realpath "$OUT")
PLACE=$(mktemp -d "$OUT/run.XXXXXX")
chmod 755 "$PLACE"
LOOPS=()

say() { printf 'xfstests: %s\n' "$*"; }
die() { say "FAILED: $*" >&2; exit 1; }

clean_up() {
    local status=$? mounted
    trap - EXIT INT TERM
    for mounted in "$PLACE/test" "$PLACE/scratch"; do
        while grep -q " $mounted " /proc/self/mountinfo; do umount -l "$mounted" || break; done
    done
    rm -rf "$PLACE"
    exit $status
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
[ -x "$COPYHOLD" ] || die "there is no $COPYHOLD; \`make build\` makes it"
[ -x "$XFSTESTS/src/godown" ] || die "$XFSTESTS is not a built tree of xfstests"

# device NAME SIZE: a loop device on a new file, which goes when the last who has it open does.
device() {
    local loop open
    truncate -s "$2" "$PLACE/$1.img"
    loop=$(losetup --find --show "$PLACE/$1.img")
    LOOPS+=("$loop")
    exec {open}<"$loop"
    losetup -d "$loop"
}

lay_the_helpers() {
    local sbin verb kind
    sbin=$(realpath /sbin)
    mkdir "$PLACE/sbin"
    for verb in mount mkfs fsck; do
        for kind in copyhold fuse.copyhold fuseblk.copyhold; do
            ln -s "$COPYHOLD" "$PLACE/sbin/$verb.$kind"
        done
    done
    mount -t overlay overlay -o "lowerdir=$PLACE/sbin:$sbin" "$sbin"
}

# Our words behind theirs, and where everything is.
configure() {
    local file
    for file in rc attr; do
        cat "$XFSTESTS/common/$file" >"$PLACE/$file"
        printf '. %q\n' "$RC" >>"$PLACE/$file"
        mount --bind "$PLACE/$file" "$XFSTESTS/common/$file"
    done
    mkdir "$PLACE/test" "$PLACE/scratch" "$PLACE/results"
    cat >"$PLACE/config" <<END
export FSTYP=fuseblk.copyhold
export TEST_DEV=${LOOPS[0]} TEST_DIR=$PLACE/test
export SCRATCH_DEV=${LOOPS[1]} SCRATCH_MNT=$PLACE/scratch
export RESULT_BASE=$PLACE/results
# Tests that make a filesystem where there is one; 740, which expects a refusal, does not use it.
export MKFS_OPTIONS=-f
# In a namespace of processes, /proc/locks leaves out what ended: 504 looks at the outer one.
export FSTESTS_ISOL=privatens
END
    if [ -n "$OPTIONS" ]; then
        echo "export MOUNT_OPTIONS='-o $OPTIONS' TEST_FS_MOUNT_OPTS='-o $OPTIONS'" >>"$PLACE/config"
    fi
}

# Behind a run that was broken off: the test device is as the next one wants it.
make_ready() {
    local mounted
    for mounted in "$PLACE/test" "$PLACE/scratch"; do
        if ! timeout 20 stat -f "$mounted" >/dev/null 2>&1; then
            umount -l "$mounted" || true
        fi
    done
    if ! fsck -t fuseblk.copyhold -n "${LOOPS[0]}" >/dev/null 2>&1 &&
        ! mountpoint -q "$PLACE/test"; then
        mkfs -t fuseblk.copyhold -f "${LOOPS[0]}"
    fi
}

# What every thread here waits for.
stacks() {
    local process thread
    for process in /proc/[0-9]*; do
        printf '%s: %s\n' "$process" "$(tr '\0' ' ' <"$process/cmdline" 2>/dev/null)"
        for thread in "$process"/task/*; do
            printf '  %s %s\n' "$(cat "$thread/comm" 2>/dev/null)" "${thread##*/}"
            sed 's/^/    /' "$thread/stack" 2>/dev/null || true
        done
    done
}

# An end to the mounts, one in another as well, and so to what waits for them: all daemons that are
# seen from here are ours, and without them the kernel fails whatever waits.
break_off() {
    local mounted device
    pkill -KILL -f '^[^ ]*/mount\.[a-z.]*copyhold ' || true
    losetup --list --noheadings --output NAME,BACK-FILE |
        awk -v at="$PLACE/" 'index($2, at) == 1 && index($2, at "test.img") != 1 &&
            index($2, at "scratch.img") != 1 { print $1 }' |
        while read -r device; do losetup -d "$device" || true; done
    awk -v at="$PLACE/" 'index($5, at "test") == 1 || index($5, at "scratch") == 1 {
        print length($5), $5 }' /proc/self/mountinfo | sort -rn | cut -d ' ' -f 2 |
        while read -r mounted; do umount -l "$mounted" || true; done
}

# What `check` said of each test, as lines of `results`: a test that passes has one line that ends
# with its seconds.
summarize() {
    awk '
        function flush() {
            if (number == "") return
            what = "fail"
            if (sub(/^\[not run\] */, "", reason)) what = "notrun"
            else if (lines == 1 && sub(/^([0-9]+s \.\.\. *)?[0-9]+s$/, "", reason)) what = "pass"
            printf "%s\t%s\t%s\n", number, what, reason
            number = ""
        }
        /^[a-z]+\/[0-9]+/ {
            flush()
            number = $1; sub(/.*\//, "", number); lines = 1
            reason = $0; sub(/^[^ ]+ +/, "", reason); sub(/ *\(see .*/, "", reason)
            next
        }
        /^(Ran|Not run|Failures|Failed|Passed): / || /^Interrupted/ { flush() }
        number != "" && NF { lines++ }
        number != "" && /^    [-+][^-+]/ && ++said[number] <= 3 { reason = reason "; " $0 }
        END { flush() }
    ' "$1" | tr -s ' '
}

# run_from NUMBER...: one run of `check`, until it ends or a test hangs; says how many it did.
run_from() {
    local said=$OUT/check.$1 child current last='' since=$SECONDS hanging=
    local names=("${@/#/$SUITE/}") how=()
    if [ "$SUITE" = overlay ]; then how=(-overlay); fi
    ( cd "$XFSTESTS" && HOST_OPTIONS=$PLACE/config exec setsid ./check "${how[@]}" "${names[@]}" ) \
        >"$said" 2>&1 </dev/null &
    child=$!
    while kill -0 $child 2>/dev/null; do
        sleep 1
        current=$(grep -aoE "^$SUITE/[0-9]+" "$said" | tail -n 1 || true)
        if [ "$current" != "$last" ]; then
            last=$current since=$SECONDS
            say "$last"
        elif [ $((SECONDS - since)) -gt "$LIMIT" ]; then
            hanging=${last#*/}
            stacks >"$OUT/out/$hanging.stacks"
            # shellcheck disable=SC2046 # numbers
            kill -KILL $(ps -o pid= -s $child) 2>/dev/null || true
            break_off
        fi
    done
    wait $child || true
    summarize "$said" | while IFS=$'\t' read -r number what reason; do
        if [ "$number" = "$hanging" ]; then what=hang reason="still running after $LIMIT s"; fi
        case $what in fail | hang) keep "$number" ;; esac
        printf '%s\t%s\t%s\n' "$number" "$what" "$reason"
    done >"$PLACE/lines"
    cat "$PLACE/lines" >>"$OUT/results"
    DID=$(wc -l <"$PLACE/lines")
}

keep() {
    local found
    for found in full out.bad dmesg hints; do
        cp "$PLACE/results/$SUITE/$1.$found" "$OUT/out/" 2>/dev/null || true
    done
}

device test "${TEST_SIZE:-8G}"
device scratch "${SCRATCH_SIZE:-12G}"
lay_the_helpers
configure
mkfs -t fuseblk.copyhold "${LOOPS[0]}"
# Under overlayfs the tests make no filesystems.
mkfs -t fuseblk.copyhold "${LOOPS[1]}"
if [ $# = 0 ]; then
    # shellcheck disable=SC2046 # numbers
    set -- $(awk -v first="$FIRST" -v last="$LAST" \
        '$1 + 0 >= first && $1 + 0 <= last && / quick( |$)/ { print $1 }' \
        "$XFSTESTS/tests/$SUITE/group.list")
    : >"$OUT/results"
fi
# shellcheck disable=SC2046 # numbers
set -- $(printf '%s\n' "$@" | sort -u)
while [ $# != 0 ]; do
    run_from "$@"
    [ "$DID" != 0 ] || die "xfstests does not begin: see $OUT/check.$1"
    shift "$DID"
    make_ready
done
say "$(cut -f 2 "$OUT/results" | sort | uniq -c | tr -s ' \n' ' ')"
