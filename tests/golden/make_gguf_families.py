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

from golden_common import HERE, read_json, stable_seed, write_json

import torch
import transformers
from make_families import (QWEN_IMAGES, WITH_IMAGES, bloom, falcon, family_weights, gemma4, granite_hybrid, heads_alike, kinds,
                           layer_norms, published_granite, qwen3_5, small, two_ropes)
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


def with_config(change):
    """An edit of the saved model: of its configuration, as models of the family were published."""
    def edit(model_dir):
        config = read_json(model_dir / "config.json")
        change(config)
        write_json(model_dir / "config.json", config)
    return {"edit": edit}


def published_kinds():
    return with_config(lambda config: config.update(layer_types=published_granite(config)["layer_types"]))


def bytes_of_blocks(model, seed):
    """Weights that Q8_0 holds: in each 32 of a row, integers up to 127 times a power of two."""
    family_weights(model, seed)
    for p in model.parameters():
        if p.dim() != 2:
            continue
        blocks = p.view(-1, 32)
        largest = blocks.abs().max(dim=1, keepdim=True).values
        step = 2 ** torch.ceil(torch.log2(largest / 127))
        integers = torch.round(blocks / step)
        at = integers.abs().argmax(dim=1, keepdim=True)
        integers.scatter_(1, at, 127 * integers.gather(1, at).sign())
        blocks.copy_(integers * step)


def layer_norm_models():
    """(the arguments of store, others): the families with LayerNorm. llama.cpp has the tanh form of GELU in all of them."""
    # The file has no theta.
    for name, heads, parallel, share in (("gptneox", 3, True, 0.5), ("gptneox_sequential", 2, False, 0.25)):
        yield (name, "gpt_neox", heads_alike(small(2, hidden=heads * 12, heads=heads, ffn=48, rms_norm_eps=0.1,
                                                   use_parallel_residual=parallel,
                                                   **rope(partial_rotary_factor=share * 4 / 3))), PROMPTS), {}
    # A feed-forward block of four times the width, whatever the model has, and no theta.
    for name, config in (("falcon_7b", {}),
                         ("falcon_40b", {"new_decoder_architecture": True, "num_kv_heads": 2}),
                         ("falcon_11b", {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1})):
        yield (name, "falcon", {**falcon(rope_theta=10000.0, **config), "num_hidden_layers": 2, "ffn_hidden_size": 128},
               PROMPTS), {}
    yield ("bloom", "bloom", bloom(24, 3, 2), PROMPTS), with_config(lambda config: config.update(seq_length=128))
    # Its matrices in 8 bits.
    yield ("gptneox_q8_0", "gpt_neox", heads_alike(small(2, heads=2, ffn=64, rms_norm_eps=0.1, **rope(
        partial_rotary_factor=0.25))), PROMPTS), {"weights": bytes_of_blocks, "numbers": "MOSTLY_Q8_0"}
    yield ("stablelm", "stablelm", layer_norms(small(2, ffn=24, use_qkv_bias=True, **rope(partial_rotary_factor=0.5))),
           PROMPTS), {}  # the file has no theta
    yield ("stablelm_parallel", "stablelm", layer_norms(small(
        2, ffn=24, qk_layernorm=True, use_parallel_residual=True, **rope(partial_rotary_factor=0.25))), PROMPTS), {}


def models_with_images():
    """(the arguments of store, others): models whose text alone is in the file, and Ministral 3."""
    vision = {"hidden_size": 16, "intermediate_size": 16, "depth": 1, "num_heads": 2, "patch_size": 4, "out_hidden_size": 32}
    yield ("qwen2vl", "qwen2_5_vl", {
        "text_config": small(2, ffn=24, **rope(1000000.0, mrope_section=[1, 1, 2])),
        "vision_config": {**vision, "window_size": 16, "fullatt_block_indexes": [0]}, **QWEN_IMAGES}, PROMPTS), WITH_IMAGES
    # With sections in the proportion of the published ones, llama.cpp leaves some pairs as they are (README.md).
    yield ("qwen3vl", "qwen3_vl", {
        "text_config": small(2, ffn=24, head_dim=16, tie_word_embeddings=True,
                             **rope(1000.0, mrope_section=[3, 3, 2], mrope_interleaved=True)),
        "vision_config": {**vision, "num_position_embeddings": 16, "deepstack_visual_indexes": [0]}, **QWEN_IMAGES,
        "tie_word_embeddings": True}, PROMPTS), WITH_IMAGES
    yield ("mistral3", "mistral3", {
        "text_config": {"model_type": "mistral", **small(2, ffn=24, head_dim=12, sliding_window=None, **rope(1000000.0))},
        "vision_config": {"model_type": "pixtral", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
                          "num_attention_heads": 2, "image_size": 16, "patch_size": 8},
        "image_token_index": 96, "spatial_merge_size": 2, "tie_word_embeddings": False}, PROMPTS), WITH_IMAGES
    # mscale is 1 in llama.cpp.
    yield ("ministral3", "ministral3", small(2, ffn=24, head_dim=16, **rope(
        1000.0, "yarn", factor=4.0, original_max_position_embeddings=16, beta_fast=1.5, beta_slow=0.25, mscale=1.0,
        mscale_all_dim=0.6, llama_4_scaling_beta=0.3)), PROMPTS), {}


def models_of_kinds():
    """(the arguments of store, others): models whose layers differ in more than windows."""
    gemma = {"tie_word_embeddings": True, "final_logit_softcapping": 3.0}
    yield ("gemma4", "gemma4_text", {**gemma4("sfsf", **gemma), "intermediate_size": 16}, PROMPTS), {}
    # Inputs of each layer; two layers read the keys and values of others, and have a wider feed-forward block.
    yield ("gemma4_small", "gemma4_text", {
        **gemma4("sfsf", **gemma), "hidden_size": 24, "intermediate_size": 12, "attention_k_eq_v": False,
        "num_global_key_value_heads": None, "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 6,
        "vocab_size_per_layer_input": VOCAB, "use_double_wide_mlp": True}, PROMPTS), {}
    # Three heads of values for each of two heads of keys. llama.cpp knows one size for both, and takes the norms' epsilon
    # for the length of queries and keys too, which have 1e-6 in transformers.
    delta = rope(1000.0, partial_rotary_factor=0.5, mrope_section=[2, 1, 1], mrope_interleaved=True)
    yield ("qwen35", "qwen3_5_text", {
        **qwen3_5("lfl", hidden=24, heads=2, kv_heads=1, ffn=16, rms_norm_eps=1e-6, tie_word_embeddings=True, **delta),
        "linear_num_value_heads": 6, "linear_value_head_dim": 8}, PROMPTS), {}
    # The converter knows the published names of the kinds of layers alone. Without experts it writes the size of the
    # experts for that of the only block, and Mamba layers mean no rope.
    yield ("granitehybrid", "granitemoehybrid", {
        **granite_hybrid("lfl", tie_word_embeddings=True), "hidden_size": 24, "mamba_d_head": 12, "intermediate_size": 32,
        "shared_intermediate_size": 32, "num_experts_per_tok": 0}, PROMPTS), published_kinds()
    # Without Mamba layers, the converter calls it by the name of Granite 3.
    yield ("granite4", "granitemoehybrid", {
        **granite_hybrid("ff", position_embedding_type="rope", **rope(10000.0)), "intermediate_size": 32,
        "shared_intermediate_size": 32, "num_experts_per_tok": 0}, PROMPTS), published_kinds()
    yield ("granitehybrid_q8_0", "granitemoehybrid", {
        **granite_hybrid("lf"), "intermediate_size": 32, "shared_intermediate_size": 32, "mamba_d_state": 16,
        "num_experts_per_tok": 0}, PROMPTS), {
            **published_kinds(), "weights": bytes_of_blocks, "numbers": "MOSTLY_Q8_0"}
    yield ("qwen35_q8_0", "qwen3_5_text", {
        **qwen3_5("lf", heads=2, kv_heads=1, ffn=32, tie_word_embeddings=True, **delta),
        "linear_key_head_dim": 32, "linear_value_head_dim": 32}, PROMPTS), {"weights": bytes_of_blocks,
                                                                           "numbers": "MOSTLY_Q8_0"}


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


def correct(fields):
    """Gives the converter fields that it asks for. It reads configurations with transformers, which leaves out the first,
    and has for the second the number of heads of queries: no file would be written."""
    if fields["model_type"] == "gpt_neox":
        fields["rotary_pct"] = fields["rope_parameters"]["partial_rotary_factor"]
    if fields["model_type"] == "falcon" and fields["multi_query"] and not fields["new_decoder_architecture"]:
        fields["num_kv_heads"] = 1


def with_norms_of_heads(modify):
    """The converter returns StableLM's norms of heads from a function that yields, and then misses them."""
    def corrected(self, *tensor):
        found = yield from modify(self, *tensor)
        yield from found or ()
    return corrected


def converter_of(folder):
    """Loads llama.cpp's converter: a function of a model's directory and the file to write."""
    sys.path.insert(0, str(folder))
    from conversion import ModelBase, get_model_class
    from conversion.base import ModelType, get_model_architecture, gguf
    from conversion.llama import LlamaModel
    from conversion.stablelm import StableLMModel
    StableLMModel.modify_tensors = with_norms_of_heads(StableLMModel.modify_tensors)

    def convert(model_dir, out, numbers="ALL_F32"):
        architecture = get_model_architecture(ModelBase.load_hparams(model_dir, False), ModelType.TEXT)
        kind = get_model_class(architecture)
        for each in (kind, LlamaModel):  # the latter writes the files of Mistral 3
            each.set_vocab = add_vocabulary
        kind.no_mtp = True  # of Qwen 3.5: no layer that predicts several tokens
        # Gemma 3 counts the tokens there and cuts the embedding to as many rows.
        (model_dir / "tokenizer.json").write_text(json.dumps(
            {"model": {"vocab": {token: id for id, token in enumerate(tokens())}}, "added_tokens": []}))
        with torch.inference_mode():
            # With the fields that transformers adds, the converter takes each Nemotron-H for a mixture of experts.
            fields = read_json(model_dir / "config.json")
            as_stored = {"hparams": fields} if fields["model_type"] == "nemotron_h" else {}
            writer = kind(model_dir, gguf.LlamaFileType[numbers], out, eager=True, **as_stored)
            correct(writer.hparams)
            writer.write()
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
          max_bytes=MAX_BYTES, auto="AutoModelForCausalLM"):
    """`edit` changes the saved model before it is read and converted; `numbers` is llama.cpp's name of a type of file."""
    with tempfile.TemporaryDirectory() as tmp:
        model_dir = pathlib.Path(tmp) / name
        made = getattr(transformers, auto).from_config(
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
    command(__doc__, [*((model, {}) for model in models()), *layer_norm_models(), *models_with_images(),
                      *models_of_kinds()])
