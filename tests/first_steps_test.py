#!/usr/bin/env python3
"""The first steps with the program: `serve` without arguments, `demo` and `doctor`. Standard library only.

Usage: first_steps_test.py PATH_OF_LORAMUX
"""
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import tempfile
import unittest

import serving
from serving import DEMO, Server

PLAIN = {name: value for name, value in os.environ.items() if not name.startswith("LORAMUX_")}


def run(*arguments, program=None, **more):
    return subprocess.run([program or serving.LORAMUX, *arguments], capture_output=True, text=True,
                          timeout=serving.PATIENCE, env=PLAIN, **more)


class ServeAlone(unittest.TestCase):
    def test_it_says_how_to_start(self):
        done = run("serve")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        for way in ("loramux demo", "loramux serve Qwen/Qwen3-0.6B", "--adapter-dir", "loramux doctor"):
            self.assertIn(way, done.stderr)
        self.assertLessEqual(len(done.stderr.splitlines()), 12)

    def test_with_a_flag_it_names_what_is_missing(self):
        done = run("serve", "--port", "0")
        self.assertEqual(done.returncode, 2)
        self.assertIn("model is required", done.stderr)


class Demo(unittest.TestCase):
    def served_by(self, program, folder):
        """Starts the demo of a program, and asks it once."""
        output = pathlib.Path(folder) / "output"
        with output.open("wb") as out:
            server = Server.run([program, "demo", "--port", "0"], stdout=out, env=PLAIN, cwd="/")
        try:
            answer = server.chat("reverse", "hello")[1]["choices"][0]["message"]["content"]
            self.assertEqual(answer, "olleh")
            models = {card["id"] for card in server.json("GET", "/v1/models")[1]["data"]}
            self.assertEqual(models, {"demo"} | {path.name for path in (DEMO / "adapters").iterdir()})
        finally:
            server.stop()
        said = output.read_text(encoding="utf-8")
        self.assertIn(f"  http://127.0.0.1:{server.port}/\n", said)
        self.assertIn(f"curl http://127.0.0.1:{server.port}/v1/chat/completions", said)
        return said

    def test_from_the_source_tree(self):
        with tempfile.TemporaryDirectory() as folder:
            said = self.served_by(pathlib.Path(serving.LORAMUX).resolve(), folder)
        self.assertIn(f"serve {DEMO}/model", said)

    def test_installed_under_a_prefix(self):
        with tempfile.TemporaryDirectory() as folder:
            prefix = pathlib.Path(folder).resolve() / "opt"
            (prefix / "bin").mkdir(parents=True)
            program = shutil.copy(serving.LORAMUX, prefix / "bin/loramux")
            for part in ("model", "adapters"):
                shutil.copytree(DEMO / part, prefix / "share/loramux/demo" / part)
            link = pathlib.Path(folder) / "loramux"
            link.symlink_to(program)   # the program's own place counts, not the link's
            said = self.served_by(link, folder)
            self.assertIn(f"serve {prefix}/share/loramux/demo/model", said)

    def test_without_its_model(self):
        with tempfile.TemporaryDirectory() as folder:
            done = run("demo", program=shutil.copy(serving.LORAMUX, folder))
        self.assertEqual(done.returncode, 1)
        self.assertIn("the demo model is neither in", done.stderr)
        self.assertIn("share/loramux/demo", done.stderr)

    def test_takes_the_next_port(self):
        with socket.create_server(("127.0.0.1", 0)) as taken, tempfile.TemporaryDirectory() as folder:
            port = taken.getsockname()[1]
            with (pathlib.Path(folder) / "output").open("wb") as out:
                server = Server.run([serving.LORAMUX, "demo", "--port", str(port)], stdout=out, env=PLAIN)
            self.assertGreater(server.port, port)
            server.stop()


class Doctor(unittest.TestCase):
    def test_table_and_json_agree(self):
        table, report = run("doctor", "--port", "0"), run("doctor", "--port", "0", "--json")
        checks = json.loads(report.stdout)["checks"]
        self.assertGreaterEqual(len(checks), 12)
        for check in checks:
            self.assertEqual(set(check), {"name", "verdict", "found", "advice"})
            self.assertIn(check["verdict"], ("ok", "better", "wrong"))
            self.assertEqual(check["advice"] is None, check["verdict"] == "ok", check)
            self.assertRegex(table.stdout, rf"(?m)^(ok|better|wrong) +{re.escape(check['name'])} ")
        self.assertEqual(table.returncode, report.returncode)

    def test_a_port_in_use_is_wrong(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            done = run("doctor", "--port", str(port))
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertRegex(done.stdout, rf"(?m)^wrong +port +.*{port}")
        self.assertIn("loramux cannot serve here yet", done.stdout)


if __name__ == "__main__":
    serving.run_tests()
