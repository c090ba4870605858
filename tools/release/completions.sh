#!/bin/sh
# Writes what shells need to complete the command line of tenure to bin/completions. The flags of go build are as in
# .goreleaser.yaml, so packages are compiled once.
set -eu
cd "$(dirname "$0")/../.."
mkdir -p bin/completions
for shell in bash zsh fish; do
	(cd cmd/tenure && CGO_ENABLED=0 GOWORK=off go run -trimpath . completion "$shell") >"bin/completions/tenure.$shell"
done
