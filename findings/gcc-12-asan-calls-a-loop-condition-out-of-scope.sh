#!/usr/bin/env bash
# std::string::compare in the condition of a loop: GCC 12's AddressSanitizer reports a use after the scope, which is none.
#
# Versions    g++, libasan 12.2.0-14+deb12u1 (Debian 12)
# Behaviour   A loop that calls `text.compare(at, 12, "...")` in its condition ends with stack-use-after-scope at -O1, within
#             the inlined compare; the program is valid. At -O0 and -O2, and with -fsanitize=undefined besides in this small
#             program, there is no report. In a large function it came with both sanitizers.
# Why         A test that is right fails, every time, and only under the sanitizer.
# What to do  Compare outside of the condition.
# Seen        stack-use-after-scope at -O1; the right output, 2, at -O2
source "$(dirname "$0")/common.sh"
cd "$work"
for name in g++-12 gcc-12 cpp-12 libgcc-12-dev libstdc++-12-dev libasan8; do
  apt-get download -qq -o APT::Sandbox::User=root "$name=12.2.0-14+deb12u1"
done
for file in *.deb; do dpkg -x "$file" root; done
cat >events.cc <<'CC'
#include <cstdio>
#include <string>
#include <vector>

int main() {
  const std::string events = "data: 1\n\ndata: 2\n\ndata: [DONE]\n\n";
  std::vector<std::string> parsed;
  for (std::size_t at = 0; events.compare(at, 12, "data: [DONE]") != 0; at = events.find("data: ", at + 1)) {
    parsed.push_back(events.substr(at + 6, events.find("\n\n", at) - at - 6));
  }
  std::printf("%zu\n", parsed.size());
}
CC
libraries=$(echo "$work"/root/usr/lib/*-linux-gnu)
for level in -O1 -O2; do
  root/usr/bin/x86_64-linux-gnu-g++-12 -std=c++20 "$level" -fsanitize=address events.cc -o events
  LD_LIBRARY_PATH=$libraries ./events >seen 2>&1 || true
  echo "at $level: $(grep -o 'stack-use-after-scope' seen | head -1 || cat seen)"
done
[ "$(cat seen)" = 2 ] || { echo "CHANGED: expected 2 at -O2"; exit 1; }
root/usr/bin/x86_64-linux-gnu-g++-12 -std=c++20 -O1 -fsanitize=address events.cc -o events
LD_LIBRARY_PATH=$libraries ./events >seen 2>&1 || true
grep -q stack-use-after-scope seen || { echo "CHANGED: expected a report at -O1"; exit 1; }
