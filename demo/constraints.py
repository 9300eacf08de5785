#!/usr/bin/env python3
"""Asks a running loramux server held-out questions of the adapters `schema` and `tools`, with and without constraints, and
prints how many answers are exactly right and how many are valid.

  loramux serve demo/model --adapter-dir demo/adapters --tool-call-parser tools=hermes
  python3 demo/constraints.py --url http://127.0.0.1:8000

`schema` is asked freely and with `response_format` (schema.json, strict); `tools` with tool_choice `auto`, which constrains
nothing, `required`, and the right function named. At the first temperature the base model, which knows neither task, is asked
too. Valid is a document of the schema, or one call whose arguments match the schema of a known tool. Exact is valid, and equal
to the right answer as JSON. Where no tool fits, the right answer is a text, and exact is that text.

Needs the package `jsonschema`.
"""

import argparse
import concurrent.futures
import http.client
import json
import pathlib
import sys
import urllib.parse

import jsonschema
from tasks import ADAPTER_TASKS, draw_held_out_set

HERE = pathlib.Path(__file__).resolve().parent
PERSON = json.loads((HERE / "schema.json").read_text(encoding="utf-8"))
TOOLS = json.loads((HERE / "tools.json").read_text(encoding="utf-8"))
VALIDATORS = {tool["function"]["name"]: jsonschema.Draft202012Validator(tool["function"]["parameters"]) for tool in TOOLS}
CALL = "<tool_call>\n"  # how a right answer begins that is a call
TYPED = {"response_format": {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}}


def parse_json(text):
    """The value; None, which is no right answer here, where the text is no JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def call_of(right):
    """The name and arguments of a right answer that is a call; None if it is a text."""
    return json.loads(right.removeprefix(CALL).removesuffix("\n</tool_call>")) if right.startswith(CALL) else None


def judge_document(message, right):
    """(valid, exact) of an answer that should be a person."""
    document = parse_json(message["content"] or "")
    valid = jsonschema.Draft202012Validator(PERSON).is_valid(document)
    return valid, valid and document == json.loads(right)


def judge_call(message, right):
    """(valid, exact) of an answer that should be one call, or a text where `right` is none."""
    calls, expected = message.get("tool_calls") or [], call_of(right)
    if expected is None:
        exact = not calls and message["content"] == right
        return exact, exact
    if len(calls) != 1 or message["content"]:
        return False, False
    name, arguments = calls[0]["function"]["name"], parse_json(calls[0]["function"]["arguments"])
    valid = name in VALIDATORS and VALIDATORS[name].is_valid(arguments)
    return valid, valid and {"name": name, "arguments": arguments} == expected


def named_call(right):
    """The fields that demand a call of the right function."""
    return {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": call_of(right)["name"]}}}


def rows(samples, seed, bases):
    """(model, questions, request, judge, a function from the right answer to the fields of a request) of each row. `bases` are
    further models that are asked the same."""
    people, requests = (draw_held_out_set(ADAPTER_TASKS[name], samples, seed) for name in ("schema", "tools"))
    calls = [pair for pair in requests if call_of(pair[1])]
    texts = [pair for pair in requests if not call_of(pair[1])]
    one = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
    for model in ("schema", *bases):
        yield model, people, "free", judge_document, lambda right: {}
        yield model, people, "`json_schema`", judge_document, lambda right: TYPED
    for model in ("tools", *bases):
        yield model, calls, "`auto`", judge_call, lambda right: {"tools": TOOLS}
        yield model, calls, "`required`", judge_call, lambda right: one
        yield model, calls, "function named", judge_call, named_call
    yield "tools", texts, "`auto`, no tool fits", judge_call, lambda right: {"tools": TOOLS}


class Client:
    """Sends requests to the server at `url` (http://HOST:PORT)."""

    def __init__(self, url):
        self.address = urllib.parse.urlsplit(url).netloc

    def send(self, method, path, body=None):
        """The JSON of the answer. Ends the program where the server refuses."""
        connection = http.client.HTTPConnection(self.address, timeout=600)
        try:
            connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
            response = connection.getresponse()
            text = response.read().decode()
        except OSError as error:
            sys.exit(f"constraints: {self.address}: {error}; start the server first, see --help")
        finally:
            connection.close()
        if response.status != 200:
            sys.exit(f"constraints: {method} {path}: expected status 200, found {response.status}: {text}")
        return json.loads(text)

    def base(self):
        return next(card["id"] for card in self.send("GET", "/v1/models")["data"] if card["parent"] is None)

    def ask(self, model, prompt, temperature, seed, fields):
        """The message of an answer. At temperature 0 the seed has no effect."""
        body = {"model": model, "messages": [{"role": "user", "content": prompt}], "temperature": temperature, "seed": seed,
                "max_tokens": 950, **fields}
        return self.send("POST", "/v1/chat/completions", body)["choices"][0]["message"]


def measure(client, cases, temperature, concurrency):
    """Yields (model, request, asked, valid, exact) of each of the rows `cases`."""
    for model, pairs, request, judge, fields in cases:
        def ask(number, model=model, pairs=pairs, judge=judge, fields=fields):
            prompt, right = pairs[number]
            return judge(client.ask(model, prompt, temperature, number, fields(right)), right)
        with concurrent.futures.ThreadPoolExecutor(concurrency) as pool:
            judged = list(pool.map(ask, range(len(pairs))))
        yield model, request, len(pairs), sum(valid for valid, _ in judged), sum(exact for _, exact in judged)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="of the server (default: %(default)s)")
    parser.add_argument("--samples", type=int, default=500, help="questions for each adapter (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=24, help="chooses the questions (default: %(default)s)")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0, 1, 1.5], help="(default: 0 1 1.5)")
    parser.add_argument("--concurrency", type=int, default=16, help="requests at the same time (default: %(default)s)")
    arguments = parser.parse_args()
    client = Client(arguments.url)
    print("| model | request | temperature | questions | exact | valid |\n|---|---|---|---|---|---|")
    for i, temperature in enumerate(arguments.temperatures):
        cases = rows(arguments.samples, arguments.seed, [] if i else [client.base()])
        for model, request, asked, valid, exact in measure(client, cases, temperature, arguments.concurrency):
            print(f"| `{model}` | {request} | {temperature:g} | {asked} | {exact / asked:.1%} | {valid / asked:.1%} |",
                  flush=True)


if __name__ == "__main__":
    main()
