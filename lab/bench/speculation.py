#!/usr/bin/env python3
"""What `--speculate ngram` is worth: tokens per second of requests that speculate and of the same ones that do not
(`"speculate": false`), on one server, each with a cache of its own. A request has all prompts of a round, of which the
server runs as many at a time as there are streams. Rounds of the two alternate, so that whatever else the
machine does meets both; the answers are compared too. Every round asks other questions, so no answer was given before.
Standard library only.

Loads on the demo: its adapters for JSON, schemas and tools with held-out questions, as long as their answers are; the base
model, which repeats what it is told; and two loads where drafts do not hit: noise, in which nothing occurs twice, and
digits, in which every pair of tokens occurs again and something else follows. With --model: a document to write again with
a change, one to extract as JSON, and free text.

Usage: speculation.py PATH_OF_LORAMUX [--model DIR] [--streams 1 4 16] [--rounds 5] [--flag FLAG ...]
"""
import argparse
import json
import os
import pathlib
import random
import statistics
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "demo")]
import serving
from serving import Server
from tasks import ALL_TASKS, ECHO, draw_held_out_set

NAMES = "Ada Boris Chen Dora Emil Fatima Goran Hanna Ivan Julia Kofi Lena Marek Nadia Olaf Priya".split()
CITIES = "London Sofia Taipei Athens Zurich Rabat Oslo Lima Cairo Perth Turin Quito Delhi Seoul Riga Bergen".split()


def demo_loads(number, streams):
    """The bodies of a round, by load: questions as the held-out ones."""
    def held_out(task, count=24 + 6 * streams, **more):
        return [{"model": task.name, "max_tokens": 120, "temperature": 0,
                 "messages": [{"role": "user", "content": prompt}], **more}
                for prompt, _ in draw_held_out_set(task, count, 7_000 + number)]
    json_, schema, tools = (ALL_TASKS[name] for name in ("json", "schema", "tools"))
    drawn = [{**held_out(json_, 1)[0], "model": "demo", "temperature": 100, "seed": number, "ignore_eos": True,
              "max_tokens": 300, "n": 8 + 2 * streams}]   # each choice draws for itself
    return {"json": held_out(json_), "schema": held_out(schema), "tools": held_out(tools),
            "tools, drawn": [{**body, "temperature": 0.8, "seed": number} for body in held_out(tools)],
            "repeats": [{**body, "model": "demo"} for body in held_out(ECHO)],
            "noise": drawn, "digits": [{**body, "guided_regex": "[0-9]{300}"} for body in drawn]}


def document_loads(number, streams):
    chosen = random.Random(number)
    def people():
        return [{"name": chosen.choice(NAMES), "age": chosen.randrange(18, 80), "city": chosen.choice(CITIES),
                 "code": f"{chosen.randrange(10**6):06d}", "active": chosen.random() < 0.5} for _ in range(6)]
    def ask(content, tokens, count=2 + 2 * streams, **more):
        return [{"model": "demo", "max_tokens": tokens, "temperature": 0, **more,
                 "messages": [{"role": "user", "content": content()}]} for _ in range(count)]
    rewrite = ask(lambda: f"Repeat this JSON, but delete each age:\n{json.dumps(people(), indent=1)}", 300)
    extract = ask(lambda: "Write name, city and code of each person as a JSON array. " + " ".join(
        f"{p['name']} is {p['age']}, lives in {p['city']} and has the code {p['code']}." for p in people()), 200)
    story = ask(lambda: f"Write a story about {chosen.choice(NAMES)} in {chosen.choice(CITIES)}, who is "
                        f"{chosen.randrange(18, 80)}", 200)
    return {"rewrite": rewrite, "extract": extract, "story": story,
            "story, drawn": [{**body, "temperature": 1.0, "seed": number} for body in story]}


def prepared(server, bodies):
    """One request for all: with the tokens of the chats as prompts, so that the client has nothing to do meanwhile."""
    def tokens(body):
        status, answer = server.json("POST", "/tokenize", {"model": body["model"], "messages": body["messages"]})
        assert status == 200, answer
        return answer["tokens"]
    return {**{key: value for key, value in bodies[0].items() if key != "messages"}, "prompt": list(map(tokens, bodies))}


def run(server, body, speculate):
    """(tokens per second, tokens, answers)"""
    began = time.monotonic()
    status, answer = server.json("POST", "/v1/completions", {**body, "speculate": speculate, "cache_salt": str(speculate)})
    seconds = time.monotonic() - began
    assert status == 200, answer
    tokens = answer["usage"]["completion_tokens"]
    return tokens / seconds, tokens, [choice["text"] for choice in answer["choices"]]


def counts(server):
    time.sleep(0.2)   # /metrics may be so old
    return [server.metric(f"vllm:spec_decode_num_{what}_tokens_total") for what in ("draft", "accepted")]


def shown(values):
    return f"{statistics.median(values):8.0f} ({min(values):.0f} to {max(values):.0f})"


def measure(server, name, rounds, streams):
    rounds = [prepared(server, bodies) for bodies in rounds]
    for speculate in (False, True):
        run(server, rounds[0], speculate)   # warm: adapters are loaded, and there are answers to draft from
    rates, answers, tokens, count = ([], []), {}, 0, 0
    drafted, accepted = counts(server)
    for number, body in enumerate(rounds[1:]):
        for speculate in ((False, True), (True, False))[number % 2]:
            rate, made, answers[speculate] = run(server, body, speculate)
            rates[speculate].append(rate)
        assert answers[False] == answers[True], f"{name}: the answers differ"
        tokens += made
        count += len(answers[True])
    drafted, accepted = (after - before for after, before in zip(counts(server), (drafted, accepted)))
    ratios = [b / a for a, b in zip(*rates)]
    print(f"| {name} | {streams} | {tokens / count:.0f} | {shown(rates[0])} | {shown(rates[1])} | "
          f"**{statistics.median(ratios):.2f}** ({min(ratios):.2f} to {max(ratios):.2f}) | {drafted / tokens:.2f} | "
          f"{accepted / tokens:.2f} |", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--model")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--load", nargs="*")
    parser.add_argument("--flag", nargs="*", default=[], help="flags of the server, without dashes: NAME=VALUE")
    options = parser.parse_args()
    serving.LORAMUX = options.program
    def serve(streams):
        flags = ["--speculate", "ngram", "--max-num-seqs", str(streams), *[f"--{flag}" for flag in options.flag]]
        if options.model is None:
            return Server(*flags)
        return Server.run([options.program, "serve", options.model, "--served-model-name", "demo", "--port", "0", *flags])
    loads = demo_loads if options.model is None else document_loads
    print(f"{os.cpu_count()} processors, load average {os.getloadavg()[0]:.1f}; {options.rounds} rounds, medians and ranges")
    print("| load | streams | tokens an answer | tokens/s without | with | ratio | drafted a token | accepted a token |")
    print("|---|---|---|---|---|---|---|---|")
    for streams in options.streams:   # a new server each time, which was asked nothing
        server = serve(streams)
        rounds = [loads(number, streams) for number in range(options.rounds + 1)]
        for name in rounds[0]:
            if not options.load or name in options.load:
                measure(server, name, [round_[name] for round_ in rounds], streams)
        server.stop()


if __name__ == "__main__":
    main()
