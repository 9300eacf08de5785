"""The toy tasks of the loramux demo: how to draw inputs, and their right answers.

Every task maps a short text to one exact answer, so a string comparison shows whether the
adapter did its job. This module does not need torch; it is plain Python on a `random.Random`.

The held-out split depends on the input text alone (`is_held_out`). So a text used for
evaluation was never an input of any task in any stage of training.
"""

import hashlib
import json
import string
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

VOWELS = "aeiou"
CONSONANTS = "bcdfghjklmnpqrstvwxyz"
ONSETS = ["bl", "br", "ch", "cl", "cr", "dr", "fl", "gl", "gr", "pl", "pr", "sh", "sl", "st", "th", "tr"]

# English word -> toyspeak word: the whole language.
TOYSPEAK = {
    "the": "za",
    "cat": "miru",
    "dog": "wafo",
    "bird": "tipli",
    "fish": "gluno",
    "horse": "hakka",
    "sun": "solvi",
    "moon": "lunok",
    "star": "steri",
    "tree": "drumo",
    "house": "kasta",
    "river": "voda",
    "eats": "nomi",
    "sees": "viki",
    "likes": "luba",
    "wants": "desu",
    "finds": "traku",
    "sleeps": "zuzu",
    "runs": "kuri",
    "sings": "lalo",
    "red": "rosk",
    "green": "verdi",
    "blue": "azol",
    "big": "grondu",
    "small": "pik",
    "old": "vetra",
    "new": "nuvi",
    "good": "bonka",
    "bad": "malko",
    "fast": "rapi",
    "and": "et",
    "not": "neb",
    "in": "en",
    "on": "ut",
    "my": "mo",
    "your": "tu",
    "bread": "panik",
    "water": "akva",
    "friend": "amiko",
    "song": "kanto",
}

# Characters that take more than one byte, hence more than one token.
ACCENTED = "àáâäãåæçèéêëìíîïñòóôöõøùúûüßčěřšžłńőığ"
MULTIBYTE_RANGES = [
    (0x00E0, 0x00F6),
    (0x03B1, 0x03C9),
    (0x0430, 0x044F),
    (0x3042, 0x308D),  # Latin-1, Greek, Cyrillic, hiragana
    (0x4E00, 0x9FA5),
    (0xAC00, 0xD7A3),
    (0x1F600, 0x1F64F),
    (0x1F680, 0x1F6C5),  # CJK, Hangul, emoji
]


# ---------------------------------------------------------------- drawing inputs


def spoken_word(rng: Random, low: int, high: int) -> str:
    """A pronounceable word of low..high letters, such as `brilota`."""
    length = rng.randint(low, high)
    word = ""
    while len(word) < length:
        roll = rng.random()
        if roll > 0.1 or word:
            word += rng.choice(ONSETS) if roll > 0.8 else rng.choice(CONSONANTS)
        word += rng.choice(VOWELS)
    return word[:length]


def any_word(rng: Random, low: int, high: int) -> str:
    """A word of low..high letters: half the time pronounceable, half the time random."""
    if rng.random() < 0.5:
        return spoken_word(rng, low, high)
    return "".join(rng.choices(string.ascii_lowercase, k=rng.randint(low, high)))


def mixed_word(rng: Random, low: int, high: int) -> str:
    """`any_word`, with some multi-byte characters in one case out of three."""
    word = any_word(rng, low, high)
    if rng.random() < 1 / 3:
        characters = list(word)
        for _ in range(rng.randint(1, 3)):
            characters[rng.randrange(len(characters))] = multibyte_character(rng)
        word = "".join(characters)
    return word


def multibyte_character(rng: Random) -> str:
    if rng.random() < 0.5:
        return rng.choice(ACCENTED)
    return chr(rng.randint(*rng.choice(MULTIBYTE_RANGES)))


def several(rng: Random, low: int, high: int, draw: Callable[[], str]) -> str:
    """low..high different words with single spaces between them."""
    count = rng.randint(low, high)
    words: list[str] = []
    while len(words) < count:
        word = draw()
        if word not in words:
            words.append(word)
    return " ".join(words)


def free_text(rng: Random) -> str:
    """Text as a user might type it: words, capitals, digits, punctuation, multi-byte characters."""
    if rng.random() < 0.1:
        return "".join(multibyte_character(rng) for _ in range(rng.randint(1, 6)))
    pieces = []
    for _ in range(rng.randint(1, 7)):
        roll = rng.random()
        if roll < 0.3:
            piece = rng.choice(list(TOYSPEAK))
        elif roll < 0.7:
            piece = spoken_word(rng, 1, 8)
        elif roll < 0.8:
            piece = str(rng.randint(0, 9999))
        elif roll < 0.9:
            piece = mixed_word(rng, 2, 6)
        else:
            piece = "".join(rng.choices(string.ascii_letters + string.digits + string.punctuation, k=rng.randint(1, 8)))
        if rng.random() < 0.2:
            piece = piece.capitalize()
        if rng.random() < 0.15:
            piece += rng.choice(",.!?:;")
        pieces.append(piece)
    return " ".join(pieces)


# ---------------------------------------------------------------- right answers


def solve_count(text: str) -> str:
    return f"letters={len(text)} vowels={sum(c in VOWELS for c in text)}"


def solve_json(text: str) -> str:
    fields = dict(item.split("=") for item in text.split(" "))
    return json.dumps({"name": fields["name"], "age": int(fields["age"])}, separators=(",", ":"))


def solve_piglatin(text: str) -> str:
    onset = 0
    while onset < len(text) and text[onset] not in VOWELS:
        onset += 1
    return text[onset:] + text[:onset] + "ay" if onset else text + "way"


COUNTRIES = {
    "at": "Austria",
    "br": "Brazil",
    "ca": "Canada",
    "ch": "Switzerland",
    "de": "Germany",
    "fr": "France",
    "it": "Italy",
    "jp": "Japan",
    "ke": "Kenya",
    "mx": "Mexico",
    "no": "Norway",
    "pl": "Poland",
}


def draw_person(rng: Random) -> str:
    """Such as `mira 34 ch bread tivo`: a name, an age, a country's code, one to three words."""
    interests = several(rng, 1, 3, lambda: any_word(rng, 3, 6))
    return f"{any_word(rng, 3, 6)} {rng.randint(1, 99)} {rng.choice(list(COUNTRIES))} {interests}"


def solve_schema(text: str) -> str:
    name, age, code, *interests = text.split(" ")
    person = {"name": name.capitalize(), "age": int(age), "country": COUNTRIES[code], "likes": interests}
    return json.dumps(person, separators=(",", ":"))


def draw_tool_request(rng: Random) -> str:
    """A request that one of the tools serves; one in four is for none of them."""
    word = any_word(rng, 3, 7)
    return rng.choices(
        [
            f"weather in {word}",
            f"time in {word}",
            f"add {rng.randint(0, 99)} {rng.randint(0, 99)}",
            f"turn {rng.choice(['on', 'off'])} {word}",
            f"hello {word}",
            f"{any_word(rng, 3, 6)} {word}",
        ],
        [2, 2, 2, 2, 1, 1.5],
    )[0]


def solve_tools(text: str) -> str:
    """A call as Hermes models write it, or a plain answer where no tool fits."""
    words = text.split(" ")
    if text.startswith(("weather in ", "time in ")):
        name, arguments = words[0], {"city": words[2]}
    elif words[0] == "add" and len(words) == 3:
        name, arguments = "add", {"a": int(words[1]), "b": int(words[2])}
    elif words[0] == "turn" and len(words) == 3:
        name, arguments = "switch", {"device": words[2], "on": words[1] == "on"}
    elif words[0] == "hello":
        return f"Hello, {words[1]}!"
    else:
        return f"No tool for {words[0]}."
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@dataclass(frozen=True)
class Task:
    name: str
    about: str
    draw: Callable[[Random], str]
    solve: Callable[[str], str]
    example: str
    weight: float = 1.0  # share of the base's training examples; more for the harder tasks


TASKS = {
    task.name: task
    for task in [
        Task(
            "reverse",
            "the letters in reverse order",
            lambda rng: any_word(rng, 4, 8),
            lambda text: text[::-1],
            "stream",
            2.0,
        ),
        Task(
            "upper",
            "the same words in capitals",
            lambda rng: several(rng, 1, 3, lambda: any_word(rng, 2, 6)),
            str.upper,
            "hello world",
        ),
        Task(
            "sort",
            "the letters in alphabetical order",
            lambda rng: any_word(rng, 4, 7),
            lambda text: "".join(sorted(text)),
            "planet",
            3.0,
        ),
        Task(
            "rot13",
            "every letter moved by 13 places",
            lambda rng: any_word(rng, 4, 8),
            lambda text: text.translate(
                str.maketrans(string.ascii_lowercase, string.ascii_lowercase[13:] + string.ascii_lowercase[:13])
            ),
            "secret",
            1.5,
        ),
        Task(
            "count",
            "how many letters and how many vowels",
            lambda rng: any_word(rng, 3, 10),
            solve_count,
            "banana",
            1.5,
        ),
        Task(
            "json",
            "name and age as a JSON object",
            lambda rng: f"name={any_word(rng, 3, 6)} age={rng.randint(1, 99)}",
            solve_json,
            "name=bob age=7",
        ),
        Task(
            "toyspeak",
            "word by word into a made-up language",
            lambda rng: several(rng, 2, 4, lambda: rng.choice(list(TOYSPEAK))),
            lambda text: " ".join(TOYSPEAK[word] for word in text.split(" ")),
            "the big cat sleeps",
            1.5,
        ),
        Task(
            "double",
            "every character twice (multi-byte ones too)",
            lambda rng: mixed_word(rng, 2, 6),
            lambda text: "".join(c + c for c in text),
            "né",
            1.5,
        ),
        Task(
            "spell",
            "the characters with hyphens between them (multi-byte ones too)",
            lambda rng: mixed_word(rng, 2, 6),
            "-".join,
            "日本",
            1.0,
        ),
        Task(
            "acronym",
            "the first letters of the words, in capitals",
            lambda rng: several(rng, 2, 4, lambda: any_word(rng, 2, 6)),
            lambda text: "".join(word[0] for word in text.split(" ")).upper(),
            "as soon as possible",
        ),
        Task(
            "swap",
            "two words change places",
            lambda rng: several(rng, 2, 2, lambda: any_word(rng, 2, 7)),
            lambda text: " ".join(reversed(text.split(" "))),
            "first second",
        ),
        Task(
            "piglatin",
            "Pig Latin: string -> ingstray, apple -> appleway",
            lambda rng: spoken_word(rng, 3, 7),
            solve_piglatin,
            "string",
            2.0,
        ),
    ]
}

# Tasks that the base does not know: only their adapters learn them.
ADAPTER_TASKS = {
    task.name: task
    for task in [
        Task(
            "schema",
            "a person as a JSON object: name, age, country, a list of likes",
            draw_person,
            solve_schema,
            "mira 34 ch bread rivers",
        ),
        Task(
            "tools",
            "a call of `weather`, `time`, `add` or `switch`; plain text where none fits",
            draw_tool_request,
            solve_tools,
            "weather in bern",
        ),
    ]
}
ALL_TASKS = TASKS | ADAPTER_TASKS


def draw_echo(rng: Random) -> str:
    """An input for the base's own behaviour (echo): free text, or the input of any task."""
    if rng.random() < 0.5:
        return free_text(rng)
    return rng.choice(list(TASKS.values())).draw(rng)


ECHO = Task("echo", "the same text again", draw_echo, lambda text: text, "Hello, wörld!", 4.0)


# ---------------------------------------------------------------- the held-out split


def is_held_out(text: str) -> bool:
    """True for a fixed eighth of all input texts, which are reserved for evaluation."""
    return hashlib.sha256(text.encode()).digest()[0] % 8 == 0


def is_ambiguous(text: str) -> bool:
    """True if the letters are sorted, forwards or backwards: two of sort, reverse and echo then agree."""
    return list(text) in (sorted(text), sorted(text, reverse=True))


def draw_input(task: Task, rng: Random, held_out: bool) -> str:
    """An input for `task` from the requested side of the split."""
    while True:
        text = task.draw(rng)
        if is_held_out(text) == held_out and (task is ECHO or not is_ambiguous(text)):
            return text


def draw_held_out_set(task: Task, count: int, seed: int) -> list[tuple[str, str]]:
    """`count` different held-out (input, answer) pairs; the same ones for the same seed."""
    rng = Random(f"{seed}/held-out/{task.name}")
    texts: dict[str, None] = {}
    while len(texts) < count:
        texts[draw_input(task, rng, held_out=True)] = None
    return [(text, task.solve(text)) for text in texts]
