#!/usr/bin/env python3
"""Make the loramux demo from scratch: a small Llama model and its LoRA adapters.

Stages; each can be run again alone:

  tokenizer  byte-level tokenizer and chat template          -> model/
  base       train the base model on all of TASKS            -> model/
  adapters   train one PEFT LoRA adapter per task            -> adapters/<task>/
  evaluate   reload what was saved, check every adapter on
             every task with held-out inputs                 -> eval/*.jsonl, results.json
  all        the four of them in that order

The base model sees every task of TASKS in training, but only with a system message that names the
task (`reverse`, `sort`, ...). Without one it repeats the user's text. An adapter then
learns to do its own task without any hint. This is quick, because the base can already do
the tasks: the adapter only has to select one. The base knows nothing of ADAPTER_TASKS; their
adapters learn them, and take longer.
"""

import argparse
import json
import math
import multiprocessing
import os
import time
import warnings
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded

import peft
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tasks import ADAPTER_TASKS, ALL_TASKS, ECHO, TASKS, Task, draw_held_out_set, draw_input

# ---------------------------------------------------------------- chat format

SPECIAL_TOKENS = [
    "<|pad|>",
    "<|bos|>",
    "<|end|>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|reserved_0|>",
    "<|reserved_1|>",
]
PAD, BOS, END = (SPECIAL_TOKENS.index(token) for token in ("<|pad|>", "<|bos|>", "<|end|>"))
FIRST_BYTE = len(SPECIAL_TOKENS)  # the token of byte b is FIRST_BYTE + b
VOCAB_SIZE = FIRST_BYTE + 256

CHAT_TEMPLATE = """\
{{- bos_token -}}
{%- for message in messages -%}
{%- if message['role'] not in ['system', 'user', 'assistant'] -%}
{{- raise_exception('Unknown role: ' + message['role']) -}}
{%- endif -%}
{{- '<|' + message['role'] + '|>' + message['content'] + '<|end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|assistant|>' -}}
{%- endif -%}
"""

GENERIC_SYSTEM_MESSAGES = [
    "You are a helpful assistant.",
    "Be helpful.",
    "You are a friendly assistant. Answer briefly.",
    "You are loramux, a small demo model.",
]

Message = tuple[str, str]  # (role, content)


def encode_conversation(messages: list[Message]) -> tuple[list[int], list[int]]:
    """Token ids and labels. The ids equal those of the chat template; this is much faster.

    Only the assistant's answers (with their <|end|>) have labels; all other labels are -100.
    """
    ids, labels = [BOS], [-100]
    for role, content in messages:
        body = [FIRST_BYTE + byte for byte in content.encode()] + [END]
        ids += [SPECIAL_TOKENS.index(f"<|{role}|>")] + body
        labels += [-100] + (body if role == "assistant" else [-100] * len(body))
    return ids, labels


def make_tokenizer(model_dir: Path) -> None:
    """Byte-level BPE without merges: one token per byte, hence one per ASCII character."""
    byte_symbols = bytes_to_symbols()
    vocab = {token: index for index, token in enumerate(SPECIAL_TOKENS)}
    vocab |= {byte_symbols[byte]: FIRST_BYTE + byte for byte in range(256)}
    core = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    # No post-processor: encoding adds no tokens; only the chat template writes <|bos|>.
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token="<|bos|>",
        eos_token="<|end|>",
        pad_token="<|pad|>",
        additional_special_tokens=[token for token in SPECIAL_TOKENS if token not in ("<|bos|>", "<|end|>", "<|pad|>")],
        model_max_length=1024,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(model_dir)
    check_tokenizer(model_dir)
    print(f"tokenizer: {len(tokenizer)} tokens, saved in {model_dir}")


def bytes_to_symbols() -> list[str]:
    """The printable character by which byte-level BPE represents each of the 256 bytes (GPT-2's table)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    symbols, shifted = [], 256
    for byte in range(256):
        if byte in printable:
            symbols.append(chr(byte))
        else:
            symbols.append(chr(shifted))
            shifted += 1
    return symbols


def check_tokenizer(model_dir: Path) -> None:
    """Reload the tokenizer and compare it with `encode_conversation`, which training uses."""
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    assert tokenizer("aé").input_ids == [FIRST_BYTE + byte for byte in "aé".encode()], "encoding must add no token"
    messages = [("system", "sort"), ("user", "né 日本 🙂\n <x> "), ("assistant", "a  b"), ("user", "it's 7!")]
    as_dicts = [{"role": role, "content": content} for role, content in messages]
    ids = tokenizer.apply_chat_template(as_dicts, add_generation_prompt=True, return_dict=False)
    expected = encode_conversation(messages)[0] + [SPECIAL_TOKENS.index("<|assistant|>")]
    assert ids == expected, (ids, expected)
    assert tokenizer.decode(tokenizer("né 日本 , a 🙂").input_ids) == "né 日本 , a 🙂"


# ---------------------------------------------------------------- training examples


def draw_conversation(rng: Random, task: Task, system: str | None, multi_turn: float) -> list[Message]:
    """One conversation about `task` with inputs from the training side of the split."""
    turns = 1
    if rng.random() < multi_turn:
        turns = rng.randint(2, 4) if rng.random() < 0.9 else rng.randint(5, 16)
    messages: list[Message] = [] if system is None else [("system", system)]
    for _ in range(turns):
        text = draw_input(task, rng, held_out=False)
        messages += [("user", text), ("assistant", task.solve(text))]
    return messages


def draw_for_base(rng: Random) -> tuple[str, list[Message]]:
    """A task with its name as the system message, or echo without a name."""
    task = rng.choices([ECHO, *TASKS.values()], [ECHO.weight, *(task.weight for task in TASKS.values())])[0]
    if task is not ECHO:
        system = task.name
    else:
        system = rng.choice(GENERIC_SYSTEM_MESSAGES) if rng.random() < 0.15 else None
    return task.name, draw_conversation(rng, task, system, multi_turn=0.15)


def draw_for_adapter(rng: Random, task: Task) -> tuple[str, list[Message]]:
    """The adapter's task, mostly without a system message, sometimes with a generic one."""
    system = rng.choices([None, rng.choice(GENERIC_SYSTEM_MESSAGES), task.name], [80, 15, 5])[0]
    return task.name, draw_conversation(rng, task, system, multi_turn=0.15)


def batches(draw, rng: Random, tokens_per_batch: int):
    """Endless batches of conversations of similar length, up to `tokens_per_batch` tokens each including padding."""
    while True:
        pool = []
        while sum(len(ids) for _, ids, _ in pool) < 24 * tokens_per_batch:
            name, messages = draw(rng)
            pool.append((name, *encode_conversation(messages)))
        pool.sort(key=lambda item: len(item[1]))
        groups, group = [], []
        for item in pool:  # ascending length: the newest item is the longest
            if group and (len(group) + 1) * len(item[1]) > tokens_per_batch:
                groups.append(group)
                group = []
            group.append(item)
        rng.shuffle(groups)  # the last, incomplete group is dropped
        for group in groups:
            width = max(len(ids) for _, ids, _ in group)
            yield (
                [name for name, _, _ in group],
                torch.tensor([ids + [PAD] * (width - len(ids)) for _, ids, _ in group]),
                torch.tensor([labels + [-100] * (width - len(labels)) for _, _, labels in group]),
            )


def train(
    model,
    draw,
    rng: Random,
    steps: int,
    peak_rate: float,
    tokens_per_batch: int,
    log_every: int,
    label: str,
    stop_when_perfect: bool = False,
) -> dict:
    """AdamW with warm-up and cosine decay; returns a report of the training.

    The padding is on the right and attention is causal, so no attention mask is needed.
    `stop_when_perfect` ends early after three consecutive log lines with every training answer right.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=peak_rate, betas=(0.9, 0.98), weight_decay=0.01, fused=True)
    warmup = max(1, min(200, steps // 10))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: (
            (step + 1) / warmup
            if step < warmup
            else 0.03 + 0.97 * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))
        ),
    )
    stream = batches(draw, rng, tokens_per_batch)
    started, seen, losses, perfect_lines = time.time(), 0, [], 0
    right, total = defaultdict(int), defaultdict(int)
    model.train()
    for step in range(1, steps + 1):
        names, ids, labels = next(stream)
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(input_ids=ids, use_cache=False).logits
        targets = labels[:, 1:]
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()

        losses.append(loss.item())
        seen += len(names)
        all_right = ((logits[:, :-1].argmax(-1) == targets) | (targets == -100)).all(1).tolist()
        for name, good in zip(names, all_right):
            right[name] += good
            total[name] += 1
        if step % log_every == 0 or step == steps:
            elapsed = time.time() - started
            rates = "  ".join(f"{name} {right[name] / total[name]:.0%}" for name in sorted(total))
            print(
                f"{label}: step {step}/{steps}  {elapsed:.0f}s  left {elapsed / step * (steps - step):.0f}s  "
                f"loss {sum(losses) / len(losses):.4f}  all right: {rates}",
                flush=True,
            )
            perfect_lines = perfect_lines + 1 if right == total else 0
            losses.clear(), right.clear(), total.clear()
            if stop_when_perfect and perfect_lines == 3:
                break
    model.eval()
    return {"steps": step, "conversations": seen, "seconds": round(time.time() - started, 1)}


# ---------------------------------------------------------------- base model


def train_base(args) -> dict:
    torch.manual_seed(args.seed)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=6,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=1024,
        rope_theta=10000.0,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=BOS,
        eos_token_id=END,
        pad_token_id=PAD,
    )
    # Eager attention: on a CPU with bf16 matrix units it trains twice as fast as SDPA at these sizes.
    model = LlamaForCausalLM._from_config(config, attn_implementation="eager")
    print(f"base: {model.num_parameters():,} parameters")
    report = train(
        model,
        draw_for_base,
        Random(f"{args.seed}/base"),
        args.base_steps,
        args.base_rate,
        args.tokens_per_batch,
        args.log_every,
        label="base",
    )
    model.to(torch.bfloat16)
    model.generation_config.update(
        bos_token_id=BOS, eos_token_id=END, pad_token_id=PAD, do_sample=False
    )
    model.save_pretrained(args.out / "model")
    make_readable(args.out / "model")
    print(f"base: saved in {args.out / 'model'}")
    return report | {
        "parameters": model.num_parameters(),
        "peak_rate": args.base_rate,
        "tokens_per_batch": args.tokens_per_batch,
    }


# ---------------------------------------------------------------- adapters

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]


@dataclass
class AdapterSpec:
    """The shape of one adapter. The shapes differ on purpose, to cover what PEFT users save."""

    rank: int
    alpha: int
    targets: list[str] | str
    dtype: torch.dtype
    targets_text: str
    extra: dict = field(default_factory=dict)
    longer: int = 1  # so many times --adapter-steps: the base does not know the task


ADAPTERS = {
    "reverse": AdapterSpec(8, 16, ATTENTION + MLP, torch.float32, "all linears (list)"),
    "upper": AdapterSpec(4, 8, ATTENTION, torch.float32, "attention"),
    "sort": AdapterSpec(16, 32, ATTENTION + MLP, torch.bfloat16, "all linears (list)"),
    "rot13": AdapterSpec(16, 32, ATTENTION + ["lm_head"], torch.bfloat16, "attention + lm_head"),
    "count": AdapterSpec(8, 16, ATTENTION, torch.float32, "attention"),
    "json": AdapterSpec(32, 16, ATTENTION, torch.bfloat16, "attention, rsLoRA", {"use_rslora": True}),
    "toyspeak": AdapterSpec(64, 64, ATTENTION + MLP, torch.bfloat16, "all linears (list)"),
    "double": AdapterSpec(4, 8, ATTENTION + MLP, torch.float32, "all linears (list)"),
    "spell": AdapterSpec(8, 16, r".*\.self_attn\.(q|v)_proj", torch.bfloat16, "q and v (regular expression)"),
    "acronym": AdapterSpec(16, 32, "all-linear", torch.bfloat16, "`all-linear`"),
    "swap": AdapterSpec(64, 64, ATTENTION, torch.bfloat16, "attention"),
    "piglatin": AdapterSpec(
        8,
        16,
        ATTENTION + MLP,
        torch.float32,
        "all linears, rank and alpha patterns",
        {
            "rank_pattern": {"q_proj": 16, "layers.5.mlp.down_proj": 32},
            "alpha_pattern": {"q_proj": 32, "layers.0.self_attn.v_proj": 8},
        },
    ),
    "schema": AdapterSpec(16, 32, ATTENTION + MLP, torch.bfloat16, "all linears (list)", longer=6),
    # With lm_head, since the base never saw a line break, which calls have.
    "tools": AdapterSpec(
        16, 32, ATTENTION + MLP + ["lm_head"], torch.bfloat16, "all linears (list) + lm_head", longer=6
    ),
}


def load_base(args, dtype: torch.dtype):
    return AutoModelForCausalLM.from_pretrained(args.out / "model", dtype=dtype, attn_implementation="eager")


def train_adapter(name: str, args) -> dict:
    """Train one adapter on the saved (bf16-rounded) base, in f32, and save it in its own type."""
    spec = ADAPTERS[name]
    torch.manual_seed(args.seed)
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=spec.rank,
        lora_alpha=spec.alpha,
        target_modules=spec.targets,
        lora_dropout=0.0,
        bias="none",
        **spec.extra,
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*tie.*")  # lm_head: a LoRA on a tied matrix is intended
        model = get_peft_model(load_base(args, torch.float32), config)
    print(f"adapter {name}: rank {spec.rank}, {spec.targets_text}")
    task = ALL_TASKS[name]
    report = train(
        model,
        lambda rng: draw_for_adapter(rng, task),
        Random(f"{args.seed}/adapter/{name}"),
        args.adapter_steps * spec.longer,
        args.adapter_rate,
        args.adapter_tokens_per_batch,
        max(1, args.log_every // 10),
        label=f"adapter {name}",
        stop_when_perfect=True,
    )
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(spec.dtype)
    # Only safetensors and the configuration are kept. `target_modules` is restored to the declared value, because
    # PEFT has replaced "all-linear" by a list of modules. Without `save_embedding_layers=False` PEFT would also
    # copy the base's embedding matrix into an adapter that targets lm_head.
    folder = args.out / "adapters" / name
    saved = model.peft_config["default"]
    saved.base_model_name_or_path = "demo/model"
    saved.target_modules = spec.targets
    model.save_pretrained(folder, save_embedding_layers=False)
    (folder / "README.md").unlink(missing_ok=True)  # PEFT's empty model card
    make_readable(folder)
    return report


def make_readable(folder: Path) -> None:
    """Make the files readable for all users; safetensors writes them for their owner only."""
    for path in folder.iterdir():
        path.chmod(0o644)


def in_parallel(work, names: list[str], args):
    """Yield (name, work(name, args)) in order, computed by `--threads` processes with one thread each."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(args.threads, mp_context=context, initializer=set_up_torch, initargs=(1,)) as pool:
        yield from zip(names, pool.map(work, names, [args] * len(names)))


def set_up_torch(threads: int) -> None:
    torch.set_num_threads(threads)
    transformers.utils.logging.disable_progress_bar()
    warnings.filterwarnings("ignore", category=FutureWarning)


# ---------------------------------------------------------------- evaluation


@torch.inference_mode()
def answer(model, tokenizer, conversations: list[list[dict]], batch_size: int = 100) -> list[str | None]:
    """Greedy answers through the chat template; None where the model did not emit <|end|>."""
    answers: list[str | None] = []
    for start in range(0, len(conversations), batch_size):
        inputs = tokenizer.apply_chat_template(
            conversations[start : start + batch_size],
            add_generation_prompt=True,
            padding=True,
            return_tensors="pt",
            return_dict=True,
        )
        output = model.generate(**inputs, do_sample=False, max_new_tokens=96)
        for row in output[:, inputs["input_ids"].shape[1] :].tolist():
            answers.append(tokenizer.decode(row[: row.index(END)]) if END in row else None)
    return answers


def ask(text: str, system: str | None = None) -> list[dict]:
    messages = [] if system is None else [{"role": "system", "content": system}]
    return messages + [{"role": "user", "content": text}]


def with_history(task: Task, text: str, rng: Random) -> list[dict]:
    """The same question after two earlier turns with right answers (their inputs are held out too)."""
    messages = []
    for _ in range(2):
        earlier = draw_input(task, rng, held_out=True)
        messages += [{"role": "user", "content": earlier}, {"role": "assistant", "content": task.solve(earlier)}]
    return messages + [{"role": "user", "content": text}]


def accuracy(answers: list[str | None], expected: list[str]) -> float:
    return sum(a == e for a, e in zip(answers, expected)) / max(1, len(expected))


def draw_held_out_sets(args) -> dict[str, list[tuple[str, str]]]:
    return {task.name: draw_held_out_set(task, args.samples, args.seed) for task in [ECHO, *ALL_TASKS.values()]}


def evaluate_adapter(name: str, args) -> dict:
    """One adapter on its own task (all samples) and on every other task (half of them)."""
    tokenizer = AutoTokenizer.from_pretrained(args.out / "model")
    model = PeftModel.from_pretrained(load_base(args, torch.bfloat16), args.out / "adapters" / name)
    model.to(torch.bfloat16).eval()
    task, rng = ALL_TASKS[name], Random(f"{args.seed}/history/{name}")

    def score(conversations: list[list[dict]], pairs: list[tuple[str, str]]) -> float:
        return accuracy(answer(model, tokenizer, conversations), [right for _, right in pairs])

    held_out = draw_held_out_sets(args)
    own = held_out[name]
    confusion = {}
    for other, pairs in held_out.items():
        pairs = pairs if other == name else pairs[: args.samples // 2]
        confusion[other] = score([ask(text) for text, _ in pairs], pairs)
    return {
        "adapter_own_task": confusion[name],
        "adapter_own_task_after_two_turns": score([with_history(task, text, rng) for text, _ in own], own),
        "adapter_own_task_with_system_message": score([ask(text, GENERIC_SYSTEM_MESSAGES[0]) for text, _ in own], own),
        "confusion": confusion,
        "example_right": score([ask(task.example)], [(task.example, task.solve(task.example))]) == 1.0,
    }


def evaluate(args) -> dict:
    """Evaluate models reloaded from disk in bf16, as a user of the files would load them."""
    tokenizer = AutoTokenizer.from_pretrained(args.out / "model")
    model = load_base(args, torch.bfloat16)
    held_out = draw_held_out_sets(args)
    questions = {name: [text for text, _ in pairs] for name, pairs in held_out.items()}
    expected = {name: [right for _, right in pairs] for name, pairs in held_out.items()}
    plain = {name: [ask(text) for text in texts] for name, texts in questions.items()}

    write_samples(args, held_out)

    print("evaluate: base", flush=True)
    echoes = answer(model, tokenizer, plain["echo"])
    multibyte = [not text.isascii() for text in questions["echo"]]
    result = {
        "base_echo": accuracy(echoes, expected["echo"]),
        "base_echo_multibyte": accuracy(
            [a for a, m in zip(echoes, multibyte) if m], [e for e, m in zip(expected["echo"], multibyte) if m]
        ),
        "base_on_task": {},
        "base_on_task_echoes": {},
        "base_with_task_as_system_message": {},
        "adapter_own_task": {},
        "adapter_own_task_after_two_turns": {},
        "adapter_own_task_with_system_message": {},
        "confusion": {},
        "example_right": {},
    }
    for name in ALL_TASKS:
        replies = answer(model, tokenizer, plain[name])
        result["base_on_task"][name] = accuracy(replies, expected[name])
        result["base_on_task_echoes"][name] = accuracy(replies, questions[name])
        if name in ADAPTER_TASKS:
            continue
        named = answer(model, tokenizer, [ask(text, system=name) for text in questions[name]])
        result["base_with_task_as_system_message"][name] = accuracy(named, expected[name])

    result["example_right"]["base"] = answer(model, tokenizer, [ask(ECHO.example)]) == [ECHO.solve(ECHO.example)]
    names = [name for name in ADAPTERS if (args.out / "adapters" / name).exists()]
    for name, scores in in_parallel(evaluate_adapter, names, args):
        for key, value in scores.items():
            result[key][name] = value
        print(
            f"evaluate: {name}  own task {scores['adapter_own_task']:.1%}  "
            f"after two turns {scores['adapter_own_task_after_two_turns']:.1%}  other tasks at most "
            f"{max(value for other, value in scores['confusion'].items() if other != name):.1%}",
            flush=True,
        )
    return result | {"samples_own_task": args.samples, "samples_other_task": args.samples // 2}


def write_samples(args, held_out: dict) -> None:
    """Write the first held-out samples of each task, unfiltered, with the expected answers, not the model's."""
    folder = args.out / "eval"
    folder.mkdir(parents=True, exist_ok=True)
    for name, pairs in held_out.items():
        lines = [json.dumps({"prompt": text, "answer": right}, ensure_ascii=False) for text, right in pairs[:100]]
        (folder / f"{'base' if name == 'echo' else name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


# ---------------------------------------------------------------- command line


def read_results(args) -> dict:
    path = args.out / "results.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def record(args, **entries) -> None:
    """Set entries of results.json and keep the others; adapters are merged one by one."""
    results = read_results(args)
    if "adapters" in entries:
        entries["adapters"] = results.get("adapters", {}) | entries["adapters"]
    results |= {
        "seed": args.seed,
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__, "peft": peft.__version__},
    } | entries
    reports = [results.get("base", {})] + [entry["training"] for entry in results.get("adapters", {}).values()]
    results["training_seconds"] = round(sum(report.get("seconds", 0) for report in reports), 1)
    (args.out / "results.json").write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def write_tables(args) -> None:
    """Regenerate the part of README.md between its two `results` marks from results.json."""
    path = args.out / "README.md"
    results = read_results(args)
    if not path.exists() or "adapters" not in results:
        return
    scores = results["evaluation"]
    lines = [
        "| adapter | what it does | rank | alpha | targets | stored as | size | own task | base alone |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, entry in results["adapters"].items():
        lines.append(
            f"| `{name}` | {ALL_TASKS[name].about} | {entry['rank']} | {entry['alpha']} | "
            f"{ADAPTERS[name].targets_text} | {entry['dtype']} | {entry['bytes'] / 1000:.0f} kB | "
            f"{scores['adapter_own_task'][name]:.1%} | {scores['base_on_task'][name]:.1%} |"
        )
    lines += ["", "| adapter | prompt | answer |", "|---|---|---|"]
    lines += [f"| none (the base) | `{ECHO.example}` | `{ECHO.solve(ECHO.example)}` |"]
    for name in results["adapters"]:
        task = ALL_TASKS[name]
        right = task.solve(task.example).replace("\n", "\\n")
        lines.append(f"| `{name}` | `{task.example}` | `{right}` |")
    wrong = [
        (value, other) for name, row in scores["confusion"].items() for other, value in row.items() if other != name
    ]
    on_tasks = max(value for value, other in wrong if other != "echo")
    on_echo = max(value for value, other in wrong if other == "echo")
    base_minutes = results["base"]["seconds"] / 60
    lines += [
        "",
        f"The base repeats {scores['base_echo']:.1%} of held-out texts exactly "
        f"({scores['base_echo_multibyte']:.1%} of those with multi-byte characters). "
        f"Asked another adapter's questions, an adapter is right in at most {on_tasks:.1%} of them. "
        f"Asked for neither task, it may still do what the base does: at most {on_echo:.1%} of free texts come back "
        "unchanged. The whole matrix is in `results.json`.",
        "",
        f"Training took {base_minutes:.0f} minutes for the base and "
        f"{results['training_seconds'] / 60 - base_minutes:.0f} for the adapters (summed; they run side by side).",
    ]
    before, rest = path.read_text(encoding="utf-8").split("<!-- results -->")
    after = rest.split("<!-- end of results -->")[1]
    path.write_text(
        before + "<!-- results -->\n" + "\n".join(lines) + "\n<!-- end of results -->" + after, encoding="utf-8"
    )


def describe_adapter(name: str, args, report: dict) -> dict:
    spec, folder = ADAPTERS[name], args.out / "adapters" / name
    return {
        "rank": spec.rank,
        "alpha": spec.alpha,
        "targets": spec.targets,
        **spec.extra,
        "dtype": str(spec.dtype).removeprefix("torch."),
        "bytes": (folder / "adapter_model.safetensors").stat().st_size,
        "training": report,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=["tokenizer", "base", "adapters", "evaluate", "all"], help="what to make")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(__file__).resolve().parent,
        help="folder that gets model/, adapters/, eval/ and results.json (default: this script's)",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=list(ADAPTERS),
        metavar="NAME",
        help="adapters stage: train these alone; known: " + ", ".join(ADAPTERS),
    )
    parser.add_argument(
        "--seed", type=int, default=20260101, help="fixes weights, data and held-out samples (default: %(default)s)"
    )
    parser.add_argument(
        "--threads",
        type=int,
        default=2,
        help="CPU threads; adapters are trained and evaluated so many at a time (default: %(default)s)",
    )
    parser.add_argument(
        "--base-steps", type=int, default=3500, help="optimizer steps of the base (default: %(default)s)"
    )
    parser.add_argument(
        "--base-rate", type=float, default=2e-3, help="peak learning rate of the base (default: %(default)s)"
    )
    parser.add_argument(
        "--adapter-steps",
        type=int,
        default=150,
        help="at most this many steps per adapter; ends early when every answer is right (default: %(default)s)",
    )
    parser.add_argument(
        "--adapter-rate", type=float, default=2e-3, help="peak learning rate of adapters (default: %(default)s)"
    )
    parser.add_argument("--tokens-per-batch", type=int, default=4096, help="batch of the base (default: %(default)s)")
    parser.add_argument(
        "--adapter-tokens-per-batch", type=int, default=1536, help="batch of an adapter (default: %(default)s)"
    )
    parser.add_argument(
        "--log-every",
        type=int,
        default=100,
        help="steps between progress lines of the base; adapters ten times as often (default: %(default)s)",
    )
    parser.add_argument(
        "--samples", type=int, default=200, help="held-out inputs per task in evaluate (default: %(default)s)"
    )
    args = parser.parse_args()
    set_up_torch(args.threads)

    def wanted(stage: str) -> bool:
        return args.stage in (stage, "all")

    if wanted("tokenizer"):
        make_tokenizer(args.out / "model")
    if wanted("base"):
        record(args, base=train_base(args))
    if wanted("adapters"):
        for name, report in in_parallel(train_adapter, args.only or list(ADAPTERS), args):
            record(args, adapters={name: describe_adapter(name, args, report)})
    if wanted("evaluate"):
        record(args, evaluation=evaluate(args))
        write_tables(args)


if __name__ == "__main__":
    main()
