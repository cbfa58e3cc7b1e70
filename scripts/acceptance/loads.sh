# shellcheck shell=bash
# Loads that others wrote to wear filesystems down; acceptance.sh reads this and calls `run_dbench`
# and `run_stress`.

run_dbench() {
    local clients
    begin
    for clients in 1 4 16; do
        dbench -D "$MNT" -t "$TIME" "$clients" >"$PLACE/dbench.out" 2>&1 ||
            { tail -n 20 "$PLACE/dbench.out" >&2; die "dbench with $clients clients"; }
        say "dbench: $(tail -n 1 "$PLACE/dbench.out")"
    done
    finish
}

# Each stressor by itself, two of it at once. It fails if what it did is not what it finds. One that
# lacks something, of this kernel or of FUSE, says that it skips, and is counted.
run_stress() {
    local stressors stressor status failed=() skipped=()
    begin
    read -ra stressors <<<"$(stress-ng --class 'filesystem?' | sed 's/.*: //')"
    for stressor in "${stressors[@]}"; do
        status=0
        stress-ng --"$stressor" 2 --verify --timeout "$TIME" --temp-path "$MNT" \
            >"$PLACE/stress.$stressor" 2>&1 || status=$?
        if grep -qE 'skipping|disabled' "$PLACE/stress.$stressor"; then
            skipped+=("$stressor")
        elif [ $status != 0 ]; then
            failed+=("$stressor")
            tail -n 20 "$PLACE/stress.$stressor" >&2
        fi
    done
    say "stress: ${#stressors[@]} stressors; skipped: ${skipped[*]:-none}"
    [ ${#failed[@]} = 0 ] || die "stress: ${failed[*]}"
    [ -z "$(ls "$MNT")" ] || die "stress: left behind: $(ls "$MNT")"
    finish
}
