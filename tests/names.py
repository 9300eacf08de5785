"""Names that comments and pages mention must exist: files, and members of C++ classes. tidy.py prints the findings.

- `page_pool.h` or `memory/page_pool.h`: a file of the repository whose path ends so. Capital letters, or a single letter,
  stand for any name: one file must be like `src/ROOM/NAME_test.cc`. `memory/page_pool.{h,cc}` are two files. What a
  build makes (`build/...`) is left out.
- `PagePool::Allocate`: a class, struct, enum or alias of that name, in any namespace, that declares the member, or
  inherits it; a comment in `src/` means a type of `src/`. A name behind a namespace that is not ours (`std::`,
  `nlohmann::`) is left out.
- `max_pages` in backquotes, in a comment of C++ code: a word of C++ or Rust code, in any file.

No parser of C++ is needed: the code is formatted (clang-format), so a class ends with the first "}" in its column.
"""
import fnmatch
import os
import re

from markdown import ROOT, split_page

# Files of other projects that comments and pages name, and whose they are. One that is no longer named is a finding.
FOREIGN_FILES = {
    "foreach_target.h": "Highway",
    "convert_hf_to_gguf.py": "llama.cpp",
    "convert_lora_to_gguf.py": "llama.cpp",
    "api_server.py": "S-LoRA",
    "benchmarks/trace.py": "S-LoRA",
    "exp_suite.py": "S-LoRA",
    "infer_adapter.py": "S-LoRA",
    "trace.py": "S-LoRA",
    "modeling_bloom.py": "transformers",
    "modeling_rope_utils.py": "transformers",
    "vllm/v1/metrics/loggers.py": "vLLM",
}

CODE = (".h", ".cc", ".cu")
SCRIPTS = (".py", ".sh", ".cmake", "CMakeLists.txt")
NAMED = "h|cc|cu|rs|py|sh|cmake|js|mjs"
NOT_SOURCES = {"build", "target", "node_modules", "third_party", "testdata", "findings"}
PAGES_OF_THE_PAST = ("CHANGELOG.md",)

FILE = re.compile(r"(?<![\w./<>{}*$-])((?:[\w.+-]+/)*[\w+-]+(?:\.[\w+-]+)*\.)(?:(%s)|\{((?:%s)(?:,(?:%s))*)\})"
                  r"(?![\w/>*{(-])" % (NAMED, NAMED, NAMED))
MEMBER = re.compile(r"(?<![\w:])((?:\w+::)*)([A-Z]\w*)::~?(\w+)")
QUOTED = re.compile(r"`([A-Za-z_]\w*)`")
TYPE = re.compile(r"^( *)(?:template <.*> )?(?:class|struct|union|enum class|enum) (?:\[\[\w+\]\] |alignas\(\w+\) )?(\w+)"
                  r"(?: final)?(?: : ?([^;{]*))?\s*\{(.*)$", re.MULTILINE)
ALIAS = re.compile(r"\busing (\w+) =([^;]*);")
DECLARED = re.compile(r"(?<![.>:\w])(\w+)(?=\s*(?:[({;=,\[}]|\)\(| : |$))", re.MULTILINE)
PLACEHOLDER = re.compile(r"(?<![A-Za-z0-9])(?:[A-Z]+|[a-z])(?=[._/])")
OUR_NAMESPACE = re.compile(r"^namespace ([\w:]+) \{", re.MULTILINE)


def sources(root=ROOT):
    """The paths of all files of the repository, without what a build leaves."""
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in ("build", "target", "node_modules") and name[0] != "."]
        for file in files:
            yield os.path.relpath(os.path.join(folder, file), root)


def comment_of(line, mark):
    """Where the comment of a line begins; -1: it has none."""
    at = line.find(mark)
    while at >= 0 and (line[:at].count('"') - line[:at].count('\\"')) % 2:
        at = line.find(mark, at + 1)
    return at


def split_code(text, mark):
    """The code without comments, and (line, text) of each comment."""
    code, comments = [], []
    for number, line in enumerate(text.split("\n"), 1):
        at = comment_of(line, mark) if mark in line else -1
        if at >= 0:
            comments.append((number, line[at:]))
            line = line[:at].rstrip()
        code.append(line)
    return "\n".join(code), comments


def comments_of_script(text):
    """(line, text) of the comments of a script, and of the docstring that a Python file begins with."""
    docstring = re.match(r'(?:#[^\n]*\n)*"""(.*?)"""', text, re.DOTALL)
    lines = text[:docstring.end()].split("\n") if docstring else []
    return [*enumerate(lines, 1), *(comment for comment in split_code(text, "#")[1] if comment[0] > len(lines))]


class Declarations:
    """What the C++ code declares: the members of each type by name, and what a type inherits or stands for."""

    def __init__(self):
        self.members, self.bases, self.namespaces, self.words = {}, {}, set(), set()

    def add(self, code):
        for match in TYPE.finditer(code):
            margin, name, bases, rest = match.groups()
            if "}" not in rest:
                end = code.find(f"\n{margin}}}", match.end())
                rest += code[match.end():end if end >= 0 else len(code)]
            self.members.setdefault(name, set()).update(DECLARED.findall(rest))
            self.bases.setdefault(name, set()).update(re.findall(r"\w+", bases or ""))
        for name, target in ALIAS.findall(code):
            self.members.setdefault(name, set())
            self.bases.setdefault(name, set()).update(re.findall(r"\w+", target))
        for name in OUR_NAMESPACE.findall(code):
            self.namespaces.update(name.split("::"))

    def include(self, other):
        for mine, others in ((self.members, other.members), (self.bases, other.bases)):
            for name, values in others.items():
                mine[name] = mine.get(name, set()) | values
        self.namespaces |= other.namespaces

    def knows(self, qualifier):
        """False if a qualifier ("std::") is a name of another project."""
        last = qualifier.split("::")[-2] if qualifier else None
        return last is None or last in self.namespaces or last in self.members

    def has(self, name, member, seen=()):
        return name in self.members and name not in seen and (
            member in self.members[name] or
            any(self.has(base, member, (*seen, name)) for base in self.bases[name]))


def endings(paths):
    """Every way to name one of the files: its name, and that with the folders before it."""
    return {path[at:] for path in paths for at in [0, *(match.end() for match in re.finditer("/", path))]}


def files_in(text):
    """The names of files that a text mentions."""
    for match in FILE.finditer(text):
        for ending in (match.group(2) or match.group(3)).split(","):
            yield match.group(1) + ending


def is_file(name, known):
    while name.startswith("../"):
        name = name[3:]
    if name in known or name.startswith("build/"):
        return True
    pattern = PLACEHOLDER.sub("*", name)
    return pattern != name and any(fnmatch.fnmatchcase(other, pattern) for other in known)


def read(root, paths):
    """The declarations of all code and those of src/, and (path, line, text) of what may mention names."""
    everywhere, rooms, mentions = Declarations(), Declarations(), []
    for path in sorted(paths):
        if NOT_SOURCES.intersection(path.split("/")) or path in PAGES_OF_THE_PAST:
            continue
        lines = []
        if path.endswith((*CODE, ".rs")):
            code, lines = split_code((root / path).read_text(encoding="utf-8"), "//")
            everywhere.words.update(re.findall(r"\w+", code))
            if not path.endswith(".rs"):
                (rooms if path.startswith("src/") else everywhere).add(code)
        elif path.endswith(SCRIPTS):
            lines = comments_of_script((root / path).read_text(encoding="utf-8"))
        elif path.endswith(".md"):
            lines = enumerate(split_page((root / path).read_text(encoding="utf-8"))[1], 1)
        mentions += [(path, number, line) for number, line in lines if re.search(r"\.|::|`", line)]
    everywhere.include(rooms)
    return everywhere, rooms, mentions


def findings(root=ROOT, foreign=FOREIGN_FILES):
    paths = list(sources(root))
    known, unused = endings(paths), dict(foreign)
    everywhere, rooms, mentions = read(root, paths)
    for path, number, line in mentions:
        declarations = rooms if path.startswith("src/") and path.endswith(CODE) else everywhere
        for name in files_in(line):
            if not is_file(name, known) and unused.pop(name, None) is None and name not in foreign:
                yield f"{path}:{number}: {name}: no such file"
        for outside, name, member in MEMBER.findall(line) if path.endswith((*CODE, ".md")) else ():
            if declarations.knows(outside) and not declarations.has(name, member):
                missing = "member" if name in declarations.members else "type"
                yield f"{path}:{number}: {name}::{member}: no such {missing}"
        for name in QUOTED.findall(line) if path.endswith(CODE) else ():
            if name not in everywhere.words:
                yield f"{path}:{number}: `{name}`: the code has no such name"
    for name in unused:
        yield f"tests/names.py: FOREIGN_FILES: nothing names {name}, so remove it"


if __name__ == "__main__":
    for finding in findings():
        print(finding)
