#!/usr/bin/env python3
"""Makes the seed corpora of text_fuzz (the small tokenizers, and templates that use what chat templates use) and of
grammar_fuzz."""

import json
import pathlib

HERE = pathlib.Path(__file__).parent
CORPUS = HERE / "corpus"
CONTEXT = json.dumps({"messages": [{"role": "system", "content": " s "}, {"role": "user", "content": "u\u00e9"},
                                   {"role": "assistant", "content": None, "tool_calls": [{"a": 1.5}]}],
                      "tools": [{"name": "f", "parameters": {"properties": {"x": {"type": "string"}}}}]})
TEMPLATES = {
    "loop": "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}{% if not loop.last %},{% endif %}{% endfor %}",
    "namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
    "macro": "{% macro m(a, b='x') %}[{{ a ~ b }}]{% endmacro %}{{ m(1) }}{% call m(2) %}c{% endcall %}",
    "tools": "{% for t in tools %}{{ t | tojson(indent=2) }}{% for k, v in t.parameters.properties.items() %}{{ k }}"
             "{% endfor %}{% endfor %}",
    "filters": "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list }}"
               "{{ messages | groupby('role') | length }}{{ 'a b' | title | replace('A', 'z') | indent(2) }}",
    "strings": "{{ 'a,b'.split(',')[0].upper().strip('A') }}{{ '%05d|%s' % (7, 'x') }}{{ '{:>8}'.format('y') }}"
               "{{ 'abc'[::-1] }}{{ 'a' * 3 }}{{ 'x' in 'xyz' }}",
    "control": "{%- if a is defined and not b -%} x {%- elif c == 1 %}y{% else %}z{% endif -%}{# c #}{% raw %}{{{% endraw %}",
    "generation": "{% generation %}{{ messages[0]['content'] }}{% endgeneration %}{{ raise_exception('no') }}",
    "time": "{{ strftime_now('%d %b %Y') }}{{ 1 / 3 }}{{ 2 ** 70 }}{{ -7 // 2 }}{{ [1, (2,), {'k': none}] }}",
}


def write(name, kind, *parts):
    (CORPUS / name).write_bytes(bytes([kind]) + b"\0".join(parts))


CORPUS.mkdir(exist_ok=True)
for name in ("byte_level", "sentencepiece"):
    tokenizer = json.loads((HERE / f"{name}.json").read_text(encoding="utf-8"))
    write(f"tokenizer_{name}", 0, json.dumps(tokenizer, ensure_ascii=False).encode(), "The fox \u00e9\U0001f642".encode(),
          bytes(range(1, 100)))
for name, template in TEMPLATES.items():
    write(f"template_{name}", 1, template.encode(), CONTEXT.encode())
write("ids", 2, "a \u00e9\u20ac".encode(), bytes([1, 0, 2, 0, 3, 0, 1, 0, 6, 0, 7, 0, 4, 0, 5, 0]))
write("stops", 7, b"aabaabaaab", b"aaab", b"ab", b"b")

GRAMMARS = {
    "schema": (0, json.dumps({"type": "object", "properties": {
        "a": {"type": "integer", "minimum": -3, "maximum": 70}, "b": {"enum": ["x", None, {"y": [1]}]},
        "c": {"type": "array", "items": {"$ref": "#/$defs/d"}, "minItems": 1, "maxItems": 3}}, "required": ["b"],
        "additionalProperties": False, "$defs": {"d": {"anyOf": [{"type": "string", "pattern": "^a+b?$"}, {"type": "null"}]}}})),
    "compact": (1, json.dumps({"oneOf": [{"const": 1.5}, {"type": "string", "format": "date-time", "maxLength": 30}],
                               "allOf": [True]})),
    "regex": (2, r"(?i:foo|ba[rz])\d{2,4}(\s+[^\p{L}])?"),
    "lark": (3, 'start: "a" (item | WORD)* "."\nitem: "(" start ")"\nWORD: /[a-z]+/i\n%ignore / /\n'),
    "gbnf": (4, 'root ::= obj # c\nobj ::= "{" ws (pair ("," ws pair)*)? "}"\npair ::= "\\"" [^"\\\\\\x7F]* "\\":" (obj | [0-9]{1,3})\n'
                'ws ::= [ \\t\\n]*\n'),
    "tool_calls": (5, json.dumps({"calls": [
        {"name": "f", "before": "<f>", "schema": {"$ref": "#/$defs/a~1b%5B", "$defs": {
            "a/b[": {"oneOf": [{"type": "object"}, {"required": None}]}}}, "after": "</f>"},
        {"name": "g", "before": "{", "schema": None, "after": "}"}], "first": "[", "between": ", ", "last": "]"})),
}
(HERE / "grammar_corpus").mkdir(exist_ok=True)
for name, (kind, text) in GRAMMARS.items():
    (HERE / "grammar_corpus" / name).write_bytes(bytes([kind]) + text.encode())
