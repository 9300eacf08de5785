#!/usr/bin/env bash
# Tests and measures loramux on a real GPU, within 20 minutes. What runs there needs no network and no compiler.
# Usage: lab/bench/gpu/hardware.sh pack [FOLDER] [--with-cublas]
#            builds, and puts all that is needed into FOLDER (default: build/gpu_hardware); cuBLAS (540 MB) on request
#        FOLDER/hardware.sh run RESULTS [SECONDS]
#            on the machine with the GPU: kernel tests, benchmarks (each checks before it times), `loramux profile`,
#            compute-sanitizer if there is one; stops after SECONDS (default: 1,140); writes RESULTS/hardware.json and RESULTS/log.txt
#        lab/bench/gpu/hardware.sh page HARDWARE_JSON
#            writes docs/results/gpu.md from the results
# The machine needs NVIDIA's driver 580 or later, python3, and cuBLAS 13 (a CUDA 13 installation or the Python package
# nvidia-cublas) unless it was packed.
set -euo pipefail

readonly here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly tests=(gpu_read_all_test gpu_elementwise_test gpu_lora_test gpu_lora_fused_test gpu_packed_test gpu_skinny_test
  gpu_qkv_post_test gpu_attention_test gpu_sampling_test gpu_assist_test assist_test device_sampler_test
  device_model_test)
# Of device_model_test: what does not need the emulated device.
readonly filter="*KindTest*:DeviceModelBatches*:DeviceModelResults*"
readonly sanitized=(gpu_elementwise_test gpu_lora_test gpu_skinny_test gpu_attention_test)

say() { printf 'hardware: %s\n' "$*" >&2; }

# Libraries of a program that a bare system may lack: all but those of the C and C++ compilers, and cuBLAS.
libraries_of() {
  ldd "$@" | sed -n 's/.* => \(\/[^ ]*\) .*/\1/p' | sort -u |
    grep -Ev '/(libc|libm|libdl|librt|libpthread|libgcc_s|libstdc\+\+|libcublasLt|ld-linux[^/]*)\.so'
}

pack() {
  local folder=build/gpu_hardware with_cublas=
  for argument in "$@"; do
    if [ "$argument" = --with-cublas ]; then with_cublas=1; else folder=$argument; fi
  done
  cd "$here/../../.."
  tools/setup.sh cuda
  cmake --preset cuda >/dev/null
  cmake --build --preset cuda --target loramux_cuda loramux gpu_bench assist_handoff "${tests[@]}"
  rm -rf "$folder"
  mkdir -p "$folder/bin" "$folder/lib"
  for name in gpu_bench assist_handoff "${tests[@]}"; do
    strip -o "$folder/bin/$name" "$(find build/cuda-release -type f -name "$name" -perm -u+x | head -1)"
  done
  for name in loramux libloramux_cuda.so; do strip -o "$folder/bin/$name" "build/cuda-release/tools/$name"; done
  libraries_of "$folder"/bin/* | xargs cp -Lt "$folder/lib"
  if [ -n "$with_cublas" ]; then cp -L build/cuda/root/lib/libcublasLt.so.13 "$folder/lib"; fi
  cp lab/bench/gpu/hardware.sh lab/bench/gpu/hardware.py "$folder"
  mkdir "$folder/shape"
  cp lab/bench/gpu/shape_1b.json "$folder/shape/config.json"
  git rev-parse HEAD >"$folder/commit" 2>/dev/null || echo unknown >"$folder/commit"
  say "packed $(du -sm "$folder" | cut -f1) MB in $folder; on the machine with the GPU: $folder/hardware.sh run RESULTS"
}

# The folder of libcublasLt.so.13: packed, of the system, of a CUDA installation, or of a Python package.
find_cublas() {
  local name=libcublasLt.so.13
  if [ -e "$here/lib/$name" ]; then echo "$here/lib"; return; fi
  local found
  found=$(ldconfig -p 2>/dev/null | sed -n "s/.*$name.* => //p" | head -1)
  [ -n "$found" ] || found=$(ls -d /usr/local/cuda*/lib64/$name /usr/local/cuda*/targets/*/lib/$name 2>/dev/null | head -1)
  [ -n "$found" ] || found=$(python3 "$here/hardware.py" find-cublas)
  if [ -n "$found" ]; then dirname "$found"; fi
}

# step SECONDS NAME COMMAND ...: runs it with what is left of the time; notes its status and duration in steps.txt.
step() {
  local limit=$1 name=$2 left=$((deadline - SECONDS)) started=$SECONDS status=0
  shift 2
  if [ "$left" -lt 10 ]; then echo "$name skipped 0" >>"$work/steps.txt"; return; fi
  if [ "$left" -lt "$limit" ]; then limit=$left; fi
  printf '\n== %s\n' "$name"
  timeout --kill-after=10 "$limit" "$@" || status=$?
  echo "$name $status $((SECONDS - started))" >>"$work/steps.txt"
}

measure() {
  export LORAMUX_TEST_DEVICE=cuda LORAMUX_CUDA_PLUGIN="$here/bin/libloramux_cuda.so"
  local cublas
  cublas=$(find_cublas)
  if [ -z "$cublas" ]; then say "no cuBLAS 13 on this machine: pack with --with-cublas"; exit 1; fi
  export LD_LIBRARY_PATH="$here/lib:$cublas"
  say "cuBLAS from $cublas"
  nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,clocks.max.mem,power.limit --format=csv,noheader \
    >"$work/gpu.txt" || say "nvidia-smi gives nothing"
  cat "$work/gpu.txt"
  for name in "${tests[@]}"; do
    local options=()
    if [ "$name" = device_model_test ]; then options=("--gtest_filter=$filter"); fi
    step 120 "test $name" "$here/bin/$name" "${options[@]}"
  done
  step 700 "bench gpu_bench" "$here/bin/gpu_bench" --json "$work/bench.json"
  step 90 "bench assist_handoff" "$here/bin/assist_handoff" --json "$work/handoff.json"
  step 150 "bench profile" "$here/bin/loramux" profile "$here/shape" --random-weights --device cuda --quick --seconds 45 \
    --engine-seconds 10 --max-model-len 2048 --scratch "$work" --output "$work/profile.json"
  if command -v compute-sanitizer >/dev/null; then
    for name in "${sanitized[@]}"; do
      for tool in memcheck racecheck; do
        step 60 "$tool $name" compute-sanitizer --tool "$tool" --error-exitcode 9 "$here/bin/$name"
      done
    done
  fi
}

run() {
  local results=${1:?"usage: hardware.sh run RESULTS [SECONDS]"}
  deadline=$((SECONDS + ${2:-1140}))
  mkdir -p "$results"
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  touch "$work/steps.txt" "$work/gpu.txt"
  local status=0
  (measure) 2>&1 | tee "$results/log.txt" || status=$?
  python3 "$here/hardware.py" collect "$work" "$here/commit" "$results/hardware.json"
  return $status
}

page() {
  python3 "$here/hardware.py" page "${1:?"usage: hardware.sh page HARDWARE_JSON"}" "$here/../../../docs/results/gpu.md"
}

command=${1:-}
shift || true
case "$command" in
  pack) pack "$@" ;;
  run) run "$@" ;;
  page) page "$@" ;;
  *) sed -n '2,13s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 2 ;;
esac
