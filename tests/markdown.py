"""The Markdown pages of the project: which there are, their blocks, links and sentences. Standard library only."""
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent


def runnable_pages():
    return [ROOT / "README.md", *sorted((ROOT / "docs/guide").glob("*.md"))]


def all_pages():
    """Every Markdown page of the project, but for what a build leaves."""
    folders = ("build", "target", "node_modules")
    return [path for path in sorted(ROOT.rglob("*.md"))
            if not any(part in folders or part.startswith(".") for part in path.relative_to(ROOT).parts)]


def name_of(path):
    return str(path.relative_to(ROOT))


class Block:
    """A fenced block: its info string, its text, and the line of the page that its text begins on."""

    def __init__(self, info, lines, line, before):
        self.info, self.lines, self.line, self.before = info, lines, line, before

    @property
    def text(self):
        return "\n".join(self.lines) + "\n"


def split_page(text):
    """The fenced blocks, and the lines of the page with those of the blocks and of HTML comments left empty."""
    blocks, prose, block, in_comment = [], [], None, False
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        fence = re.match(r"( *)(`{3,})(.*)$", line)
        if block is not None:
            if fence and fence.group(2) == block[1] and not fence.group(3).strip():
                blocks.append(block[2])
                block = None
            else:
                block[2].lines.append(line[block[0]:] if line[:block[0]].isspace() else line)
        elif fence and not in_comment:
            before = next((other for other in reversed(lines[:number - 1]) if other.strip()), "")
            block = (len(fence.group(1)), fence.group(2), Block(fence.group(3).strip(), [], number + 1, before.strip()))
        else:
            shown = line
            if in_comment:
                in_comment = "-->" not in line
                shown = line.split("-->", 1)[1] if not in_comment else ""
            shown = re.sub(r"<!--.*?-->", "", shown)
            if "<!--" in shown:
                shown, in_comment = shown.split("<!--")[0], True
            prose.append(shown)
            continue
        prose.append("")
    if block is not None:
        raise AssertionError(f"the block of line {block[2].line} has no end")
    return blocks, prose


def without_code(line):
    """The line with `code` replaced by one word."""
    return re.sub(r"(`+)(?!`).*?[^`]\1(?!`)", "code", line)


def visible(line):
    """The line as a reader sees it: the text of links, no marks of emphasis."""
    line = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", without_code(line))
    return re.sub(r"<[^>]+>|\*\*|__", "", line)


def slugs(prose):
    """The anchors of a page, as GitHub makes them of its headings, and those that are written as HTML."""
    found = set()
    for line in prose:
        found.update(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", line))
        heading = re.match(r"#{1,6} +(.*?)(?: +#+)? *$", line)
        if not heading:
            continue
        text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading.group(1)).replace("`", "").replace("*", "")
        slug = "".join(c for c in text.lower() if c.isalnum() or c in " -_").replace(" ", "-")
        count = 0
        unique = slug
        while unique in found:
            count += 1
            unique = f"{slug}-{count}"
        found.add(unique)
    return found


def links(prose):
    """(line, target) of every link of a page."""
    for number, line in enumerate(prose, 1):
        line = without_code(line)
        targets = re.findall(r"\]\(\s*<?([^)\s>]+)", line) + re.findall(r"(?:href|src)=\"([^\"]+)\"", line)
        targets += re.findall(r"^\[[^\]]+\]: +(\S+)", line)
        for target in targets:
            yield number, target


def paragraphs(prose):
    """(line, text) of what holds sentences: paragraphs, list items, and the cells of tables."""
    current, first = [], 0
    for number, raw in enumerate([*prose, ""], 1):
        line = visible(raw).strip()
        is_cell, is_heading = line.startswith("|"), line.startswith("#")
        begins = re.match(r"([-*+]|\d+[.)]) |>", line) is not None
        if current and (not line or is_cell or is_heading or begins):
            yield first, " ".join(current)
            current = []
        if is_cell:
            for cell in re.split(r"(?<!\\)\|", line.strip("|")):
                yield number, cell.strip()
        elif line and not is_heading:
            if not current:
                first = number
            current.append(re.sub(r"^([-*+]|\d+[.)]|>) ?", "", line) if begins else line)


def sentences(text):
    text = re.sub(r"\b(e\.g|i\.e|etc|vs|cf)\.", r"\1", text)
    return [part for part in re.split(r"(?<=[.!?])[\"')]*\s+", text) if part]


def words(sentence):
    return [word for word in sentence.split() if any(c.isalnum() for c in word)]
