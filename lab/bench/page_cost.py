#!/usr/bin/env python3
"""What the page costs a server: the processor time of an idle server without a viewer of Live, with one and with ten, and
with one that looks at the list of adapters; with 14 adapters and with 1,000. A viewer is a connection that reads GET
/internal/live, as the page does. Standard library only.

Usage: page_cost.py PATH_OF_LORAMUX [SECONDS]     (each figure is over so many seconds; 30 without it)
"""
import http.client
import os
import pathlib
import shutil
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "tests"))
import serving
from serving import DEMO, Server

TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def share(server, seconds):
    """Per cent of a core over the next seconds."""
    began, before = time.monotonic(), cpu_seconds(server.process.pid)
    time.sleep(seconds)
    return 100 * (cpu_seconds(server.process.pid) - before) / (time.monotonic() - began)


class Viewer:
    def __init__(self, server):
        self.connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        self.connection.request("GET", "/internal/live")
        self.response = self.connection.getresponse()
        assert self.response.status == 200, self.response.status
        self.event = self.response.readline()

    def close(self):
        self.response.close()
        self.connection.close()


class Lister(threading.Thread):
    """Asks for the list of adapters as the part Adapters of the page does."""
    def __init__(self, server):
        super().__init__(daemon=True)
        self.server, self.ended, self.size = server, threading.Event(), 0

    def run(self):
        while not self.ended.wait(2):
            self.size = len(self.server.request("GET", "/internal/adapters")[1])


def measure(name, server, seconds):
    print(f"{name}:")
    time.sleep(3)
    print(f"  no viewer    {share(server, seconds):.2f} % of a core")
    for number in (1, 10):
        viewers = [Viewer(server) for _ in range(number)]
        size = len(viewers[0].event)
        print(f"  {number:2} viewer{'s' if number > 1 else ' '}   {share(server, seconds):.2f} % of a core; {size} bytes an event")
        for viewer in viewers:
            viewer.close()
    lister = Lister(server)
    lister.start()
    used = share(server, seconds)
    lister.ended.set()
    lister.join()
    print(f"  the list     {used:.2f} % of a core; {lister.size} bytes every 2 s")
    time.sleep(2)
    print(f"  afterwards   {share(server, seconds):.2f} % of a core", flush=True)


def main():
    serving.LORAMUX = sys.argv[1]
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 30
    server = Server()
    for name in ("reverse", "upper", "sort"):
        server.chat(name, "hello")
    measure("14 adapters", server, seconds)
    server.stop()
    with tempfile.TemporaryDirectory() as folder:
        first = shutil.copytree(DEMO / "adapters/count", pathlib.Path(folder) / "many-0000")
        for number in range(1, 1000):
            shutil.copytree(first, pathlib.Path(folder) / f"many-{number:04}", copy_function=os.link)
        server = Server("--device-memory", "64MiB", adapter_dir=folder)
        for number in range(1000):
            server.chat(f"many-{number:04}", "hello", max_tokens=1)
        measure("1,000 adapters, each used once", server, seconds)
        server.stop()


if __name__ == "__main__":
    main()
