#!/usr/bin/env python3
"""The diagram of the rooms, drawn from the `#include` lines: `python3 tests/rooms.py` writes it into the architecture page.

A box is a room of src/ or a folder of programs; an arrow goes from what includes to what is included. Only the arrows that
no chain of others implies are drawn. tests/tidy.py fails when page and code differ. Tests are left out.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/design/architecture.md"
BEGIN, END = "<!-- rooms: written by tests/rooms.py -->\n", "<!-- end of rooms -->"
PROGRAMS = ("loadgen", "tools", "lab")


def is_test(path):
    return path.stem.endswith(("_test", "_for_test", "_fuzz", "_fixture"))


def include_graph():
    """For each box, the boxes that its files include."""
    folders = {path.name: path for path in sorted((ROOT / "src").iterdir()) if (path / "CMakeLists.txt").exists()}
    folders |= {name: ROOT / name for name in PROGRAMS}
    pattern = re.compile(r'#include "(%s)/' % "|".join(folders))
    graph = {}
    for name, folder in folders.items():
        files = [path for path in folder.rglob("*") if path.suffix in (".h", ".cc") and not is_test(path)]
        graph[name] = {box for path in files for box in pattern.findall(path.read_text())} - {name}
    return graph


def reached(graph, box):
    """All boxes that `box` includes, directly or not."""
    found, todo = set(), list(graph[box])
    while todo:
        target = todo.pop()
        if target not in found:
            found.add(target)
            todo += graph[target]
    return found


def reduced(graph):
    """The graph without the arrows that a chain of other arrows implies. REQUIRES: it has no circle."""
    return {box: sorted(target for target in targets
                        if not any(target in reached(graph, other) for other in targets if other != target))
            for box, targets in graph.items()}


def circles(graph):
    return sorted(box for box in graph if box in reached(graph, box))


def diagram():
    graph = include_graph()
    lines = ["```mermaid", "flowchart TD"]
    lines += [f"  {name}[/{name}/]" for name in PROGRAMS]
    lines += [f"  {box} --> {' & '.join(targets)}" for box, targets in sorted(reduced(graph).items()) if targets]
    return "\n".join([*lines, "```", ""])


def findings():
    graph = include_graph()
    for box in circles(graph):
        yield f"{box}: includes itself by way of {', '.join(sorted(graph[box]))}"
    text = PAGE.read_text(encoding="utf-8")
    if BEGIN not in text or END not in text:
        yield f"{PAGE.relative_to(ROOT)}: no place for the diagram: {BEGIN.strip()} ... {END}"
    elif text.split(BEGIN)[1].split(END)[0] != diagram():
        yield f"{PAGE.relative_to(ROOT)}: the diagram of the rooms differs from the includes: run tests/rooms.py"


def main():
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    PAGE.write_text(before + BEGIN + diagram() + END + rest.split(END)[1], encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
