#!/usr/bin/env bash
# llguidance: a property's name that is written with an escape is an additional property, free of its schema.
#
# Versions    llguidance 1.9.1, jsonschema 4.26.0
# Behaviour   With `properties: {"n": {"type": "integer"}}` and additional properties allowed, the grammar accepts
#             {"\u006e": "x"}. JSON says that this is {"n": "x"}, which the schema forbids. The same way a key can come
#             twice: {"n": 1, "\u006e": "x"}, of which most parsers keep the last.
# Why         "Structured output is valid by construction" does not hold for schemas that allow further properties, which
#             is the default of JSON Schema. A client that trusts it reads a string where an integer is promised.
# What to do  Set additionalProperties to false, or validate the answer.
# Seen        the plain key refused, the escaped one accepted; jsonschema refuses both
source "$(dirname "$0")/common.sh"
packages llguidance==1.9.1 jsonschema==4.26.0
check <<'EOF2'
import json
import jsonschema

schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
for text, grammar in [(r'{"n":1}', True), (r'{"n":"x"}', False), (r'{"\u006e":"x"}', True), (r'{"n":1,"\u006e":"x"}', True)]:
    value = json.loads(text)
    seen(f"{text} = {value}: grammar, jsonschema", (accepted(schema, text), jsonschema.Draft202012Validator(schema).is_valid(value)),
         (grammar, text == '{"n":1}'))
closed = {**schema, "additionalProperties": False}
seen("closed schema, escaped key", accepted(closed, r'{"\u006e":"x"}'), False)
EOF2
