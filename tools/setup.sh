#!/usr/bin/env bash
# Installs what building (and testing) loramux needs and is not there yet. Debian and Ubuntu packages only; on other
# systems it says what to install. Uses sudo only when not root.
# Usage: tools/setup.sh build|test|bundle|envoy|mpi|arm64|cuda
#   bundle: what tools/bundle.py needs for the tarball and the wheel; also part of `test`.
#   envoy: gRPC, for the plugin of `loramux route --ext-proc`; also part of `test`.
#   mpi: Open MPI, for the plugin of `loramux serve --tensor-parallel-size`; also part of `test`.
#   arm64: a compiler for ARM, qemu, and the libraries for ARM in build/arm64/sysroot; the system's own stay as they are.
#   cuda: NVIDIA's compiler and libraries, from PyPI into build/cuda; neither root rights nor a GPU.
set -euo pipefail

readonly build_packages=(
  g++ make cmake ninja-build ccache pkg-config ca-certificates
  nlohmann-json3-dev libcli11-dev libspdlog-dev libfmt-dev libhwy-dev libxxhash-dev libre2-dev prometheus-cpp-dev
  libtomlplusplus-dev libsystemd-dev libssl-dev libcurl4-openssl-dev libeigen3-dev dpkg-dev file python3)
readonly test_packages=(libgtest-dev libgmock-dev libbenchmark-dev openssl clang-14 clang-format-14 libclang-rt-14-dev lld
  python3-venv python3-prometheus-client etcd-server)
readonly bundle_packages=(patchelf binutils dpkg)
readonly envoy_packages=(libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc)
readonly mpi_packages=(libopenmpi-dev openmpi-bin)
readonly arm64_packages=(g++-aarch64-linux-gnu qemu-user-static)
# Boost 1.81 or later, by the names that releases give it; the first that exists is taken.
readonly boost_packages=(libboost1.81-dev libboost1.83-dev libboost1.88-dev libboost-dev)
# The oldest Rust that the pinned crates build with (src/text/bindings/Cargo.toml, rust-version).
readonly min_rust_minor=87

# CUDA 13.0.2, as the parts that the project uses. The versions fit each other; a change of the list installs anew.
readonly cuda_packages=(
  nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-runtime==13.0.96
  nvidia-cuda-cccl==13.0.85 nvidia-cublas==13.1.0.3 nvidia-cuda-cuobjdump==13.2.86 nvidia-cuda-nvdisasm==13.2.86)

say() { printf 'setup: %s\n' "$*" >&2; }

as_root() {
  if [ "$(id -u)" -eq 0 ]; then "$@"; elif command -v sudo >/dev/null; then sudo "$@"; else
    say "this command needs root rights: $*"; say "run it as root, then run setup again"; exit 1
  fi
}

installed() { dpkg-query -W -f '${Status}' "$1" 2>/dev/null | grep -q 'ok installed'; }

install_packages() {
  local missing=()
  for package in "$@"; do installed "$package" || missing+=("$package"); done
  [ ${#missing[@]} -eq 0 ] && return
  say "installing: ${missing[*]}"
  as_root env DEBIAN_FRONTEND=noninteractive apt-get update -q >&2 ||
    say "apt-get update failed; continuing with the existing package lists"
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}" >&2
}

# The headers count, not the name: Beast with C++20 coroutines needs 1.81.
boost_is_new_enough() {
  local version
  version=$(sed -n 's/^#define BOOST_VERSION \([0-9]*\)$/\1/p' /usr/include/boost/version.hpp 2>/dev/null)
  [ "${version:-0}" -ge 108100 ]
}

# Of the same version as the headers: the emulated device switches between its threads with it.
install_boost_context() {
  compgen -G '/usr/lib/*/libboost_context.a' >/dev/null && return
  local version
  version=$(sed -n 's/^#define BOOST_LIB_VERSION "\([0-9]*\)_\([0-9]*\).*"$/\1.\2/p' /usr/include/boost/version.hpp)
  install_packages "libboost-context$version-dev"
}

install_boost() {
  if boost_is_new_enough; then install_boost_context; return; fi
  for package in "${boost_packages[@]}"; do
    if (install_packages "$package") && boost_is_new_enough; then install_boost_context; return; fi
  done
  say "cannot install Boost 1.81 or later from this system's packages (tried: ${boost_packages[*]})"
  exit 1
}

rust_is_new_enough() {
  command -v cargo >/dev/null || return 1
  local minor
  minor=$(cargo --version | sed -E 's/^cargo 1\.([0-9]+)\..*/\1/')
  [ "${minor:-0}" -ge $min_rust_minor ] 2>/dev/null
}

install_rust() {
  rust_is_new_enough && return
  say "expected Rust 1.$min_rust_minor or later, found $(cargo --version 2>/dev/null || echo none); trying packages"
  # Debian bookworm has a current Rust as cargo-web; newer releases as cargo.
  for package in cargo-web cargo; do
    (install_packages "$package") || continue
    hash -r
    rust_is_new_enough && return
  done
  say "cannot install Rust 1.$min_rust_minor or later from this system's packages (Debian 12 has it as cargo-web in its"
  say "security updates: /etc/apt/sources.list must name them)."
  say "Install it with rustup (https://rustup.rs), make sure that 'cargo' is on the PATH, and run this again."
  exit 1
}

# For the official JavaScript client. Any Node will do that brings npm, from wherever it came.
install_node() {
  command -v node >/dev/null && command -v npm >/dev/null && return
  install_packages nodejs npm
}

# apt with a state of its own, for which only arm64 exists and nothing is installed: it finds everything that the
# libraries need, and cannot touch the system's packages. They are unpacked, not installed.
download_arm64() {
  local where=$1 package libraries=(libc6-dev libgtest-dev libgmock-dev)
  for package in "${build_packages[@]}"; do case "$package" in lib*-dev|*-cpp-dev|*json3-dev) libraries+=("$package") ;; esac; done
  mkdir -p "$where/state/lists/partial" "$where/cache/archives/partial"
  : >"$where/status"
  printf '%s;\n' 'APT::Architecture "arm64"' 'APT::Architectures { "arm64"; }' "Dir::State \"$where/state\"" \
    "Dir::State::status \"$where/status\"" "Dir::Cache \"$where/cache\"" 'APT::Sandbox::User "root"' >"$where/apt.conf"
  export APT_CONFIG="$where/apt.conf"
  apt-get update -q >&2
  for package in "${boost_packages[@]}"; do
    apt-cache show "$package" >/dev/null 2>&1 || continue
    apt-get install -d -y -q --no-install-recommends "${libraries[@]}" "$package" "${package/boost/boost-context}" >&2
    return
  done
  return 1
}

install_arm64() {
  cd "$(dirname "$0")/.."
  local where=$PWD/build/arm64 started=$SECONDS
  install_packages "${build_packages[@]}" "${arm64_packages[@]}"
  if [ "$(cat "$where/installed.txt" 2>/dev/null)" = "${build_packages[*]}" ]; then return; fi
  say "unpacking the libraries for arm64 into $where/sysroot: about 50 MB to fetch, 400 MB on disk"
  rm -rf "$where/sysroot" "$where/apt"
  if ! (download_arm64 "$where/apt"); then
    say "this system's apt sources have no such packages for arm64 (Ubuntu has them at ports.ubuntu.com; Debian has them)"
    exit 1
  fi
  mkdir -p "$where/sysroot"
  for package in "$where"/apt/cache/archives/*.deb; do dpkg -x "$package" "$where/sysroot"; done
  rm -rf "$where/apt"
  printf '%s\n' "${build_packages[*]}" >"$where/installed.txt"
  say "unpacked in $((SECONDS - started)) s: $(du -sm "$where/sysroot" | cut -f1) MB in $where/sysroot"
}

# The packages in a virtual environment, with the names that compilers and linkers expect. build/cuda/root is then what
# other systems have as /usr/local/cuda.
install_cuda() {
  cd "$(dirname "$0")/.."
  local where=build/cuda stamp=build/cuda/installed.txt started=$SECONDS
  if [ "$(cat "$stamp" 2>/dev/null)" = "${cuda_packages[*]}" ]; then return; fi
  if [ "$(uname -s)-$(uname -m)" != Linux-x86_64 ]; then
    say "the pinned CUDA packages are for Linux on x86-64, and this is $(uname -s) on $(uname -m)"; exit 1
  fi
  say "installing CUDA's compiler and cuBLAS from PyPI into $where: about 510 MB to fetch, 900 MB on disk"
  rm -rf "$where"
  python3 -m venv "$where" || { say "python3 cannot make virtual environments; on Debian: apt install python3-venv"; exit 1; }
  "$where/bin/pip" install --quiet --disable-pip-version-check "${cuda_packages[@]}" >&2
  local root
  root=$(echo "$where"/lib/python3*/site-packages/nvidia/cu13)
  ln -sfn lib "$root/lib64"   # nvcc's profile looks there
  for library in cudart cublas cublasLt; do ln -sfn "lib$library.so.13" "$root/lib/lib$library.so"; done
  ln -sfn "${root#"$where"/}" "$where/root"
  printf '%s\n' "${cuda_packages[*]}" >"$stamp"
  say "installed CUDA in $((SECONDS - started)) s: $(du -sm "$where" | cut -f1) MB in $where"
}

main() {
  if [ "${1:-build}" = cuda ]; then install_cuda; return; fi
  if ! command -v apt-get >/dev/null; then
    say "this is not a Debian or Ubuntu system, so nothing was installed. Install these packages (Debian names):"
    say "  ${build_packages[*]} ${boost_packages[0]} libboost-context1.81-dev cargo (1.$min_rust_minor+)"
    if [ "${1:-build}" = test ]; then say "  for the tests: ${test_packages[*]} chromium nodejs npm"; fi
    case "${1:-build}" in test|envoy) say "  for loramux route --ext-proc: ${envoy_packages[*]}" ;; esac
    case "${1:-build}" in test|mpi) say "  for loramux serve --tensor-parallel-size: ${mpi_packages[*]}" ;; esac
    return 0
  fi
  if [ "${1:-build}" = arm64 ]; then install_arm64; return; fi
  install_packages "${build_packages[@]}"
  install_boost
  if [ "${1:-build}" = test ]; then
    install_packages "${test_packages[@]}"
    # Ubuntu has no such package.
    (install_packages chromium) || say "without Chromium or Chrome, the test of the page is skipped"
    install_node
  fi
  case "${1:-build}" in test|envoy) install_packages "${envoy_packages[@]}" ;; esac
  case "${1:-build}" in test|mpi) install_packages "${mpi_packages[@]}" ;; esac
  case "${1:-build}" in test|bundle) install_packages "${bundle_packages[@]}" ;; esac
  install_rust
}

main "$@"
