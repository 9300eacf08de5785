#!/usr/bin/env bash
# Installs the official clients of the APIs, and frameworks upon them, in their pinned versions for the tests that name
# this script: two Python virtual environments and node_modules in build/clients. Does nothing if they are up to date.
# Usage: tests/clients/install.sh
set -euo pipefail
cd "$(dirname "$0")"
readonly target=../../build/clients

wanted() { cat requirements*.txt package.json package-lock.json | sha256sum; python3 --version; node --version; }

stamp=$(wanted)
if [ "$(cat "$target/installed" 2>/dev/null)" = "$stamp" ]; then exit 0; fi
printf 'clients: installing the official clients into build/clients\n' >&2
rm -rf "$target"
mkdir -p "$target"
# environment NAME FILE
environment() {
  python3 -m venv "$target/$1"
  "$target/$1/bin/pip" install --quiet --disable-pip-version-check --require-hashes -r "$2"
}
environment python requirements.txt
environment instructor requirements-instructor.txt
cp package.json package-lock.json "$target/"
npm --prefix "$target" ci --no-audit --no-fund --loglevel=error
printf '%s\n' "$stamp" >"$target/installed"
