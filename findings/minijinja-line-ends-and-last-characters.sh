#!/usr/bin/env bash
# A chat template with Windows line ends, or with a loop over the characters of a string: minijinja and jinja2 write
# different prompts.
#
# Versions    jinja2 3.1.6, minijinja 3.1.0
# Behaviour   jinja2 turns "\r\n" of the template's source into "\n", also within string literals; minijinja keeps it, but
#             for the last line end and those that trim_blocks removes. In a loop over a string, minijinja knows neither
#             `loop.last` (always false) nor `loop.length` and `loop.revindex` (undefined); over a list of the same
#             characters it knows them.
# Why         A template that an editor on Windows saved gives other tokens at each line end than those of the training,
#             without an error. `{% if not loop.last %},{% endif %}` over a string ends in a comma too many.
# What to do  Replace "\r\n" by "\n" in a template before minijinja compiles it. Write `s | list` in such loops.
# Seen        "a\nb" against "a\r\nb"; "a,b" against "a,b,"
source "$(dirname "$0")/common.sh"
packages jinja2==3.1.6 minijinja==3.1.0
check <<'EOF2'
import jinja2
import minijinja


def both(template):
    return jinja2.Environment().from_string(template).render(s="ab"), minijinja.Environment().render_str(template, s="ab")


JOIN = "{{ c }}{% if not loop.last %},{% endif %}{% endfor %}"
seen("line end", both("a\r\nb"), ("a\nb", "a\r\nb"))
seen("line end in a literal", both("{{ 'a\r\nb' }}"), ("a\nb", "a\r\nb"))
seen("last line end", both("a\r\n"), ("a", "a"))
seen("loop over a string", both("{% for c in s %}" + JOIN), ("a,b", "a,b,"))
seen("its length", both("{% for c in s %}{{ loop.length }}{% endfor %}"), ("22", ""))
seen("loop over a list", both("{% for c in s | list %}" + JOIN), ("a,b", "a,b"))
EOF2
