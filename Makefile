# Everything that .ci/run does can be done by hand here, in pieces.

# A list of packages, or of files, that cannot be made ends the recipe.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c

# Fixed versions: what the gate says changes with a commit only.
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.1
GORELEASER_VERSION := v2.15.1
GORELEASER := bin/goreleaser-$(GORELEASER_VERSION)
SNAPSHOT ?= linux_amd64
# Modules outside of go.work: they need etcd, and bench also NATS and clients of Redis, which the
# others must not have to download and compile. They have the workspaces cluster/go.work and
# bench/go.work.
APART := cluster bench
MODULES := . server cluster cmd/tenure cmd/tenure/internal/admin/browsertest contrib/tenureotel contrib/tenureprom contrib/tenurews examples tools bench
FUZZTIME ?= 10s
COUNT ?= 1
SEEDS ?= 2000
FIRST ?= 1
CRASHES ?= 500
TAKEOVERS ?= 100
DURATION ?= 1m
PEERS ?=
GROWTH ?=
WALK ?=
SEED ?= 0
# Where gateways and their engineers run it: one vet compiles everything, tests included. What nothing runs is compiled
# without optimization, which takes a quarter less.
QUICKLY := -gcflags='all=-N -l'
PLATFORMS := linux/arm linux/arm64 windows/amd64 darwin/arm64 freebsd/amd64
PACKAGES_386 ?= work
# Packages without goroutines, or which only start programs: the race detector finds nothing there.
SEQUENTIAL := . resp3 statestore internal/operror internal/protocol tools/count tools/mutants tools/release
# To compile etcd takes half a minute for each.
APART_PLATFORMS := linux/386 linux/arm64 windows/amd64

.DEFAULT_GOAL := help

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: check
check: lint ## Format, vet, lint, tidy and test, the long tests too, and list what was skipped: green before a commit
	export LONG_TESTS=1; { go test -json work; (cd cluster; go test -json ./...); (cd bench; go test -json ./...); } \
		| awk -f .ci/skips.awk

.PHONY: nightly
nightly: check vet-platforms test-386 snapshot ## What takes longer than the gate: check, all platforms, all tests as on a 32-bit processor, a release, installed
	cd bench && go test -race ./...
	go test -count=1 ./tools/release -run Snapshot -args -snapshot '$(CURDIR)/dist'

.PHONY: lint
lint: ## The part of check without tests
	@test -z "$$(gofmt -l .)" || { echo "gofmt would change:"; gofmt -l .; exit 1; }
	go run ./tools/mutants -check
	go vet work
	go run $(STATICCHECK) work
	@set -e; for module in $(APART); do \
		echo "vet and staticcheck in $$module"; \
		(cd $$module && go vet ./... && go run $(STATICCHECK) ./...); \
	done
	@set -e; for module in $(MODULES); do \
		(cd $$module && GOWORK=off go mod tidy -diff); \
	done

.PHONY: race
race: ## Run the tests under the race detector, except in packages without goroutines (SEQUENTIAL); COUNT=50 repeats them, LONG_TESTS=1 runs the long ones too
	@all=$$(go list work); sequential=$$(go list $(addprefix ./,$(SEQUENTIAL))); \
	packages=$$(echo "$$all" | grep -vxF "$$sequential"); \
	echo "go test -race: $$(echo "$$packages" | wc -l) packages"; \
	go test -race -vet=off -count=$(COUNT) $$packages
	cd cluster && go test -race -vet=off -count=$(COUNT) ./...

.PHONY: test-386
test-386: ## Vet for a 32-bit processor, and run the tests as on one, without those with etcd
	CGO_ENABLED=0 GOARCH=386 go vet work
	CGO_ENABLED=0 GOARCH=386 go test -vet=off $(PACKAGES_386)

.PHONY: vet-platforms
vet-platforms: ## Compile and vet everything for the other platforms
	@set -e; for platform in $(PLATFORMS); do \
		echo "vet for $$platform"; \
		CGO_ENABLED=0 GOOS=$${platform%/*} GOARCH=$${platform#*/} GOARM=7 go vet $(QUICKLY) work; \
	done
	@set -e; for platform in $(APART_PLATFORMS); do for module in $(APART); do \
		echo "vet $$module for $$platform"; \
		(cd $$module && CGO_ENABLED=0 GOOS=$${platform%/*} GOARCH=$${platform#*/} go vet $(QUICKLY) ./...); \
	done; done

.PHONY: fuzz
fuzz: ## Run each fuzz target for FUZZTIME (default 10s)
	@set -e; grep -rl --include='*_test.go' '^func Fuzz' . | sort | while read -r file; do \
		sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\).*/\1/p' "$$file" | while read -r target; do \
			echo "$$target ($$(dirname "$$file"))"; \
			(cd "$$(dirname "$$file")" && go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) . </dev/null); \
		done; \
	done

.PHONY: fuzz-server
fuzz-server: ## Send almost valid packets to a server under the race detector; DURATION=10m, SEED=1 replays
	go test -race -count=1 -timeout 0 -v ./server/abuse/packetfuzz -args -packetfuzz.duration $(DURATION) -packetfuzz.seed $(SEED)

.PHONY: bench
bench: ## Run the benchmarks, with allocations
	go test -run '^$$' -bench . -benchmem work

.PHONY: speed
speed: ## Compare with plain paho and mochi (a minute), and say which targets are met
	@go test ./server/bench -run '^$$' -bench Speed | awk -f server/bench/speed.awk

.PHONY: peers
peers: ## Compare with redislock, rueidislock, NATS and etcd (five minutes): tables in Markdown; PEERS=--quick takes a minute
	@command -v redis-server >/dev/null || { echo "installing redis-server"; \
		as_root=$$(test "$$(id -u)" = 0 || echo sudo); \
		$$as_root apt-get update -qq && $$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends redis-server; } >&2
	@cd bench && go run . $(PEERS)

.PHONY: growth
growth: ## Cost against size (leases, connections, keys, watchers), and latency against load (ten minutes): tables in Markdown; GROWTH=--quick takes a minute
	@cd bench && go run . growth $(GROWTH)

.PHONY: abuse
abuse: ## Attack a server in every way we know, and print what a healthy client noticed (half an hour at most); ONLY=regexp
	@go run ./server/abuse -only '$(ONLY)'

.PHONY: sim
sim: ## Simulate SEEDS (2000) hours of nodes under faults, from seed FIRST (1) on
	go test ./internal/simulation -v -timeout 0 -run Promises -seeds $(SEEDS) -first $(FIRST)

.PHONY: explore
explore: ## Walk through every order of events of small models of real code: docs/invariants.md; takes minutes
	EXPLORE=1 go test ./lease ./election ./internal/engine -count=1 -p=1 -timeout 0 -v -run TestExplore
	cd cluster && EXPLORE=1 go test . -count=1 -timeout 0 -v -run TestExplore

.PHONY: crash
crash: ## Kill stores while clients use them, and check what they see: CRASHES (500) on a file, TAKEOVERS (100) of a pair; SEED=1 sets the choices
	go test ./server/crashtest -count=1 -timeout 0 -v -run 'Invariant|Fault' -crash.cycles $(CRASHES) -crash.seed $(SEED)
	cd cluster && go test ./takeover -count=1 -timeout 0 -v -takeover.cycles $(TAKEOVERS) -takeover.seed $(SEED)

.PHONY: mutants
mutants: ## Break each promise and invariant, one at a time: a test must notice (half an hour); ONLY=regexp
	go run ./tools/mutants -only '$(ONLY)'

.PHONY: count
count: ## Lines of code by area, words, and exported symbols, against their budgets
	@go run ./tools/count

.PHONY: walk
walk: ## How many functions of how many files and packages one Acquire runs; WALK=-v lists them
	@go run ./server/walk $(WALK)

.PHONY: demo
demo: ## Watch an active/standby pair fail over
	go run ./examples/failover

.PHONY: goreleaser
goreleaser: $(GORELEASER) ## Compile goreleaser, which takes minutes once

# Without optimization, because it compiles faster and does little by itself.
$(GORELEASER):
	GOBIN='$(CURDIR)/bin' go install -p 1 -gcflags='all=-N -l' -ldflags='-s -w' github.com/goreleaser/goreleaser/v2@$(GORELEASER_VERSION)
	mv bin/goreleaser $@

.PHONY: snapshot
snapshot: $(GORELEASER) ## Make the programs and packages of a release for SNAPSHOT (linux_amd64) from the present commit, into dist/
	@mkdir -p bin
	sed 's/^    targets: .*/    targets: [$(SNAPSHOT)]/' .goreleaser.yaml >bin/goreleaser.yaml
	$(GORELEASER) check
	$(GORELEASER) release --snapshot --clean --skip=sbom,docker --config bin/goreleaser.yaml

.PHONY: install
install: ## Install the command tenure
	go install ./cmd/tenure
