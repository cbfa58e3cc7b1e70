# shellcheck shell=bash
# overlayfs with its layers on a mount; acceptance.sh reads this and calls `run_overlay`.
#
# `overlay.py` does the same on layers of ext4 and of Copyhold, and tells what came of it; the two
# reports have to be the same, line by line. Both layers lie on one filesystem, on two, or in two
# subvolumes, which overlayfs takes for one filesystem.

# What containers mount overlays with, and the options that keep more in the upper layer.
OVERLAY_OPTIONS=(
    "" index=off,redirect_dir=on,metacopy=on redirect_dir=on metacopy=on xino=on userxattr volatile
)
# What needs file handles, which overlayfs does without here.
OVERLAY_HANDLES=(index=on index=on,nfs_export=on)

# make_ext4 NAME: an ext4 of its own, mounted on $PLACE/NAME.
make_ext4() {
    truncate --size 512M "$PLACE/$1.img"
    mkfs.ext4 -q "$PLACE/$1.img"
    mkdir "$PLACE/$1"
    mount -o loop "$PLACE/$1.img" "$PLACE/$1"
}

# report NAME LOWER UPPER OPTIONS: what is told of an overlay over these places.
report() {
    rm -rf "$2/lower" "$3/upper"
    mkdir "$2/lower" "$3/upper"
    python3 scripts/acceptance/overlay.py "$2/lower" "$3/upper" "$PLACE/merged" "$4" \
        >"$PLACE/$1.report" || die "overlay.py on $1 with '$4'"
}

# like EXPECTED NAME LOWER UPPER OPTIONS: and it is what another report says.
like() {
    report "${@:2}"
    diff -u "$PLACE/$1.report" "$PLACE/$2.report" >"$PLACE/overlay.diff" || {
        head -n 40 "$PLACE/overlay.diff" >&2
        die "an overlay on $2 with '$5' is not like one on $1"
    }
}

# owners DIRECTORY: of all that is there.
owners() {
    (cd "$1" && find . -printf '%p %U:%G %m\n' | sort)
}

run_overlay() {
    local options side
    grep -qw overlay /proc/filesystems || modprobe overlay 2>/dev/null ||
        { say "overlay: this kernel has none"; return; }
    begin
    make_ext4 ext4
    make_ext4 other
    mkdir "$PLACE/merged"
    "$COPYHOLD" subvolume create "$MNT/one" >/dev/null
    "$COPYHOLD" subvolume create "$MNT/two" >/dev/null
    for options in "${OVERLAY_OPTIONS[@]}"; do
        report ext4 "$PLACE/ext4" "$PLACE/ext4" "$options"
        like ext4 copyhold "$MNT" "$MNT" "$options"
        like ext4 subvolumes "$MNT/one" "$MNT/two" "$options"
        report ext4-over-ext4 "$PLACE/other" "$PLACE/ext4" "$options"
        like ext4-over-ext4 copyhold-over-ext4 "$PLACE/ext4" "$MNT" "$options"
        like ext4-over-ext4 ext4-over-copyhold "$MNT" "$PLACE/ext4" "$options"
    done
    report ext4 "$PLACE/ext4" "$PLACE/ext4" ""
    for options in "${OVERLAY_HANDLES[@]}"; do
        like ext4 copyhold "$MNT" "$MNT" "$options"
    done
    # As a container has its image: the owners of both layers are mapped.
    for side in "$PLACE/ext4" "$MNT"; do
        install -d --owner 100000 --group 100000 "$side/mapped"
        python3 scripts/acceptance/idmap.py "$side/mapped" "$side/mapped" 100000:0:65536
    done
    report ext4-mapped "$PLACE/ext4/mapped" "$PLACE/ext4/mapped" ""
    like ext4-mapped copyhold-mapped "$MNT/mapped" "$MNT/mapped" ""
    umount "$PLACE/ext4/mapped" "$MNT/mapped"
    diff <(owners "$PLACE/ext4/mapped") <(owners "$MNT/mapped") >&2 ||
        die "owners on Copyhold are not those on ext4"
    say "overlay: ${#OVERLAY_OPTIONS[@]} sets of options, 5 places for layers each, and mapped" \
        "owners: $(wc -l <"$PLACE/copyhold.report") lines a report, all as on ext4"
    umount "$PLACE/ext4" "$PLACE/other"
    finish
}
