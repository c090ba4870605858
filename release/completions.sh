#!/bin/sh
# Writes what shells need to complete the command line of tenure to bin/completions.
set -eu
cd "$(dirname "$0")/.."
mkdir -p bin/completions
for shell in bash zsh fish; do
	(cd cmd/tenure && GOWORK=off go run . completion "$shell") >"bin/completions/tenure.$shell"
done
