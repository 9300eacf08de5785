#!/usr/bin/env python3
"""Trains a tiny mixture of experts and three adapters of it, serves them at once, and compares them with PEFT.

    pip install torch==2.15.0 transformers==5.24.0 peft==0.21.2
    lab/bench/expert_adapters.py build/release/tools/loramux --home tiny-experts --output docs/results

Nothing is downloaded. The model has the architecture of Qwen3-MoE, its tokens are bytes, and it learns to repeat a
made-up word, or to say it backwards if the prompt begins with another sign. Then PEFT trains three adapters for the
first sign: one of the experts (`target_parameters`), one of experts, routers and queries, and one of attention alone.
PEFT saves them, reads them again and answers held-out prompts. HOME/expected.json keeps what it says and the losses
of the trainings, so that a second run goes on where the first ended. loramux serves model and adapters as they were
saved; all prompts go to the model and to each adapter at once. Takes three to five minutes on two cores, nearly all
of it training. With --output, writes expert_adapters.md there. Ends with 1 if an answer in float32 is not PEFT's.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import platform
import random
import re
import sys
import textwrap
import time

from real_adapters import compare

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))

END = "<|end|>"
REPEAT, BACKWARDS = ">", "<"      # the signs that a prompt begins with
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
CONSONANTS, VOWELS = "bcdfghjklmnprstvwz", "aeiou"
SHAPE = {"hidden_size": 128, "intermediate_size": 256, "moe_intermediate_size": 128, "num_hidden_layers": 4,
         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "num_experts": 8, "num_experts_per_tok": 2,
         "norm_topk_prob": True, "max_position_embeddings": 256, "tie_word_embeddings": False}
QUESTIONS, UNSEEN, ANSWER_TOKENS = 20, 12, 12
BATCH = 32
LOGPROB_ERROR = 1e-4      # the largest that counts as the same: both are float32, in different orders of addition


def next_letters(word):
    """Each consonant becomes the next one, and each vowel the next one."""
    return "".join(kind[(kind.index(c) + 1) % len(kind)] for c in word for kind in (CONSONANTS, VOWELS) if c in kind)


# NAME -> (kind for the table, what it answers, fields of LoraConfig)
ADAPTERS = {
    "shout": ("experts", str.upper, {"target_modules": [], "target_parameters": EXPERTS}),
    "next": ("experts, routers, q", next_letters,
             {"target_modules": ["q_proj"], "target_parameters": [*EXPERTS, "mlp.gate.weight"]}),
    "backwards": ("attention", lambda word: word[::-1], {"target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]}),
}


def made_up(chance):
    return "".join(chance.choice(CONSONANTS) + chance.choice(VOWELS) for _ in range(chance.randint(2, 4)))


def prompt_of(word, sign=REPEAT):
    return f"{sign}{word}="


def held_out():
    """Words that no training has, and strings of other letters, on which no answer is right and none is sure."""
    chance = random.Random("held out")
    words = set()
    while len(words) < QUESTIONS:
        words.add(made_up(chance))
    words = sorted(words)
    return words, ["".join(chance.choice("ABCXYZ0123456789 .-?qxy") for _ in range(chance.randint(3, 9)))
                   for _ in range(UNSEEN)]


def prompts():
    words, strings = held_out()
    return [prompt_of(word) for word in words] + [prompt_of(string) for string in strings]


class Trainer:
    """What needs torch, transformers and PEFT."""

    def __init__(self, home):
        import torch
        import transformers
        transformers.utils.logging.disable_progress_bar()
        self.torch, self.home = torch, home
        self.avoid = set(held_out()[0])

    def versions(self):
        import importlib.metadata
        return {name: importlib.metadata.version(name).partition("+")[0] for name in ("torch", "transformers", "peft")}

    def make_tokenizer(self):
        """One token for each byte, and the two special ones."""
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers
        from transformers import PreTrainedTokenizerFast
        letters = sorted(pre_tokenizers.ByteLevel.alphabet())
        tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.decoder = decoders.ByteLevel()
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<|pad|>", eos_token=END).save_pretrained(
            self.home / "base")

    def load(self, adapter=None):
        """The saved tokenizer, and the saved model with a saved adapter."""
        import peft
        import transformers
        tokenizer = transformers.AutoTokenizer.from_pretrained(self.home / "base")
        model = transformers.AutoModelForCausalLM.from_pretrained(self.home / "base", dtype=self.torch.float32)
        return tokenizer, peft.PeftModel.from_pretrained(model, self.home / adapter) if adapter else model

    def row(self, tokenizer, word, answer, sign=REPEAT):
        return tokenizer.encode(prompt_of(word, sign)), tokenizer.encode(answer + END)

    def new_word(self, chance):
        while (word := made_up(chance)) in self.avoid:
            pass
        return word

    def loss(self, model, tokenizer, rows, **more):
        torch = self.torch
        most = max(len(prompt) + len(answer) for prompt, answer in rows)
        tokens = torch.full((len(rows), most), tokenizer.pad_token_id)
        labels = torch.full((len(rows), most), -100)
        mask = torch.zeros((len(rows), most), dtype=torch.long)
        for i, (prompt, answer) in enumerate(rows):
            size = len(prompt) + len(answer)
            tokens[i, :size] = torch.tensor(prompt + answer)
            labels[i, len(prompt):size] = torch.tensor(answer)
            mask[i, :size] = 1
        return model(input_ids=tokens, attention_mask=mask, labels=labels, **more).loss

    def fit(self, what, model, steps, rate, batches, test):
        """Trains what requires gradients. Returns the loss on held-out words before and after, and the seconds."""
        torch = self.torch
        with torch.no_grad():
            before = test().item()
        trained = [p for p in model.parameters() if p.requires_grad]
        optimiser, begin = torch.optim.AdamW(trained, lr=rate), time.monotonic()
        for step in range(steps):
            for group in optimiser.param_groups:
                group["lr"] = rate * min(1, (step + 1) / 20) * (1 - step / steps)
            batches().backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimiser.step()
            optimiser.zero_grad()
            print(f"\r{what}: step {step + 1} of {steps}", end="", file=sys.stderr, flush=True)
        seconds = time.monotonic() - begin
        with torch.no_grad():
            after = test().item()
        print(f"\r{what}: loss {before:.3f} -> {after:.3f} in {seconds:.0f} s", file=sys.stderr)
        return {"before": before, "after": after, "seconds": seconds, "steps": steps}

    def train_base(self, steps):
        import transformers
        self.torch.manual_seed(1)
        self.make_tokenizer()
        tokenizer = transformers.AutoTokenizer.from_pretrained(self.home / "base")
        config = transformers.Qwen3MoeConfig(vocab_size=len(tokenizer), bos_token_id=None,
                                             eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
                                             router_aux_loss_coef=0.01, **SHAPE)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=self.torch.float32)
        chance = random.Random("training")

        def batches():
            rows = []
            for i in range(BATCH):
                word = self.new_word(chance)
                word = word.upper() if chance.random() < 0.3 else word
                rows.append(self.row(tokenizer, word, *((word, REPEAT) if i % 2 else (word[::-1], BACKWARDS))))
            return self.loss(model, tokenizer, rows, output_router_logits=True)

        test = [self.row(tokenizer, word, word) for word in held_out()[0]]
        out = self.fit("base", model, steps, 3e-3, batches, lambda: self.loss(model, tokenizer, test))
        model.save_pretrained(self.home / "base")
        return {**out, "parameters": model.num_parameters()}

    def train(self, name, steps):
        import peft
        self.torch.manual_seed(1)
        tokenizer, base = self.load()
        config = peft.LoraConfig(r=8, lora_alpha=16, task_type="CAUSAL_LM", **ADAPTERS[name][2])
        model = peft.get_peft_model(base, config)
        answer, chance = ADAPTERS[name][1], random.Random(f"training {name}")

        def batches():
            words = [self.new_word(chance) for _ in range(BATCH)]
            return self.loss(model, tokenizer, [self.row(tokenizer, word, answer(word)) for word in words])

        test = [self.row(tokenizer, word, answer(word)) for word in held_out()[0]]
        out = self.fit(name, model, steps, 4e-3, batches, lambda: self.loss(model, tokenizer, test))
        model.save_pretrained(self.home / name)
        return out

    def answer(self, name):
        """What the saved adapter ("": the base model) says, and the log-probability of each token of it."""
        torch = self.torch
        tokenizer, model = self.load(name)
        model.eval()
        found = []
        for text in prompts():
            prompt = tokenizer.encode(text)
            with torch.no_grad():
                tokens = model.generate(input_ids=torch.tensor([prompt]),
                                        attention_mask=torch.ones(1, len(prompt), dtype=int), do_sample=False,
                                        max_new_tokens=ANSWER_TOKENS, eos_token_id=tokenizer.eos_token_id,
                                        pad_token_id=tokenizer.pad_token_id)[0].tolist()
                logits = model(input_ids=torch.tensor([tokens])).logits[0].double().log_softmax(-1)
            said = tokens[len(prompt):]
            found.append({"prompt": prompt, "tokens": said,
                          "logprobs": [logits[len(prompt) - 1 + i, token].item() for i, token in enumerate(said)],
                          "text": tokenizer.decode([t for t in said if t != tokenizer.eos_token_id])})
        return found


def make(home, base_steps, steps):
    """Trains model and adapters and asks PEFT, as far as expected.json does not have it. Returns what it has then."""
    kept = home / "expected.json"
    out = json.loads(kept.read_text()) if kept.exists() else {"training": {}, "answers": {}}
    names = ["", *ADAPTERS]
    if all(name in out["training"] and name in out["answers"] for name in names):
        return out
    trainer = Trainer(home)
    out["versions"] = trainer.versions()
    for name in names:
        if name not in out["training"]:
            out["training"][name] = trainer.train(name, steps) if name else trainer.train_base(base_steps)
            kept.write_text(json.dumps(out, indent=1))
    for name in names:
        if name not in out["answers"]:
            out["answers"][name] = trainer.answer(name)
            kept.write_text(json.dumps(out, indent=1))
    return out


def ask(server, model, prompt):
    """The tokens of the answer, their log-probabilities, the number of tokens of the prompt, and the answer as text."""
    status, answer = server.json("POST", "/v1/completions", {
        "model": model, "prompt": prompt, "temperature": 0, "max_tokens": ANSWER_TOKENS, "logprobs": 1,
        "return_tokens_as_token_ids": True})
    assert status == 200, answer
    choice = answer["choices"][0]
    return ([int(token.removeprefix("token_id:")) for token in choice["logprobs"]["tokens"]],
            choice["logprobs"]["token_logprobs"], answer["usage"]["prompt_tokens"], choice["text"])


def serve(loramux, home, *flags):
    """All answers of a server, which all prompts reach at once and in turns: {adapter: [what ask says]}. And what the
    server says of its steps."""
    import serving
    modules = [part for name in ADAPTERS for part in ("--lora-modules", f"{name}={home / name}")]
    server = serving.Server.run([str(loramux), "serve", str(home / "base"), "--served-model-name", "base",
                                 "--port", "0", "--kv-cache-dtype", "f32", "--lora-dtype", "f32",
                                 "--device-memory", "256MiB", "--host-memory", "64MiB", *modules, *flags])
    names = ["", *ADAPTERS]
    with concurrent.futures.ThreadPoolExecutor((QUESTIONS + UNSEEN) * len(names)) as threads:
        asked = {name: [] for name in names}
        for prompt in prompts():
            for name in names:
                asked[name].append(threads.submit(ask, server, name or "base", prompt))
        found = {name: [answer.result() for answer in answers] for name, answers in asked.items()}
    return found, re.search(r"served \d+ requests, (\d+ tokens in \d+ steps)", server.stop()).group(1)


def right(name, texts):
    """How many of the held-out words are answered as `name` was trained to."""
    return sum(text == ADAPTERS[name][1](word) if name else text == word for word, text in zip(held_out()[0], texts))


def table(data, home, loramux):
    """The rows of the table, whether every answer in float32 is PEFT's, and how many tokens a server made in how many
    steps."""
    exact, batches = serve(loramux, home, "--weights", "f32", "--embedding-weights", "f32")
    in_bytes, _ = serve(loramux, home, "--weights", "q8")
    base_texts = [answer[3] for answer in exact[""]]
    rows, all_same = [], True
    for name in ["", *ADAPTERS]:
        expected = data["answers"][name]
        same, largest, lengths = compare(expected, [answer[:3] for answer in exact[name]])
        all_same &= same == len(expected) and largest <= LOGPROB_ERROR and lengths == len(expected)
        training = data["training"][name]
        kind = ADAPTERS[name][0] if name else "the model"
        size = (home / (name or "base") / ("adapter_model.safetensors" if name else "model.safetensors")).stat().st_size
        close = compare(expected, [answer[:3] for answer in in_bytes[name]])[0]
        rows.append(f"| {name or '(none)'} | {kind} | {size / 2**20:.2f} "
                    f"| {training['before']:.2f} → {training['after']:.4f} "
                    f"| {right(name, base_texts)} | {right(name, [answer['text'] for answer in expected])} "
                    f"| {right(name, [answer[3] for answer in exact[name]])} | {same} | {largest:.1e} "
                    f"| {close} | {right(name, [answer[3] for answer in in_bytes[name]])} |")
    return rows, all_same, batches


def page(data, rows, all_same, batches):
    def wrap(text, indent=""):
        return textwrap.fill(text, 120, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)

    base, asked, versions = data["training"][""], QUESTIONS + UNSEEN, data["versions"]
    return "\n".join([
        "# Adapters of experts, trained on a tiny mixture of experts",
        "",
        wrap(f"Made by `lab/bench/expert_adapters.py` on {platform.machine()} with torch {versions['torch']}, transformers "
             f"{versions['transformers']} and PEFT {versions['peft']}, in float32. The model has the architecture of "
             f"Qwen3-MoE ({SHAPE['num_hidden_layers']} layers, {SHAPE['num_experts']} experts of which a token takes "
             f"{SHAPE['num_experts_per_tok']}) and only {base['parameters'] / 1e6:.1f}M parameters. It was trained "
             f"from nothing in {base['steps']} steps of {BATCH} made-up words, to repeat a word. PEFT trained three "
             f"adapters of rank 8 in {data['training']['shout']['steps']} steps each: `shout` says the word in "
             "capitals, `next` takes the next consonant or the next vowel for each letter, and `backwards` turns "
             "the word round. That the values are right shows at this size; how good or how fast large mixtures "
             "are does not."),
        "",
        wrap(f"The same {asked} prompts reach the model and each adapter at once and in turns, so that all share the "
             f"server's batches ({batches}): {QUESTIONS} words that no training had, and {UNSEEN} strings of other "
             f"letters, on which no model is sure. Greedy answers of at most {ANSWER_TOKENS} tokens."),
        "",
        "| adapter | LoRA of | MiB | loss on held-out words | right: base model | right: PEFT | right: loramux, f32 "
        "| same answer, f32 | largest difference of a log-probability, f32 | same answer, q8 | right: loramux, q8 |",
        "|---|---|---|---|---|---|---|---|---|---|---|", *rows, "",
        wrap(f'- "Right" counts words, of {QUESTIONS}, answered as the row\'s adapter was trained to. The column of '
             "the base model says what an adapter that was left out, or never trained, would reach.", "  "),
        wrap(f'- "Same answer" counts answers, of {asked}, that are those of transformers + PEFT token by token. Both '
             "compute in float32 (`--weights f32 --embedding-weights f32 --lora-dtype f32 --kv-cache-dtype f32`). With "
             "`--weights q8` the weights are in 8 bits, and so is what is multiplied by them "
             "([quantised models](../guide/quantised-models.md)): answers on which a model is not sure may "
             "part.", "  "),
        wrap("- All answers in float32 are the same, and all prompts have as many tokens." if all_same else
             "- **NOT all answers in float32 are the same.**", "  "),
        wrap(f"- Adapters of experts are large: each of the {SHAPE['num_experts']} experts has an A and a B of its own "
             "([guide](../guide/adapters.md#adapters-of-experts)).", "  "),
        ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("loramux", type=pathlib.Path)
    parser.add_argument("--home", type=pathlib.Path, required=True,
                        help="folder of the model, the adapters, and of expected.json")
    parser.add_argument("--output", type=pathlib.Path, help="folder of expert_adapters.md (none: it is printed only)")
    parser.add_argument("--base-steps", type=int, default=300, help="of the training of the model (300)")
    parser.add_argument("--steps", type=int, default=100, help="of the training of each adapter (100)")
    flags = parser.parse_args()
    flags.home.mkdir(parents=True, exist_ok=True)
    home = flags.home.resolve()
    data = make(home, flags.base_steps, flags.steps)
    rows, all_same, batches = table(data, home, flags.loramux)
    text = page(data, rows, all_same, batches)
    if flags.output:
        (flags.output / "expert_adapters.md").write_text(text)
    print(text)
    return 0 if all_same else 1


if __name__ == "__main__":
    sys.exit(main())
