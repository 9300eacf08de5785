#!/usr/bin/env python3
"""Rules that a review might overlook. ctest runs it; it prints every finding and exits with 1 if there is one.

- `src/` may read clocks, environment and randomness only in base/ (time is an argument, randomness is injected).
- A room includes only itself and the rooms that its CMakeLists.txt lists (and what those list). Where a room has ordered
  folders (FOLDERS), a folder includes only itself and the folders before it.
- `tools/`, `loadgen/` and `lab/` include only what PROGRAMS allows. The diagram of the rooms in the
  architecture page is that of the includes.
- No class, header or function is over its limit, but for SIZE_EXCEPTIONS.
- Every source file is listed by a CMakeLists.txt, and every test binary is run by ctest.
- No file names unfinished business. C++ has no tab and no line over 120 columns, and is formatted (`make format`).
- Comments and pages avoid the words that made them hard to read, and no comment begins with "of". Sentences of README
  and docs/guide have at most 45 words, README has at most 900. Links and anchors of all pages lead somewhere. Files and
  members that comments and pages name exist (names.py).
"""
import pathlib
import re
import shutil
import subprocess
import sys
import urllib.parse

import names
import rooms as room_diagram
import sizes
import structure
from markdown import ROOT, all_pages, links, name_of, paragraphs, runnable_pages, sentences, slugs, split_page, visible, words

MAX_COLUMNS = 120
MAX_CLASS_FUNCTIONS = 45
MAX_HEADER_LINES = 300
MAX_FUNCTION_LINES = 60
MAX_SENTENCE_WORDS = 45
MAX_README_WORDS = 900
BANNED_WORDS = re.compile(r"\b(nobody|whoever|somebody|everybody|anybody|those\s+who|of\s+who|he|his|him|for\s+ever|"
                          r"so\s+much\s+later)\b", re.IGNORECASE)
CLANG_FORMAT = "clang-format-14"
BANNED = {
    r"steady_clock::now|system_clock::now|high_resolution_clock": "read a Clock instead (base/clock.h)",
    r"\brand\(|\bsrand\(|random_device|mt19937": "take a seeded Prng (base/prng.h)",
    r"\bgetenv\b": "options come by flags",
    r"\busing namespace std;": "name what you use",
    r"#include <CLI/": "add flags to a CommandLine (tools/command_line/command_line.h)",
    r"co_await [\w.>()-]+\(\s*[A-Z]\w*\{": "give it a name first: GCC 12 destroys its members twice (findings/)",
    r"\bTODO\b|\bFIXME\b|\bXXX\b": "finish it, or file an issue",
}

# Which library drives a GPU, and which device tests run on, is a matter of the process, as LD_LIBRARY_PATH is.
GPU_ENVIRONMENT = ("src/gpu/cuda_plugin.cc", "src/gpu/device_for_test.h")

# The folders beside src/ and what each may include of the others. Tests may include all.
PROGRAMS = {"loadgen": (), "tools": ("loadgen",), "lab": ("tools",)}

# Where a comment must not begin with "of".
NOUN_FIRST = ("lab/", "loadgen/", "src/", "tools/")

# Rooms whose folders have an order. What lies beside the folders may include all of them; so may tests.
FOLDERS = {
    "src/server": ("generation", "adapters", "tracing", "metrics", "fleet", "output", "completion", "api", "batch", "page"),
}


# Commands that know little: how many headers one sees at most, directly or not, and the last room that it may see.
CLOSURES = {"tools/route.cc": (60, "envoy")}

# What may be larger than the limits, and why. An entry that is no longer needed is a finding.
LIST = "a list: one entry after the other"
STORY = "an experiment: from its loads to its verdicts, read once from top to bottom"
FUZZ = "one loop over random operations, which share the model that they are compared with"
SIZE_EXCEPTIONS = {
    ("src/engine/adapter_lifecycle_test.cc", "FuzzOnce"): FUZZ,
    ("src/engine/engine_test.cc", "FuzzOnce"): FUZZ,
    ("src/schedule/queue/fairness_test.cc", "FuzzOnce"): FUZZ,
    ("tests/replay_test.cc", "Vandalise"): LIST,
    ("src/model/model_test.cc", "ModelTest.NothingOfALayerIsReadBeforeItArrives"): "a thread that the test stops and starts",
    ("src/server/api/openai/openai_request_test.cc", "CompletionRequest.ErrorsNameTheField"): LIST,
    ("src/text/text_test.cc", "ChatTemplate.HostileTemplatesAreBounded"): LIST,
    ("lab/experiments/chameleon_policies.cc", "RunChameleonEviction"): STORY,
    ("lab/experiments/chameleon_policies.cc", "RunChameleonQueueing"): STORY,
    ("lab/experiments/chameleon_scale.cc", "RunChameleonAdapters"): STORY,
    ("lab/experiments/fastlibra_scale.cc", "RunMany"): STORY,
    ("lab/experiments/fastlibra_scale.cc", "RunOverhead"): STORY,
    ("lab/experiments/vllm_lora.cc", "RunFragmentation"): STORY,
    ("lab/bench/planning_bench.cc", "Run"): "one case: its world, its rounds and its line of figures",
    ("lab/bench/serving_bench.cc", "BenchShape"): "one shape: its limits, its rounds and its table",
    ("tools/bench_flags.cc", "AddQuestionFlags"): LIST,
    ("tools/generate.cc", "AddGenerateFlags"): LIST,
    ("tools/listen_flags.cc", "AddHttpLimitFlags"): LIST,
    ("tools/serve.cc", "AddConnectionFlags"): LIST,
    ("tools/simulate.cc", "AddDeviceFlags"): LIST,
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
    for folder in ("src", *PROGRAMS, "tests"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".h", ".cc") and "bindings" not in path.parts:
                yield path


def check_bans(path, text):
    name = str(path.relative_to(ROOT))
    for pattern, advice in BANNED.items():
        for match in re.finditer(pattern, text):
            if name.startswith("src/base/") and "clock" in match.group(0):
                continue
            if name == "tools/command_line/environment.cc" and "getenv" in match.group(0):
                continue   # flags come from there too
            if name == "tools/command_line/parse.cc" and "CLI/" in match.group(0):
                continue
            if name in GPU_ENVIRONMENT and "getenv" in match.group(0):
                continue
            if name.startswith(("lab/bench/", "tests/")) and "clock" in match.group(0):
                continue
            if name == "lab/experiments/slora.cc" and match.group(0) == "mt19937":
                continue   # the requests of published runs are numbers of this generator
            line = text.count("\n", 0, match.start()) + 1
            yield f"{name}:{line}: {match.group(0)}: {advice}"
    for number, line in enumerate(text.split("\n"), 1):
        if "\t" in line:
            yield f"{name}:{number}: a tab"
        if len(line) > MAX_COLUMNS and not inside_raw_string(text, number):
            yield f"{name}:{number}: {len(line)} columns, at most {MAX_COLUMNS}"


def inside_raw_string(text, line):
    """True if the line is part of a raw string: JSON, Markdown or HTML, whose lines may be long."""
    lines = text.split("\n")
    opened = len(re.findall(r'R"(\w|-)*\(', "\n".join(lines[:line])))
    closed = len(re.findall(r'\)(\w|-)*"', "\n".join(lines[:line - 1])))
    return 'R"' in lines[line - 1] or opened > closed



def check_includes(path, text, cache):
    parts = path.relative_to(ROOT).parts
    if parts[0] != "tests":
        allowed = (parts[0], *PROGRAMS.get(parts[0], ()))
        for match in re.finditer(r'#include "(%s)/' % "|".join([*PROGRAMS, "tests"]), text):
            if match.group(1) not in allowed:
                line = text.count("\n", 0, match.start()) + 1
                yield f"{path.relative_to(ROOT)}:{line}: {parts[0]}/ may not include {match.group(1)}/"
    if parts[0] != "src":
        return
    room = parts[1]
    allowed = reachable(room, cache)
    for match in re.finditer(r'#include "([a-z_]+)/', text):
        target = match.group(1)
        if target in rooms() and target not in allowed:
            line = text.count("\n", 0, match.start()) + 1
            yield f"{path.relative_to(ROOT)}:{line}: includes {target}/, which {room} does not link"


def check_closures(paths):
    graph = structure.includes({name_of(path): path.read_text() for path in paths})
    for name, (limit, last) in CLOSURES.items():
        seen, allowed = structure.seen_by(graph, name), rooms()[:rooms().index(last) + 1]
        if len(seen) > limit:
            yield f"{name}: sees {len(seen)} headers, at most {limit}"
        for header in sorted(seen):
            parts = header.split("/")
            if parts[0] == "src" and parts[1] not in allowed:
                yield f"{name}: sees {header}, a room below {last}"


def check_folders(path, text):
    """The order of the folders within a room."""
    name = str(path.relative_to(ROOT))
    if path.stem.endswith("_test") or path.stem.endswith("_for_test"):
        return
    for room, folders in FOLDERS.items():
        for rank, folder in enumerate(folders):
            if not name.startswith(f"{room}/{folder}/"):
                continue
            place = room.removeprefix("src/")
            for match in re.finditer(r'#include "%s/(?:(\w+)/)?[\w/]+\.h"' % place, text):
                if match.group(1) not in folders[:rank + 1]:
                    line = text.count("\n", 0, match.start()) + 1
                    yield f"{name}:{line}: {match.group(0)}: {room}/{folder} may include only {folders[:rank + 1]}"


def sizes_over_limits(path, text):
    """(what, line, finding) of each function, class and header over its limit."""
    if path.suffix == ".h" and text.count("\n") > MAX_HEADER_LINES:
        yield "header", 1, f"a header of {text.count(chr(10))} lines, at most {MAX_HEADER_LINES}"
    for line, lines, signature in sizes.functions(text):
        if lines > MAX_FUNCTION_LINES:
            yield sizes.name_of_function(signature), line, f"a function of {lines} lines, at most {MAX_FUNCTION_LINES}"
    for line, name, count in sizes.classes(text):
        if count > MAX_CLASS_FUNCTIONS:
            yield name, line, f"{name} has {count} functions, at most {MAX_CLASS_FUNCTIONS}"


def check_sizes(paths):
    unused = dict(SIZE_EXCEPTIONS)
    for path in paths:
        name = str(path.relative_to(ROOT))
        for what, line, finding in sizes_over_limits(path, path.read_text()):
            if unused.pop((name, what), None) is None and (name, what) not in SIZE_EXCEPTIONS:
                yield f"{name}:{line}: {what}: {finding}"
    for name, what in unused:
        yield f"tests/tidy.py: SIZE_EXCEPTIONS: {name}, {what}: within its limit now, so remove the exception"


def check_listed(path):
    if path.suffix != ".cc":
        return
    folder = path.parent
    while folder != ROOT:
        cmake = folder / "CMakeLists.txt"
        if cmake.exists():
            relative = str(path.relative_to(folder))
            text = cmake.read_text()
            if re.search(r"(^|[\s(])%s([\s)]|$)" % re.escape(relative), text):
                return
            patterns = " ".join(re.findall(r"file\(GLOB \w+ CONFIGURE_DEPENDS ([^)]*)\)", text)).split()
            if any(path in folder.glob(pattern) for pattern in patterns if not pattern.startswith("..")):
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


def check_comments(path, text):
    """The words of `//` comments, and those of Python's comments and docstrings."""
    pattern = r"//(.*)$" if path.suffix in (".h", ".cc", ".c", ".rs") else r"#(.*)$"
    for number, line in enumerate(text.split("\n"), 1):
        comment = re.search(pattern, line)
        for word in BANNED_WORDS.finditer(comment.group(1) if comment else ""):
            yield f"{name_of(path)}:{number}: '{word.group(0)}': name the thing instead (CONTRIBUTING.md, Language)"


def check_first_words(path, text):
    """A comment says what the value is before it says whose: "seconds of its last load", not "of its last load"."""
    if not name_of(path).startswith(NOUN_FIRST):
        return
    commented = False   # the line before
    for number, line in enumerate(text.split("\n"), 1):
        before, slashes, comment = line.partition("//")
        if re.match(r" *(of|likewise)\b", comment, re.IGNORECASE) and before.count('"') % 2 == 0 and (
                before.strip() or not commented):
            yield f"{name_of(path)}:{number}: the comment begins with '{comment.split()[0]}': say what it is first"
        commented = bool(slashes)


def check_format(paths):
    program = shutil.which(CLANG_FORMAT)
    if program is None:
        yield f"{CLANG_FORMAT} is missing: tools/setup.sh test installs it"
        return
    run = subprocess.run([program, "--dry-run", "--Werror", *map(str, paths)], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    for place in sorted(set(re.findall(r"^(\S+?:\d+):\d+: error", run.stderr, re.MULTILINE))):
        yield f"{place}: not formatted: run `make format`"
    if run.returncode != 0 and "error" not in run.stderr:
        yield f"{CLANG_FORMAT}: {run.stderr.strip()}"


def check_pages():
    prose = {page: split_page(page.read_text(encoding="utf-8"))[1] for page in all_pages()}
    for page, lines in prose.items():
        if ROOT / "docs/results" in page.parents:
            continue
        for number, line in enumerate(map(visible, lines), 1):
            for word in BANNED_WORDS.finditer(line):
                yield f"{name_of(page)}:{number}: '{word.group(0)}': name the thing instead"
    for page in runnable_pages():
        for line, text in paragraphs(prose[page]):
            for sentence in sentences(text):
                if len(words(sentence)) > MAX_SENTENCE_WORDS:
                    yield f"{name_of(page)}:{line}: a sentence of {len(words(sentence))} words: {sentence}"
    count = len((ROOT / "README.md").read_text(encoding="utf-8").split())
    if count > MAX_README_WORDS:
        yield f"README.md: {count} words, at most {MAX_README_WORDS}"


def check_links():
    prose = {page: split_page(page.read_text(encoding="utf-8"))[1] for page in all_pages()}
    for page, lines in prose.items():
        for line, target in links(lines):
            if re.match(r"[a-z][a-z0-9+.-]*:", target):
                continue   # another site
            path, _, anchor = urllib.parse.unquote(target).partition("#")
            file = (page.parent / path).resolve() if path else page
            if not file.exists() or ROOT not in (file, *file.parents):
                yield f"{name_of(page)}:{line}: {target}: no such file"
            elif anchor and file in prose and anchor not in slugs(prose[file]):
                yield f"{name_of(page)}:{line}: {target}: no such heading"


def main():
    findings, cache = [], {}
    for path in cpp_files():
        text = path.read_text()
        findings += check_bans(path, text)
        findings += check_includes(path, text, cache)
        findings += check_folders(path, text)
        findings += check_listed(path)
        findings += check_comments(path, text)
        findings += check_first_words(path, text)
    for path in [*ROOT.glob("tests/*.py"), *ROOT.glob("tools/*.py"), *ROOT.glob("src/text/bindings/src/**/*.rs")]:
        findings += check_comments(path, path.read_text(encoding="utf-8"))
    findings += check_format(list(cpp_files()))
    findings += check_pages()
    findings += check_links()
    findings += check_sizes(list(cpp_files()))
    findings += names.findings()
    findings += room_diagram.findings()
    findings += check_unique_types(list(cpp_files()))
    findings += check_closures(list(cpp_files()))
    findings += check_tests_run()
    for finding in findings:
        print(finding)
    print(f"tidy: {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
