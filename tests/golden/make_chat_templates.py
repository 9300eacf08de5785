#!/usr/bin/env python3
"""Makes chat_templates.json and family_templates.json (real chat templates, which are not in this repository: digests of
what transformers renders) and own_templates.json (templates of this project, with the full text)."""

import argparse
import datetime
import hashlib
import json
import pathlib
import shutil
import sys

from golden_common import HERE

import jinja2
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers.utils import chat_template_utils

from own_templates import SNIPPETS, TEMPLATES

NOW = datetime.datetime(2024, 7, 5, 9, 8, 7)
BOS, EOS = "<|bos|>", "<|eos|>"
DEFAULT_TEMPLATES = HERE.parents[1].parent / "shared" / "data" / "chat_templates"
COLLECTED = HERE.parents[1] / "build" / "chat_templates"
# Published templates of families of models, by the package whose source has them: llama.cpp's models/templates (also
# within the source of llama-cpp-python 0.3.36) and TRL's trl/chat_templates (1.16.0).
FAMILY_TEMPLATES = {
    "llama.cpp": ["HuggingFaceTB-SmolLM3-3B", "Mistral-Small-3.2-24B-Instruct-2506", "Qwen-QwQ-32B", "Qwen3-Coder",
                  "Qwen3.5-4B", "google-gemma-4-31B-it", "ibm-granite-granite-3.3-2B-Instruct", "ibm-granite-granite-4.0",
                  "mistralai-Ministral-3-14B-Reasoning-2512", "openai-gpt-oss-120b"],
    "trl": ["gemma3", "gemma4", "gemma4_v5", "llama3", "phi3", "qwen2_5_vl", "qwen3", "qwen3_5_nothink",
            "qwen3_instruct_2507", "qwen3_vl"]}


# Variables that one template cannot do without; a conversation's own come first.
TEMPLATE_VARIABLES = {
    "fireworks-ai-llama-3-firefunction-v2.jinja": {"functions": '[{"name": "ping"}]', "datetime": "2024-07-05 09:08:07"},
}


class PinnedDatetime(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


chat_template_utils.datetime = PinnedDatetime  # strftime_now reads this


# --------------------------------------------------------------------------- conversations

def msg(role, content, **more):
    return {"role": role, "content": content, **more}


def tool_call(name, arguments, call_id):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather at a place, now.",
    "parameters": {"type": "object", "properties": {
        "place": {"type": "string", "description": "City & country, e.g. \"Zürich, <CH>\""},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "description": "The unit"},
        "days": {"type": "integer", "description": "How many days", "minimum": 1}},
        "required": ["place"]}}}
SEARCH = {"type": "function", "function": {
    "name": "search", "description": "Searches the notes.",
    "parameters": {"type": "object", "properties": {
        "words": {"type": "array", "items": {"type": "string"}, "description": "What to look for"},
        "ratio": {"type": "number", "description": "A number", "default": 0.5},
        "exact": {"type": "boolean", "description": "Whether to match exactly", "default": False}},
        "required": []}}}
PING = {"type": "function", "function": {"name": "ping", "description": "Does nothing.",
                                         "parameters": {"type": "object", "properties": {}}}}

SYSTEM = msg("system", "You are terse.")
HELLO = msg("user", "Hello!")
TURNS = [msg("user", "What is 2 + 2?"), msg("assistant", "4."), msg("user", "And 3 + 3?")]
ASK = msg("user", "How is the weather in Zürich?")
ARGS = {"place": "Zürich", "unit": "celsius", "days": 2, "deep": {"b": [1, 2.5, None, True], "a": "<&>'\""}}
ARGS_TEXT = '{"place": "Zürich", "days": 2}'
RESULT = msg("tool", '{"temp": 21.5}', tool_call_id="call12345", name="get_weather")


def conversations():
    """name -> inputs of apply_chat_template"""
    cases = {}

    def add(name, messages, tools=None, generation=True, documents=None, **variables):
        cases[name] = {"messages": messages, "tools": tools, "documents": documents,
                       "add_generation_prompt": generation, "variables": variables}

    add("user", [HELLO])
    add("user_no_prompt", [HELLO], generation=False)
    add("system_user", [SYSTEM, HELLO])
    add("system_user_no_prompt", [SYSTEM, HELLO], generation=False)
    add("multi_turn", TURNS)
    add("system_multi_turn", [SYSTEM, *TURNS])
    add("assistant_last", TURNS[:2], generation=False)
    add("assistant_last_prompt", TURNS[:2])
    add("system_assistant_last", [SYSTEM, *TURNS[:2]], generation=False)
    add("long", [SYSTEM] + [msg("assistant" if i % 2 else "user", f"Turn {i}.") for i in range(9)])
    add("unicode", [msg("system", "Ты — помощник. 日本語も可。"), msg("user", "naïve café 🙂👩‍👩‍👧 \u00a0\u2028 ﷽ e\u0301")])
    add("spaces", [msg("system", "  padded system\n\n"), msg("user", "\n\n  two lines\n    indented \t\n")])
    add("spaces_turns", [msg("user", " a "), msg("assistant", "\n b \n"), msg("user", "\u00a0c\u3000")])
    add("markup", [msg("user", "<b>&amp;</b> 'single' \"double\" {{ x }} {% if %} \\n \\ <|im_end|>")])
    add("empty_content", [msg("user", "")])
    add("empty_system", [msg("system", ""), HELLO])
    add("think", [msg("user", "Why?"), msg("assistant", "<think>\nHm.\n</think>\n\nBecause."), msg("user", "Ah.")])
    add("reasoning_field", [msg("user", "Why?"), msg("assistant", "Because.", reasoning_content="Hm."), msg("user", "Ah.")])
    add("tools", [ASK], [WEATHER])
    add("tools_system", [SYSTEM, ASK], [WEATHER, SEARCH], generation=False)
    add("tools_many", [SYSTEM, *TURNS], [WEATHER, SEARCH, PING])
    add("tools_empty_list", [ASK], [])
    call = msg("assistant", "", tool_calls=[tool_call("get_weather", ARGS, "call12345")])
    text_call = msg("assistant", "", tool_calls=[tool_call("get_weather", ARGS_TEXT, "call12345")])
    add("tool_call", [ASK, call, RESULT], [WEATHER])
    add("tool_call_text_arguments", [ASK, text_call, RESULT], [WEATHER])
    add("tool_call_no_tools", [ASK, call, RESULT])
    add("tool_call_last", [ASK, call], [WEATHER], generation=False)
    add("tool_call_answer", [SYSTEM, ASK, call, RESULT, msg("assistant", "21.5 °C."), HELLO], [WEATHER, PING])
    add("tool_call_with_content", [ASK, {**call, "content": "Let me look."}, RESULT, msg("assistant", "Done.")],
        [WEATHER], generation=False)
    null_call = {**text_call, "content": None}
    add("tool_call_null_content", [ASK, null_call, RESULT], [WEATHER])
    add("tool_call_null_content_object", [ASK, {**call, "content": None}, RESULT], [WEATHER])
    add("null_tool_calls", [HELLO, msg("assistant", "Hi.", tool_calls=None), HELLO])
    two = msg("assistant", "", tool_calls=[tool_call("get_weather", {"place": "A"}, "call12345"),
                                           tool_call("ping", {}, "call67890")])
    add("two_tool_calls", [ASK, two, RESULT, msg("tool", "pong", tool_call_id="call67890", name="ping"),
                           msg("assistant", "Both done.")], [WEATHER, PING], generation=False)
    two_text = msg("assistant", "", tool_calls=[tool_call("get_weather", '{"place": "A"}', "call12345"),
                                                tool_call("ping", "{}", "call67890")])
    add("two_tool_calls_text_arguments", [ASK, two_text, RESULT, msg("tool", "pong", tool_call_id="call67890", name="ping")],
        [WEATHER, PING])
    add("short_call_id", [ASK, msg("assistant", "", tool_calls=[tool_call("ping", {}, "1")]),
                          msg("tool", "pong", tool_call_id="1")], [PING])
    add("code_interpreter", [ASK], [{"type": "code_interpreter"}, WEATHER])
    add("documents", [HELLO], None, documents=[{"title": "One", "text": "First <text>."}, {"title": "Two", "text": "Zweiter."}],
        enable_citations=True)
    add("wrong_order", [msg("assistant", "I begin."), HELLO])
    add("two_users", [HELLO, HELLO])
    add("system_last", [HELLO, SYSTEM])
    add("unknown_role", [HELLO, msg("critic", "Hm."), HELLO])
    add("tool_first", [RESULT], [WEATHER])
    add("only_system", [SYSTEM], [WEATHER])
    add("content_parts", [msg("user", [{"type": "text", "text": "part one"}, {"type": "text", "text": " part two"}])])
    add("tool_content_object", [ASK, call, {**RESULT, "content": {"temp": 21.5, "sky": ["grey", "blau ü"]}}], [WEATHER])
    add("name_field", [msg("user", "Hello!", name="Ann"), msg("assistant", "Hi.", name="Bot"), msg("user", "Bye.", name="Ann")])
    add("date_string", [SYSTEM, HELLO], date_string="1 Jan 2030")
    add("tools_not_in_user_message", [SYSTEM, ASK], [WEATHER], tools_in_user_message=False)
    add("custom_tools", [SYSTEM, ASK], custom_tools=[WEATHER])
    add("builtin_tools", [SYSTEM, ASK], [WEATHER], builtin_tools=["brave_search", "code_interpreter"])
    add("functions_text", [SYSTEM, ASK, text_call, RESULT], functions='[{"name": "get_weather"}]', datetime="2024-07-05")
    add("enable_thinking_off", TURNS, enable_thinking=False)
    # the same again with tools, for templates that cannot do without
    for name in ("unicode", "spaces", "spaces_turns", "markup", "think", "long", "wrong_order", "assistant_last",
                 "empty_content", "unknown_role"):
        cases[f"{name}_with_tools"] = {**cases[name], "tools": [SEARCH, PING]}
    return cases


def family_conversations():
    """Those of all templates, and what the families' own switches change."""
    call = msg("assistant", "", reasoning_content="I need the weather.",
               tool_calls=[tool_call("get_weather", ARGS, "call12345")])
    cases = conversations()

    def add(name, messages, tools=None, **variables):
        cases[name] = {"messages": messages, "tools": tools, "documents": None, "add_generation_prompt": True,
                       "variables": variables}

    add("enable_thinking_on", TURNS, enable_thinking=True)
    add("thinking_on", TURNS, thinking=True)  # Granite
    add("no_think_in_system", [msg("system", "Be brief. /no_think"), *TURNS])  # SmolLM3
    add("reasoning_effort", TURNS, reasoning_effort="high")  # gpt-oss
    for switch in (True, False):
        name = "on" if switch else "off"
        add(f"tools_thinking_{name}", [ASK], [WEATHER], enable_thinking=switch)
        add(f"reasoned_call_thinking_{name}", [ASK, call, RESULT], [WEATHER], enable_thinking=switch)
    return cases


# --------------------------------------------------------------------------- rendering

def tokenizer(template):
    made = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel({"<unk>": 0}, unk_token="<unk>")), bos_token=BOS, eos_token=EOS)
    made.chat_template = template
    return made


def guarded(render):
    """("text", text) or ("error", kind, message)"""
    try:
        return "text", render()
    except jinja2.exceptions.TemplateError as e:
        # the plain class comes from raise_exception only; its subclasses are errors of the template
        kind = "raise_exception" if type(e) is jinja2.exceptions.TemplateError else type(e).__name__
        return "error", kind, str(e)
    except Exception as e:  # Python errors inside the template: TypeError, KeyError, ...
        return "error", type(e).__name__, str(e)


def render_chat(template, inputs):
    return guarded(lambda: tokenizer(template).apply_chat_template(
        inputs["messages"], tools=inputs["tools"], documents=inputs["documents"],
        add_generation_prompt=inputs["add_generation_prompt"], tokenize=False, **inputs["variables"]))


def render_keeping_null(template, inputs):
    """As transformers 4 did: keys of a message whose value is None stay in the message."""
    compiled = chat_template_utils._compile_jinja_template(template)
    return guarded(lambda: compiled.render(
        messages=inputs["messages"], tools=inputs["tools"], documents=inputs["documents"],
        add_generation_prompt=inputs["add_generation_prompt"], bos_token=BOS, eos_token=EOS, **inputs["variables"]))


def has_null(inputs):
    return any(v is None for m in inputs["messages"] for v in m.values())


def digest(result):
    if result[0] == "error":
        out = {"error": True, "kind": result[1]}
        if result[1] == "raise_exception":
            out["message"] = result[2]
        return out
    data = result[1].encode("utf-8")
    return {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}


def read_templates(folder):
    found = {p.name: p.read_text(encoding="utf-8") for p in sorted(folder.glob("*.jinja"))}
    if not found:
        sys.exit(f"no .jinja files in {folder}")
    return found


def with_template_variables(file_name, inputs):
    return {**inputs, "variables": {**TEMPLATE_VARIABLES.get(file_name, {}), **inputs["variables"]}}


def collect(llama_cpp, trl):
    """Copies the families' templates to where the tests look for them."""
    COLLECTED.mkdir(parents=True, exist_ok=True)
    for source, folder in (("llama.cpp", llama_cpp), ("trl", trl)):
        for name in FAMILY_TEMPLATES[source]:
            shutil.copyfile(folder / f"{name}.jinja", COLLECTED / f"{source}-{name}.jinja")
    print(f"{COLLECTED}: {len(list(COLLECTED.glob('*.jinja')))} templates")


def make_chat_templates(folder, out, inputs):
    results, templates = {}, []
    for name, text in read_templates(folder).items():
        templates.append({"file": name, "sha256": hashlib.sha256(text.encode()).hexdigest(),
                          "bytes": len(text.encode()), "variables": TEMPLATE_VARIABLES.get(name, {})})
        results[name] = {}
        for case, case_inputs in inputs.items():
            case_inputs = with_template_variables(name, case_inputs)
            entry = digest(render_chat(text, case_inputs))
            if has_null(case_inputs):
                entry["null_kept"] = digest(render_keeping_null(text, case_inputs))
            results[name][case] = entry
        errors = [e for e in results[name].values() if e.get("error")]
        kinds = {k: sum(e["kind"] == k for e in errors) for k in sorted({e["kind"] for e in errors})}
        print(f"{name}: {len(inputs) - len(errors)} texts, errors {kinds}")
    rows = [{"template": t, "conversation": c, **e} for t, entries in results.items() for c, e in entries.items()]
    write_rows(out, head(), templates=templates, conversations=inputs, results=rows)


def make_own_templates(out):
    entries = []
    for name, (template, messages, tools, variables) in TEMPLATES.items():
        inputs = {"messages": messages, "tools": tools, "documents": None,
                  "add_generation_prompt": variables.get("add_generation_prompt", False),
                  "variables": {k: v for k, v in variables.items() if k != "add_generation_prompt"}}
        result = render_chat(template, inputs)
        entries.append({"name": name, "template": template, **inputs, **full(result)})
    snippets = []
    for template, variables in SNIPPETS:
        compiled = guarded(lambda: chat_template_utils._cached_compile_jinja_template(template))
        result = compiled if compiled[0] == "error" else guarded(lambda: compiled[1].render(**variables))
        snippets.append({"template": template, "variables": variables, **full(result)})
    write_rows(out, head(), templates=entries, snippets=snippets)
    print(f"{out.name}: {len(entries)} templates, {len(snippets)} snippets, "
          f"{sum('error' in s for s in snippets + entries)} of them errors")


def head():
    return {"format": 1, "made_with": {"transformers": transformers.__version__, "jinja2": jinja2.__version__},
            "now": NOW.isoformat(), "bos_token": BOS, "eos_token": EOS}


def write_rows(path, head, **tables):
    """JSON with one line per entry of each table (a list or a dictionary)."""
    parts = [f" {json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in head.items()]
    for key, table in tables.items():
        if isinstance(table, dict):
            rows = [f"  {json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in table.items()]
        else:
            rows = ["  " + json.dumps(v, ensure_ascii=False) for v in table]
        left, right = "{}" if isinstance(table, dict) else "[]"
        parts.append(f' "{key}": {left}\n' + ",\n".join(rows) + f"\n {right}")
    text = "{\n" + ",\n".join(parts) + "\n}\n"
    assert json.loads(text) == {**head, **tables}
    path.write_text(text, encoding="utf-8")


def full(result):
    if result[0] == "text":
        return {"expected": result[1]}
    return {"error": True, "kind": result[1], **({"message": result[2]} if result[1] == "raise_exception" else {})}


def show(folder, template, case):
    found = {n: t for n, t in read_templates(folder).items() if template in n}
    if len(found) != 1:
        sys.exit(f"{template!r} matches {sorted(found) or 'no template'}")
    if case not in conversations():
        sys.exit(f"no case {case!r}; there are: {' '.join(conversations())}")
    name, text = next(iter(found.items()))
    result = render_chat(text, with_template_variables(name, conversations()[case]))
    if result[0] == "text":
        sys.stdout.write(result[1])
    else:
        sys.exit(f"{result[1]}: {result[2]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--templates", type=pathlib.Path, default=DEFAULT_TEMPLATES,
                        help="folder of the real .jinja templates (default: ../shared/data/chat_templates "
                             "beside the repository)")
    parser.add_argument("--show", nargs=2, metavar=("TEMPLATE", "CASE"),
                        help="print one rendering (TEMPLATE: part of the file's name) and write nothing")
    parser.add_argument("--collect", nargs=2, type=pathlib.Path, metavar=("LLAMA_CPP_TEMPLATES", "TRL_TEMPLATES"),
                        help="copy the families' templates into build/chat_templates, and write family_templates.json")
    parser.add_argument("--list", action="store_true", help="list the conversations and write nothing")
    parser.add_argument("--out", type=pathlib.Path, default=HERE, help="folder of the two JSON files")
    args = parser.parse_args()
    if args.show:
        show(args.templates, *args.show)
    elif args.list:
        print("\n".join(family_conversations()))
    elif args.collect:
        collect(*args.collect)
        make_chat_templates(COLLECTED, args.out / "family_templates.json", family_conversations())
    else:
        make_own_templates(args.out / "own_templates.json")
        make_chat_templates(args.templates, args.out / "chat_templates.json", conversations())


if __name__ == "__main__":
    main()
