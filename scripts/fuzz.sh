#!/bin/sh
# libFuzzer on each fuzz target, or on those that are named: FUZZ_SECONDS=60 each, beginning with
# what is kept in fuzz/seeds and with what earlier runs found (fuzz/corpus, not kept). An input that
# panics, takes ten seconds or 2 GiB ends it, and stands in fuzz/artifacts. KEEP=1 adds to
# fuzz/seeds, smallest inputs first, what reaches code that nothing there reaches.
set -eu
cd "$(dirname "$0")/../fuzz"
seconds="${FUZZ_SECONDS:-60}"
# The code is safe: what counts is panics, time and memory, and without a sanitizer it is fast.
how="--sanitizer none"

[ $# -gt 0 ] || set -- ${FUZZ:-$(cargo +nightly fuzz list)}
for target; do
    printf '\n=== %s, %s s\n' "$target" "$seconds"
    mkdir -p "corpus/$target" "seeds/$target"
    # shellcheck disable=SC2086
    cargo +nightly fuzz run $how "$target" "corpus/$target" "seeds/$target" -- \
        -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=4096 \
        -print_final_stats=1
    if [ -n "${KEEP:-}" ]; then
        # shellcheck disable=SC2086
        cargo +nightly fuzz run $how "$target" "seeds/$target" "corpus/$target" -- -merge=1
    fi
done
