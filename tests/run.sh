#!/usr/bin/env bash
# Runs the tests. CONTRIBUTING.md has the table of which test runs where, and for how long.
# Usage: tests/run.sh          the release tests; under ASan/UBSan what is stateful or reads untrusted input
#        tests/run.sh all      the rest: every test under every sanitizer, long soaks, long fuzzing, all benchmarks built
#        tests/run.sh release|asan-ubsan|tsan|fuzz ...     only these parts; tsan: what has threads, under TSan; fuzz: each
#                              fuzzer for some seconds. They are not in the first, which must end within 90 minutes on two
#                              cores that have compiled nothing yet
#        tests/run.sh arm64    the kernels and the model for ARM, under qemu (after tools/setup.sh arm64)
set -euo pipefail
cd "$(dirname "$0")/.."
export CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
# Sanitizer reports must fail the test, and say where.
export ASAN_OPTIONS=detect_stack_use_after_return=1 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1

# part PRESET [CMake setting ...]: builds the preset with these settings, then runs its tests.
part() {
  local preset=$1; shift
  printf '\n== %s: build\n' "$preset"
  cmake --preset "$preset" "$@" >/dev/null
  cmake --build --preset "$preset"
  printf '\n== %s: test\n' "$preset"
  ctest --preset "$preset"
}

# Once as a processor with everything that qemu has, once as one without dot products; then the kernels that use these.
arm64() {
  QEMU_CPU=max part arm64
  printf '\n== arm64: test as a Cortex-A72\n'
  QEMU_CPU=cortex-a72 ctest --preset arm64
  QEMU_CPU=max part arm64-dotprod
}

run() {
  case "$1" in
    release) tests/clients/install.sh; part release ;;
    asan-ubsan) part asan-ubsan ;;
    tsan) part tsan ;;
    fuzz) part fuzz -DLORAMUX_FUZZ_SECONDS=8 ;;
    arm64) arm64 ;;
    all)
      tests/clients/install.sh all
      part release -DLORAMUX_LONG_TESTS=ON
      cmake --build --preset release --target benchmarks
      part asan-ubsan -DLORAMUX_LONG_TESTS=ON -DLORAMUX_TEST_LABELS= -DLORAMUX_SERVE_ONLY=OFF -DLORAMUX_SANITIZE_EXCEPT=
      part tsan -DLORAMUX_LONG_TESTS=ON "-DLORAMUX_TEST_LABELS=threads;e2e"
      # Here each unit is compiled by itself, which shows that it includes what it uses.
      part fuzz -DLORAMUX_FUZZ_SECONDS=300 -DLORAMUX_UNITY_BUILD=OFF -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON ;;
    *) echo "tests/run.sh: unknown part '$1': expected release, asan-ubsan, tsan, fuzz, arm64 or all" >&2; exit 2 ;;
  esac
}

parts=("$@")
[ ${#parts[@]} -eq 0 ] && parts=(release asan-ubsan)
for name in "${parts[@]}"; do run "$name"; done
