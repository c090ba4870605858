# Everything that .ci/run does can be done by hand here, in pieces.

STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.1
MODULES := . server examples
FUZZTIME ?= 10s
COUNT ?= 1
SEEDS ?= 2000
FIRST ?= 1

.DEFAULT_GOAL := help

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: check
check: ## Format, vet, lint, tidy and test: what must be green before a commit
	@test -z "$$(gofmt -l .)" || { echo "gofmt would change:"; gofmt -l .; exit 1; }
	go vet work
	@set -e; for module in $(MODULES); do \
		echo "staticcheck and tidy in $$module"; \
		(cd $$module && go run $(STATICCHECK) ./... && GOWORK=off go mod tidy -diff); \
	done
	go test work

.PHONY: race
race: ## Run all tests under the race detector; COUNT=50 repeats them
	go test -race -count=$(COUNT) work

.PHONY: fuzz
fuzz: ## Run each fuzz target for FUZZTIME (default 10s)
	@set -e; grep -rl --include='*_test.go' '^func Fuzz' . | sort | while read -r file; do \
		sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\).*/\1/p' "$$file" | while read -r target; do \
			echo "$$target ($$(dirname "$$file"))"; \
			go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) "$$(dirname "$$file")" </dev/null; \
		done; \
	done

.PHONY: bench
bench: ## Run the benchmarks, with allocations
	go test -run '^$$' -bench . -benchmem work

.PHONY: speed
speed: ## Compare with plain paho and mochi (three minutes), and say which targets are met
	@go test ./server -run '^$$' -bench Speed | awk -f server/speed.awk

.PHONY: sim
sim: ## Simulate SEEDS (2000) hours of nodes under faults, from seed FIRST (1) on
	go test ./internal/simulation -v -timeout 0 -run Promises -seeds $(SEEDS) -first $(FIRST)

.PHONY: mutants
mutants: ## Break each rule of the store and each promise, one at a time: a test must notice
	go run ./internal/mutants internal/mutants/*.txt

.PHONY: demo
demo: ## Watch an active/standby pair fail over
	go run ./examples/failover

.PHONY: install
install: ## Install the command tenure
	go install ./server/cmd/tenure
