#!/bin/sh
# Tests under Miri, which watches every access to memory. Needs a nightly toolchain with Miri.
# It knows no system calls and no C, and is a thousand times as slow: so the lock between tasks, its
# runtime, and what all share. `fuse` does not build there: rustix has other types without assembly.
set -eu
cd "$(dirname "$0")/.."
export MIRIFLAGS="-Zmiri-disable-isolation"
build="${CARGO_TARGET_DIR:-target}/miri"

cargo +nightly miri test --target-dir "$build" --locked -p copyhold-types --lib
cargo +nightly miri test --target-dir "$build" --locked -p copyhold-runtime --lib -- \
    lock::tests::nobody lock::tests::a_writer seeded::tests::a_dropped seeded::tests::an_hour
