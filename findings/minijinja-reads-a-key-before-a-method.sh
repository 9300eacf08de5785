#!/usr/bin/env bash
# `schema.items` in a chat template: jinja2 gives the method of the dictionary, minijinja the value of the key.
#
# Versions    jinja2 3.1.6, minijinja 3.1.0
# Behaviour   jinja2 looks for an attribute first: `.items`, `.keys`, `.values` and `.get` of a dictionary are its methods,
#             whatever keys it has. minijinja looks for a key first, and takes the method where there is none. A JSON schema
#             of an array has the key "items".
# Why         Templates print the parameters of tools. `p.items.type` is undefined in jinja2, which prints nothing, and what
#             the author hoped for in minijinja. The same template therefore writes another prompt than the one that the
#             model was trained with, only for tools with arrays.
# What to do  Write p['items'] in templates. Let names of methods win over keys where a server renders with minijinja.
# Seen        "array of " by jinja2, "array of string" by minijinja
source "$(dirname "$0")/common.sh"
packages jinja2==3.1.6 minijinja==3.1.0
check <<'EOF2'
import jinja2
import minijinja

template = "{{ p.type }}{% if p.type == 'array' %} of {{ p.items.type }}{% endif %}"
p = {"type": "array", "items": {"type": "string"}}
seen("jinja2", jinja2.Environment().from_string(template).render(p=p), "array of ")
seen("minijinja", minijinja.Environment().render_str(template, p=p), "array of string")
seen("jinja2, p['items']", jinja2.Environment().from_string("{{ p['items'].type }}").render(p=p), "string")
EOF2
