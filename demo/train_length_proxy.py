"""Trains the demo's length proxy: a small BERT that predicts an answer's length from the adapter's name and the prompt.

    python train_length_proxy.py [--out length_proxy] [--steps 800]

The output is an ordinary Hugging Face directory of a `BertForSequenceClassification` with a tokenizer. Its labels are
ranges of output tokens ("18-22"). `loramux serve --length-predictor proxy --length-proxy DIR` reads it. The texts and
the right answers are those of tasks.py. The demo's tokens are bytes, so the length of an answer is that of its UTF-8
form. Inputs held out from the demo's own training are held out here too.
"""

import argparse
import json
import math
import time
from pathlib import Path
from random import Random

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import BertConfig, BertForSequenceClassification

from tasks import ECHO, TASKS, draw_held_out_set, draw_input

HERE = Path(__file__).parent
# The smallest and the largest length of each class; the last class has no upper bound.
BUCKETS = [(1, 2), (3, 4), (5, 6), (7, 8), (9, 10), (11, 13), (14, 17), (18, 22), (23, 28), (29, 38), (39, None)]
SPECIAL = ["[PAD]", "[CLS]", "[SEP]"]
MAX_POSITIONS = 192
BATCH = 192


def label(bucket: tuple[int, int | None]) -> str:
    return f"{bucket[0]}-{bucket[1] or ''}"


def bucket_of(length: int) -> int:
    return max(i for i, (low, _) in enumerate(BUCKETS) if low <= length)


def middle(bucket: tuple[int, int | None]) -> float:
    """The geometric mean of a class's bounds; an open class ends at twice its lower bound."""
    return math.sqrt(bucket[0] * (bucket[1] or 2 * bucket[0]))


def proxy_text(adapter: str, prompt: str) -> str:
    """The proxy's input: adapter name (empty for the base), line break, prompt as the model sees it."""
    return f"{adapter}\n<|bos|><|user|>{prompt}<|end|><|assistant|>"


def make_tokenizer() -> Tokenizer:
    """A tokenizer of bytes, as in the demo model, between [CLS] and [SEP]."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate(SPECIAL + alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return tokenizer


def encode(tokenizer: Tokenizer, texts: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and mask, padded to the longest text; texts that are too long keep their beginning and [SEP]."""
    rows = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
    rows = [row if len(row) <= MAX_POSITIONS else row[: MAX_POSITIONS - 1] + row[-1:] for row in rows]
    width = max(map(len, rows))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    return ids, (torch.arange(width) < torch.tensor([[len(row)] for row in rows])).long()


def draw_batch(rng: Random, tokenizer: Tokenizer) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    texts, classes = [], []
    for _ in range(BATCH):
        task = rng.choice([ECHO, *TASKS.values()])
        prompt = draw_input(task, rng, held_out=False)
        texts.append(proxy_text("" if task is ECHO else task.name, prompt))
        classes.append(bucket_of(len(task.solve(prompt).encode())))
    return *encode(tokenizer, texts), torch.tensor(classes)


def train(steps: int, seed: int, tokenizer: Tokenizer) -> BertForSequenceClassification:
    torch.manual_seed(seed)
    rng = Random(seed)
    config = BertConfig(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=192,
        max_position_embeddings=MAX_POSITIONS, type_vocab_size=1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        num_labels=len(BUCKETS), id2label={i: label(b) for i, b in enumerate(BUCKETS)},
        label2id={label(b): i for i, b in enumerate(BUCKETS)}, pad_token_id=0,
    )
    model = BertForSequenceClassification(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, step / 100) * 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps)))
    )
    started = time.monotonic()
    model.train()
    for step in range(steps):
        ids, mask, classes = draw_batch(rng, tokenizer)
        output = model(input_ids=ids, attention_mask=mask, labels=classes)
        optimizer.zero_grad()
        output.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 99:
            right = (output.logits.argmax(-1) == classes).float().mean().item()
            print(f"step {step + 1}: loss {output.loss.item():.3f}, right {right:.3f}, {time.monotonic() - started:.0f} s", flush=True)
    return model.eval()


@torch.no_grad()
def evaluate(model: BertForSequenceClassification, tokenizer: Tokenizer, per_task: int, seed: int) -> dict[str, dict[str, float]]:
    """For each task and overall, on held-out questions: the share with the right class, the share with a length
    (from the expected logarithm) within a quarter of the true one, and the relative error."""
    results, totals = {}, [0, 0, 0.0, 0]
    logs = torch.tensor([math.log(middle(bucket)) for bucket in BUCKETS])
    for task in [ECHO, *TASKS.values()]:
        pairs = draw_held_out_set(task, per_task, seed)
        ids, mask = encode(tokenizer, [proxy_text("" if task is ECHO else task.name, prompt) for prompt, _ in pairs])
        logits = model(input_ids=ids, attention_mask=mask).logits
        lengths = [len(answer.encode()) for _, answer in pairs]
        guesses = torch.exp(torch.softmax(logits, -1) @ logs).round().clamp(min=1).tolist()
        right = sum(int(c == bucket_of(n)) for c, n in zip(logits.argmax(-1).tolist(), lengths))
        near = sum(abs(guess - n) <= 0.25 * n for guess, n in zip(guesses, lengths))
        error = sum(abs(guess - n) for guess, n in zip(guesses, lengths))
        results[task.name] = {"right_class": right / per_task, "within_quarter": near / per_task, "error": error / sum(lengths)}
        totals = [a + b for a, b in zip(totals, (right, near, error, sum(lengths)))]
    count = per_task * len(results)
    results["all"] = {"right_class": totals[0] / count, "within_quarter": totals[1] / count, "error": totals[2] / totals[3]}
    return {name: {key: round(value, 4) for key, value in row.items()} for name, row in results.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE / "length_proxy")
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--seed", type=int, default=20261121)
    args = parser.parse_args()
    tokenizer = make_tokenizer()
    model = train(args.steps, args.seed, tokenizer)
    args.out.mkdir(parents=True, exist_ok=True)
    model.config.architectures = ["BertForSequenceClassification"]
    model.config.save_pretrained(args.out)
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, args.out / "model.safetensors",
              metadata={"format": "pt"})
    tokenizer.save(str(args.out / "tokenizer.json"))
    results = evaluate(model, tokenizer, 500, args.seed)
    (args.out / "results.json").write_text(json.dumps({"steps": args.steps, "seed": args.seed, "torch": torch.__version__,
                                                       "held_out_questions_per_task": 500, "tasks": results}, indent=1) + "\n")
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
