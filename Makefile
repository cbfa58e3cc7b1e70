# Copyhold: the commands of users and developers. `make demo` and `make test` set up a bare Debian machine themselves.

PREFIX ?= /usr/local
SBINDIR ?= /sbin
DESTDIR ?=
SEEDS ?= 100
PART ?= 1/1
ROUNDS ?= 3
JOB ?= core
AGAINST ?= btrfs,ext4,null
TARGETS ?= copyhold,btrfs
TAGS ?= functional

export PATH := $(if $(CARGO_HOME),$(CARGO_HOME),$(HOME)/.cargo)/bin:$(PATH)
TARGET := $(if $(CARGO_TARGET_DIR),$(CARGO_TARGET_DIR),target)
PROGRAM := $(TARGET)/release/copyhold
HELPERS := mount.fuse.copyhold mount.fuseblk.copyhold mkfs.copyhold mkfs.fuse.copyhold \
	mkfs.fuseblk.copyhold fsck.copyhold fsck.fuse.copyhold fsck.fuseblk.copyhold
# Named, not chosen by package: the features of the crates below are then those of `make test`, and
# the engine is not compiled once more. Some unit tests mount, too.
MOUNT_DIRS := $(addsuffix /tests,crates/fuse crates/memfs crates/cli)
MOUNT_TESTS := $(patsubst %,--test %,$(sort $(basename $(notdir \
	$(wildcard $(addsuffix /*.rs,$(MOUNT_DIRS))) \
	$(patsubst %/main.rs,%,$(wildcard $(addsuffix /*/main.rs,$(MOUNT_DIRS))))))))

.PHONY: help
help: ## list the targets
	@echo "Copyhold: a copy-on-write filesystem in user space."
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 20

.PHONY: demo
demo: ## build, mount a pool, run real programs on it, kill the daemon, verify
	scripts/setup.sh build demo
	scripts/demo.sh

.PHONY: test
test: ## all tests
	scripts/setup.sh build test demo
	cargo test --workspace --locked

.PHONY: test-uring
test-uring: ## mount tests and functional suite over io_uring (root, /sys/module/fuse/parameters/enable_uring = Y)
	scripts/setup.sh build demo
	COPYHOLD_TEST_TRANSPORT=uring cargo test --workspace --locked --lib --bins \
		$(MOUNT_TESTS)
	cargo build --workspace --locked --quiet --bin copyhold --bin copyhold-suite \
		--bin copyhold-torture
	COPYHOLD_OPTIONS=transport=uring $(TARGET)/debug/copyhold-suite --quiet \
		--known tests/functional/known-failures

.PHONY: examples
examples: ## run the library's examples on a pool of their own
	scripts/setup.sh build
	cargo build --workspace --examples --locked
	dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && cd $(TARGET)/debug/examples && \
	./hello_pool "$$dir/hello.img" && \
	./tenants "$$dir/tenants.img" && \
	./mount "$$dir/mount.img" "$$dir/mnt" && \
	./durable_counter "$$dir/counter.img" 20 && \
	./durable_counter "$$dir/counter.img" 20

.PHONY: lint
lint: ## formatting, clippy, API pages, lock files, licences and sources of what we depend on
	scripts/setup.sh build lint
	for dir in . shuttle fuzz; do \
		cargo metadata --manifest-path $$dir/Cargo.toml --locked --quiet --format-version 1 \
			>/dev/null || exit 1; done
	cargo fmt --all -- --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --quiet
	cargo deny --locked check --hide-inclusion-graph licenses bans sources

.PHONY: simulate
simulate: ## crash simulation on fresh seeds: make simulate SEEDS=1000 (START=1: the same ones; PLAN="--flush even")
	scripts/setup.sh build
	cargo run --release --locked -p copyhold-sim -- --seeds $(SEEDS) $(if $(START),--start $(START)) $(PLAN)

.PHONY: enumerate
enumerate: ## every workload of one operation and of two, with every crash: PART=1/4 for a part
	scripts/setup.sh build
	cargo run --release --locked -p copyhold-sim -- --enumerate 1
	cargo run --release --locked -p copyhold-sim -- --enumerate 2 --part $(PART)

.PHONY: faults
faults: ## each read, write, flush and discard of a short workload fails, once or for good
	scripts/setup.sh build
	cargo run --release --locked -p copyhold-sim -- --faults

.PHONY: build
build: ## the program, in release mode
	scripts/setup.sh build
	cargo build --release --locked -p copyhold-cli

.PHONY: bench
bench: ## beside other filesystems (root): JOB=core AGAINST=btrfs,ext4,null ROUNDS=3 PLOT=bench.svg
	scripts/setup.sh build bench
	cargo build --release --locked -p copyhold-cli -p copyhold-bench
	$(TARGET)/release/copyhold-bench $(JOB) --against $(AGAINST) --rounds $(ROUNDS) \
		$(if $(PLOT),--plot $(PLOT))

.PHONY: large-pools
large-pools: ## pools of 100 TiB and 10 TiB with memory=256M (root, ten minutes): DIR=
	scripts/setup.sh build
	scripts/large-pools.sh $(DIR)

.PHONY: scenarios
scenarios: ## quota scenarios, beside kernel btrfs (root): TARGETS=copyhold,btrfs
	scripts/setup.sh build bench
	cargo build --release --locked -p copyhold-cli -p copyhold-suite
	$(TARGET)/release/copyhold-scenarios crates/suite/scenarios --target $(TARGETS)

.PHONY: functional
functional: ## the functional suite on mounts (root): TAGS=functional, long, an area, 2/3; OPTIONS=
	scripts/setup.sh build demo
	cargo build --release --locked -p copyhold-cli -p copyhold-suite -p copyhold-torture
	$(TARGET)/release/copyhold-suite -T $(TAGS) --known tests/functional/known-failures $(OPTIONS)

.PHONY: test-functional
test-functional: ## the same with the programs that `make test` builds, as CI does
	scripts/setup.sh build test demo
	cargo test --workspace --locked --no-run --quiet
	cargo build --workspace --locked --quiet --bin copyhold-torture
	$(TARGET)/debug/copyhold-suite --quiet --known tests/functional/known-failures

.PHONY: fuzz
fuzz: ## libFuzzer on each target for FUZZ_SECONDS=60: FUZZ=image for one (a nightly toolchain)
	scripts/setup.sh build fuzz
	scripts/fuzz.sh

.PHONY: shuttle
shuttle: ## tasks that are stopped at any lock, in many orders: TIMES=1000 for more of them
	scripts/setup.sh build
	cd shuttle && cargo test --locked

.PHONY: miri
miri: ## the tests that Miri can interpret (a nightly toolchain)
	scripts/setup.sh build miri
	scripts/miri.sh

.PHONY: tsan
tsan: ## the tests with real threads, under ThreadSanitizer (a nightly toolchain)
	scripts/setup.sh build tsan
	scripts/tsan.sh

.PHONY: acceptance
acceptance: ## suites and programs of others on a mount (root): OPS=1000000 SEEDS="1 2 3" KILLS=10
	scripts/setup.sh build acceptance
	cargo build --release --locked -p copyhold-cli
	scripts/acceptance.sh $(PARTS)

.PHONY: torture
torture: ## 16 threads doing everything while the daemon is killed: KILLS=20 SEED=1 OPTIONS=
	scripts/setup.sh build
	cargo build --release --locked -p copyhold-cli -p copyhold-torture
	$(TARGET)/release/copyhold-torture --rounds $(or $(KILLS),20) $(if $(SEED),--seed $(SEED)) \
		$(if $(OPTIONS),--options $(OPTIONS))

.PHONY: soak
soak: ## a pool between 85 and 99 % full, for HOURS=4, with kills; PLOT=soak.svg: SEED=1 GIB=4 OPTIONS=
	scripts/setup.sh build
	cargo build --release --locked -p copyhold-cli -p copyhold-torture
	$(TARGET)/release/copyhold-soak --hours $(or $(HOURS),4) --plot $(or $(PLOT),soak.svg) \
		$(if $(SEED),--seed $(SEED)) $(if $(GIB),--gib $(GIB)) $(if $(OPTIONS),--options $(OPTIONS))

.PHONY: xfstests
xfstests: ## xfstests' quick generic tests (root): XFSTESTS=DIR, a built tree of it
	scripts/setup.sh build
	cargo build --release --locked -p copyhold-cli
	XFSTESTS=$(XFSTESTS) scripts/xfstests.sh

.PHONY: test-nvme
test-nvme: ## pools on emulated NVMe namespaces with protection information, in a guest: FORM=short
	scripts/setup.sh build nvme
	MAY_NOT_RUN=$(MAY_NOT_RUN) scripts/nvme.sh $(FORM)

.PHONY: man
man: ## man pages and shell completions, into $(TARGET)/man and $(TARGET)/completions
	cargo build --release --locked -p copyhold-cli
	$(PROGRAM) generate man $(TARGET)/man
	$(PROGRAM) generate completions $(TARGET)/completions

.PHONY: install
install: build man ## program, helpers, man pages, completions: PREFIX=/usr/local SBINDIR=/sbin
	install -D -m 755 $(PROGRAM) $(DESTDIR)$(PREFIX)/bin/copyhold
	install -d $(DESTDIR)$(SBINDIR) $(DESTDIR)$(PREFIX)/share/man/man1
	for helper in $(HELPERS); do \
		ln -sf $(PREFIX)/bin/copyhold $(DESTDIR)$(SBINDIR)/$$helper || exit 1; done
	install -m 644 $(TARGET)/man/*.1 $(DESTDIR)$(PREFIX)/share/man/man1/
	install -D -m 644 $(TARGET)/completions/copyhold.bash \
		$(DESTDIR)$(PREFIX)/share/bash-completion/completions/copyhold
	install -D -m 644 $(TARGET)/completions/_copyhold \
		$(DESTDIR)$(PREFIX)/share/zsh/site-functions/_copyhold
	install -D -m 644 $(TARGET)/completions/copyhold.fish \
		$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/copyhold.fish

.PHONY: uninstall
uninstall: ## remove the installed files
	rm -f $(DESTDIR)$(PREFIX)/bin/copyhold $(addprefix $(DESTDIR)$(SBINDIR)/,$(HELPERS)) \
		$(DESTDIR)$(PREFIX)/share/man/man1/copyhold*.1 \
		$(DESTDIR)$(PREFIX)/share/bash-completion/completions/copyhold \
		$(DESTDIR)$(PREFIX)/share/zsh/site-functions/_copyhold \
		$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/copyhold.fish
