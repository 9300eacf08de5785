#!/usr/bin/env python3
"""What a router does with a dead server, a 500, a drain and an adapter on one server: `loramux route` beside two others.

    python3 -m venv build/vllm-router && build/vllm-router/bin/pip install vllm-router==0.1.17
    python3 -m venv build/sglang-router && build/sglang-router/bin/pip install sglang-router==0.3.2
    lab/bench/router_peers.py build/release/tools/loramux --vllm-router build/vllm-router --sglang-router build/sglang-router \\
        --out build/results

Three real servers (`loramux serve demo/model`) stand behind each router in turn, and all routers get the same load. One server
has an adapter that the others lack. Servers are killed and drained under load, a client leaves in the middle of a stream, and
scripted servers that count executions answer 500 or hang up. Each of the other routers runs twice: with its defaults, and
"set up", with health checks every second and requests in turn. A router that is not installed is skipped. It takes about 50 s
a router; `--only NAME` measures one and keeps the others' rows in routers.json. Prints a table and writes routers.json and
routers.md; a section "What it shows" that the page has stays. `--check`: a short run of `loramux route` alone, which writes
nothing. Standard library only.
"""
import argparse
import collections
import datetime
import http.client
import http.server
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))
import serving
from raw_data import write_raw_data
from serving import DEMO, wait_for

SERVERS = 3
CLIENTS, PACE, TOKENS = 6, 0.3, 300           # each client starts a request every PACE seconds, or when its last one ends
SHARED, EXTRA = ("demo", "reverse", "upper"), "extra"   # what all servers serve, and what only the last one serves
ASKS = 6                                      # requests for the adapter on one server
WARM = 2.0                                    # seconds of load before a server is killed or drained
SEQUENCES = 10                                # of the stream whose client leaves; sglang-router allows no more
# Beginnings of prompts. Routers that keep like prompts together see that these are different.
WORDS = ("apple", "bridge", "cloud", "door", "engine", "forest", "garden", "house", "island", "jacket", "kitchen", "lamp")
FAULTY_ASKS = len(WORDS)                      # requests to scripted servers of which one is faulty
SET_UP = ["--policy", "round_robin", "--health-check-interval-secs", "1", "--health-failure-threshold", "1"]
ROUTERS = ("loramux route", "vllm-router", "vllm-router, set up", "sglang-router", "sglang-router, set up")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def request(port, method, path, body=None, timeout=30):
    """The status and the body; raises if there is no complete answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def chat(model, prompt, tokens=TOKENS, **more):
    return {"model": model, "messages": [{"role": "user", "content": prompt}], "temperature": 0, "max_tokens": tokens,
            "ignore_eos": True, **more}


# ---- Routers

class Router:
    """One of ROUTERS as a process in front of `ports`, until `stop`."""

    def __init__(self, name, options, ports):
        self.port = free_port()
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        peer = name.split(",", maxsplit=1)[0]
        if name == "loramux route":
            command = [options.loramux, "route", "--port", str(self.port), "--servers", ",".join(urls)]
        else:
            program = pathlib.Path(getattr(options, peer.replace("-", "_"))) / "bin" / peer
            command = [str(program), *(["launch"] if peer == "sglang-router" else []), "--host", "127.0.0.1", "--port",
                       str(self.port), "--prometheus-port", str(free_port()), "--worker-urls", *urls,
                       *(SET_UP if name.endswith("set up") else [])]
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log, start_new_session=True)
        wait_for(self.ready, lambda: f"{name}, which ended with {self.process.poll()}", 30)
        time.sleep(2)   # time for its first looks at all servers

    def ready(self):
        try:
            return request(self.port, "GET", "/health", timeout=5)[0] == 200
        except OSError:
            return False

    def stop(self):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.log.close()


def version_of(name, options):
    if name == "loramux route":
        return subprocess.run([options.loramux, "--version"], check=True, capture_output=True, text=True).stdout.split("\n")[0]
    peer = name.split(",", maxsplit=1)[0]
    code = f"import importlib.metadata as m; print(m.version('{peer}'))"
    python = pathlib.Path(getattr(options, peer.replace("-", "_"))) / "bin/python"
    return subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def installed(name, options):
    peer = name.split(",", maxsplit=1)[0]
    if name == "loramux route":
        return True
    home = getattr(options, peer.replace("-", "_"))
    return bool(home) and (pathlib.Path(home) / "bin" / peer).exists()


# ---- Real servers

def start_server(extra, port=0):
    more = ["--lora-modules", f"{EXTRA}={DEMO / 'adapters/reverse'}"] if extra else []
    return serving.Server.run([serving.LORAMUX, "serve", str(DEMO / "model"), "--served-model-name", "demo", "--adapter-dir",
                               str(DEMO / "adapters"), "--port", str(port), "--threads", "1", "--http-threads", "1",
                               "--max-connections-per-address", "0", *more])


def start_servers():
    return [start_server(extra=i == SERVERS - 1) for i in range(SERVERS)]


def answered(server):
    return server.text().count("path=/v1/chat/completions status=200")


def end(servers):
    for server in servers:
        server.process.kill()
        server.process.wait()
        server.log.close()


class Load:
    """The load that all routers get, until `stop`."""

    def __init__(self, port):
        self.port, self.results, self.lock, self.stopping = port, [], threading.Lock(), False
        self.threads = [threading.Thread(target=self.run, args=(i,), daemon=True) for i in range(CLIENTS)]
        for thread in self.threads:
            thread.start()

    def run(self, client):
        number, due = 0, time.monotonic() + client * PACE / CLIENTS
        while not self.stopping:
            time.sleep(max(0, due - time.monotonic()))
            begin = time.monotonic()
            due = max(due + PACE, begin)
            fault = self.ask(SHARED[number % len(SHARED)], f"{WORDS[client]} {number}", stream=number % 2 == 0)
            with self.lock:
                self.results.append({"begin": begin, "end": time.monotonic(), "fault": fault})
            number += 1

    def ask(self, model, prompt, stream):
        """What is wrong with the answer, or None."""
        try:
            status, text = request(self.port, "POST", "/v1/chat/completions", chat(model, prompt, stream=stream))
        except (OSError, http.client.HTTPException) as error:
            return type(error).__name__
        if status != 200:
            return str(status)
        if not stream:
            return None
        if '"error"' in text:
            return "error event"
        return None if text.endswith("data: [DONE]\n\n") else "stream without end"

    def stop(self):
        self.stopping = True
        for thread in self.threads:
            thread.join()


def until_it_works(server):
    """Waits until the server works on a request, for up to 5 s, and returns how many it works on."""
    deadline = time.monotonic() + 5
    while True:
        running = server.requests_now()
        if running or time.monotonic() > deadline:
            return running


def under_load(router, servers, seconds, act):
    """Does `act` to the server that has answered most, and returns what the clients saw."""
    before = [answered(server) for server in servers]
    load = Load(router.port)
    time.sleep(WARM)
    shares = [answered(server) - count for server, count in zip(servers, before)]
    victim = shares.index(max(shares))
    running = until_it_works(servers[victim])
    moment = time.monotonic()
    act(servers[victim])
    time.sleep(seconds)
    load.stop()
    failed = [result for result in load.results if result["fault"]]
    last = max((result["end"] - moment for result in failed), default=0)
    good = [result["end"] - result["begin"] for result in load.results if not result["fault"] and result["end"] > moment]
    return {"requests": len(load.results), "failed": len(failed), "failed_before": sum(r["end"] < moment for r in failed),
            "begun_after": sum(result["begin"] > moment for result in failed),
            "last_failure_s": round(last, 2), "still_failing": last > seconds - 1, "window_s": seconds,
            "running_at_victim": running, "faults": dict(collections.Counter(result["fault"] for result in failed)),
            "slowest_good_s": round(max(good, default=0), 2),
            "victims_share_before": round(max(shares) / max(1, sum(shares)), 2)}


def measure_models(router, servers):
    wanted = set()
    for server in servers:
        wanted |= {card["id"] for card in server.json("GET", "/v1/models")[1]["data"]}
    listed, others = set(), []
    status, text = request(router.port, "GET", "/v1/models")
    if status == 200:
        listed = {card["id"] for card in json.loads(text)["data"]}
        others = sorted(listed - wanted)
    return {"models": len(wanted), "others": others, "listed": len(listed & wanted), "extra_listed": EXTRA in listed,
            "status": status}


def measure_extra(router):
    statuses = [request(router.port, "POST", "/v1/chat/completions", chat(EXTRA, word, 8))[0] for word in WORDS[:ASKS]]
    return {"asked": ASKS, "ok": statuses.count(200), "statuses": statuses}


def measure_vanishing(router, servers):
    """Reads the beginning of a long stream and hangs up."""
    wait_for(lambda: not any(server.requests_now() for server in servers), "idle servers", 20)
    body = json.dumps(chat("demo", "x", 800, stream=True, n=SEQUENCES)).encode()
    client = socket.create_connection(("127.0.0.1", router.port))
    client.settimeout(20)
    client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                   b"Content-Length: %d\r\n\r\n" % len(body) + body)
    received = b""
    while b"data: " not in received:
        piece = client.recv(4096)
        if not piece or (received + piece)[:12] != b"HTTP/1.1 200":
            return {"error": (received + piece)[:12].decode(errors="replace")}
        received += piece
    client.close()
    moment = time.monotonic()
    wait_for(lambda: not any(server.requests_now() for server in servers), "the end of the stream", 40)
    idle = time.monotonic() - moment
    log = "".join(server.text() for server in servers)
    return {"idle_s": round(idle, 2), "cut_off": "request cut off" in log or "finish=abort" in log or "status=499" in log}


def measure_real(name, options, row):
    servers = start_servers()
    try:
        router = Router(name, options, [server.port for server in servers])
        row["models"] = measure_models(router, servers)
        row["extra"] = measure_extra(router)
        row["vanish"] = measure_vanishing(router, servers)
        row["drain"] = under_load(router, servers, options.drain_window,
                                  lambda server: server.process.send_signal(signal.SIGTERM))
        router.stop()
    finally:
        end(servers)
    servers = start_servers()
    try:
        router = Router(name, options, [server.port for server in servers])
        row["kill"] = under_load(router, servers, options.kill_window, lambda server: server.process.kill())
        router.stop()
    finally:
        end(servers)


# ---- Scripted servers

class Scripted(http.server.ThreadingHTTPServer):
    """Answers chats as `mode` says ("good", "500" or "hang up") and counts executions by the prompt."""
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), ScriptedHandler)
        self.mode, self.executions, self.lock = "good", collections.Counter(), threading.Lock()
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def handle_error(self, *_):
        pass   # a router that hangs up


class ScriptedHandler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, value):
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        if self.path == "/health":
            self.answer(200, {"status": "ok"})
        elif self.path == "/v1/models":
            self.answer(200, {"object": "list", "data": [{"id": "demo", "object": "model", "created": 1, "owned_by": "x"}]})
        else:
            self.answer(404, {"error": {"message": "Not Found", "code": 404}})

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path != "/v1/chat/completions":
            self.answer(404, {"error": {"message": "Not Found", "code": 404}})
            return
        with self.server.lock:
            self.server.executions[json.loads(body)["messages"][0]["content"]] += 1
        if self.server.mode == "hang up":
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
        elif self.server.mode == "500":
            self.answer(500, {"error": {"message": "a scripted fault", "type": "InternalServerError", "code": 500}})
        else:
            self.answer(200, {"id": "x", "object": "chat.completion", "created": 1, "model": "demo", "choices": [
                {"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}})


def measure_faults(name, options, fault, faulty, asks):
    """Executions of each request that a faulty server began, and what the client got. The `faulty` servers that got
    most of some first requests become faulty."""
    servers = [Scripted() for _ in range(SERVERS)]
    router = Router(name, options, [server.server_address[1] for server in servers])
    executions, statuses = [], []

    def ask(prompt):
        try:
            return request(router.port, "POST", "/v1/chat/completions", chat("demo", prompt))[0]
        except (OSError, http.client.HTTPException) as error:
            return type(error).__name__
    for word in WORDS:
        ask(word)
    bad = sorted(servers, key=lambda server: -server.executions.total())[:faulty]
    for server in bad:
        server.mode = fault
    for number in range(asks):
        prompt = f"{WORDS[number]} again"
        status = ask(prompt)
        if any(server.executions[prompt] for server in bad):
            executions.append(sum(server.executions[prompt] for server in servers))
            statuses.append(str(status))
    router.stop()
    for server in servers:
        server.shutdown()
        server.server_close()
    return {"asked": asks, "reached": len(executions), "executions": executions,
            "statuses": dict(collections.Counter(statuses))}


def measure(name, options):
    print(f"measuring {name} ...", file=sys.stderr)
    row = {"name": name, "version": version_of(name, options), "date": datetime.date.today().isoformat(),
           "load_average": round(os.getloadavg()[0], 1)}
    measure_real(name, options, row)
    row["one_500"] = measure_faults(name, options, "500", 1, FAULTY_ASKS)
    row["all_500"] = measure_faults(name, options, "500", SERVERS, 3)
    row["one_hangs_up"] = measure_faults(name, options, "hang up", 1, FAULTY_ASKS)
    return row


# ---- The page

def load_cells(cell):
    """Failed requests, seconds until the last failure, slowest good answer."""
    faults = ", ".join(f"{count} x {fault}" for fault, count in sorted(cell["faults"].items()))
    until = f"> {cell['window_s'] - 1:.0f} s" if cell["still_failing"] else f"{cell['last_failure_s']:.1f} s"
    return (f"{cell['failed']} of {cell['requests']}" + (f" ({faults})" if faults else ""), until if cell["failed"] else "-",
            f"{cell['slowest_good_s']:.1f} s")


def fault_cell(cell):
    if not cell["reached"]:
        return "not reached"
    low, high = min(cell["executions"]), max(cell["executions"])
    times = f"{low}" if low == high else f"{low} to {high}"
    return f"{times}; client: " + ", ".join(f"{count} x {status}" for status, count in sorted(cell["statuses"].items()))


def cells(row):
    """What the table says of a router, by line."""
    models, extra, vanish = row["models"], row["extra"], row["vanish"]
    kill, drain = load_cells(row["kill"]), load_cells(row["drain"])
    return {
        "1. models listed of those that the servers have": "".join(
            [f"{models['listed']} of {models['models']}", *(f", and `{other}`" for other in models["others"])]),
        "2. answered, of requests for the adapter on one server": f"{extra['ok']} of {extra['asked']}",
        "3. kill -9 under load: failed requests": kill[0],
        "3. share of the requests at that server before": f"{row['kill']['victims_share_before']:.0%}".replace("%", " %"),
        "3. until the last failure": kill[1],
        "3. slowest good answer": kill[2],
        "4. one server of three answers 500: executions of a request": fault_cell(row["one_500"]),
        "4. all servers answer 500: executions of a request": fault_cell(row["all_500"]),
        "4. one server of three begins and hangs up: executions": fault_cell(row["one_hangs_up"]),
        "5. SIGTERM to a server under load: failed requests": drain[0],
        "5. share of the requests at that server before": f"{row['drain']['victims_share_before']:.0%}".replace("%", " %"),
        "5. slowest good answer": drain[2],
        "6. client leaves mid-stream: server idle after":
            vanish.get("error") or f"{vanish['idle_s']:.1f} s" + (", cut off" if vanish["cut_off"] else ", not cut off"),
    }


def table(rows):
    columns = [cells(row) for row in rows]
    lines = ["| | " + " | ".join(row["name"] for row in rows) + " |", "|---" * (len(rows) + 1) + "|"]
    lines += [f"| {line} | " + " | ".join(column[line] for column in columns) + " |" for line in columns[0]]
    return "\n".join(lines)


PAGE = """# Routers in front of the same servers
What `loramux route` and two other routers do with a dead server, a 500, a drain, and an adapter that one server has.
The other two are vllm-router and sglang-router, from PyPI. Their columns "set up" have
`{set_up}`; everything
else, and `loramux route`, has its defaults.

Command, from the root of the repository after `make build`:

```
{command}
```

{raw_data}

{table}

Versions: {versions}.

Conditions: {condition}

## Method
Three servers, `loramux serve demo/model --adapter-dir demo/adapters` with one thread each. The third also serves `extra`,
a copy of an adapter under a name of its own. {clients} clients each start a request every {pace} s, or when their last
one ends: {tokens} tokens, every second one a stream, for the base and two adapters in turn. After {warm:.0f} s the server that
has answered most requests is killed or drained, in a moment in which it works on one. A request fails if its status is
not 200, if its stream has an error or no end, or if its connection breaks. Servers and router are new for the kill, and for
each line of part 4. Each router had a run of its own (`--only`).

| line | meaning |
|---|---|
| 1 | how many of the servers' models `/v1/models` of the router lists |
| 2 | of {asks} requests for `extra`, how many were answered; the others got an error, mostly 404 from a server without it |
| 3 | SIGKILL, and {kill:.0f} s of load after it. Failures are what clients saw, after all retries of the router. "Until the last failure" counts from the kill; the slowest good answer, among those after it, shows what retries and the loss of a server cost. The share tells whether the router spread the load at all |
| 4 | scripted servers that count how often they begin a request, found by its prompt. The server that got most of {faulty_asks} first requests becomes faulty, and of {faulty_asks} further ones those count that reached it. More than one execution is work done twice, or twice the effect where a request has one. The client's statuses stand behind it |
| 5 | SIGTERM: the server finishes what it has and refuses what is new. {drain:.0f} s of load after it |
| 6 | a client reads the beginning of a stream of {sequences} sequences and hangs up; how long the server went on, and whether its log says that it cut the request off |

No router can be perfect in line 3: what the dead server had begun is either reported as failed, or executed again. Line 4
says which of the two a router does.
"""


def page(report, raw_data, old):
    shows = old.partition("\n## What it shows\n")[2]
    rows = report["rows"]
    text = PAGE.format(set_up=" ".join(SET_UP), command=report["command"], raw_data=raw_data, table=table(rows), condition=report["condition"],
                       versions=", ".join(dict.fromkeys(f"{row['name'].split(',')[0]}: {row['version']}" for row in rows)),
                       clients=CLIENTS, pace=PACE, tokens=TOKENS, warm=WARM, asks=ASKS, sequences=SEQUENCES,
                       faulty_asks=FAULTY_ASKS, kill=rows[0]["kill"]["window_s"], drain=rows[0]["drain"]["window_s"])
    return text + (f"\n## What it shows\n{shows}" if shows else "")


def write(folder, rows):
    """Writes both files; rows that this run did not measure stay as they were."""
    path = folder / "routers.json"
    kept = {row["name"]: row for row in json.loads(path.read_text())["rows"]} if path.exists() else {}
    kept |= {row["name"]: row for row in rows}
    ordered = [kept[name] for name in ROUTERS if name in kept]
    loads = [row["load_average"] for row in ordered]
    report = {
        "what": "What routers do with a dead server, a 500, a drain and an adapter on one server",
        "command": "lab/bench/router_peers.py build/release/tools/loramux --vllm-router build/vllm-router \\\n"
                   "    --sglang-router build/sglang-router --out build/results",
        "condition": f"{os.cpu_count()} cores of a cloud machine shared with other work (load average {min(loads)} to "
                     f"{max(loads)} at the starts), one run each, {max(row['date'] for row in ordered)}.",
        "rows": ordered}
    raw_data = write_raw_data(path, report)
    text = folder / "routers.md"
    text.write_text(page(report, raw_data, text.read_text() if text.exists() else ""))


def check(rows):
    """What `loramux route` promises."""
    row = rows[0]
    assert row["models"]["listed"] == row["models"]["models"], row["models"]
    assert row["models"]["extra_listed"], row["models"]
    assert row["drain"]["failed"] == 0, row["drain"]
    for case in ("one_500", "all_500", "one_hangs_up"):
        assert all(count == 1 for count in row[case]["executions"]), row[case]
    assert row["vanish"]["cut_off"], row["vanish"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("loramux", help="the program, as build/release/tools/loramux")
    parser.add_argument("--vllm-router", metavar="VENV", help="virtual environment in which vllm-router is installed")
    parser.add_argument("--sglang-router", metavar="VENV", help="virtual environment in which sglang-router is installed")
    parser.add_argument("--only", metavar="NAME", action="append", choices=ROUTERS,
                        help="measure this one; again for a further one: " + "; ".join(ROUTERS))
    parser.add_argument("--kill-window", type=float, default=12, help="seconds of load after the kill (default: 12)")
    parser.add_argument("--drain-window", type=float, default=6, help="seconds of load after the SIGTERM (default: 6)")
    parser.add_argument("--out", metavar="FOLDER", help="where routers.json and routers.md go")
    parser.add_argument("--check", action="store_true", help="a short run of `loramux route` alone that checks its promises")
    options = parser.parse_args()
    serving.LORAMUX = options.loramux
    names = ["loramux route"] if options.check else options.only or ROUTERS
    if options.check:
        options.kill_window = options.drain_window = 2
    rows = []
    for name in names:
        if installed(name, options):
            rows.append(measure(name, options))
        else:
            print(f"{name} is skipped: it is not installed; --help says how to install it", file=sys.stderr)
    if rows:
        print(table(rows))
    if options.check:
        check(rows)
    elif options.out and rows:
        write(pathlib.Path(options.out), rows)


if __name__ == "__main__":
    main()
