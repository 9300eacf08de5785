"""Templates of this project that exercise what chat templates use. make_chat_templates.py renders
them into own_templates.json."""

import re


def msg(role, content, **more):
    return {"role": role, "content": content, **more}


CHAT = [msg("system", "  Be kind.\n"), msg("user", "Hi <b>&</b> 'you'"),
        msg("assistant", "<think>hm</think>\nHello."), msg("user", "Naïve 日本 🙂?\n")]
ADD_TOOL = {"type": "function", "function": {
    "name": "add", "description": "Adds \"two\" numbers <&> 'ü'.",
    "parameters": {"type": "object", "properties": {
        "b": {"type": "number", "default": 1.0}, "a": {"type": ["integer", "null"], "enum": [1, 2, None]}},
        "required": ["b"], "additionalProperties": False}}}
CALLS = [msg("user", "1 + 2?"),
         msg("assistant", "", tool_calls=[{"id": "c1", "type": "function", "function": {
             "name": "add", "arguments": {"b": 2, "a": 1, "note": "<ü>"}}}]),
         msg("tool", "3", tool_call_id="c1"), msg("assistant", "Three.")]

# name -> (template, messages, tools, variables; add_generation_prompt among the variables)
TEMPLATES = {}

TEMPLATES["namespace_and_loop"] = (r"""
{%- set ns = namespace(count=0, last_role='none', system=none) -%}
{%- for message in messages -%}
    {%- if loop.first and message.role == 'system' -%}
        {%- set ns.system = message.content | trim -%}
        {%- continue -%}
    {%- endif -%}
    {%- set ns.count = ns.count + 1 -%}
    {{- '[' ~ loop.index ~ '/' ~ loop.length ~ ' i' ~ loop.index0 ~ ' r' ~ loop.revindex0 ~ ' ' ~ message['role'] }}
    {%- if loop.previtem is defined %} after {{ loop.previtem.role }}{% endif -%}
    {%- if not loop.last %} before {{ loop.nextitem.role }}{% endif -%}
    {{- ']' }} {{ message.content }}
    {%- set ns.last_role = message.role %}
    {%- if not loop.last %}

{% endif -%}
{%- endfor -%}
{{ '\n' ~ ns.count ~ ' ' ~ ns.last_role ~ ' ' ~ ns.system }}
{%- if add_generation_prompt %}{{ '\n<assistant>' }}{% endif -%}
""", CHAT, None, {"add_generation_prompt": True})

TEMPLATES["loop_controls"] = (r"""
{% for message in messages %}
  {% if message.role == 'assistant' %}
    {% break %}
  {% elif message.role == 'system' %}
    {% continue %}
  {% endif %}
{{ loop.index }}: {{ message.content }}
{% else %}
never
{% endfor %}
{% for i in range(6) %}{% if i == 1 %}{% continue %}{% endif %}{% for j in range(5) %}{% if j == i %}{% break %}{% endif %}{{ i }}{{ j }} {% endfor %}{% if i == 4 %}{% break %}{% endif %}{% endfor %}

{% for x in [] %}{{ x }}{% else %}empty{% endfor %}
end
""", CHAT, None, {})

TEMPLATES["whitespace"] = (
    "{# a comment #}\n"
    "first\n"
    "  {% if true %}\n"
    "    indented\n"
    "  {% endif %}\n"
    "\t{%- if true -%}\n"
    "   glued   \n"
    "  {%- endif -%}\n"
    "\n"
    "  after\n"
    "  {%+ if true %}kept indent{% endif +%}\n"
    "kept newline\n"
    "{{ 'expr' }}\n"
    "  {{ 'expr indented' }}\n"
    "  {{- ' stripped before' }}\n"
    "{{ 'stripped after' -}}\n"
    "   joined\n"
    "  {# comment line #}\n"
    "a {# inline -#}   b {#- both -#} c\n"
    "{% raw %}{{ not rendered }} {% nor this %}{% endraw %}\n"
    "{% for i in [1, 2] %}\n"
    "  - {{ i }}\n"
    "{% endfor %}\n"
    "x  {% if false %}{% endif %}  y\n"
    "{% set s %}\n"
    "  block text\n"
    "{% endset %}\n"
    "[{{ s }}]\n"
    "end\n\n", [msg("user", "x")], None, {})

TEMPLATES["tests"] = (r"""
{%- set values = [none, true, 0, 1, 1.5, 'text', [1], {'k': 1}, '', []] -%}
{%- for v in values %}
{{ v | tojson }}:
{%- if v is none %} none{% endif %}
{%- if v is string %} string{% endif %}
{%- if v is mapping %} mapping{% endif %}
{%- if v is iterable %} iterable{% endif %}
{%- if v is sequence %} sequence{% endif %}
{%- if v is number %} number{% endif %}
{%- if v is integer %} integer{% endif %}
{%- if v is float %} float{% endif %}
{%- if v is boolean %} boolean{% endif %}
{%- if v is true %} true{% endif %}
{%- if v is false %} false{% endif %}
{%- if v is defined %} defined{% endif %}
{%- if v %} truthy{% else %} falsy{% endif %}
{% endfor -%}
{{ nothing is defined }} {{ nothing is undefined }} {{ messages[0].nothing is defined }} {{ messages[0]['role'] is defined }}
{{ tools is none }} {{ tools is defined }} {{ 'role' in messages[0] }} {{ 'x' not in messages[0] }} {{ messages[0].content is not none }}
{{ 4 is even }} {{ 4 is odd }} {{ 9 is divisibleby 3 }} {{ 'a' is eq 'a' }} {{ 3 is gt 2 }} {{ 'a' is in ['a'] }} {{ 'abc' is lower }}
""", CHAT, None, {})

TEMPLATES["filters"] = (r"""
{%- set users = messages | selectattr('role', 'equalto', 'user') | list -%}
{{ users | length }} {{ messages | map(attribute='role') | join(', ') }}
{{ messages | rejectattr('role', 'in', ['user', 'system']) | map(attribute='content') | first | trim }}
{{ messages | map(attribute='name', default='?') | list }}
{{ messages | selectattr('name', 'defined') | list | length }} {{ users[-1].content | trim | upper }}
{{ missing | default('fallback') }} {{ '' | default('kept') }}| {{ '' | default('replaced', true) }} {{ none | default('x') }}
{{ '  padded \n' | trim }}| {{ 'xxhixx' | trim('x') }} {{ 'a-b' | replace('-', '+') }} {{ 'hello world' | title }} {{ 'hELLO' | capitalize }}
{{ [3, 1, 2] | sort | join('<') }} {{ [3, 1, 2] | sort(reverse=true) }} {{ [1, 2, 3] | reverse | list }} {{ [1, 1, 2] | unique | list }} {{ [1, 2] | sum }} {{ [1, 5, 2] | max }}
{{ ['a', 'b'] | map('upper') | list }} {{ [0, 1, 2] | select('odd') | list }} {{ [0, 1, '', 'x'] | select | list }} {{ [1, none] | reject('none') | list }}
{{ {'b': 1, 'a': 2} | dictsort }} {{ {'b': 1, 'a': 2} | items | list }} {{ {'b': 1} | list }} {{ '12' | int + 1 }} {{ 'x' | int }} {{ '1.5' | float }} {{ 42 | string ~ '!' }}
{{ 'line one\nline two' | indent(4) }}
{{ 'line one\nline two' | indent(2, true) }}
{% filter upper %}shout {{ 1 + 1 }}{% endfilter %}
""", CHAT, None, {})

TEMPLATES["tojson_and_tools"] = (r"""
{%- if tools %}
{{ tools | tojson }}
{%- for tool in tools %}
{%- set f = tool.function %}
{{ f.name }}{% for name, spec in f.parameters.properties.items() if name != 'c' %} {{ name }}={{ spec | tojson }}{{ ',' if not loop.last }}{% endfor %}
{{ f | tojson(indent=2) }}
{{ f.parameters | tojson(sort_keys=true) }}
{{ f.description | tojson(ensure_ascii=true) }}
{{ f.parameters.required | tojson(separators=(',', ':')) }} {{ {'a': 1, 'b': [1, 2]} | tojson(separators=(',', ':')) }}
{%- endfor %}
{%- endif %}
{% for m in messages if m.tool_calls is defined and m.tool_calls %}
{%- for call in m.tool_calls %}
<tool_call>{{ '{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) + '}' }}</tool_call>
{%- endfor %}
{%- endfor %}
{{ {'e': [], 'd': {}, 'f': 1.0, 'n': none, 't': true, 'u': 'é😀\n\t\u0001\\/"', 'x': 1e20, 'y': 0.1, 'z': 1e-7} | tojson }}
{{ {'e': [], 'd': {}, 'l': [1, [2, {'k': []}]]} | tojson(indent=4) }}
""", CALLS, [ADD_TOOL], {})

TEMPLATES["strings"] = (r"""
{%- for message in messages %}
{%- set content = message.content %}
{%- if '</think>' in content %}{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}
{%- if content.startswith('  ') or content.endswith('\n') %}[{{ content.strip() }}]{% else %}({{ content }}){% endif %}
{{ content[1:4] }}|{{ content[:-1] | length }}|{{ content[::-1] | trim }}|{{ content | length }}|{{ content.upper() }}
{%- endfor %}
{%- for message in messages[1:] %} {{ message.role[0] }}{% endfor %}{% for message in messages[::-1] %} {{ message.role.title() }}{% endfor %}
{{ messages[-1].role }} {{ messages[:2] | length }} {{ messages[1:3] | map(attribute='role') | list }}
{{ 'a,b,,c'.split(',') }} {{ ' a  b '.split() }} {{ 'a,b,c'.split(',', 1) }} {{ 'a.b.c'.rsplit('.', 1) }} {{ 'one\ntwo\n'.splitlines() }}
{{ 'xxabxx'.rstrip('x') }} {{ 'xyabyx'.strip('xy') }} {{ 'aaa'.replace('a', 'b', 2) }} {{ 'hello world-wide it\'s'.title() }} {{ 'abc'.find('c') }} {{ 'abcabc'.count('bc') }}
{{ '-'.join(['a', 'b']) }} {{ 'é日🙂' | length }} {{ 'é日🙂'[1] }} {{ 'é日🙂'[::-1] }} {{ 'STRASSE'.lower() }} {{ 'straße'.upper() }} {{ '%s is %d' % ('x', 3) }} {{ '{} {}'.format('a', 1) }}
{{ 'ab' * 3 }} {{ 'a' ~ 1 ~ none ~ true ~ [1] }} {{ "quote \" and ' and \\ and \n newline" }}
""", CHAT, None, {})

TEMPLATES["macros"] = (r"""
{%- macro turn(role, content='(none)', suffix='') -%}
<{{ role }}>{{ content | trim }}</{{ role }}>{{ suffix }}
{%- endmacro -%}
{%- macro depth(n) -%}{{ n }}{% if n > 0 %}>{{ depth(n - 1) }}{% endif %}{%- endmacro -%}
{%- macro wrap(tag) -%}<{{ tag }}>{{ caller() }}</{{ tag }}>{%- endmacro -%}
{%- macro rest() -%}{{ varargs | join('+') }};{{ kwargs | dictsort }}{%- endmacro -%}
{%- for m in messages %}{{ turn(m.role, m.content, suffix='\n') }}{% endfor -%}
{{ turn('empty') }} {{ depth(3) }} {% call wrap('b') %}inside {{ messages | length }}{% endcall %} {{ rest(1, 2, x=3) }}
{%- set x = 'outer' %}{% for i in [1] %}{% set x = 'inner' %}{% endfor %} {{ x }}
{%- if true %}{% set x = 'from if' %}{% endif %} {{ x }}
{%- with y = 5 %} {{ y }}{% endwith %} {{ y is defined }}
""", CHAT, None, {})

TEMPLATES["generation_block"] = (r"""
{{- bos_token }}
{%- for message in messages %}
{%- if message.role == 'assistant' %}
{{- '<assistant>' }}
{%- generation %}
{{- message.content + eos_token }}
{%- endgeneration %}
{%- else %}
{{- '<' + message.role + '>' + message.content }}
{%- endif %}
{%- endfor %}
{% for message in messages %}
{% if message.role == 'assistant' %}
{% generation %}
{{ message.content }}
{% endgeneration %}
{% endif %}
{% endfor %}
""", CHAT, None, {})

TEMPLATES["dates"] = (r"""
{%- if not date_string is defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif -%}
{{ date_string }}|{{ strftime_now('%Y-%m-%d') }}|{{ strftime_now('%B %d, %Y') }}|{{ strftime_now('%A %a %H:%M:%S %I %p') }}|{{ strftime_now('%j %y %m %-d %e %%') }}
""", [msg("user", "x")], None, {})

TEMPLATES["raises"] = (r"""
{%- for message in messages %}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Roles must alternate; turn ' ~ loop.index ~ ' is "' ~ message.role ~ '" <ü>') }}
{%- endif %}
{%- endfor %}
""", CHAT, None, {})

TEMPLATES["nulls_are_dropped"] = (r"""
{%- for m in messages %}{{ m.role }} {{ 'content' in m }} {{ m.content is defined }} {{ m.tool_calls is defined }} {{ m | tojson }}
{% endfor %}
{{- tools is defined }} {{ tools is none }} {{ documents is none }}
""", [msg("user", "x", name=None), msg("assistant", None, tool_calls=[{"id": None}]), msg("user", "y", tool_calls=None)],
    None, {})

TEMPLATES["reasoning_aliases"] = (r"""
{%- for m in messages %}{{ m | tojson }}
{% endfor %}
""", [msg("assistant", "a", reasoning_content="one"), msg("assistant", "b", thinking="two"),
      msg("assistant", "c", reasoning="three"), msg("assistant", "d")], None, {})

# Reasoning of earlier turns is dropped, that of the turn in progress stays, and calls and results have tags.
REASONING_AND_TOOLS = r"""
{%- if tools %}{{ '<tools>' }}{% for tool in tools %}{{ tool | tojson }}{% endfor %}{{ '</tools>' }}{% endif %}
{%- set ns = namespace(last=0) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
{{- '[' + m.role + ']' }}
{%- if m.role == 'assistant' and m.reasoning_content and loop.index0 > ns.last %}
{{- '<think>\n' + m.reasoning_content.strip('\n') + '\n</think>\n\n' }}
{%- endif %}
{{- '<tool_response>' + m.content + '</tool_response>' if m.role == 'tool' else m.content }}
{%- for call in m.tool_calls or [] %}
{{- '<tool_call>{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) + '}</tool_call>' }}
{%- endfor %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '[assistant]<think>\n' }}{% endif %}
"""
THOUGHTFUL = [CALLS[0], {**CALLS[1], "reasoning_content": "I add.\n"}, CALLS[2]]
TEMPLATES["reasoning_and_tools"] = (REASONING_AND_TOOLS, THOUGHTFUL, [ADD_TOOL], {"add_generation_prompt": True})
TEMPLATES["reasoning_and_tools_later"] = (
    REASONING_AND_TOOLS, [*THOUGHTFUL, msg("assistant", "Three.", reasoning_content="Done."), msg("user", "Thanks <ü>.")],
    [ADD_TOOL], {"add_generation_prompt": True})


def snippets(text):
    """(template, variables) for every line; a line of expressions only gives one per expression."""
    for line in text.strip().split("\n"):
        whole = "{%" in line or "{#" in line or not line.startswith("{{")
        for part in [line] if whole else re.split(r"(?<=\}\}) (?=\{\{)|(?<=\}\}\|) (?=\{\{)", line):
            yield part, {}


# One behaviour each
SNIPPETS = list(snippets(r"""
{{ 1 + 2 * 3 }} {{ (1 + 2) * 3 }} {{ 2 ** 10 }} {{ 2 ** 3 ** 2 }} {{ -2 ** 2 }}
{{ 7 / 2 }} {{ 8 / 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7.5 // 2 }}
{{ 1.0 }} {{ 0.1 + 0.2 }} {{ 1e3 }} {{ 1e16 }} {{ 1e-5 }} {{ 123456789.123 }} {{ 1_000 }}
{{ true }} {{ false }} {{ none }} {{ True }} {{ None }} {{ not true }}
{{ [1, 'a', none, true, 1.5] }} {{ {'a': [1], 'b': {'c': 'd'}} }} {{ (1, 2) }} {{ (1,) }} {{ [] }} {{ {} }} {{ () }}
{{ ["it's", 'say "x"', 'both \' "', 'new\nline', 'tab\t', 'ü🙂', 'back\\slash'] }}
{{ 'a' 'b' }} {{ 'x' ~ 1.0 ~ 2 }} {{ 'a' + 'b' }} {{ [1] + [2] }} {{ 'ab' * 2 }} {{ [0] * 3 }}
{{ 1 < 2 < 3 }} {{ 1 == 1.0 }} {{ 1 != 2 }} {{ 'a' < 'b' }} {{ [1, 2] == [1, 2] }} {{ {'a': 1} == {'a': 1} }} {{ true == 1 }}
{{ 1 in [1, 2] }} {{ 'b' in 'abc' }} {{ 'k' in {'k': 1} }} {{ 3 not in [1] }}
{{ true and 'x' }} {{ 0 or 'y' }} {{ '' and 'z' }}| {{ none or false }} {{ not '' }}
{{ 'yes' if 1 else 'no' }} {{ 'yes' if 0 }}| {{ 'a' if none else 'b' if 0 else 'c' }}
{{ nothing }}| {{ nothing is defined }} {{ nothing | default('d') }} {{ nothing | length }}
{{ nothing.attribute }}
{{ nothing['key'] }}
{{ nothing + 'x' }}
{{ 'x' + nothing }}
{{ 'x' ~ nothing ~ 'y' }}
{{ {'a': 1}.b }}| {{ {'a': 1}['b'] }}| {{ {'a': 1}.b.c }}
{{ [1, 2][5] }}|
{{ 'abc'[10] }}|
{{ {'a': 1}.get('b') }} {{ {'a': 1}.get('b', 'd') }} {{ {'a': 1}.get('a') }}
{{ {'a': 1, 'b': 2}.keys() | list }} {{ {'a': 1, 'b': 2}.values() | list }} {{ {'a': 1, 'b': 2}.items() | list }}
{{ {'items': 5}.items is callable }} {{ {'items': 5}['items'] }}
{% for k, v in {'b': 1, 'a': 2}.items() %}{{ k }}{{ v }}{% endfor %}
{% for k in {'b': 1, 'a': 2} %}{{ k }}{% endfor %}
{% for c in 'aé🙂' %}{{ c }}.{% endfor %}
{% for a, b in [[1, 2], [3, 4]] %}{{ a + b }} {% endfor %}
{% for i in range(3) %}{{ i }}{% endfor %} {{ range(2, 10, 3) | list }} {{ range(5, 0, -2) | list }}
{% for i in range(5) if i is odd %}{{ loop.index }}:{{ i }}{{ '' if loop.last else ',' }}{% endfor %}
{% for i in [1, 2, 3] %}{{ loop.cycle('a', 'b') }}{{ loop.revindex }}{{ loop.first }}{{ loop.last }} {% endfor %}
{% for i in [1, 1, 2] %}{{ loop.changed(i) }} {% endfor %}
{% for i in [1, 2] %}{% set outer = loop %}{% for j in [1, 2] %}{{ outer.index }}{{ loop.index }}{{ loop.depth }} {% endfor %}{% endfor %}
{% for x in [[1, [2]], [3]] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}
{% for i in 5 %}{{ i }}{% endfor %}
{% for i in none %}{{ i }}{% endfor %}
{% for i in nothing %}{{ i }}{% else %}empty{% endfor %}
{% set a, b = 1, 2 %}{{ a }}{{ b }}
{% set ns = namespace(a=1) %}{% for i in [1, 2] %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}
{% set ns = namespace() %}{% set ns.list = [1] %}{% set ns.list = ns.list + [2] %}{{ ns.list }} {{ ns.missing is defined }}
{% set x = 1 %}{% set x.y = 2 %}
{% set x | upper %}text{% endset %}{{ x }}
{{ dict(a=1, b='x') }} {{ dict([['k', 1]]) }}
{{ [1, 2, 3][-1] }} {{ [1, 2, 3][1:] }} {{ [1, 2, 3][:-1] }} {{ [1, 2, 3][::-1] }} {{ [1, 2, 3, 4][::2] }} {{ [1, 2, 3][5:] }} {{ 'abcdef'[-3:-1] }} {{ 'abcdef'[4:1:-1] }}
{{ 'Hello'.lower() }} {{ 'hello'.upper() }} {{ 'hello'.capitalize() }} {{ 'hi there'.title() }} {{ 'aB'.swapcase() }}
{{ ' x '.strip() }}| {{ ' x '.lstrip() }}| {{ ' x '.rstrip() }}| {{ 'xxaxx'.strip('x') }} {{ '\u00a0x\u3000'.strip() }}|
{{ 'abc'.startswith('a') }} {{ 'abc'.startswith(('x', 'a')) }} {{ 'abc'.endswith('bc') }} {{ 'abc'.startswith('b', 1) }}
{{ 'a b'.split() }} {{ 'a--b'.split('--') }} {{ ''.split() }} {{ ''.split(',') }} {{ 'abc'.split('x') }} {{ 'a b c'.split(' ', 1) }} {{ 'a b c'.split(maxsplit=1) }}
{{ 'abc'.find('z') }} {{ 'abcb'.rfind('b') }} {{ 'abc'.index('b') }}
{{ 'abc'.index('z') }}
{{ '12'.isdigit() }} {{ 'ab'.isalpha() }} {{ 'a1'.isalnum() }} {{ 'AB'.isupper() }} {{ ' '.isspace() }} {{ '7'.zfill(3) }} {{ 'a'.center(5, '*') }} {{ 'a'.ljust(3) }}| {{ 'a'.rjust(3) }}
{{ 'a=b=c'.partition('=') }} {{ 'a=b=c'.rpartition('=') }} {{ 'abc'.removeprefix('a') }} {{ 'abc'.removesuffix('c') }}
{{ 'a{}b{x}'.format(1, x=2) }} {{ '%05.2f|%s|%d|%x' % (3.14159, 'a', 42, 255) }} {{ '%s' % 'one' }} {{ '%r' % 'q' }}
{{ 'abc' | upper | lower | title }} {{ 'a b c' | wordcount }} {{ 'abc' | reverse }} {{ 'abc' | list }} {{ 'abc' | first }}{{ 'abc' | last }}
{{ [1, 2, 3] | length }} {{ [1, 2, 3] | count }} {{ [1, 2, 3] | first }} {{ [1, 2, 3] | last }} {{ [] | first }}| {{ [3, 1] | min }} {{ [3, 1] | max }} {{ [] | max }}|
{{ [1, 2, 3] | join }} {{ [1, 2, 3] | join('-') }} {{ [{'a': 1}, {'a': 2}] | join(',', attribute='a') }} {{ ['a', none] | join(',') }}
{{ ['b', 'A', 'c'] | sort }} {{ ['b', 'A'] | sort(case_sensitive=true) }} {{ [{'a': 2}, {'a': 1}] | sort(attribute='a') }} {{ {'b': 1, 'a': 0} | dictsort(by='value') }}
{{ [1, 2, 3, 4, 5] | batch(2) | list }} {{ [1, 2, 3] | batch(2, 0) | list }} {{ [1, 2, 3, 4] | slice(2) | list }}
{% for g, items in [{'k': 'b', 'v': 1}, {'k': 'a', 'v': 2}, {'k': 'b', 'v': 3}] | groupby('k') %}{{ g }}:{{ items | map(attribute='v') | list }} {% endfor %}
{{ [{'a': {'b': 1}}] | map(attribute='a.b') | list }} {{ ['a', 'b'] | map('replace', 'a', 'z') | list }} {{ [' x '] | map('trim') | list }}
{{ [{'a': 1}, {'a': 2}, {}] | selectattr('a') | list }} {{ [{'a': 1}, {'a': 2}] | selectattr('a', 'gt', 1) | list }} {{ [{'a': 1}, {}] | rejectattr('a', 'defined') | list }} {{ [1, 2, 3] | select('>', 1) | list }} {{ [1, 'a'] | select('string') | list }}
{{ '3' | int }} {{ 'x' | int(7) }} {{ 3.9 | int }} {{ '0x1f' | int(0, 16) }} {{ '2.5' | float }} {{ 'x' | float }} {{ 5 | string + '!' }} {{ -3 | abs }} {{ 2.567 | round(1) }} {{ 2.5 | round }} {{ 2.1 | round(method='ceil') }}
{{ '<a href="x">&\'' | escape }} {{ '<a>' | e }} {{ '<a>' | safe }} {{ '<a>' | safe + '<b>' }} {{ '<a>' | safe ~ '<b>' }} {{ ('<a>' | escape) + '<b>' }}
{{ 'some long text here' | truncate(10) }} {{ 'ab' | center(6) }}| {{ 'a b' | urlencode }} {{ '%s-%s' | format('a', 1) }} {{ 'x<b>y</b>' | striptags }}
{{ 'one\n\ntwo' | indent }}| {{ 'one\n\ntwo' | indent(2, blank=true) }}| {{ 'one\ntwo' | indent('> ', first=true) }}
{{ {'a': 1} | items | list }} {{ nothing | items | list }} {{ [1, 2] | tojson }} {{ 'x' | tojson }} {{ none | tojson }} {{ 1.0 | tojson }} {{ 1e16 | tojson }} {{ 1e400 | tojson }}
{{ "a<b>&'\u2028\x7f/" | tojson }} {{ 'é' | tojson(ensure_ascii=true) }} {{ '🙂' | tojson(ensure_ascii=true) }} {{ {'a': {'b': [1, 2]}} | tojson(indent=1) }}
{{ {1: 'a', true: 'b', none: 'c', 1.5: 'd'} | tojson }}
{{ nothing | tojson }}
{{ [1, 2] | sum }} {{ [{'a': 1}, {'a': 2}] | sum(attribute='a') }} {{ ['a', 'A', 'b'] | unique | list }} {{ [1, 2] | random is defined }}
{{ {'a': 1} is mapping }} {{ [1] is mapping }} {{ 'a' is sequence }} {{ 1 is sequence }} {{ 'x' is callable }} {{ range is callable }} {{ none is sameas none }} {{ 1 is number }} {{ true is number }} {{ true is integer }}
{{ 1 is defined and 2 is defined }} {{ not nothing is defined }} {{ nothing is not defined }} {{ 'a' is string and 'b' is not number }}
{{ 5 is divisibleby(5) }} {{ 3 is odd }} {{ 'A' is upper }} {{ 2 is in([1, 2]) }} {{ 1 is ne 2 }} {{ 1 is lt 2 }} {{ 1 is le 1 }} {{ 2 is ge 3 }} {{ 1 is equalto 1 }} {{ 1 is == 1 }}
{{ 'upper' is filter }} {{ 'nope' is filter }} {{ 'odd' is test }}
{{ 'x' is nosuchtest }}
{{ 'x' | nosuchfilter }}
{{ nosuchfunction() }}
{{ 'abc'.nosuchmethod() }}
{{ raise_exception('own message') }}
{{ raise_exception('with ' ~ 1 ~ ' value') if false else 'not raised' }}
{{ 1 / 0 }}
{{ 'a' + 1 }}
{{ 'a' < 1 }}
{% if %}x{% endif %}
{% if true %}unclosed
{{ 'unclosed }}
{{ unclosed
{% unknown_tag %}
{% endif %}
{% include 'other' %}
{% import 'other' as x %}
{% set x = [] %}{{ x.append(1) }}
{% set x = {} %}{{ x.update({'a': 1}) }}
{{ [3, 1].sort() }}
{{ ''.__class__ }}|
{{ ''.__class__.__mro__ }}
{{ range(100001) | list | length }}
{{ range(100000) | list | length }}
{% macro m(a, b=2, c=none) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }} {{ m(1, c=3) }} {{ m(1, 5, 6) }} {{ m() }}| {{ m.name }} {{ m.arguments }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, z=2) }}
{% macro m() %}<{{ caller('x') }}>{% endmacro %}{% call(v) m() %}{{ v }}!{% endcall %}
{% macro m() %} a {% endmacro %}[{{ m() }}] {{ m() | trim }} {{ m() ~ 'b' }} {{ m() | length }} {{ m() == ' a ' }}
{% filter trim %}  x  {% endfilter %}| {% filter replace('a', 'b') | upper %}aXa{% endfilter %}
{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a is defined }}
{% raw %}{{ x }}{% endraw %} {% raw -%}  y  {%- endraw %}|
{# comment #}a{#- b -#} c {# multi {{ x }} {% if %} #}d
{{ "\x41\u00e9\n\t\"\'\\" }} {{ '\q' }} {{ 'it''s' }}
{{ joiner(', ')() }}{% set j = joiner('|') %}{{ j() }}a{{ j() }}b{{ j() }}c {{ cycler('x', 'y').next() }} {% set c = cycler('x', 'y') %}{{ c.next() }}{{ c.next() }}{{ c.current }}
{{ namespace(a=1).a }} {{ namespace({'b': 2}).b }}
{% set ns = namespace(_x=1) %}{{ ns._x }}
{{ loop is defined }} {{ self is defined }} {{ strftime_now('%Y') }} {{ strftime_now is defined }} {{ raise_exception is defined }}
{% generation %}inside{% endgeneration %} outside
{%- generation -%}   inside   {%- endgeneration -%}   x
{{ 10 | string | length }} {{ (1, 2) | list }} {{ 'a,b' | replace(',', ';') | upper }} {{ -1 | string }} {{ - 1 }} {{ +1 }} {{ 3 - -2 }}
{{ {'a': 1, **{'b': 2}} }}
{{ {'a b': 1}['a b'] }} {{ {'x': {'y': [10, 20]}}.x.y[1] }} {{ {'x': {'y': [10, 20]}}['x'].y.0 }}
{{ [[1, 2], [3]] | map('length') | list }} {{ [[1, 2], [3]] | sum(start=[]) }} {{ [1, 2, 3] | map('string') | join('') }}
{{ 'a' if x is defined else 'b' }}{% set x = 1 %}{{ 'a' if x is defined else 'b' }}
{% if 0 %}a{% elif '' %}b{% elif [0] %}c{% else %}d{% endif %}
{% block b %}in a block{% endblock %}
{% do [].append(1) %}
{{ 'x' | default }}| {{ nothing | d('short') }} {{ false | default('f', boolean=true) }} {{ 0 | default('z') }}
{{ lipsum is defined }} {{ dict is defined }} {{ range is defined }} {{ cycler is defined }} {{ joiner is defined }}
{{ 100000000000000000000 }} {{ 9223372036854775807 + 1 }} {{ 2 ** 63 }} {{ 1e308 * 10 }} {{ -(1e308 * 10) }}
{{ 3 | float }} {{ 3.0 | int }} {{ 3.7 // 1 }} {{ 1 + 1.0 }} {{ 10 / 5 }} {{ true + 1 }} {{ 5 % 3.5 }}
"""))

SNIPPETS += [
    ("{{ messages }}", {"messages": [msg("user", "hi <ü>")]}),
    ("{{ m }} {{ m | string | length }} {{ m | tojson }}", {"m": {"b": 1.0, "a": [None, True, "x'y"], "c": {}}}),
    ("{% for m in messages %}{{ m }}{% endfor %}", {"messages": ["text", 1, None, [1]]}),
    ("{{ x }} {{ y }} {{ z }} {{ tiny }}", {"x": 1, "y": 1.0, "z": -0.0, "tiny": 5e-324}),
    ("{{ big }} {{ big | tojson }}", {"big": 12345678901234567890}),
    ("{{ s | length }} {{ s[0] }} {{ s[-1] }} {{ s[::-1] }} {{ s | upper }} {{ s.title() }}", {"s": "ǆ ñandú ß🙂"}),
    ("{{ s.strip() }}|{{ s | trim }}|{{ s.split() }}|{{ s.splitlines() }}", {"s": "\u2003a\u0085b\x1cc\r\nd\u200b \u3000"}),
    ("a\r\nb\rc{{ '\r\n' | length }}{{ s | length }}", {"s": "x\r\ny"}),
    ("{% if a %}\r\nx\r\n{% endif %}\r\ny", {"a": True}),
    ("{{ a }}\n", {"a": 1}),
    ("{{ a }}\n\n", {"a": 1}),
    ("\n{{ a }}", {"a": 1}),
    ("  {% if a %}x{% endif %}  \n  z", {"a": True}),
    ("a {% if b %} {%- if b -%} c {%- endif %} {% endif %} d", {"b": True}),
    ("{%- if b %}\n\n x{% endif -%}\n\n y", {"b": True}),
    ("x {#- c #}\n{# d -#}\n y", {}),
    ("{{ content['text'] if content is mapping else content }}", {"content": {"text": "t"}}),
    ("{% for part in content %}{% if part.type == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}",
     {"content": [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]}),
    ("{% if content is string %}s{% elif content is iterable %}i{% endif %}", {"content": [{"type": "text"}]}),
    ("{{ enable_thinking is defined and enable_thinking is false }}", {"enable_thinking": False}),
    ("{{ a.b.c }} {{ a['b']['c'] }} {{ a.get('b').c }} {{ a.b.d }}|", {"a": {"b": {"c": 1}}}),
    ("{{ a.keys is callable }}|{{ a['keys'] }}|{{ a.values() | list }}", {"a": {"keys": "K", "x": 1}}),
    ("{{ args if args is string else args | tojson }}", {"args": "{\"a\": 1}"}),
    ("{{ args | tojson if args is not string else args }}", {"args": {"a": 1}}),
    ("{{ l[0] }} {{ l.0 }} {{ l[i] }} {{ l[i - 1] }} {{ l[-i] }} {{ l['x'] is defined }}", {"l": [10, 20, 30], "i": 1}),
    ("{% for m in l %}{% if loop.index0 > 0 and l[loop.index0 - 1] == m %}={% endif %}{{ m }}{% endfor %}", {"l": [1, 1, 2]}),
]
