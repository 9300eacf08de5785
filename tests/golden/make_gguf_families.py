#!/usr/bin/env python3
"""Makes gguf/families: a tiny random model of each family as llama.cpp's own converter writes it, and what transformers
computes with the model that was converted (transformers 5.24.0; the converter is that of llama-cpp-python 0.3.36's
source archive).

    python make_gguf_families.py CONVERTER_DIR            # the folder of convert_hf_to_gguf.py
    python make_gguf_families.py CONVERTER_DIR --list     # writes nothing: metadata and tensors of the stored files

A GGUF file says less than a config.json. llama.cpp has the rest in its code: which layers have a window or no rope, by
what attention scores are divided. These models keep to that. So they are not those of models/.
"""
import argparse
import json
import pathlib
import sys
import tempfile

from golden_common import HERE, stable_seed

import torch
import transformers
from make_families import family_weights, kinds, small, two_ropes
from make_models import far_apart, load_model, reset_rope, rope
from routers import router_gaps
from safetensors.torch import save_file

OUT = HERE / "gguf" / "families"
VOCAB = 97
PROMPTS = (5, 40)
WINDOW = 8
MAX_BYTES = 120_000
LLAMA3 = dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=1024)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=512, attention_factor=1.1386294361119891,
            beta_fast=32.0, beta_slow=1.0)


def two_heads(layers, **more):
    return small(layers, heads=2, kv_heads=1, ffn=24, **more)


def four_heads(layers, **more):
    return small(layers, ffn=24, **more)


def models():
    """(name, kind, configuration, lengths of the prompts)."""
    yield "llama3", "llama", two_heads(3, **rope(10000.0, "llama3", **LLAMA3)), PROMPTS
    yield "qwen2", "qwen2", four_heads(3, use_sliding_window=False, **rope(1000000.0)), PROMPTS
    yield "qwen3", "qwen3", four_heads(3, head_dim=12, tie_word_embeddings=True, **rope(1000000.0)), PROMPTS
    # The window is in every other layer, the first among them. Scores are divided by sqrt(head_dim).
    yield "gemma2", "gemma2", four_heads(
        4, head_dim=8, query_pre_attn_scalar=8, sliding_window=WINDOW, tie_word_embeddings=True,
        attn_logit_softcapping=2.0, final_logit_softcapping=3.0, **kinds("sfsf"), **rope()), PROMPTS
    # Every sixth layer is full. The file says nothing of layers; rope is scaled in full layers alone.
    yield "gemma3", "gemma3_text", small(
        7, hidden=24, heads=2, kv_heads=1, ffn=16, head_dim=16, query_pre_attn_scalar=16, sliding_window=WINDOW,
        tie_word_embeddings=True, **kinds("sssssfs"),
        **two_ropes({"rope_theta": 5000.0}, {"rope_theta": 1000000.0, "rope_type": "linear", "factor": 4.0})), PROMPTS
    yield "granite", "granite", four_heads(
        3, embedding_multiplier=1.7, residual_multiplier=0.6, attention_multiplier=0.25, logits_scaling=2.5,
        tie_word_embeddings=True, **rope()), PROMPTS
    yield "olmo2", "olmo2", four_heads(3, **rope(500000.0)), PROMPTS
    # Yarn in full layers alone. llama.cpp reads neither attention_factor nor the betas: these are its own.
    yield "olmo3", "olmo3", {**two_heads(4, sliding_window=WINDOW, **kinds("sssf"),
                                         **two_ropes({"rope_theta": 500.0}, {"rope_theta": 500.0, **YARN})),
                             "max_position_embeddings": 2048}, PROMPTS
    # Every fourth layer has no rope.
    yield "smollm3", "smollm3", small(
        5, ffn=20, no_rope_layers=[1, 1, 1, 0, 1], tie_word_embeddings=True, **rope(2000000.0)), PROMPTS
    # As the larger model: every fourth layer is full and has no rope. (llama.cpp has the window only in models of 64
    # layers, as that one.) As the smaller model: no window, rope everywhere. (llama.cpp reads no head_dim but hidden_size
    # / heads.)
    yield "exaone4", "exaone4", two_heads(
        4, sliding_window=WINDOW, sliding_window_pattern=4, **kinds("sssf"),
        **rope(10000.0, "llama3", **LLAMA3)), PROMPTS
    yield "exaone4_full", "exaone4", four_heads(
        3, head_dim=8, sliding_window=None, sliding_window_pattern=None, tie_word_embeddings=True, **kinds("fff"),
        **rope(10000.0, "llama3", **LLAMA3)), PROMPTS
    # llama.cpp reads this window and does without it.
    yield "phi3", "phi3", four_heads(3, sliding_window=12, original_max_position_embeddings=256,
                                     **rope(partial_rotary_factor=0.75)), PROMPTS
    # llama.cpp takes the factors by the size of its context, transformers by the length of the text.
    yield "phi3_longrope", "phi3", two_heads(
        3, sliding_window=None, original_max_position_embeddings=24,
        **rope(100.0, "longrope", partial_rotary_factor=0.75, short_factor=[1.0, 1.02, 1.1, 1.25, 1.5, 1.6],
               long_factor=[1.1, 1.4, 1.9, 2.6, 3.3, 4.2])), (5, 24, 25, 40)
    yield "glm4", "glm4", four_heads(3, head_dim=12, attention_bias=True, **rope(partial_rotary_factor=0.5)), PROMPTS


# --------------------------------------------------------------------------- conversion

def tokens():
    """Letters that GPT-2's way of cutting text can meet, two merges, and the three special tokens."""
    merged = ["th", "\u0120th"]
    letters = ["\u0120"] + [chr(c) for c in range(ord("!"), ord("!") + VOCAB - 4 - len(merged))]
    return ["<|pad|>", "<|bos|>", "<|end|>", *letters, *merged]


def add_vocabulary(converter):
    """In place of the converter's own set_vocab, which needs a tokenizer."""
    writer = converter.gguf_writer
    assert len(tokens()) == VOCAB
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens())
    writer.add_token_types([3] * 3 + [1] * (VOCAB - 3))
    writer.add_token_merges(["t h", "\u0120 th"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    writer.add_add_bos_token(False)


def converter_of(folder):
    """Loads llama.cpp's converter: a function of a model's directory and the file to write."""
    sys.path.insert(0, str(folder))
    from conversion import ModelBase, get_model_class
    from conversion.base import ModelType, get_model_architecture, gguf

    def convert(model_dir, out, numbers="ALL_F32"):
        architecture = get_model_architecture(ModelBase.load_hparams(model_dir, False), ModelType.TEXT)
        kind = get_model_class(architecture)
        kind.set_vocab = add_vocabulary
        # Gemma 3 counts the tokens there and cuts the embedding to as many rows.
        (model_dir / "tokenizer.json").write_text(json.dumps(
            {"model": {"vocab": {token: id for id, token in enumerate(tokens())}}, "added_tokens": []}))
        with torch.inference_mode():
            kind(model_dir, gguf.LlamaFileType[numbers], out, eager=True).write()
    return convert, gguf


def random_prompt(name, length, gen, model):
    """A prompt; in a mixture of experts, one whose tokens' experts no rounding decides."""
    for _ in range(500):
        prompt = torch.randint(3, VOCAB, (length,), generator=gen)
        gaps = router_gaps(model, prompt.tolist())
        if gaps is None or far_apart(gaps):
            return prompt
    raise SystemExit(f"{name}: no prompt of {length} tokens is good enough")


def store(name, kind, config, lengths, convert, *, weights=family_weights, edit=lambda model_dir: None, numbers="ALL_F32",
          max_bytes=MAX_BYTES):
    """`edit` changes the saved model before it is read and converted; `numbers` is llama.cpp's name of a type of file."""
    with tempfile.TemporaryDirectory() as tmp:
        model_dir = pathlib.Path(tmp) / name
        made = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.for_model(kind).__class__(**config), dtype=torch.float32)
        weights(made, stable_seed("gguf family", name))
        made.save_pretrained(model_dir)
        (model_dir / "generation_config.json").unlink(missing_ok=True)
        edit(model_dir)
        model = load_model(model_dir)
        gen = torch.Generator().manual_seed(stable_seed("prompts", name))
        expected = {}
        for i, length in enumerate(lengths):
            prompt = random_prompt(name, length, gen, model)
            reset_rope(model)
            expected[f"prompt_{i}"] = prompt
            expected[f"logits_{i}"] = model(input_ids=prompt[None], use_cache=False).logits[0].contiguous()
        convert(model_dir, OUT / f"{name}.gguf", numbers)
    save_file(expected, OUT / f"{name}.safetensors")
    for path in (OUT / f"{name}.gguf", OUT / f"{name}.safetensors"):
        path.chmod(0o644)
        assert path.stat().st_size < max_bytes, f"{path.name}: {path.stat().st_size} bytes"


def show(path, gguf):
    reader = gguf.GGUFReader(path)
    print(f"{path.stem} ({path.stat().st_size} bytes)")
    for key, field in reader.fields.items():
        if not key.startswith(("GGUF.", "tokenizer.")):
            print(f"  {key} = {field.contents()!r} ({', '.join(kind.name for kind in field.types)})")
    print("  " + ", ".join(f"{t.name} {list(map(int, reversed(t.shape)))}" for t in reader.tensors
                           if not t.name.startswith("blk.") or t.name.startswith("blk.0.")))


def command(description, models):
    """Makes or lists `models`, pairs of arguments of store without `convert`, as the command line says."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("converter", type=pathlib.Path, help="the folder of convert_hf_to_gguf.py")
    parser.add_argument("--list", action="store_true",
                        help="write nothing: print metadata and tensors of the stored files")
    parser.add_argument("names", nargs="*", help="of models; all if none is given")
    args = parser.parse_args()
    convert, gguf = converter_of(args.converter)
    OUT.mkdir(parents=True, exist_ok=True)
    for (name, kind, config, lengths), more in models:
        if args.names and name not in args.names:
            continue
        if not args.list:
            store(name, kind, config, lengths, convert, **more)
        show(OUT / f"{name}.gguf", gguf)


if __name__ == "__main__":
    command(__doc__, [(model, {}) for model in models()])
