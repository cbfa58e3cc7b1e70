#!/bin/sh
# Measures pools that are larger than memory (docs/space.md, section 8): an empty one of 100 TiB,
# and an aged one of 10 TiB beside an aged one of 100 GiB, all with memory=256M.
# Usage: scripts/large-pools.sh [DIRECTORY]
#
# The pools are sparse files and take 5 GiB in DIRECTORY; without one, in a new one on a tmpfs,
# where the disk is no part of what is measured (as root). About ten minutes.
set -eu
cd "$(dirname "$0")/.."
here=$(pwd)
cargo build --release --locked -q -p copyhold-cli -p copyhold-pool --bin copyhold \
	--example aged_space
copyhold=$here/target/release/copyhold
dir=${1:-}
mnt=$(mktemp -d)
own=
if [ -z "$dir" ]; then
	dir=$(mktemp -d)
	mount -t tmpfs -o size=80% none "$dir"
	own=$dir
fi
at_exit() {
	"$copyhold" umount "$mnt" >/dev/null 2>&1 || true
	rmdir "$mnt"
	rm -f "$dir/empty.pool" "$dir/small.pool" "$dir/large.pool"
	[ -z "$own" ] || { umount "$own" && rmdir "$own"; }
}
trap at_exit EXIT

now() { date +%s%N; }

# mounted POOL: mounts it, and prints the time and the memory of its daemon.
mounted() {
	begin=$(now)
	"$copyhold" mount -o memory=256M "$1" "$mnt" >/dev/null
	echo "$(basename "$1"): mounted in $((($(now) - begin) / 1000000)) ms, $(memory "$1")"
}

# memory POOL: the most resident memory of its daemon so far.
memory() {
	pid=$(pgrep -f "copyhold mount .*$1" | head -n 1)
	awk '/VmHWM/ { printf "%d MiB resident at most", $2 / 1024 }' "/proc/$pid/status"
}

# written NAME: the time of 128 MiB and an fsync, as MiB/s.
written() {
	begin=$(now)
	dd if=/dev/zero of="$mnt/$1" bs=1M count=128 conv=fsync 2>/dev/null
	echo $((128 * 1000000000 / ($(now) - begin)))
}

"$copyhold" create "$dir/empty.pool" --size 100T >/dev/null
for round in 1 2 3; do
	mounted "$dir/empty.pool"
	"$copyhold" umount "$mnt" >/dev/null
done

"$copyhold" create "$dir/small.pool" --size 100G >/dev/null
"$copyhold" create "$dir/large.pool" --size 10T >/dev/null
for size in small large; do
	"$here/target/release/examples/aged_space" "$dir/$size.pool" 5
done
# Half of the small pool's reserve is in long runs that files may have.
"$copyhold" mount "$dir/small.pool" "$mnt" >/dev/null
dd if=/dev/zero of="$mnt/filler" bs=1M count=1700 conv=fsync 2>/dev/null
"$copyhold" umount "$mnt" >/dev/null
for size in small large; do
	"$copyhold" debug space "$dir/$size.pool" | sed -n "s/^fragmentation/$size.pool: &/p"
done
for round in 1 2 3 4 5; do
	for size in small large; do
		mounted "$dir/$size.pool"
		for file in 1 2 3; do
			rate=$(written "$file")
			echo "$size.pool: $rate MiB/s" | tee -a "$mnt.$size"
		done
		rm "$mnt/1" "$mnt/2" "$mnt/3"
		sync -f "$mnt"
		echo "$size.pool: $(memory "$dir/$size.pool")"
		"$copyhold" umount "$mnt" >/dev/null
	done
done
for size in small large; do
	sort -n -k 2 "$mnt.$size" | awk '{ rate[NR] = $2 } END {
		printf "%s median %d MiB/s (%d to %d)\n", $1, rate[int((NR + 1) / 2)], rate[1], rate[NR] }'
	rm "$mnt.$size"
done
