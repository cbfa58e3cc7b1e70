#!/usr/bin/env bash
# Pools on NVMe namespaces with protection information: a guest under QEMU, whose emulated drive
# has them; neither KVM nor a drive is needed, nor root.
#
#   scripts/nvme.sh           a namespace of each format of scripts/nvme/formats, two boots
#   scripts/nvme.sh short     the first three of them
#   LIMIT=900 START=90        seconds until a boot counts as hanging, and before its first result
#   COPYHOLD, NVME_BLOCKS     the programs; built in debug mode unless set
#   NVME_OUT                  where images, logs and the kernel's package go (target/nvme)
#
# The first boot writes blocks in each way, makes and fills a pool on each format, and is told of
# namespaces that cannot be used. Then this script compares the drive's tuples with those of the
# crate `device`, and flips bits in the images. The second boot finds each of them.
#
# The guest's processor is emulated and slow: no result depends on a time.
set -euo pipefail
cd "$(dirname "$0")/.."

TARGET=${CARGO_TARGET_DIR:-target}
OUT=${NVME_OUT:-$TARGET/nvme}
LIMIT=${LIMIT:-900} START=${START:-90}
COUNT=$([ "${1:-}" = short ] && echo 3 || echo 99)
export PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH:/usr/sbin:/sbin"
say() { printf 'nvme: %s\n' "$*"; }
die() { say "FAILED: $*" >&2; exit 1; }

if [ -z "${COPYHOLD:-}" ]; then cargo build --locked -p copyhold-cli; fi
COPYHOLD=${COPYHOLD:-$TARGET/debug/copyhold}
if [ -z "${NVME_BLOCKS:-}" ]; then
    cargo build --locked -p copyhold-device --example nvme_blocks
fi
NVME_BLOCKS=${NVME_BLOCKS:-$TARGET/debug/examples/nvme_blocks}
mkdir -p "$OUT"
OUT=$(realpath "$OUT")

# --- the guest: a kernel of the distribution, unpacked, and a few programs in an initramfs

# find_kernel: prints its path, or nothing if no package was unpacked yet.
find_kernel() { find "$OUT/kernel/boot" -name 'vmlinuz-*' -print -quit 2>/dev/null || true; }

kernel() {
    KERNEL=$(find_kernel)
    [ -z "$KERNEL" ] || return 0
    local package
    package=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/.*Depends: //p' | head -n 1)
    say "fetching $package"
    # One package alone is unpacked.
    rm -rf "$OUT/package" "$OUT/kernel"
    mkdir -p "$OUT/package"
    (cd "$OUT/package" && apt-get -qq download "$package")
    dpkg-deb -x "$OUT"/package/*.deb "$OUT/kernel"
    KERNEL=$(find_kernel)
    [ -n "$KERNEL" ] || die "no kernel in $package"
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
    cp "$(find "$OUT/kernel" -name fuse.ko)" "$ROOT/fuse.ko"
    cp scripts/nvme/init "$ROOT/init"
    cp "$OUT/namespaces" "$ROOT/namespaces"
    chmod +x "$ROOT/init"
    (cd "$ROOT" && find . | cpio -o -H newc --quiet) >"$OUT/initrd"
    rm -rf "$ROOT"
}

# --- namespaces: two of each format, one for blocks and one for a pool, and unusable ones

DEVICES=()
add() { # add PURPOSE MIB FORMAT OPTIONS
    local number image
    number=$((${#DEVICES[@]} / 4 + 1))
    image=$OUT/$number.img
    rm -f "$image"
    truncate -s "$2M" "$image"
    echo "$1 $number $3" >>"$OUT/namespaces"
    DEVICES+=(-drive "file=$image,if=none,format=raw,id=d$number,discard=unmap"
        -device "nvme-ns,bus=c0,drive=d$number,nsid=$number,$4")
}

namespaces() {
    local format options
    : >"$OUT/namespaces"
    while read -r format options; do
        add blocks 8 "$format" "$options"
        add pool 64 "$format" "$options"
    done < <(grep -v '^#' scripts/nvme/formats | head -n "$COUNT")
    local base=logical_block_size=4096,physical_block_size=4096
    add refused 8 "has_no_metadata" "$base"
    add refused 8 "but_no_protection_information" "$base,ms=8,pi=0"
    add refused 8 "extended_blocks" "$base,ms=8,pi=1,mset=1"
}

# boot STEP: runs the guest to its end, and shows its results.
boot() {
    local log=$OUT/boot$1.log begin=$SECONDS status=0 try
    for try in 1 2 3; do
        status=0
        run "$1" "$log" || status=$?
        # An emulated processor stands still now and then before the kernel runs any program.
        if grep -q '^| ' "$log"; then break; fi
        say "boot $1: the guest has not begun, try $try"
    done
    tr -d '\r' <"$log" | grep '^| ' || true
    if ! grep -q '^| all is as it must be' "$log"; then
        tail -n 30 "$log"
        die "boot $1 (status $status), see $log"
    fi
    say "boot $1: $((SECONDS - begin)) s"
}

# run STEP LOG: one guest; one that has not begun within START is ended.
run() {
    local guest
    : >"$2"
    timeout "$LIMIT" qemu-system-x86_64 -machine q35,accel=tcg -cpu max -m 640 -smp 1 \
        -nodefaults -no-user-config -display none -no-reboot \
        -kernel "$KERNEL" -initrd "$OUT/initrd" -serial stdio \
        -append "console=ttyS0 quiet loglevel=4 panic=-1 step=$1" \
        -device nvme,id=c0,serial=copyhold "${DEVICES[@]}" >"$2" 2>&1 </dev/null &
    guest=$!
    for _ in $(seq "$START"); do
        if grep -q '^| ' "$2" || ! kill -0 "$guest" 2>/dev/null; then break; fi
        sleep 1
    done
    grep -q '^| ' "$2" || kill "$guest" 2>/dev/null || true
    wait "$guest"
}

# each PURPOSE COMMAND...: calls it with the format and the image of each such namespace.
each() {
    local purpose=$1 kind number format
    shift
    while read -r kind number format; do
        if [ "$kind" = "$purpose" ]; then "$@" "$format" "$OUT/$number.img"; fi
    done <"$OUT/namespaces"
}
flip_file() { "$NVME_BLOCKS" flip "block 7 of a file" "$2"; }

for program in qemu-system-x86_64 busybox cpio; do
    command -v "$program" >/dev/null || die "no $program here; run scripts/setup.sh nvme"
done
kernel
namespaces
initramfs
boot 1
each blocks "$NVME_BLOCKS" compare
each blocks "$NVME_BLOCKS" damage
each pool flip_file
boot 2
say "all formats are as they must be"
