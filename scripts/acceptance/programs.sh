# shellcheck shell=bash
# Programs of a developer's day on a mount; acceptance.sh reads this and calls `run_git`,
# `run_build` and `run_container`.

# --- git: the same repository on the mount and beside it

# tree_digest DIRECTORY: of all names, kinds, modes and contents but git's own.
tree_digest() {
    (cd "$1" && find . -path ./.git -prune -o -printf '%p %y %m %l\n' | sort &&
        find . -path ./.git -prune -o -type f -print0 | sort -z | xargs -0 sha256sum) | sha256sum
}

# history DIRECTORY COMMITS: the sources of this project, and commits that change, move and delete.
history() {
    local number directory
    git init -q "$1"
    cp -r crates docs scripts Cargo.toml Cargo.lock "$1"
    git -C "$1" add -A
    git -C "$1" commit -qm sources
    for ((number = 1; number <= $2; number++)); do
        directory=$1/written/$((number % 20))
        mkdir -p "$directory"
        seq "$number" $((number * 13 % 4000 + number)) >"$directory/$number"
        echo "// $number" >>"$1/crates/types/src/lib.rs"
        [ $((number % 7)) != 0 ] || mv "$directory/$number" "$1/written/moved-$number"
        [ $((number % 11)) != 0 ] || rm -rf "$1/written/$(((number + 3) % 20))"
        git -C "$1" add -A
        git -C "$1" commit -qm "change $number"
        [ $((number % 50)) != 0 ] || git -C "$1" tag "at-$number"
    done
}

run_git() {
    local repository=$MNT/repository
    export GIT_CONFIG_GLOBAL=/dev/null GIT_AUTHOR_NAME=acceptance GIT_AUTHOR_EMAIL=a@localhost
    export GIT_COMMITTER_NAME=acceptance GIT_COMMITTER_EMAIL=a@localhost
    begin
    history "$repository" 300
    git clone -q --no-local "$repository" "$PLACE/beside"
    git clone -q --no-local "$repository" "$MNT/objects" # through pack and index
    git clone -q "$repository" "$MNT/links"              # with hard links
    git -C "$repository" repack -q -a -d -f
    git -C "$repository" gc -q --aggressive --prune=now
    for copy in "$repository" "$MNT/objects" "$MNT/links"; do
        git -C "$copy" fsck --full --strict --no-dangling --no-progress ||
            die "git fsck of $copy"
        [ -z "$(git -C "$copy" status --porcelain)" ] || die "git status of $copy"
        [ "$(tree_digest "$copy")" = "$(tree_digest "$PLACE/beside")" ] || die "$copy differs"
    done
    [ "$(git -C "$repository" rev-list --objects --all | sort | sha256sum)" = \
        "$(git -C "$PLACE/beside" rev-list --objects --all | sort | sha256sum)" ] ||
        die "the objects differ"
    say "git: $(git -C "$repository" rev-list --count HEAD) commits," \
        "$(git -C "$repository" count-objects -v | sed -n 's/in-pack: //p') objects:" \
        "cloned twice, repacked, collected, fsck clean, the same as beside it"
    rm -rf "$PLACE/beside"
    finish
}

# --- a build

run_build() {
    local jobs target=$MNT/target
    jobs=$(nproc)
    begin
    mkdir "$MNT/source"
    cp -r crates fuzz Cargo.toml Cargo.lock rust-toolchain.toml "$MNT/source"
    (cd "$MNT/source" && CARGO_TARGET_DIR=$target cargo build --quiet --locked --jobs "$jobs" \
        -p copyhold-space -p copyhold-table -p copyhold-log --tests)
    (cd "$MNT/source" && CARGO_TARGET_DIR=$target cargo test --locked -p copyhold-space --lib \
        >"$PLACE/build.out" 2>&1) || { tail -n 20 "$PLACE/build.out" >&2; die "built tests"; }
    # What was built is not built again: the times are as cargo left them.
    (cd "$MNT/source" && CARGO_TARGET_DIR=$target cargo build --locked --tests \
        -p copyhold-space -p copyhold-table -p copyhold-log >"$PLACE/again.out" 2>&1)
    ! grep -q Compiling "$PLACE/again.out" || die "cargo builds again what it had built"
    say "build: $(find "$target" -type f | wc -l) files, $(du -sm "$target" | cut -f1) MiB;" \
        "$(grep -a '^test result' "$PLACE/build.out" | tail -n 1)"
    finish
}

# --- containers

# box NAME COMMAND...: runs it in a container whose root is a clone of the prepared one.
box() {
    local name=$1
    shift
    "$COPYHOLD" subvolume snapshot "$MNT/base" "$MNT/$name" >/dev/null
    python3 - "$MNT/$name/config.json" "$@" <<'EOF'
import json, sys
path, *command = sys.argv[1:]
config = json.load(open(path))
config["process"]["terminal"] = False
config["process"]["args"] = command
config["root"] = {"path": "root", "readonly": False}
json.dump(config, open(path, "w"))
EOF
    runc run --bundle "$MNT/$name" "copyhold-$$-$name" </dev/null
}

# A root directory with busybox under all its names, as one subvolume.
prepare_base() {
    local root=$MNT/base/root
    "$COPYHOLD" subvolume create "$MNT/base" >/dev/null
    mkdir -p "$root"/{bin,proc,sys,dev,etc,tmp,work}
    cp "$(command -v busybox)" "$root/bin/busybox"
    for name in sh ls cat dd md5sum mv rm mkdir ln chmod seq sort sync stat; do
        ln "$root/bin/busybox" "$root/bin/$name"
    done
    echo "root:x:0:0::/work:/bin/sh" >"$root/etc/passwd"
    echo prepared >"$root/etc/motd"
    (cd "$MNT/base" && runc spec)
}

# What a container does to its root: everything is renamed, written and removed but the kernel's.
INSIDE='set -e
cat /etc/motd
echo "$0" > /etc/motd
mkdir /work/a; seq 1 20000 > /work/a/numbers; sort -r /work/a/numbers > /work/sorted
mv /work/a /work/b; ln /work/sorted /work/b/linked; chmod 600 /work/sorted
dd if=/dev/zero of=/work/zeros bs=4096 count=512 2>/dev/null
rm /bin/stat; sync
md5sum < /work/b/linked'

run_container() {
    local name before said child
    begin
    prepare_base
    before=$(tree_digest "$MNT/base")
    for name in one two three four; do
        box "$name" /bin/sh -c "$INSIDE" "$name" >"$PLACE/$name.out" 2>&1 &
        CHILDREN+=($!)
    done
    for child in "${CHILDREN[@]}"; do
        wait "$child" || { cat "$PLACE"/*.out >&2; die "a container"; }
    done
    CHILDREN=()
    for name in one two three four; do
        said=$(cat "$PLACE/$name.out")
        [ "$said" = "prepared"$'\n'"$(seq 1 20000 | sort -r | md5sum)" ] ||
            die "container $name said $said"
        [ "$(cat "$MNT/$name/root/etc/motd")" = "$name" ] || die "the root of $name"
        [ ! -e "$MNT/$name/root/bin/stat" ] || die "the root of $name"
        "$COPYHOLD" subvolume delete "$MNT/$name" >/dev/null
    done
    [ "$(tree_digest "$MNT/base")" = "$before" ] || die "the base has changed"
    "$COPYHOLD" subvolume sync "$MNT"
    say "container: 4 at once, each in a clone; the prepared root is as it was"
    finish
}
