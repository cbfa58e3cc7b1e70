#!/bin/sh
# Installs what the build, the tests and the demo need and this machine lacks. Debian, as root or
# with sudo; asks nothing, does nothing twice.
# Usage: scripts/setup.sh [build] [test] [demo] [bench] [acceptance] [nvme] [lint] [fuzz] [miri]
#     [tsan]
set -eu
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

if [ "$(id -u)" = 0 ]; then root=; elif command -v sudo >/dev/null; then root=sudo; else
    root=false
fi

missing=
# need COMMAND PACKAGE: notes the package when the command is not there.
need() { PATH="$PATH:/usr/sbin:/sbin" command -v "$1" >/dev/null 2>&1 || missing="$missing $2"; }

for part in "${@:-build}"; do
    case $part in
    build)
        need cc build-essential; need make make; need git git; need pkg-config pkg-config
        need curl curl; need fusermount3 fuse3; need setfattr attr; need setfacl acl
        [ -e /etc/ssl/certs/ca-certificates.crt ] || missing="$missing ca-certificates"
        ;;
    test) need mkfs.btrfs btrfs-progs; need losetup mount ;;
    demo) need git git; need sqlite3 sqlite3; need python3 python3; need tar tar; need cc gcc ;;
    bench) need mkfs.ext4 e2fsprogs; need mkfs.btrfs btrfs-progs; need losetup mount ;;
    acceptance)
        need unshare util-linux; need git git; need python3 python3; need dbench dbench
        need mkfs.ext4 e2fsprogs; need stress-ng stress-ng; need runc runc
        need busybox busybox-static; need pgrep procps
        # Its programs are not in PATH.
        [ -e /usr/share/postgresql-common ] || missing="$missing postgresql"
        ;;
    nvme)
        need qemu-system-x86_64 qemu-system-x86; need busybox busybox-static; need cpio cpio
        need strip binutils
        ;;
    lint | fuzz | miri | tsan) ;;
    *)
        die "unknown part '$part'; use build, test, demo, bench, acceptance, nvme, lint, fuzz," \
            "miri or tsan"
        ;;
    esac
done

if [ -n "$missing" ]; then
    [ "$root" != false ] || die "missing:$missing; run as root, or install sudo, or install them"
    say "installing$missing"
    export DEBIAN_FRONTEND=noninteractive
    $root apt-get update -qq </dev/null >&2 || say "apt-get update failed; trying what apt knows"
    # shellcheck disable=SC2086
    $root apt-get install -y -qq --no-install-recommends $missing </dev/null >&2
fi

# The toolchain that rust-toolchain.toml pins; rustup fetches it by itself once it is there.
PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
if ! command -v cargo >/dev/null; then
    say "installing rustup"
    curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs |
        sh -s -- -y --no-modify-path --profile minimal --default-toolchain none >&2
fi
if command -v rustup >/dev/null && ! rustc --version >/dev/null 2>&1; then
    say "installing the pinned toolchain"
    rustup toolchain install >&2
fi
cargo --version >&2 || die "cargo does not run; see https://rustup.rs"

# A machine without the device node, or with a kernel that loads the module on demand.
if [ ! -e /dev/fuse ] && [ "$root" != false ]; then
    $root modprobe fuse 2>/dev/null || true
    [ -e /dev/fuse ] || $root mknod -m 666 /dev/fuse c 10 229 || true
fi
# Everybody may open it, as udev has it: fusermount3 decides who may mount.
if [ -e /dev/fuse ] && [ "$(stat -c %a /dev/fuse)" != 666 ] && [ "$root" != false ]; then
    $root chmod 666 /dev/fuse || true
fi
[ -e /dev/fuse ] || say "no /dev/fuse: mounts will not work here"

case " $* " in
*" lint "*)
    for component in rustfmt clippy; do
        cargo "$(echo $component | sed s/rust//)" --version >/dev/null 2>&1 ||
            rustup component add $component >&2
    done
    if ! command -v cargo-deny >/dev/null; then
        say "building cargo-deny (some minutes, once)"
        cargo install cargo-deny --locked --debug --quiet </dev/null >&2
    fi
    ;;
esac
# What only long or instrumented runs need: not for CI.
case " $* " in
*" fuzz "* | *" miri "* | *" tsan "*)
    if ! rustc +nightly --version >/dev/null 2>&1; then
        say "installing a nightly toolchain"
        rustup toolchain install nightly --profile minimal >&2
    fi
    ;;
esac
case " $* " in
*" fuzz "*)
    if ! command -v cargo-fuzz >/dev/null; then
        say "building cargo-fuzz (some minutes, once)"
        cargo install cargo-fuzz --locked --quiet </dev/null >&2
    fi
    ;;
esac
case " $* " in
*" miri "*)
    cargo +nightly miri --version >/dev/null 2>&1 ||
        rustup component add --toolchain nightly miri rust-src >&2
    ;;
esac
case " $* " in
*" tsan "*)
    library="$(rustc +nightly --print sysroot)/lib/rustlib/src/rust/library"
    [ -e "$library" ] || rustup component add --toolchain nightly rust-src >&2
    ;;
esac
say "ready"
