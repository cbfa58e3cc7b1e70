#!/bin/sh
# Tests that run real threads, under ThreadSanitizer: it notices what two threads do to one place in
# memory without an order between them, also when it did no harm. Needs a nightly toolchain with its
# sources: all is built for it, the standard library and the C libraries, too. The first program of
# tests that has a report ends it. The engine's threads run ROUNDS times. The mount tests need root
# and /dev/fuse, or are skipped.
set -eu
cd "$(dirname "$0")/.."
target="$(rustc +nightly -vV | sed -n 's/^host: //p')"
build="${CARGO_TARGET_DIR:-target}/tsan"
rounds="${ROUNDS:-5}"

# The daemons of the mount tests, some of them other users', have nobody to tell but files.
place="$(mktemp -d)"
chmod 755 "$place"
mkdir -m 1777 "$place/reports"
at_exit() {
    status=$?
    for report in "$place"/reports/*; do
        [ -e "$report" ] || continue
        cat "$report"
        [ "$status" != 0 ] || status=66
    done
    rm -rf "$place"
    exit "$status"
}
trap at_exit EXIT

# When a process ends, mimalloc adds up its statistics, without a lock and beside what still runs.
echo "race:mi_process_done" >"$place/suppressions"
# Who serves a mount must not stop at a report: its callers, threads of its own, would never end.
export TSAN_OPTIONS="exitcode=66 log_path=$place/reports/of print_suppressions=0 \
suppressions=$place/suppressions"
export RUSTFLAGS="-Zsanitizer=thread"
export "CFLAGS_$(echo "$target" | tr - _)=-fsanitize=thread"

# tests ARGUMENTS...
tests() {
    cargo +nightly test -Zbuild-std --target "$target" --target-dir "$build" --locked "$@"
    [ -z "$(ls "$place/reports")" ] || exit 66
}

tests --lib --tests -p copyhold-types -p copyhold-runtime -p copyhold-device -p copyhold-fuse \
    -p copyhold-memfs -p copyhold
# The others of these crates, and those of the crates that are missing, have one thread.
tests --test threads -p copyhold-space
tests --lib -p copyhold-table threads_edit
for round in $(seq 2 "$rounds"); do
    echo "round $round of $rounds"
    tests --test all -p copyhold threads::
done
tests --tests -p copyhold-cli
