#!/usr/bin/env bash
# PEFT reads LoRA of experts that an earlier version saved as another adapter, without a word, if a matrix is square.
#
# Versions    peft 0.18.1 and 0.21.2, transformers 5.24.0, torch 2.15.0
# Behaviour   target_parameters on a parameter of shape [experts, out, in], as Mixtral and Qwen3-MoE have them in transformers 5:
#             up to 0.18 lora_A is [experts x rank, out] and lora_B [in, rank x experts], from 0.19 on lora_A has the inputs and
#             lora_B the outputs. If out and in are the same, the shapes are too, and the old file is read as another
#             adapter. If they differ, there is an error of shapes. Parameters of shape [experts, in, out] (gpt-oss) are
#             stored alike by all versions. adapter_config.json has peft_version.
# Why         The adapter answers, but not as it was trained.
# What to do  Read files with peft_version before 0.19 the old way, where the shapes allow both.
# Seen        Mixtral with hidden_size = intermediate_size, an adapter of down_proj: 0.18.1 and 0.21.2 load the same file without
#             an error or a warning that names it, and their logits differ; gpt-oss: they agree
source "$(dirname "$0")/common.sh"
packages peft==0.18.1 transformers==5.24.0 torch==2.15.0
"$work/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check --no-deps --target "$work/new" peft==0.21.2
check <<'EOF2'
import json, os, subprocess, sys

PROGRAM = """
import json, pathlib, sys, warnings
import peft, torch, transformers
kind = sys.argv[1]
torch.manual_seed(1)
model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(
    kind, vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=4, head_dim=8,
    num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2, initializer_range=0.2, pad_token_id=0)).float().eval()
ids = torch.arange(1, 33)[None]
with torch.no_grad():
    base = model(ids).logits
    if not pathlib.Path(kind).exists():
        made = peft.get_peft_model(model, peft.LoraConfig(r=2, lora_alpha=4, target_modules=[], init_lora_weights=False,
                                                          target_parameters=["experts.down_proj"])).eval()
        made.save_pretrained(kind)
        said = []
    else:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            made = peft.PeftModel.from_pretrained(model, kind).eval()
        said = [str(w.message) for w in caught if "lora" in str(w.message) or "down_proj" in str(w.message)]
    print(json.dumps([peft.__version__, (made(ids).logits - base).flatten().tolist(), said]))
"""


def run(kind, folder=None):
    """[the version of PEFT, what the adapter adds to the logits, warnings]. The first run of a kind saves the adapter."""
    environment = {**os.environ, **({"PYTHONPATH": folder} if folder else {})}
    out = subprocess.run([sys.executable, "-c", PROGRAM, kind], env=environment, check=True, capture_output=True, text=True)
    return json.loads(out.stdout.splitlines()[-1])


def distance(a, b):
    return (sum((x - y) ** 2 for x, y in zip(a, b)) / sum(x * x for x in a)) ** 0.5


for kind, same in (("mixtral", False), ("gpt_oss", True)):
    trained, old, new = run(kind), run(kind), run(kind, "new")
    seen(f"{kind}: versions", (trained[0], old[0], new[0]), ("0.18.1", "0.18.1", "0.21.2"))
    seen(f"{kind}: 0.18.1 reads what it saved", distance(trained[1], old[1]) < 1e-5, True)
    seen(f"{kind}: 0.21.2 reads the same", distance(old[1], new[1]) < 1e-5, same)
    seen(f"{kind}: its warnings of the adapter", new[2], [])
EOF2
