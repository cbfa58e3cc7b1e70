# shellcheck shell=bash
# Three tenants on one pool; demo.sh reads this and calls `tenants_work` and `tenants_leave`.
#
# A subvolume is prepared with a source tree and cloned for each tenant, which is held to a limit.
# Two of them work, every promise noted; the third runs away until its limit stops it, tidies up,
# and is deleted. So is the original, on which no clone depends: as a tombstone it goes on paying
# for what they share, until the last of them goes. Each step says what it found, and fails the
# demo if that is not what was promised.

TENANTS=(alice bob carol)
LIMIT_MIB=256
TENANT_SECONDS=4

# groups PYTHON: runs it with the rows of `qgroup show` in `groups`, by path.
groups() {
    "$COPYHOLD" --json qgroup show --sync "$MNT" | python3 -c "import json, sys
groups = {row['path']: row for row in json.load(sys.stdin)}
$1"
}
used_mib() { groups "print(groups['$1']['referenced'] >> 20)"; }
indented() { sed 's/^/               /'; }
show_usage() {
    "$COPYHOLD" qgroup show --sync "$MNT" | indented
    df -h --output=size,used,avail,file "$@" | indented
}
# expect WHAT COMMAND...: the command succeeds.
expect() {
    local what=$1
    shift
    "$@" || die "tenants: $what"
}

tenant_client() { # NAME CLIENT: starts it for that tenant
    python3 scripts/demo_clients.py run "$2" "$MNT/$1" "$ACKS/$1" >"$OUT/$1" 2>&1 &
    WRITERS+=($!)
}
tenant_verify() { # NAME CLIENT
    local result
    result=$(python3 scripts/demo_clients.py verify "$2" "$MNT/$1" "$ACKS/$1" 2>&1) ||
        die "$1: $result"
    say "    $1: $result"
}
all_alive() {
    local writer
    for writer in "${WRITERS[@]}"; do kill -0 "$writer" 2>/dev/null || return 1; done
}
# work FOR: sets ALICE and BOB to what they were promised in a second.
work() {
    local from alice bob
    from=$(now_ms) alice=$(total alice) bob=$(total bob)
    sleep "$TENANT_SECONDS"
    expect "a tenant's work ended by itself" all_alive
    from=$(($(now_ms) - from))
    ALICE=$(per_second $(($(total alice) - alice)) "$from")
    BOB=$(per_second $(($(total bob) - bob)) "$from")
    say "    alice $ALICE SQLite transactions/s, bob $BOB synced files/s, $1"
}
# A quarter is for machines that have other things to do, too.
still_works() { [ "$2" -gt 0 ] && [ $(($2 * 4)) -ge "$1" ]; }

clone_for_tenants() {
    local name id
    CLONE_MS=()
    for name in "${TENANTS[@]}"; do
        took "$COPYHOLD" subvolume snapshot "$MNT/base" "$MNT/$name" >/dev/null
        CLONE_MS+=("$TOOK")
        expect "a clone took $TOOK ms" [ "$TOOK" -lt 1000 ]
        id=$("$COPYHOLD" --json subvolume show "$MNT/$name" |
            python3 -c 'import json, sys; print(json.load(sys.stdin)["id"])')
        "$COPYHOLD" qgroup limit "${LIMIT_MIB}M" "0/$id" "$MNT"
    done
}

tenants_work() {
    say "tenants: a subvolume with the source tree, prepared once"
    "$COPYHOLD" quota enable --simple "$MNT"
    BEFORE_KIB=$(df --output=used "$MNT" | tail -n 1)
    "$COPYHOLD" subvolume create "$MNT/base" >/dev/null
    took unpack "$MNT/base"
    (manifest "$MNT/base") >"$PLACE/base.manifest"
    say "    unpacked in $TOOK ms, used: $(used_mib base) MiB"
    clone_for_tenants
    say "    cloned for ${TENANTS[*]} in ${CLONE_MS[*]} ms, each limited to $LIMIT_MIB MiB"
    show_usage "${TENANTS[@]/#/$MNT/}" "$MNT"

    WRITERS=()
    tenant_client alice sqlite-wal
    tenant_client bob files
    sleep 1
    work "by themselves"
    local alice=$ALICE bob=$BOB
    tenant_client carol runaway
    work "while carol runs away"
    BESIDES="alice $alice then $ALICE, bob $bob then $BOB"
    expect "alice is held up by carol" still_works "$alice" "$ALICE"
    expect "bob is held up by carol" still_works "$bob" "$BOB"
    kill -KILL "${WRITERS[@]}"
    wait "${WRITERS[@]}" 2>/dev/null || true
    WRITERS=()
    tenant_verify carol runaway
    show_usage "${TENANTS[@]/#/$MNT/}" "$MNT"
    expect "carol is not at her limit" groups "
used, limit = groups['carol']['referenced'], groups['carol']['limits']['referenced']
sys.exit(not limit * 3 // 4 < used <= limit)"
    expect "the log does not name the group that refused" \
        grep -m 1 -o 'quota group 0/[0-9]* is at its limit: .*limit ' "$LOG" | indented
    rm "$MNT/carol/flood"
    expect "who is at the limit cannot tidy up" [ "$(used_mib carol)" -lt $((LIMIT_MIB / 4)) ]
    head -c 1M /dev/zero >"$MNT/carol/again"
    say "    carol removed her flood and can write again"

    took "$COPYHOLD" subvolume delete "$MNT/base" >/dev/null
    say "tenants: the original is deleted in $TOOK ms, carol, too; then the daemon is killed"
    "$COPYHOLD" subvolume delete "$MNT/carol" >/dev/null
    # Or they would be back, as anything is that nobody synced.
    fs_sync
    fs_kill
    fs_umount
    fs_mount
    took "$COPYHOLD" subvolume sync "$MNT"
    say "    mounted again; the rest of the deletions took $TOOK ms"
    tenants_verify
    show_usage "$MNT/alice" "$MNT/bob" "$MNT"
    expect "the original is no tombstone, or pays for something else" groups "
base = groups['base']
sys.exit(base['state'] != 'tombstone' or not base['data'] or 'carol' in groups)"
    say "    base pays as a tombstone for what alice and bob still share of it"
}

tenants_verify() {
    tenant_verify alice sqlite-wal
    tenant_verify bob files
    local name
    for name in alice bob; do
        (cd "$MNT/$name" && sha256sum --check --quiet "$PLACE/base.manifest") ||
            die "$name: a file of the clone has changed"
    done
    say "    clones: $(wc -l <"$PLACE/base.manifest") files each, as in the original"
}

tenants_leave() {
    tenants_verify
    took "$COPYHOLD" subvolume delete "$MNT/alice" "$MNT/bob" >/dev/null
    local deleted=$TOOK used
    took "$COPYHOLD" subvolume sync "$MNT"
    say "tenants: the last clones are deleted in $deleted ms, all is free after $TOOK ms"
    "$COPYHOLD" qgroup show --sync "$MNT" | indented
    expect "the tombstone did not go with its last byte" groups "sys.exit(len(groups) != 1)"
    used=$(df --output=used "$MNT" | tail -n 1)
    # What was written meanwhile is gone; tables are a little larger or smaller than before.
    expect "$used KiB are used now, $BEFORE_KIB KiB were before" \
        [ "$used" -lt $((BEFORE_KIB + 16384)) ]
}
