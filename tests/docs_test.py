#!/usr/bin/env python3
"""The documentation: its commands run, its links lead somewhere, its sentences are short. Standard library only.

Usage: docs_test.py PATH_OF_LORAMUX   (one page: docs_test.py PATH_OF_LORAMUX Commands.test_guide_memory)

Fenced blocks of README.md and docs/guide/*.md whose info string begins with `sh` are run, page by page, in order:
- "sh": by bash -euo pipefail; it must end with 0.
- "sh server": starts a server that stays up until the next such block or the end of the page; it must end with 0.
- "sh skip": not run; the reason stands in an HTML comment on the line before.
HOME is a temporary folder with ~/models/Llama-3.2-1B-Instruct (the demo model) and ~/adapters/customer-01 to -50
(the demo adapters); the current folder holds demo/; `loramux` is on the PATH. Port 8000 is replaced by a free one.
"""
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest
import urllib.parse

import serving
from serving import DEMO, ROOT

MODEL = "models/Llama-3.2-1B-Instruct"
ADAPTERS = 50
BLOCK_SECONDS = 180   # until a block must have ended, or its server be ready
MAX_SENTENCE_WORDS = 45
MAX_README_WORDS = 900
BANNED = re.compile(r"\b(nobody|whoever|somebody|everybody|anybody|those\s+who|of\s+who|he|his|him|for\s+ever|"
                    r"its\s+own\s+each|so\s+much\s+later)\b", re.IGNORECASE)


def runnable_pages():
    return [ROOT / "README.md", *sorted((ROOT / "docs/guide").glob("*.md"))]


def all_pages():
    """Every Markdown page of the project, but for what a build leaves."""
    folders = ("build", "target", "node_modules")
    return [path for path in sorted(ROOT.rglob("*.md"))
            if not any(part in folders or part.startswith(".") for part in path.relative_to(ROOT).parts)]


def name_of(path):
    return str(path.relative_to(ROOT))


# ---------------------------------------------------------------- Markdown

class Block:
    """A fenced block: its info string, its text, and the line of the page that its text begins on."""

    def __init__(self, info, lines, line, before):
        self.info, self.lines, self.line, self.before = info, lines, line, before

    @property
    def text(self):
        return "\n".join(self.lines) + "\n"


def split_page(text):
    """The fenced blocks, and the lines of the page with those of the blocks and of HTML comments left empty."""
    blocks, prose, block, in_comment = [], [], None, False
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        fence = re.match(r"( *)(`{3,})(.*)$", line)
        if block is not None:
            if fence and fence.group(2) == block[1] and not fence.group(3).strip():
                blocks.append(block[2])
                block = None
            else:
                block[2].lines.append(line[block[0]:] if line[:block[0]].isspace() else line)
        elif fence and not in_comment:
            before = next((other for other in reversed(lines[:number - 1]) if other.strip()), "")
            block = (len(fence.group(1)), fence.group(2), Block(fence.group(3).strip(), [], number + 1, before.strip()))
        else:
            shown = line
            if in_comment:
                in_comment = "-->" not in line
                shown = line.split("-->", 1)[1] if not in_comment else ""
            shown = re.sub(r"<!--.*?-->", "", shown)
            if "<!--" in shown:
                shown, in_comment = shown.split("<!--")[0], True
            prose.append(shown)
            continue
        prose.append("")
    if block is not None:
        raise AssertionError(f"the block of line {block[2].line} has no end")
    return blocks, prose


def without_code(line):
    """The line with `code` replaced by one word."""
    return re.sub(r"(`+)(?!`).*?[^`]\1(?!`)", "code", line)


def visible(line):
    """The line as a reader sees it: the text of links, no marks of emphasis."""
    line = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", without_code(line))
    return re.sub(r"<[^>]+>|\*\*|__", "", line)


def slugs(prose):
    """The anchors of a page, as GitHub makes them of its headings, and those that are written as HTML."""
    found = set()
    for line in prose:
        found.update(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", line))
        heading = re.match(r"#{1,6} +(.*?)(?: +#+)? *$", line)
        if not heading:
            continue
        text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading.group(1)).replace("`", "").replace("*", "")
        slug = "".join(c for c in text.lower() if c.isalnum() or c in " -_").replace(" ", "-")
        count = 0
        unique = slug
        while unique in found:
            count += 1
            unique = f"{slug}-{count}"
        found.add(unique)
    return found


def links(prose):
    """(line, target) of every link of a page."""
    for number, line in enumerate(prose, 1):
        line = without_code(line)
        targets = re.findall(r"\]\(\s*<?([^)\s>]+)", line) + re.findall(r"(?:href|src)=\"([^\"]+)\"", line)
        targets += re.findall(r"^\[[^\]]+\]: +(\S+)", line)
        for target in targets:
            yield number, target


def paragraphs(prose):
    """(line, text) of what holds sentences: paragraphs, list items, and the cells of tables."""
    current, first = [], 0
    for number, raw in enumerate([*prose, ""], 1):
        line = visible(raw).strip()
        is_cell, is_heading = line.startswith("|"), line.startswith("#")
        begins = re.match(r"([-*+]|\d+[.)]) |>", line) is not None
        if current and (not line or is_cell or is_heading or begins):
            yield first, " ".join(current)
            current = []
        if is_cell:
            for cell in re.split(r"(?<!\\)\|", line.strip("|")):
                yield number, cell.strip()
        elif line and not is_heading:
            if not current:
                first = number
            current.append(re.sub(r"^([-*+]|\d+[.)]|>) ?", "", line) if begins else line)


def sentences(text):
    text = re.sub(r"\b(e\.g|i\.e|etc|vs|cf)\.", r"\1", text)
    return [part for part in re.split(r"(?<=[.!?])[\"')]*\s+", text) if part]


def words(sentence):
    return [word for word in sentence.split() if any(c.isalnum() for c in word)]


# ---------------------------------------------------------------- running a page

WRAPPER = """#!/bin/sh
# loramux, with the default port 8000 replaced by a free one.
command=${{1-}}
case " $* " in
*" --port"* | *" --url"* | *" --from"* | *" --compare"*) ;;
*)
  if [ "$command" = serve ]; then set -- "$@" --port {port}; fi
  if [ "$command" = bench ]; then set -- "$@" --url http://127.0.0.1:{port}; fi
  ;;
esac
if [ "$command" = serve ] && [ -n "${{DOCS_TEST_PID-}}" ]; then echo $$ >"$DOCS_TEST_PID"; fi
exec '{program}' "$@"
"""
PROLOGUE = "set -euo pipefail; trap 'echo \"$LINENO $BASH_COMMAND\" >\"$DOCS_TEST_FAILED\"' ERR\n"   # one line


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def end_group(process):
    """Ends what a block has left running, and the block itself."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


class Page:
    """The world in which the blocks of one page run."""

    def __init__(self, path):
        self.name = name_of(path)
        self.folder = tempfile.TemporaryDirectory(prefix="loramux-docs-")
        self.root = pathlib.Path(self.folder.name)
        self.port = free_port()
        self.server = self.server_block = None
        home, work, programs = (self.root / part for part in ("home", "work", "bin"))
        for folder in (home / "models", home / "adapters", work, programs):
            folder.mkdir(parents=True)
        shutil.copytree(DEMO / "model", home / MODEL)
        demo = sorted(path for path in (DEMO / "adapters").iterdir() if path.is_dir())
        for i in range(ADAPTERS):
            shutil.copytree(demo[i % len(demo)], home / "adapters" / f"customer-{i + 1:02}")
        (work / "demo").symlink_to(DEMO)
        wrapper = programs / "loramux"
        wrapper.write_text(WRAPPER.format(port=self.port, program=pathlib.Path(serving.LORAMUX).resolve()))
        wrapper.chmod(0o755)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("LORAMUX_")}
        self.environment = {**kept, "HOME": str(home), "PATH": f"{programs}:{os.environ['PATH']}",
                            "DOCS_TEST_FAILED": str(self.root / "failed")}
        self.work = work
        self.log = self.root / "server.log"

    def script(self, block):
        path = self.root / f"block-{block.line}.sh"   # one each: a shell reads its script as it goes
        path.write_text(PROLOGUE + re.sub(r"\b8000\b", str(self.port), block.text), encoding="utf-8")
        (self.root / "failed").unlink(missing_ok=True)
        return ["bash", str(path)]

    def start(self, block, output, **more):
        return subprocess.Popen(self.script(block), cwd=self.work, stdin=subprocess.DEVNULL, stdout=output,
                                stderr=subprocess.STDOUT, start_new_session=True, env={**self.environment, **more})

    def run(self, block):
        if block.info == "sh server":
            return self.start_server(block)
        with tempfile.TemporaryFile() as output:
            process = self.start(block, output)
            try:
                status = process.wait(timeout=BLOCK_SECONDS)
            except subprocess.TimeoutExpired:
                status = f"no end within {BLOCK_SECONDS} s"
            end_group(process)
            output.seek(0)
            if status != 0:
                self.fail(block, status, output.read().decode(errors="replace"))

    def start_server(self, block):
        self.stop_server()
        pid = self.root / "server.pid"
        pid.unlink(missing_ok=True)
        with self.log.open("wb") as log:
            self.server = self.start(block, log, DOCS_TEST_PID=str(pid))
        self.server_block = block
        deadline = time.monotonic() + BLOCK_SECONDS
        while not re.search(r"ready: https?://", self.log.read_text(errors="replace")):
            if self.server.poll() is not None:
                self.fail(block, self.server.returncode, self.log.read_text(errors="replace"))
            if time.monotonic() > deadline:
                self.fail(block, f"no server within {BLOCK_SECONDS} s", self.log.read_text(errors="replace"))
            time.sleep(0.05)
        self.server_pid = int(pid.read_text())

    def stop_server(self):
        if self.server is None:
            return
        if self.server.poll() is None:
            os.kill(self.server_pid, signal.SIGTERM)
        try:
            status = self.server.wait(timeout=60)
        except subprocess.TimeoutExpired:
            status = "no end within 60 s of SIGTERM"
        end_group(self.server)
        self.server = None
        if status != 0:
            self.fail(self.server_block, status, self.log.read_text(errors="replace"))

    def fail(self, block, status, output):
        line, command = block.line, block.text.strip()
        failed = self.root / "failed"
        if failed.exists():
            number, command = failed.read_text().split(" ", 1)
            line += max(0, int(number) - 2)   # the first line of the script is not the page's
        server = ""
        if block is not self.server_block and self.log.exists():
            server = f"\nthe server's log:\n{self.log.read_text(errors='replace')[-3000:]}"
        raise AssertionError(f"{self.name}:{line}: ended with {status}\ncommand:\n{command.strip()}\n"
                             f"output:\n{output[-6000:]}{server}")

    def close(self):
        if self.server is not None:
            end_group(self.server)
        self.folder.cleanup()


class Commands(unittest.TestCase):
    """A test a page, made below."""

    def run_page(self, path):
        blocks = split_page(path.read_text(encoding="utf-8"))[0]
        blocks = [block for block in blocks if block.info.split()[:1] == ["sh"]]
        for block in blocks:
            self.assertIn(block.info, ("sh", "sh server", "sh skip"), f"{name_of(path)}:{block.line - 1}")
            if block.info == "sh skip":
                where = f"{name_of(path)}:{block.line - 1}"
                self.assertRegex(block.before, r"<!--.*-->$", f"{where}: expected the reason in a comment before it")
        blocks = [block for block in blocks if block.info != "sh skip"]
        if not blocks:
            return
        page = Page(path)
        try:
            for block in blocks:
                page.run(block)
            page.stop_server()
        finally:
            page.close()


for page_path in runnable_pages():
    test_name = "test_" + re.sub(r"\W", "_", name_of(page_path).removesuffix(".md").removeprefix("docs/")).lower()
    setattr(Commands, test_name, lambda self, path=page_path: self.run_page(path))


# ---------------------------------------------------------------- text

def report(test, findings):
    if findings:
        test.fail("\n" + "\n".join(findings))


class Text(unittest.TestCase):
    def test_links_and_anchors_exist(self):
        pages = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
        findings = [f"{name_of(page)}: missing" for page in pages if not page.exists()]
        pages = [page for page in pages if page.exists()] + sorted((ROOT / "docs").rglob("*.md"))
        prose = {page: split_page(page.read_text(encoding="utf-8"))[1] for page in pages}
        for page in pages:
            for line, target in links(prose[page]):
                if re.match(r"[a-z][a-z0-9+.-]*:", target):
                    continue   # another site
                path, _, anchor = urllib.parse.unquote(target).partition("#")
                file = (page.parent / path).resolve() if path else page
                if not file.exists() or ROOT not in (file, *file.parents):
                    findings.append(f"{name_of(page)}:{line}: {target}: no such file")
                elif anchor and file.suffix == ".md":
                    if file not in prose:
                        prose[file] = split_page(file.read_text(encoding="utf-8"))[1]
                    if anchor not in slugs(prose[file]):
                        findings.append(f"{name_of(page)}:{line}: {target}: no such heading")
        report(self, findings)

    def test_sentences_are_short(self):
        findings = []
        for page in runnable_pages():
            for line, text in paragraphs(split_page(page.read_text(encoding="utf-8"))[1]):
                for sentence in sentences(text):
                    if len(words(sentence)) > MAX_SENTENCE_WORDS:
                        findings.append(f"{name_of(page)}:{line}: {len(words(sentence))} words: {sentence}")
        report(self, findings)

    def test_no_banned_words(self):
        findings = []
        for page in all_pages():
            if (ROOT / "docs/results") in page.parents:
                continue
            text = "\n".join(map(visible, split_page(page.read_text(encoding="utf-8"))[1]))
            for match in BANNED.finditer(text):
                line = text.count("\n", 0, match.start()) + 1
                findings.append(f"{name_of(page)}:{line}: {' '.join(match.group(0).split())}")
        report(self, findings)

    def test_the_readme_is_short(self):
        count = len((ROOT / "README.md").read_text(encoding="utf-8").split())
        self.assertLessEqual(count, MAX_README_WORDS)


if __name__ == "__main__":
    serving.run_tests()
