"""Makes tests/golden/length_proxy/: a small random BertForSequenceClassification of odd extents, and what transformers makes of it
and of the demo's length proxy.

    python make_length_proxies.py

golden.json: for both, token ids and the logits that transformers computes from them in float32.
"""

import json
from pathlib import Path
from random import Random

import torch
from safetensors.torch import save_file
from transformers import BertConfig, BertForSequenceClassification

HERE = Path(__file__).resolve().parent
OUT = HERE / "length_proxy"
DEMO = HERE.parent.parent / "demo" / "length_proxy"


def make_random(folder: Path) -> None:
    torch.manual_seed(7)
    labels = ["1-3", "4-9", "10-30", "31-100", "101-"]
    config = BertConfig(
        vocab_size=61, hidden_size=36, num_hidden_layers=3, num_attention_heads=3, intermediate_size=50, max_position_embeddings=40,
        type_vocab_size=2, layer_norm_eps=1e-6, id2label=dict(enumerate(labels)), label2id={l: i for i, l in enumerate(labels)},
    )
    model = BertForSequenceClassification(config)
    with torch.no_grad():   # the usual start is so near to zero that nothing would be tested
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.randn_like(parameter) * (0.4 if parameter.dim() > 1 else 0.3) + ("LayerNorm.weight" in name))
    model.config.architectures = ["BertForSequenceClassification"]
    folder.mkdir(parents=True, exist_ok=True)
    model.config.save_pretrained(folder)
    save_file({n: t.to(torch.bfloat16).contiguous() for n, t in model.state_dict().items() if "position_ids" not in n},
              folder / "model.safetensors", metadata={"format": "pt"})


@torch.no_grad()
def answers(folder: Path, lengths: list[int]) -> list[dict]:
    model = BertForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    rng = Random(11)
    rows = []
    for length in lengths:
        ids = [rng.randrange(model.config.vocab_size) for _ in range(length)]
        rows.append({"ids": ids, "logits": model(input_ids=torch.tensor([ids])).logits[0].tolist()})
    return rows


def main() -> None:
    make_random(OUT / "random")
    golden = {"random": answers(OUT / "random", [1, 2, 7, 16, 33, 40]), "demo": answers(DEMO, [1, 3, 20, 64, 150])}
    (OUT / "golden.json").write_text(json.dumps(golden) + "\n")


if __name__ == "__main__":
    main()
