#!/bin/sh
# libFuzzer on each fuzz target, or on those that are named: FUZZ_SECONDS=60 each, beginning with
# good inputs, with what is kept in fuzz/seeds and with what earlier runs found (fuzz/corpus, not
# kept). An input that panics, takes ten seconds or 2 GiB ends it, and stands in fuzz/artifacts.
# KEEP=1 adds to fuzz/seeds inputs that reach code which nothing there and no good input reaches,
# smallest first, as long as there are no more than 60 of the target, and 200 KiB.
set -eu
cd "$(dirname "$0")/.."
seconds="${FUZZ_SECONDS:-60}"
# The code is safe: what counts is panics, time and memory, and without a sanitizer it is fast.
how="--sanitizer none"
files_max=60
bytes_max=$((200 << 10))

# keep TARGET: what reaches new code, as few inputs as there need be.
keep() {
    new="corpus/new/$1"
    rm -rf "$new"
    mkdir -p "$new"
    cp "corpus/begin/$1"/* "seeds/$1"/* "$new" 2>/dev/null || true
    # shellcheck disable=SC2086
    cargo +nightly fuzz run $how "$1" "$new" "corpus/$1" -- -set_cover_merge=1 -use_counters=0
    find "$new" -type f -printf '%s %f\n' | sort -n | while read -r bytes name; do
        [ ! -e "corpus/begin/$1/$name" ] && [ ! -e "seeds/$1/$name" ] || continue
        files=$(find "seeds/$1" -type f | wc -l)
        sum=$(find "seeds/$1" -type f -printf '%s\n' | awk '{ sum += $1 } END { print sum + 0 }')
        [ "$files" -lt "$files_max" ] && [ $((sum + bytes)) -le "$bytes_max" ] || break
        cp "$new/$name" "seeds/$1"
    done
}

cargo run -q --locked -p copyhold-fuzz --example begin -- fuzz/corpus/begin
cd fuzz
[ $# -gt 0 ] || set -- ${FUZZ:-$(cargo +nightly fuzz list)}
for target; do
    printf '\n=== %s, %s s\n' "$target" "$seconds"
    mkdir -p "corpus/$target" "seeds/$target"
    # shellcheck disable=SC2086
    cargo +nightly fuzz run $how "$target" "corpus/$target" "corpus/begin/$target" \
        "seeds/$target" -- -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
        -max_len=4096 -print_final_stats=1
    [ -z "${KEEP:-}" ] || keep "$target"
done
