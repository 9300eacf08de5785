#!/usr/bin/env python3
"""The official OpenAI JavaScript client, unmodified, against the program: starts the server and runs openai_js_test.mjs
with Node. tests/clients/install.sh installs the client. Standard library only.

Usage: openai_js_test.py PATH_OF_LORAMUX
"""
import json
import subprocess
import sys
import unittest

import serving
from serving import ROOT, Server, questions

CLIENTS = ROOT / "build/clients"


class OpenAiJavaScript(unittest.TestCase):
    def test_client(self):
        server = Server("--device-memory", "64MiB", "--host-memory", "32MiB", "--sse-keepalive", "0.001")
        asked = [{"model": model, "prompt": prompt, "answer": answer} for model, prompt, answer in questions(1)]
        command = ["node", "--test-reporter=tap", str(ROOT / "tests/openai_js_test.mjs"), str(server.port),
                   json.dumps(asked)]
        run = subprocess.run(command, cwd=CLIENTS, timeout=1800, text=True, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT)
        server.wait_idle()
        server.stop()
        print(run.stdout)
        self.assertEqual(run.returncode, 0)
        self.assertIn("# pass 10\n", run.stdout)


if __name__ == "__main__":
    if not (CLIENTS / "node_modules/openai").exists():
        sys.exit(f"{CLIENTS}/node_modules/openai is missing: run tests/clients/install.sh")
    serving.run_tests()
