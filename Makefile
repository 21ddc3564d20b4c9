# `make` lists the targets. Everything that is built lies in target/ and in the
# cache of controlplane/build.sh; a second run reuses both.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help check-tools check deny dist controlplane build engines engines-tools interop words fmt lint unit test chaos facts test-engines test-nodes demo demo-platform sandbox macos test-upstream test-rehearsals schemas format-schemas bench clean

# Folder with manifests of upstream projects, for test-upstream and test-rehearsals.
DATA ?=

help: ## List the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

check-tools: ## Name the packages that are missing on this machine for `make test`
	@NO_INSTALL=1 controlplane/check-tools.sh test

# Each target asks only for what it needs itself.
tools-%:
	@controlplane/check-tools.sh $*

controlplane: tools-controlplane ## Download or build etcd, the Kubernetes programs and kwok into the cache
	@controlplane/build.sh

build: tools-build ## Build the pleach program
	cargo build --bin pleach

engines: tools-engines ## Build pleach-engines, which renders charts and overlays
	engines/build.sh

engines-tools: tools-engines ## Build age-keygen, helm, sops, kustomize, crane, cosign, the registry of distribution and the library of Flux into the cache, for `make interop`
	engines/build.sh tools

interop: engines engines-tools ## Test pleach-engines, and compare it with helm and kustomize; exchange artifacts with crane, cosign, distribution and Flux, and files with sops
	cd engines && CGO_ENABLED=0 go vet ./...
	cd engines && CGO_ENABLED=0 PLEACH_ENGINES="$(CURDIR)/target/engines/pleach-engines" \
		PLEACH_REFEREES="$${XDG_CACHE_HOME:-$$HOME/.cache}/pleach/referees" go test -count=1 ./...
	PLEACH_REFEREES="$${XDG_CACHE_HOME:-$$HOME/.cache}/pleach/referees" \
		cargo test --workspace --all-features --test it -- --ignored referee::
	@$(MAKE) --no-print-directory test-engines
	PLEACH_ENGINES="$(CURDIR)/target/engines/pleach-engines" \
		PLEACH_REFEREES="$${XDG_CACHE_HOME:-$$HOME/.cache}/pleach/referees" \
		cargo test --workspace --all-features --test control_plane -- --ignored referee::

words: ## List words of the banned list, for a review
	tools/banned-words.sh

fmt: ## Format the code
	cargo fmt --all

# Lints and tests use all features: a second set would compile the crates once more. Cargo
# leaves out targets with `test = false` unless they are named.
lint: ## Check format, words and lints
	tools/banned-words.sh --strict
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --all-features -- -D warnings
	cargo clippy --workspace --all-features --test facts --test nodes --test upstream -- -D warnings

# Tests in tests/it wait for servers and processes most of the time: more run than there are cores.
unit: ## Run all tests that need no control plane
	cargo test --workspace --all-features --lib --bins
	RUST_TEST_THREADS=$${RUST_TEST_THREADS:-6} tools/test-twice.sh it
	cargo test --workspace --all-features --doc

check: tools-check ## Check and test all that needs no control plane
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory unit

# Tests on the control plane wait for it most of the time: more run than there are cores. A test
# with `_within_` in its name measures time and runs alone.
test: tools-test controlplane ## Check and test everything
	@$(MAKE) --no-print-directory check
	RUST_TEST_THREADS=$${RUST_TEST_THREADS:-6} tools/test-twice.sh control_plane --skip _within_
	RUST_TEST_THREADS=1 cargo test --workspace --all-features --test control_plane -- _within_

# What is played: make chaos CHAOS="--seed 17"
CHAOS ?=

chaos: tools-chaos controlplane build ## Disturb pleach wherever it can be (hours); CHAOS="--only storm --runs 200" is shorter
	cargo run -p pleach-testkit --bin pleach-chaos -- $(CHAOS)

facts: tools-facts controlplane ## Test Kubernetes and the test kit, for a new version of Kubernetes
	RUST_TEST_THREADS=$${RUST_TEST_THREADS:-4} cargo test --workspace --all-features --test facts

# Charts and overlays need the program of engines/, which needs Go.
test-engines: tools-test engines controlplane ## Test charts and overlays with the real pleach-engines
	PLEACH_ENGINES=$$(pwd)/target/engines/pleach-engines cargo test --workspace --all-features --test it --test control_plane -- --ignored charts::

# Real nodes use control groups, devices and mounts of the machine, in namespaces of their own.
# PLEACH_IMAGE=dist/pleach-image.oci.tar starts with the image of a release.
test-nodes: tools-test-nodes ## Test with real nodes: kubelets, containerd and runc; needs root
	@controlplane/build.sh nodes
	cargo test --workspace --all-features --test nodes

demo: tools-demo controlplane build ## Show an upgrade on a throw-away control plane
	cargo run -p pleach-testkit --bin pleach-demo

demo-platform: tools-demo engines controlplane build ## Show an upgrade of charts and nodes on simulated nodes
	PLEACH_ENGINES="$(CURDIR)/target/engines/pleach-engines" cargo run -p pleach-testkit --bin pleach-demo-platform

sandbox: tools-sandbox controlplane build ## A throw-away control plane to try things on
	cargo run --bin pleach -- sandbox

test-upstream: tools-demo controlplane ## Test with manifests of upstream projects: make test-upstream DATA=folder
	@[[ -n "$(DATA)" ]] || { echo "say where the manifests lie: make test-upstream DATA=folder" >&2; exit 2; }
	@[[ -d "$(DATA)" ]] || { echo "DATA: there is no folder $(DATA)" >&2; exit 2; }
	data=$$(cd -- "$(DATA)" && pwd) && PLEACH_UPSTREAM_DATA=$$data cargo test --workspace --all-features --test upstream

test-rehearsals: tools-demo controlplane ## Rehearse and apply upgrades of upstream projects and of our bundles (minutes): make test-rehearsals DATA=folder
	@[[ -d "$(DATA)" ]] || { echo "say where the manifests lie: make test-rehearsals DATA=folder" >&2; exit 2; }
	data=$$(cd -- "$(DATA)" && pwd) && PLEACH_UPSTREAM_DATA=$$data RUST_TEST_THREADS=1 cargo test --workspace --all-features --test upstream -- --ignored rehearsals::
	@cat "$${CARGO_TARGET_DIR:-target}"/tmp/rehearsals-*.txt

schemas: tools-schemas controlplane ## Make the tables of kinds and docs/schemas again
	cargo run -p pleach-testkit --bin pleach-schemas

format-schemas: tools-build ## Make docs/schemas again, from the structs of our own files
	cargo run -p pleach-testkit --bin pleach-schemas formats

# What is measured: make bench BENCH="--only '5000 mixed' -o json"
BENCH ?=

bench: tools-bench controlplane ## Measure pleach and kubectl on the same work (half an hour); BENCH=--quick is short
	cargo build --release --bin pleach
	engines=target/engines/pleach-engines; [[ -x $$engines ]] && engines=(--engines $$engines) || engines=(); \
	cargo run -p pleach-testkit --bin pleach-bench -- --pleach "$${CARGO_TARGET_DIR:-target}/release/pleach" \
		"$${engines[@]}" $(BENCH)

dist: tools-dist ## Build the artifacts of a release into dist/, from a clean commit
	@[[ -z "$${COSIGN_KEY:-}" ]] || export COSIGN_KEY=$$(realpath -- "$$COSIGN_KEY"); \
	$(MAKE) --no-print-directory --directory dist

macos: tools-build ## Check that the program compiles for macOS; needs zig and the tools of dist
	@$(MAKE) --no-print-directory --directory dist macos

deny: tools-build ## Check licenses, banned crates and sources of dependencies; ADVISORIES=1 also fetches and checks advisories
	@$(MAKE) --no-print-directory --directory dist deny ADVISORIES="$(ADVISORIES)"

clean: ## Remove what cargo built; the control plane's cache stays
	cargo clean
