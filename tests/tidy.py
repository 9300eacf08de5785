#!/usr/bin/env python3
"""Rules that a review might overlook. ctest runs it; it prints every finding and exits with 1 if there is one.

- `src/` reads clocks, the environment and randomness only in base/. Elsewhere time is an argument and randomness is injected.
- A room includes only itself, the rooms that its CMakeLists.txt lists, and the rooms that those list.
- A CMakeLists.txt lists every source file, and ctest runs every test binary.
- No C++ file contains a mark of unfinished work, a tab, or a line over 140 columns.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BANNED = {
    r"steady_clock::now|system_clock::now|high_resolution_clock": "read a Clock instead (base/clock.h)",
    r"\brand\(|\bsrand\(|random_device|mt19937": "take a seeded Prng (base/prng.h)",
    r"\bgetenv\b": "options come by flags",
    r"\busing namespace std;": "name what you use",
    r"\bTODO\b|\bFIXME\b|\bXXX\b": "finish it, or file an issue",
}

def rooms():
    text = (ROOT / "cmake/LoramuxTargets.cmake").read_text()
    return re.search(r"set\(LORAMUX_ROOMS ([^)]*)\)", text).group(1).split()


def direct_deps(room):
    text = (ROOT / "src" / room / "CMakeLists.txt").read_text()
    match = re.search(r"loramux_library\(\s*%s\b[^)]*?\bDEPS\s+([^)]*?)(?:\bLINK\b[^)]*)?\)" % room, text)
    return match.group(1).split() if match else []


def reachable(room, cache):
    if room not in cache:
        cache[room] = {room}
        for dep in direct_deps(room):
            cache[room] |= reachable(dep, cache)
    return cache[room]


def cpp_files():
    for folder in ("src", "tools", "tests", "bench"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".h", ".cc") and "bindings" not in path.parts:
                yield path


def check_bans(path, text):
    name = str(path.relative_to(ROOT))
    for pattern, advice in BANNED.items():
        for match in re.finditer(pattern, text):
            if name.startswith("src/base/") and "clock" in match.group(0):
                continue
            if name.startswith(("bench/", "tests/")) and "clock" in match.group(0):
                continue
            line = text.count("\n", 0, match.start()) + 1
            yield f"{name}:{line}: {match.group(0)}: {advice}"
    for number, line in enumerate(text.split("\n"), 1):
        if "\t" in line:
            yield f"{name}:{number}: a tab"
        if len(line) > 140:
            yield f"{name}:{number}: {len(line)} columns, at most 140"


def check_includes(path, text, cache):
    parts = path.relative_to(ROOT).parts
    if parts[0] != "src":
        return
    room = parts[1]
    allowed = reachable(room, cache)
    for match in re.finditer(r'#include "([a-z_]+)/', text):
        target = match.group(1)
        if target in rooms() and target not in allowed:
            line = text.count("\n", 0, match.start()) + 1
            yield f"{path.relative_to(ROOT)}:{line}: includes {target}/, which {room} does not link"


def check_listed(path):
    if path.suffix != ".cc":
        return
    folder = path.parent
    while folder != ROOT:
        cmake = folder / "CMakeLists.txt"
        if cmake.exists():
            relative = str(path.relative_to(folder))
            if re.search(r"(^|[\s(])%s([\s)]|$)" % re.escape(relative), cmake.read_text()):
                return
        folder = folder.parent
    yield f"{path.relative_to(ROOT)}: no CMakeLists.txt lists it, so nothing builds it"


def check_unique_types(paths):
    """Two types with one name in one namespace are one type to the linker. It keeps the functions of one of them only."""
    places = {}
    for path in paths:
        if path.suffix != ".h":
            continue
        text = path.read_text()
        namespace = re.search(r"^namespace ([\w:]+) \{", text, re.MULTILINE)
        for match in re.finditer(r"^(?:struct|class|enum class) (\w+)(?: final)?(?: :| \{)", text, re.MULTILINE):
            places.setdefault((namespace and namespace.group(1), match.group(1)), []).append(path)
    for (namespace, name), where in places.items():
        if len(where) > 1:
            yield f"{namespace}::{name}: defined in {' and '.join(str(path.relative_to(ROOT)) for path in where)}"


def check_tests_run():
    helper = (ROOT / "cmake/LoramuxTargets.cmake").read_text()
    if "add_test(NAME ${name}" not in helper:
        yield "cmake/LoramuxTargets.cmake: loramux_test registers nothing with ctest"
    for cmake in ROOT.glob("**/CMakeLists.txt"):
        if "build" in cmake.relative_to(ROOT).parts:
            continue
        text = cmake.read_text()
        for name in re.findall(r"add_executable\((\w*test\w*)", text):
            if f"COMMAND {name}" not in text:
                yield f"{cmake.relative_to(ROOT)}: {name} is built but ctest does not run it"


def main():
    findings, cache = [], {}
    for path in cpp_files():
        text = path.read_text()
        findings += check_bans(path, text)
        findings += check_includes(path, text, cache)
        findings += check_listed(path)
    findings += check_unique_types(list(cpp_files()))
    findings += check_tests_run()
    for finding in findings:
        print(finding)
    print(f"tidy: {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
