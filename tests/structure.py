#!/usr/bin/env python3
"""Measures the structure of the code: `python3 tests/structure.py [REVISION...]` prints one column for each revision.

Without a revision it measures the working tree. The figures are those of the table in docs/design/architecture.md:
how much code there is, in how many pieces, and how many places one change touches. Every figure is counted from the
tracked files, so an older revision is measured by the same rules.
"""
import collections
import io
import pathlib
import re
import subprocess
import sys
import tarfile

import sizes

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEST = re.compile(r"(_test|_for_test|_fuzz|_fixture|_test_support)\.(h|cc)$")
LABORATORY = ("experiments/", "bench/", "lab/")
OPTION_STRUCT = re.compile(r"(Options|Flags|Limits|Parts|Setup|Context|Config|Settings|Constants|Spec)$")
SETTINGS = ("cold_start", "age_bound", "max_decode_step", "count_cached")

# What a chat request is, from the bytes of its body to the flat batch, and what its answer is on the way back. A form
# that a revision does not define counts nothing there; add the name of a new one.
FORMS = ("HttpRequest", "OpenAiRequest", "CompletionRequest", "Choice", "ChoiceStream", "GenerationRequest", "Sequence",
         "Request", "PlannedAdmission", "PlannedChunk", "SequencePart", "StepSequence", "StepBatch",
         "SequenceChunkOf", "ForwardBatch", "StepRows", "CpuForward", "AttentionSequence", "SampledToken", "News", "GenerationEvent", "TokenEvent",
         "OutputEvent", "ChoiceOutput")


def sources_of(revision):
    """{path: text} of the C++ files of a revision; of the working tree if it is None."""
    if revision is None:
        names = subprocess.run(["git", "ls-files", "--", "*.h", "*.cc"], cwd=ROOT, check=True, capture_output=True).stdout
        paths = [name for name in names.decode("utf-8").split() if (ROOT / name).exists()]
        return {name: (ROOT / name).read_text(encoding="utf-8") for name in paths}
    packed = subprocess.run(["git", "archive", revision], cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as files:
        members = [member for member in files if member.isfile() and member.name.endswith((".h", ".cc"))]
        return {member.name: files.extractfile(member).read().decode("utf-8") for member in members}


def product_of(sources):
    """What is neither a test nor beside one."""
    return {name: text for name, text in sources.items()
            if not TEST.search(name) and not name.startswith(("tests/", "third_party/"))}


def fields(body):
    """The number of data members of a struct, given the text between its braces."""
    count = 0
    for declaration in sizes.members(body):
        declaration = re.sub(r"^\s*(public|private|protected):", "", declaration.strip()).strip()
        if re.match(r"(using|friend|static|enum|struct|class|typedef|\}|$)", declaration) or sizes.is_function(declaration):
            continue
        count += 1
    return count


def structs(text):
    """(name, body) of each class and struct of a text without literals."""
    for match in sizes.TYPE.finditer(text):
        end = re.compile(r"^%s\}" % match.group(1), re.MULTILINE).search(text, match.end())
        yield match.group(2), text[match.end():end.start() if end else len(text)]


def parameters(signature):
    """The number of parameters of a function's declaration."""
    inner, depth, count = signature[signature.index("(") + 1:], 0, 1
    for at, char in enumerate(inner):
        if char == ")" and depth == 0:
            return 0 if not inner[:at].strip() else count
        depth += char in "(<[{"
        depth -= char in ")>]}"
        count += char == "," and depth == 0
    return count


def wide_functions(plain):
    """The names of functions that a text (without literals) declares or defines with six parameters or more."""
    # a call has no type before its name
    pattern = re.compile(r"^ *(?!return\b|else\b|delete\b)(?:[\w:<>,\[\]]+[ &*]+)+(\w+)"
                         r"\((?:[^()]|\([^()]*\))*\)(?= ?(?:const)? ?[;{])", re.MULTILINE)
    return {match.group(1) for match in pattern.finditer(plain) if parameters(plain[match.start(1):match.end()]) >= 6}


def includes(sources):
    """For each file, the project's headers that it includes. Paths in #include are relative to src/ or to the root."""
    graph = {}
    for name, text in sources.items():
        found = re.findall(r'^#include "([^"]+)"', text, re.MULTILINE)
        graph[name] = {place for target in found for place in (f"src/{target}", target) if place in sources}
    return graph


def seen_by(graph, start):
    """All headers that a file sees, directly or by way of others."""
    found, todo = set(), [start]
    while todo:
        for target in graph.get(todo.pop(), ()):
            if target not in found:
                found.add(target)
                todo.append(target)
    return found


def measure(revision):
    """{what: figure} of a revision."""
    sources = sources_of(revision)
    product = product_of(sources)
    plain = {name: sizes.without_literals(text) for name, text in product.items()}
    types = [(name, struct, body) for name, text in plain.items() for struct, body in structs(text)]
    options = [fields(body) for _, struct, body in types if OPTION_STRUCT.search(struct)]
    graph = includes(product)
    includers = collections.Counter(target for name, targets in graph.items() for target in targets
                                    if pathlib.PurePath(name).stem != pathlib.PurePath(target).stem)
    defined = {struct for _, struct, _ in types}
    lines = {name: text.count("\n") for name, text in product.items()}
    laboratory = sum(count for name, count in lines.items() if name.startswith(LABORATORY))
    figures = {
        "lines of product C++": sum(lines.values()),
        "of these the laboratory beside src": laboratory,
        "product lines without it": sum(lines.values()) - laboratory,
        "lines of tests in C++": sum(text.count("\n") for name, text in sources.items() if name not in product),
        "types": len(types),
        "structs of options": len(options),
        "fields of these": sum(options),
        "headers of src with one includer but their own source":
            sum(1 for name in product if name.startswith("src/") and includers[name] == 1),
        "headers that tools/route.cc sees": len(seen_by(graph, "tools/route.cc")),
        "signatures of six parameters or more in src/kernels":
            sum(len(wide_functions(text)) for name, text in plain.items() if name.startswith("src/kernels/")),
        "classes of over 40 functions":
            sum(1 for text in product.values() for _, _, count in sizes.classes(text) if count > 40),
        "forms of a chat request": sum(1 for form in FORMS if form in defined),
    }
    for setting in SETTINGS:
        word = re.compile(r"\b%s_?\b" % setting)
        figures[f"files that name {setting}"] = sum(1 for text in product.values() if word.search(text))
    return figures


def main():
    revisions = sys.argv[1:] or [None]
    columns = [measure(revision) for revision in revisions]
    print("| | " + " | ".join(revision or "working tree" for revision in revisions) + " |")
    print("|---|" + "---|" * len(revisions))
    for what in columns[0]:
        print(f"| {what} | " + " | ".join(f"{column[what]:,}" for column in columns) + " |")


if __name__ == "__main__":
    main()
