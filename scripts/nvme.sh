#!/usr/bin/env bash
# Pools on NVMe namespaces with protection information: a guest under QEMU, whose emulated drive
# has them; neither KVM nor a drive is needed, nor root.
#
#   scripts/nvme.sh           a namespace of each format of scripts/nvme/formats, two boots
#   scripts/nvme.sh short     the first three of them
#   scripts/nvme.sh fetch     the guest's kernel alone, for a run without a network later
#   MAY_NOT_RUN=1             no failure if QEMU hangs before the guest's kernel says a word
#   COPYHOLD, NVME_BLOCKS     the programs; built in debug mode unless set
#   NVME_OUT                  where images, logs and the kernel's package go (target/nvme)
#
# The first boot writes blocks in each way, makes and fills a pool on each format, and is told of
# namespaces that cannot be used. Then this script compares the drive's tuples with those of the
# crate `device`, and flips bits in the images. The second boot finds each of them.
#
# The guest's processor is emulated and slow: no result depends on a time. A guest hangs if its
# console is silent for long by the clock of QEMU's own work: seconds that QEMU has computed, or
# in which all its threads slept. A machine that is busy with other work counts nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

TARGET=${CARGO_TARGET_DIR:-target}
OUT=${NVME_OUT:-$TARGET/nvme}
# Seconds of silence before the first program of the guest runs, where a start takes 3, and later.
SILENT_START=45 SILENT_STEP=240
# Starts of a guest that runs no program.
TRIES=4
COUNT=$([ "${1:-}" = short ] && echo 3 || echo 99)
export PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH:/usr/sbin:/sbin"
say() { printf 'nvme: %s\n' "$*"; }
die() { say "FAILED: $*" >&2; exit 1; }
mkdir -p "$OUT"
OUT=$(realpath "$OUT")

# The guest that runs; it is ended with this script.
GUEST=
trap '[ -z "$GUEST" ] || kill -KILL "$GUEST" 2>/dev/null || true' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# Of the whole workspace: what `make test` or `make examples` has compiled is not compiled again.
programs() {
    if [ -z "${COPYHOLD:-}" ] || [ -z "${NVME_BLOCKS:-}" ]; then
        cargo build --workspace --locked --bin copyhold --example nvme_blocks
    fi
    COPYHOLD=${COPYHOLD:-$TARGET/debug/copyhold}
    NVME_BLOCKS=${NVME_BLOCKS:-$TARGET/debug/examples/nvme_blocks}
}

# --- the guest: a kernel of the distribution, unpacked, and a few programs in an initramfs

# find_kernel: prints its path, or nothing if no package was unpacked yet.
find_kernel() { find "$OUT/kernel/boot" -name 'vmlinuz-*' -print -quit 2>/dev/null || true; }

kernel() {
    KERNEL=$(find_kernel)
    # An unpacking that was interrupted may have left a kernel without modules.
    if [ -n "$KERNEL" ] && [ -n "$(find "$OUT/kernel" -name 'fuse.ko*' -print -quit)" ]; then
        return 0
    fi
    say "fetching a kernel"
    if ! fetch_package; then
        say "apt knows no such package, or an old one: updating its lists"
        apt-get -qq update || say "apt-get update failed; trying what apt knows"
        fetch_package || die "the guest's kernel cannot be fetched: apt-get finds no" \
            "linux-image-cloud-amd64; see its messages above, or unpack one to $OUT/kernel"
    fi
    # A directory of this name is whole.
    rm -rf "$OUT/kernel.part" "$OUT/kernel"
    dpkg-deb -x "$OUT"/package/*.deb "$OUT/kernel.part" || die "$OUT/package cannot be unpacked"
    find_module "$OUT/kernel.part" >/dev/null
    mv "$OUT/kernel.part" "$OUT/kernel"
    KERNEL=$(find_kernel)
    [ -n "$KERNEL" ] || die "there is no kernel in the package in $OUT/package"
}
# fetch_package: the kernel's package, and no other one, in a directory.
fetch_package() {
    local package
    package=$(apt-cache depends linux-image-cloud-amd64 2>/dev/null |
        sed -n 's/.*Depends: //p' | head -n 1)
    [ -n "$package" ] || return 1
    rm -rf "$OUT/package"
    mkdir -p "$OUT/package"
    (cd "$OUT/package" && apt-get -qq download "$package")
}
# find_module DIRECTORY: prints the path of the module that the guest needs.
find_module() {
    local module
    module=$(find "$1" -name fuse.ko -o -name fuse.ko.xz | head -n 1)
    [ -n "$module" ] || die "there is no fuse.ko, and no fuse.ko.xz, in $1"
    echo "$module"
}

# with_libraries NAME PROGRAM: copies it into the guest's root, with the libraries that it loads.
with_libraries() {
    local name=$1 library
    shift
    install -D "$1" "$ROOT/bin/$name"
    strip "$ROOT/bin/$name"
    for library in $(ldd "$1" | grep -o '/[^ ]*'); do
        install -D "$library" "$ROOT$library"
    done
}

initramfs() {
    ROOT=$(mktemp -d "$OUT/root.XXXXXX")
    mkdir -p "$ROOT"/{bin,dev,proc,sys,mnt,tmp}
    cp "$(command -v busybox)" "$ROOT/bin/busybox"
    with_libraries copyhold "$COPYHOLD"
    with_libraries nvme_blocks "$NVME_BLOCKS"
    local module
    module=$(find_module "$OUT/kernel")
    case $module in
    *.xz) xz -dc "$module" >"$ROOT/fuse.ko" || die "$module cannot be unpacked; is xz there?" ;;
    *) cp "$module" "$ROOT/fuse.ko" ;;
    esac
    cp scripts/nvme/init "$ROOT/init"
    cp "$OUT/namespaces" "$ROOT/namespaces"
    chmod +x "$ROOT/init"
    (cd "$ROOT" && find . | cpio -o -H newc --quiet) >"$OUT/initrd"
    rm -rf "$ROOT"
}

# --- namespaces: two of each format, one for blocks and one for a pool, and unusable ones

# The drive of the second boot gives another number to the namespace that has the first of these.
BEFORE=eui64=$((0x525400c0df01))
SINCE=eui64=$((0x525400c0df02))
# identity NUMBER: the number that the drive gives to this namespace, or none.
identity() {
    case $(($1 % 3)) in
    0) echo ",eui64=$((0x525400c0de00 + $1))" ;;
    # QEMU draws a UUID at each start, which counts for nothing.
    1) ;;
    2) echo ",uuid=00000000-0000-0000-0000-000000000000" ;;
    esac
}

DEVICES=()
add() { # add PURPOSE MIB 'FORMAT MODE' OPTIONS
    local number image unique
    number=$((${#DEVICES[@]} / 4 + 1))
    image=$OUT/$number.img
    unique=$(identity $((10 + number)))
    case $4 in *eui64=*) unique= ;; esac
    rm -f "$image"
    truncate -s "$2M" "$image"
    echo "$1 $number $3" >>"$OUT/namespaces"
    DEVICES+=(-drive "file=$image,if=none,format=raw,id=d$number,discard=unmap"
        -device "nvme-ns,bus=c0,drive=d$number,nsid=$number,$4$unique")
}

namespaces() {
    local format mode options
    : >"$OUT/namespaces"
    while read -r format mode options; do
        add blocks 8 "$format" "$options"
        add pool 64 "$format $mode" "$options"
    done < <(grep -v '^#' scripts/nvme/formats | head -n "$COUNT")
    local base=logical_block_size=4096,physical_block_size=4096
    add refused 8 "has_no_metadata" "$base"
    add refused 8 "but_no_protection_information" "$base,ms=8,pi=0"
    add refused 8 "extended_blocks" "$base,ms=8,pi=1,mset=1"
    add renewed 64 "4096+8:16b:type1:last" "$base,ms=8,pi=1,$BEFORE"
}

# boot STEP: runs the guest to its end, and shows its results.
boot() {
    local log=$OUT/boot$1.log begin=$SECONDS status try
    for try in $(seq "$TRIES"); do
        status=0
        run "$1" "$log" || status=$?
        if has_begun "$log"; then break; fi
        say "boot $1: no program has run, try $try of $TRIES; the console ends with:"
        tr -d '\r' <"$log" | tail -n 3
        cp "$log" "$log.hung$try"
    done
    results "$log"
    if [ "$1" = 1 ] && [ -n "${MAY_NOT_RUN:-}" ] && [ "$HUNG" = yes ] && ! has_kernel "$log"; then
        say "NOT RUN: QEMU has not started the guest's kernel; see $log"
        exit 0
    fi
    if ! grep -q '^| all is as it must be' "$log"; then
        tail -n 30 "$log"
        die "boot $1 (status $status), see $log"
    fi
    say "boot $1: $((SECONDS - begin)) s"
}
results() { tr -d '\r' <"$1" | grep '^| ' || true; }
has_begun() { grep -q '^| ' "$1"; }
has_kernel() { has_begun "$1" || grep -q 'Linux version' "$1"; }

# run STEP LOG: one guest, until it ends or hangs. Its firmware is qboot. With SeaBIOS, the usual
# one of QEMU, a start on a busy machine now and then ended behind `Booting from ROM`, with the
# processor in real mode at address 0, before the kernel had said anything.
run() {
    local status=0 devices=("${DEVICES[@]}")
    if [ "$1" = 2 ]; then devices=("${devices[@]/$BEFORE/$SINCE}"); fi
    : >"$2"
    qemu-system-x86_64 -machine q35,accel=tcg -bios qboot.rom -cpu max -m 640 -smp 1 \
        -nodefaults -no-user-config -display none -no-reboot \
        -kernel "$KERNEL" -initrd "$OUT/initrd" -serial stdio \
        -append "console=ttyS0 loglevel=7 panic=-1 step=$1" \
        -device nvme,id=c0,serial=copyhold "${devices[@]}" >"$2" 2>&1 </dev/null &
    GUEST=$!
    watch "$GUEST" "$2"
    wait "$GUEST" || status=$?
    GUEST=
    return "$status"
}

# watch GUEST LOG: returns when the guest has ended, or ends it when it hangs, and sets HUNG.
watch() {
    HUNG=no
    local shown=-1 size now worked=0 slept=0 limit
    while kill -0 "$1" 2>/dev/null; do
        size=$(stat -c %s "$2")
        now=$(seconds_worked "$1")
        if [ "$size" != "$shown" ]; then shown=$size worked=$now slept=0; fi
        if sleeps "$1"; then slept=$((slept + 1)); fi
        limit=$SILENT_START
        if has_begun "$2"; then limit=$SILENT_STEP; fi
        if [ "$((now - worked))" -ge "$limit" ] || [ "$slept" -ge "$limit" ]; then
            say "the guest is silent: QEMU has computed $((now - worked)) s, and slept $slept s"
            HUNG=yes
            end "$1"
            return
        fi
        sleep 1
    done
}
# end PROCESS: ends it, and does not wait for it for long.
end() {
    kill "$1" 2>/dev/null || return 0
    local second
    for second in $(seq 10); do
        kill -0 "$1" 2>/dev/null || return 0
        sleep 1
    done
    say "QEMU has not ended in $second s, and is killed"
    kill -KILL "$1" 2>/dev/null || true
}
# Seconds of processor time of a process.
seconds_worked() {
    local ticks
    ticks=$(sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | awk '{ print $12 + $13 }') || true
    echo $((${ticks:-0} / $(getconf CLK_TCK)))
}
# Whether no thread of a process runs, waits for a processor, or waits for a disk.
sleeps() { ! cat /proc/"$1"/task/*/stat 2>/dev/null | sed 's/.*) //' | grep -q '^[RD]'; }

# each PURPOSE COMMAND...: calls it with the format and the image of each such namespace.
each() {
    local purpose=$1 kind number format _
    shift
    while read -r kind number format _; do
        if [ "$kind" = "$purpose" ]; then "$@" "$format" "$OUT/$number.img"; fi
    done <"$OUT/namespaces"
}
flip_file() { "$NVME_BLOCKS" flip "block 7 of a file" "$2"; }

for program in qemu-system-x86_64 busybox cpio; do
    command -v "$program" >/dev/null || die "no $program here; run scripts/setup.sh nvme"
done
kernel
[ "${1:-}" != fetch ] || exit 0
programs
namespaces
initramfs
boot 1
each blocks "$NVME_BLOCKS" compare
each blocks "$NVME_BLOCKS" damage
each pool flip_file
boot 2
say "all formats are as they must be"
