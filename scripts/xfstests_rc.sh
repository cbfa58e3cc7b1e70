# What xfstests' common/rc and common/attr cannot know of copyhold: read at their ends, in place of
# their own answers.
# shellcheck shell=bash disable=SC2154

# A pool smaller than its device; there is one block size only.
_try_scratch_mkfs_sized() {
    local size=$1 device
    device=$(blockdev --getsize64 "$SCRATCH_DEV")
    [ "$size" -le "$device" ] || _notrun "Scratch device too small"
    _check_minimal_fs_size "$size"
    # shellcheck disable=SC2086 # options, separated by spaces
    "$MKFS_PROG" -t "$FSTYP" -- $MKFS_OPTIONS "$SCRATCH_DEV" "$size"
}

# mount(8) finds out what a device holds by libblkid, which does not know pools: what it is asked to
# mount without a type is one.
_mount() {
    # shellcheck disable=SC2048,SC2086 # words, as theirs
    set -- $*
    case "$# $*" in
    "2 "[!-]*) "$MOUNT_PROG" -t "${OVL_BASE_FSTYP:-$FSTYP}" "$@" ;;
    *) "$MOUNT_PROG" "$@" ;;
    esac
}

# The kernel takes an ACL of a page.
_acl_get_max() {
    echo $(((4096 - 4) / 8))
}

_require_names_are_bytes() {
    :
}
