#!/usr/bin/env python3
"""The official OpenAI JavaScript client, unmodified, against the program: starts the server and runs openai_js_test.mjs
with Node. tests/clients/install.sh installs the client. Standard library only.

Usage: openai_js_test.py PATH_OF_LORAMUX
"""
import sys
import unittest

import serving
from serving import CLIENTS, Server


class OpenAiJavaScript(unittest.TestCase):
    def test_client(self):
        server = Server("--device-memory", "64MiB", "--host-memory", "32MiB", "--sse-keepalive", "0.001")
        self.assertEqual(serving.run_node_tests("openai_js_test.mjs", server), 10)


if __name__ == "__main__":
    if not (CLIENTS / "node_modules/openai").exists():
        sys.exit(f"{CLIENTS}/node_modules/openai is missing: run tests/clients/install.sh")
    serving.run_tests()
