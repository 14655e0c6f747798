#!/bin/sh
# What only a machine with a GPU can show, in under five minutes: golden files, a training run against cpu, a table of times.
# Usage: tests/gpu/run.sh [GOLDEN_FOLDER]     needs: pip install 'gaian_hpc[cuda13]' (or [cuda12]) and this checkout
set -u
cd "$(dirname "$0")/../.." || exit 1
golden=${1:-${GAIAN_SHARED:-../shared}/golden}
status=0
log=$(mktemp)
timeout 150 python -m tests.check_golden --backend cuda "$golden"/*dgs_*.npz "$golden"/convex_*.npz "$golden"/s*.npz "$golden"/adam_*.npz > "$log" 2>&1 || status=1
grep -v '^  ok' "$log"
rm -f "$log"
timeout 90 python -m tests.gpu.training || status=1
timeout 45 python -m tests.gpu.timing || status=1
exit $status
