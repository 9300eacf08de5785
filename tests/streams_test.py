#!/usr/bin/env python3
"""Memory of 1,000 open streams in one process, and of streams whose readers stop. Standard library only.

Usage: streams_test.py PATH_OF_LORAMUX
"""
import json
import re
import resource
import selectors
import socket
import unittest

import serving
from serving import PATIENCE, Server, wait_for

STREAMS = 1000
MAX_BYTES_PER_STREAM = 64_000


def resident_bytes(server):
    with open(f"/proc/{server.process.pid}/status", encoding="ascii") as status:
        return int(re.search(r"VmRSS:\s+(\d+) kB", status.read()).group(1)) * 1024


def open_stream(server, prompt, receive_bytes=0, **more):
    body = json.dumps({"model": "demo", "messages": [{"role": "user", "content": prompt}], "temperature": 0, "stream": True,
                       "ignore_eos": True, "max_tokens": 900, **more}).encode()
    client = socket.socket()
    if receive_bytes:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    client.settimeout(PATIENCE)
    client.connect(("127.0.0.1", server.port))
    client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    return client


def wait_for_first_bytes(clients):
    """Returns when all answers have begun. Reads none of them."""
    waiting = selectors.DefaultSelector()
    for client in clients:
        waiting.register(client, selectors.EVENT_READ)

    def all_begun():
        for key, _ in waiting.select(timeout=1):
            beginning = key.fileobj.recv(1000, socket.MSG_PEEK)
            assert beginning.startswith(b"HTTP/1.1 200"), beginning
            waiting.unregister(key.fileobj)
        return not waiting.get_map()
    wait_for(all_begun, lambda: f"{len(waiting.get_map())} of {len(clients)} streams have not begun")
    waiting.close()


def close(clients):
    for client in clients:
        client.close()


class Streams(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    def test_memory_of_1000_open_streams(self):
        server = Server("--max-num-seqs", "1100", "--max-num-batched-tokens", "1200", "--device-memory", "64MiB",
                        "--write-timeout", "600")
        self.addCleanup(server.process.kill)
        warm = [open_stream(server, "warm up", max_tokens=60) for _ in range(STREAMS // 2)]   # fills pages and heaps
        wait_for_first_bytes(warm)
        close(warm)
        server.wait_idle()
        before = resident_bytes(server)
        streams = [open_stream(server, "hello") for _ in range(STREAMS)]
        wait_for_first_bytes(streams)
        each = (resident_bytes(server) - before) / STREAMS
        print(f"{STREAMS} open streams: {each / 1000:.1f} KB of resident memory each", flush=True)
        close(streams)
        server.wait_idle()
        self.assertLess(each, MAX_BYTES_PER_STREAM)
        self.assertEqual(server.chat("demo", "abc")[1]["choices"][0]["message"]["content"], "abc")
        server.stop()

    def test_readers_that_stop_hold_little(self):
        """The memory of streams whose clients read nothing stays far below the documented bound."""
        server = Server("--max-num-seqs", "300", "--device-memory", "64MiB", "--write-timeout", "600")
        self.addCleanup(server.process.kill)
        warm = [open_stream(server, "warm up", max_tokens=100) for _ in range(200)]
        wait_for_first_bytes(warm)
        close(warm)
        server.wait_idle()
        before = resident_bytes(server)
        clients = [open_stream(server, "abcdef", receive_bytes=2048, logprobs=True, top_logprobs=10, max_tokens=400)
                   for _ in range(200)]
        wait_for_first_bytes(clients)
        server.wait_idle()   # the engine has made all tokens, whether clients read them or not
        each = (resident_bytes(server) - before) / len(clients)
        print(f"{len(clients)} readers that stopped: {each / 1000:.1f} KB of resident memory each", flush=True)
        close(clients)
        self.assertLess(each, 2_500_000)
        server.wait_idle()
        server.stop()


if __name__ == "__main__":
    serving.run_tests()
