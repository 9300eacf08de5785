"""Sizes of C++ code: functions, headers and classes. tidy.py checks them against its limits.

The code is formatted (clang-format), so a function ends with the first "}" in the column in which it began. No parser of
C++ is needed.
"""
import re

NOT_A_FUNCTION = re.compile(r"\s*(namespace|struct|class|enum|union|extern|if|for|while|switch|else|do|case|return|#|\}|public|"
                            r"private|protected|default|//|using|\{|\))")
TYPE = re.compile(r"^( *)(?:template <.*> )?(?:class|struct) (\w+)(?: final)?(?: :[^;{]*)? ?\{$", re.MULTILINE)


def without_literals(text):
    """The text with comments and literals blanked. Line breaks stay."""
    token = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'', re.DOTALL)

    def blank(match):
        return "\n" * match.group(0).count("\n") or ("" if match.group(0).startswith("/") else '""')
    return re.sub(r"[ \t]+$", "", token.sub(blank, text), flags=re.MULTILINE)


def functions(text):
    """(line, lines, first line of the signature) of each function with a body of several lines."""
    lines = without_literals(text).split("\n")
    begin = None   # of the declaration that is being read
    for at, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        if not line.strip() or NOT_A_FUNCTION.match(line):
            begin = None
            continue
        if begin is None or indent <= len(lines[begin]) - len(lines[begin].lstrip()):
            begin = at
        signature = " ".join(lines[begin:at + 1])
        if not line.rstrip().endswith("{"):
            if line.rstrip().endswith((";", "}")):
                begin = None
            continue
        if "(" in signature and not re.search(r"(?<![=!<>])= ?[\[{]|\breturn\b", signature):
            margin = lines[begin][:len(lines[begin]) - len(lines[begin].lstrip())]
            if len(margin) <= 4:
                end = next((i for i in range(at + 1, len(lines)) if re.match(re.escape(margin) + r"\}", lines[i])), at)
                yield begin + 1, end - begin + 1, lines[begin].strip()
        begin = None


def name_of_function(signature):
    """"Server::Start" of "Result<Server> Server::Start(int port) {", and "Suite.Test" of a test."""
    test = re.match(r"TEST(?:_[FP])?\((\w+), (\w+)\)", signature)
    if test:
        return ".".join(test.groups())
    found = re.search(r"([\w:~]+)\s*(?:\(|= std::to_array)", signature)
    return found.group(1) if found else signature


def members(body):
    """The declarations of a class, given the text between its braces. What stands in nested braces is left out."""
    flat, depth = [], 0
    for char in body:
        depth -= char == "}"
        if depth == 0:
            flat.append("};" if char == "}" else char)
        depth += char == "{"
    return "".join(flat).split(";")


def is_function(declaration):
    declaration = re.sub(r"^\s*(public|private|protected):", "", declaration.strip()).strip()
    while re.search(r"<[^<>]*>", declaration):
        declaration = re.sub(r"<[^<>]*>", "", declaration)   # of templates: std::function<void()> is no function
    if re.match(r"(using|friend|static_assert|enum|struct|class|typedef)\b", declaration):
        return False
    head = declaration.split("{")[0]
    name = re.search(r"(operator\s*\S+|~?\w+)\s*\(", head)
    return bool(name) and "=" not in head[:name.start()]


def classes(text):
    """(line, name, number of functions) of each class and struct."""
    text = without_literals(text)
    for match in TYPE.finditer(text):
        end = re.compile(r"^%s\}" % match.group(1), re.MULTILINE).search(text, match.end())
        body = text[match.end():end.start() if end else len(text)]
        yield text.count("\n", 0, match.start()) + 1, match.group(2), sum(map(is_function, members(body)))
