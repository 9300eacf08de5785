#!/usr/bin/env python3
"""The commands of the documentation run. Standard library only. (tidy.py checks its links and its language.)

Usage: docs_test.py PATH_OF_LORAMUX   (one page: docs_test.py PATH_OF_LORAMUX Commands.test_guide_memory)

Fenced blocks of README.md and docs/guide/*.md whose info string begins with `sh` are run, page by page, in order:
- "sh": by bash -euo pipefail; it must end with 0.
- "sh server": starts a server that stays up until the next such block or the end of the page; it must end with 0.
- "sh skip": not run; the reason stands in an HTML comment on the line before.
HOME is a temporary folder with ~/models/Llama-3.2-1B-Instruct (the demo model) and ~/adapters/customer-01 to -50
(the demo adapters), and ~/training/toxicity (with a head for classes); the current folder holds demo/; `loramux` is on the
PATH. Port 8000 is replaced by a free one.
"""
import json
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

import serving
from adapter_files import add_head
from markdown import name_of, runnable_pages, split_page
from serving import DEMO

MODEL = "models/Llama-3.2-1B-Instruct"
ADAPTERS = 50
BLOCK_SECONDS = 180   # until a block must have ended, or its server be ready


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
        shutil.copytree(demo[0], home / "training" / "toxicity")
        hidden = json.loads((DEMO / "model/config.json").read_text())["hidden_size"]
        add_head(home / "training" / "toxicity", [[0.1] * hidden, [-0.1] * hidden], id2label={"0": "kind", "1": "toxic"})
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


if __name__ == "__main__":
    serving.run_tests()
