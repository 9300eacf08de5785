#!/usr/bin/env bash
# Runs every test: release; then the same load under ASan/UBSan and under TSan; then each fuzzer briefly.
# Usage: tests/run.sh [release|asan-ubsan|tsan|fuzz ...]   (default: all four)
set -euo pipefail
cd "$(dirname "$0")/.."
export CCACHE_SLOPPINESS=pch_defines,time_macros
# Sanitizer reports must fail the test, and say where.
export ASAN_OPTIONS=detect_stack_use_after_return=1 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1

run() {
  local preset=$1; shift
  printf '\n== %s: build\n' "$preset"
  cmake --preset "$preset" >/dev/null
  cmake --build --preset "$preset"
  printf '\n== %s: test\n' "$preset"
  ctest --preset "$preset" "$@"
}

presets=("$@")
[ ${#presets[@]} -eq 0 ] && presets=(release asan-ubsan tsan fuzz)
for preset in "${presets[@]}"; do
  case "$preset" in
    release) tests/clients/install.sh; run release ;;
    asan-ubsan) run asan-ubsan -LE golden ;;
    tsan) run tsan -L 'threads|e2e' ;;
    fuzz) run fuzz ;;
    *) echo "tests/run.sh: unknown preset '$preset'" >&2; exit 2 ;;
  esac
done
