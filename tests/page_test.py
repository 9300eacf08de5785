#!/usr/bin/env python3
"""The page in a real browser: page_test.mjs drives the distribution's Chromium, headless, against the program, as a person
would. tests/clients/install.sh installs what drives it (puppeteer-core) and what checks that all can use it (axe-core).
Standard library only. With LORAMUX_PAGE_SHOTS=FOLDER in the environment, screenshots of every part are kept there.

Usage: page_test.py PATH_OF_LORAMUX
"""
import concurrent.futures
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import serving
from serving import CLIENTS, DEMO, Server, questions

BROWSERS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
MANY = 150   # adapters that are offered besides the demo's
API_KEY, ADMIN_KEY = "key-of-a-person-0123", "key-of-the-admin-0123"


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


class Page(unittest.TestCase):
    def test_page(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            result = record(folder)
            adapters = folder / "adapters"
            shutil.copytree(DEMO / "adapters", adapters)
            for number in range(MANY):
                shutil.copytree(adapters / "count", adapters / f"many-{number:03}", copy_function=os.link)
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
            self.assertEqual(passed, 10)

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
    serving.run_tests()
