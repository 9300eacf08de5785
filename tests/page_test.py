#!/usr/bin/env python3
"""The page in a real browser: page_test.mjs drives the distribution's Chromium, headless, against the program, as a person
would. tests/clients/install.sh installs what drives it (puppeteer-core) and what checks that all can use it (axe-core).
Standard library only. With LORAMUX_PAGE_SHOTS=FOLDER in the environment, screenshots of every part are kept there.

The pictures in the README are the page's own. Fonts differ from machine to machine, so each picture holds what can be read
in it and a digest of the files that draw it, and the test compares these. After a change of the page, make them anew:
page_test.py PATH_OF_LORAMUX --pictures

Usage: page_test.py PATH_OF_LORAMUX
"""
import concurrent.futures
import hashlib
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
import zlib

import serving
from adapter_files import add_head
from serving import CLIENTS, DEMO, ROOT, Server, questions

BROWSERS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
MANY = 150   # adapters that are offered besides the demo's
HIDDEN = json.loads((DEMO / "model/config.json").read_text())["hidden_size"]
API_KEY, ADMIN_KEY = "key-of-a-person-0123", "key-of-the-admin-0123"


PICTURES = ROOT / "docs/images"
THEMES = ("light", "dark")
# The files of the page that draw what the pictures show.
DRAWN_BY = ("app.js", "dom.js", "format.js", "icon.svg", "index.html", "playground.js", "style.css", "theme.js")
CONTENT = b"loramux-page\0"   # of a picture's tEXt chunk


def browser():
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def record(folder):
    """A small recording, and its replay as JSON."""
    file, result = folder / "recording", folder / "result.json"
    server = Server("--record", str(file), "--device-memory", "16MiB")
    with concurrent.futures.ThreadPoolExecutor(4) as clients:
        list(clients.map(lambda q: server.chat(q[0], q[1]), questions(1)))
    server.wait_idle()
    server.stop()
    subprocess.run([serving.LORAMUX, "simulate", "--replay", str(file), "--json", str(result)], check=True, timeout=1800,
                   stdout=subprocess.DEVNULL)
    return result


def chunks(png):
    """(kind, data) of each chunk of a PNG file."""
    at = 8
    while at < len(png):
        length, kind = struct.unpack_from(">I4s", png, at)
        yield kind, png[at + 8:at + 8 + length]
        at += 12 + length


def content_of(png):
    """What `with_content` put into a picture; None: nothing."""
    return next((data.removeprefix(CONTENT).decode() for kind, data in chunks(png)
                 if kind == b"tEXt" and data.startswith(CONTENT)), None)


def with_content(png, content):
    data = b"tEXt" + CONTENT + content.encode("ascii")
    end = png.rindex(b"\0\0\0\0IEND")
    return png[:end] + struct.pack(">I", len(data) - 4) + data + struct.pack(">I", zlib.crc32(data)) + png[end:]


def take_pictures(folder):
    """Writes the pictures into the folder. Returns what can be read in them, and a digest of what draws them, as JSON."""
    server = Server()
    subprocess.run(["node", str(ROOT / "tests/page_picture.mjs"), str(server.port), browser(), str(folder)], cwd=CLIENTS,
                   check=True, timeout=1800)
    server.stop()
    digest = hashlib.sha256(b"".join((ROOT / "src/server/page/web" / name).read_bytes() for name in DRAWN_BY))
    content = json.dumps({"text": (folder / "page.txt").read_text(), "drawn_by": digest.hexdigest()})
    for theme in THEMES:
        picture = folder / f"page-{theme}.png"
        picture.write_bytes(with_content(picture.read_bytes(), content))
    return content


class Page(unittest.TestCase):
    def test_the_pictures_in_the_readme_show_this_page(self):
        with tempfile.TemporaryDirectory() as name:
            content = take_pictures(pathlib.Path(name))
            for theme in THEMES:
                stored = (PICTURES / f"page-{theme}.png").read_bytes()
                self.assertEqual(content_of(stored), content, f"page-{theme}.png is stale: {__file__} PROGRAM --pictures")
                own, new = (dict(chunks(png))[b"IHDR"] for png in (stored, pathlib.Path(name, f"page-{theme}.png").read_bytes()))
                self.assertEqual(own[:8], new[:8])   # width and height
                self.assertIn(f"docs/images/page-{theme}.png", (ROOT / "README.md").read_text())

    def test_page(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            result = record(folder)
            adapters = folder / "adapters"
            shutil.copytree(DEMO / "adapters", adapters)
            for number in range(MANY):
                shutil.copytree(adapters / "count", adapters / f"many-{number:03}", copy_function=os.link)
            shutil.copytree(adapters / "reverse", adapters / "sentiment")
            add_head(adapters / "sentiment", [[0.0] * HIDDEN, [1.0] * HIDDEN])
            (adapters / "broken").mkdir()
            (adapters / "broken/adapter_config.json").write_text("{}")
            (folder / "admin").write_text(ADMIN_KEY)
            shots = pathlib.Path(os.environ.get("LORAMUX_PAGE_SHOTS", folder / "shots"))
            shots.mkdir(exist_ok=True)
            server = Server("--api-key", API_KEY, "--enable-runtime-lora", "--admin-key-file", str(folder / "admin"),
                            "--allowed-adapter-root", str(adapters), adapter_dir=adapters)
            facts = {"browser": browser(), "key": API_KEY, "admin": ADMIN_KEY, "result": str(result), "shots": str(shots),
                     "adapters": str(adapters), "many": MANY}
            passed = serving.run_node_tests("page_test.mjs", server, json.dumps(facts))
            self.assertEqual(passed, 11)

    def test_without_the_page(self):
        server = Server("--no-page")
        for path in ("/", "/docs", "/page/app.js"):
            self.assertIn(server.request("GET", path)[0], (404, 405), path)
        self.assertEqual(server.request("GET", "/openapi.json")[0], 200)
        self.assertEqual(server.chat("reverse", "abc")[0], 200)
        server.stop()


if __name__ == "__main__":
    if browser() is None:
        print(f"SKIPPED: no browser: none of {', '.join(BROWSERS)} is on the PATH (Debian: apt install chromium)")
        sys.exit(0)
    if not (CLIENTS / "node_modules/puppeteer-core").exists():
        sys.exit(f"{CLIENTS}/node_modules/puppeteer-core is missing: run tests/clients/install.sh")
    if "--pictures" in sys.argv:
        serving.LORAMUX = sys.argv[1]
        take_pictures(PICTURES)
        (PICTURES / "page.txt").unlink()
        sys.exit(0)
    serving.run_tests()
