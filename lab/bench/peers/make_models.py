#!/usr/bin/env python3
"""Makes the models of lab/bench/peers/run.py: random weights, the same values for loramux and llama.cpp.

    python3 -m venv peers && peers/bin/pip install numpy gguf
    peers/bin/python lab/bench/peers/make_models.py FOLDER --llama-quantize PATH

For each shape: FOLDER/SHAPE/hf (a Hugging Face directory, bf16), FOLDER/SHAPE/{f16,q8_0,q4_k_m}.gguf, and 16 adapters
of ranks 8 to 128 on q, k, v and o in FOLDER/SHAPE/adapters/aN, each as PEFT and as GGUF. --no-gguf leaves out the
latter. Mixtures of experts also get 16 adapters of ranks 8 to 32 on the matrices of all experts, as PEFT's
target_parameters, in FOLDER/SHAPE/expert_adapters/eN. llama.cpp has no such adapters.
"""
import argparse
import json
import pathlib
import struct
import subprocess

import numpy as np

SHAPES = {
    "160m": dict(hidden=768, layers=12, heads=12, kv_heads=12, ffn=2048, vocab=32000),
    "1.1b": dict(hidden=2048, layers=22, heads=32, kv_heads=4, ffn=5632, vocab=32000),
    "8b": dict(hidden=4096, layers=32, heads=32, kv_heads=8, ffn=14336, vocab=128256),
    # Of `experts` feed-forward blocks, a token takes `per_token`.
    # 1.52B parameters of which a token takes 0.43B, and 1.72B of which it takes 0.18B.
    "mixtral": dict(family="mixtral", hidden=1024, layers=16, heads=8, kv_heads=2, ffn=3584, vocab=32000, experts=8,
                    per_token=2),
    "qwen3-moe": dict(family="qwen3_moe", hidden=1024, layers=8, heads=16, kv_heads=4, head=128, ffn=512, vocab=32000,
                      experts=128, per_token=8),
    # Of four layers one is attention, with a gate as wide as the queries; three are gated DeltaNet of `states` heads.
    # 0.40B parameters.
    "qwen3.5": dict(family="qwen3_5_text", hidden=1024, layers=16, heads=8, kv_heads=2, head=256, ffn=3584, vocab=32000,
                    states=16, state=128),
}
# Family: (architecture, GGUF's architecture, the layer's block, names of gate, up and down in it).
FAMILIES = {
    "llama": ("LlamaForCausalLM", "llama", "mlp", ("gate_proj", "up_proj", "down_proj")),
    "mixtral": ("MixtralForCausalLM", "llama", "block_sparse_moe", ("w1", "w3", "w2")),
    "qwen3_moe": ("Qwen3MoeForCausalLM", "qwen3moe", "mlp", ("gate_proj", "up_proj", "down_proj")),
    "qwen3_5_text": ("Qwen3_5ForCausalLM", "qwen35", "mlp", ("gate_proj", "up_proj", "down_proj")),
}
RANKS = [8, 16, 32, 64, 128, 8, 16, 32, 64, 128, 8, 16, 32, 64, 128, 64]
EXPERT_RANKS = [8, 16, 32]
CONTEXT = 4096
CONVOLUTION, ROTARY = 4, 0.25   # positions, and the share of a head that turns


def family_of(shape):
    return shape.get("family", "llama")


def head_of(shape):
    return shape.get("head", shape["hidden"] // shape["heads"])


def keeps_states(shape, layer):
    return "states" in shape and layer % 4 != 3


def attention(shape, layer):
    """(layer's name, GGUF's name, outputs, inputs) of the attention of a decoder layer, or of what it has instead."""
    hidden, q, kv = shape["hidden"], shape["heads"] * head_of(shape), shape["kv_heads"] * head_of(shape)
    if keeps_states(shape, layer):
        heads, wide = shape["states"], shape["states"] * shape["state"]
        return [("linear_attn.in_proj_qkv", "attn_qkv", 3 * wide, hidden), ("linear_attn.in_proj_z", "attn_gate", wide, hidden),
                ("linear_attn.in_proj_b", "ssm_beta", heads, hidden), ("linear_attn.in_proj_a", "ssm_alpha", heads, hidden),
                ("linear_attn.out_proj", "ssm_out", hidden, wide)]
    return [("self_attn.q_proj", "attn_q", q * (2 if "states" in shape else 1), hidden), ("self_attn.k_proj", "attn_k", kv, hidden),
            ("self_attn.v_proj", "attn_v", kv, hidden), ("self_attn.o_proj", "attn_output", hidden, q)]


def feed_forward(shape):
    """The same of a feed-forward block, which is that of one expert in a mixture."""
    hidden, ffn = shape["hidden"], shape["ffn"]
    return [("gate", "ffn_gate", ffn, hidden), ("up", "ffn_up", ffn, hidden), ("down", "ffn_down", hidden, ffn)]


def tensors(shape):
    """(name, GGUF's name, extents) of all tensors in the order of the files. Vectors are norms. Three extents are those
    of a matrix of all experts: one tensor in GGUF files; in others each expert has one, with its number in the name."""
    _, _, block, parts = FAMILIES[family_of(shape)]
    hidden, experts = shape["hidden"], shape.get("experts")
    yield "model.embed_tokens.weight", "token_embd.weight", (shape["vocab"], hidden)
    for layer in range(shape["layers"]):
        prefix, short = f"model.layers.{layer}.", f"blk.{layer}."
        for name, gguf_name, rows, columns in attention(shape, layer):
            yield f"{prefix}{name}.weight", f"{short}{gguf_name}.weight", (rows, columns)
        if keeps_states(shape, layer):
            linear, heads = f"{prefix}linear_attn.", shape["states"]
            yield f"{linear}conv1d.weight", f"{short}ssm_conv1d.weight", (3 * heads * shape["state"], CONVOLUTION)
            yield f"{linear}A_log", f"{short}ssm_a", (heads,)
            yield f"{linear}dt_bias", f"{short}ssm_dt.bias", (heads,)
            yield f"{linear}norm.weight", f"{short}ssm_norm.weight", (shape["state"],)
        if experts:
            yield f"{prefix}{block}.gate.weight", f"{short}ffn_gate_inp.weight", (experts, hidden)
        for part, (_, gguf_name, rows, columns) in zip(parts, feed_forward(shape)):
            if experts:
                each = f"{prefix}{block}.experts.{{}}.{part}.weight"
                yield each, f"{short}{gguf_name}_exps.weight", (experts, rows, columns)
            else:
                yield f"{prefix}{block}.{part}.weight", f"{short}{gguf_name}.weight", (rows, columns)
        yield f"{prefix}input_layernorm.weight", f"{short}attn_norm.weight", (hidden,)
        after = "post_attention_norm" if "states" in shape else "ffn_norm"
        yield f"{prefix}post_attention_layernorm.weight", f"{short}{after}.weight", (hidden,)
        if family_of(shape) == "qwen3_moe" or "states" in shape and not keeps_states(shape, layer):
            for part in "qk":
                yield f"{prefix}self_attn.{part}_norm.weight", f"{short}attn_{part}_norm.weight", (head_of(shape),)
    yield "model.norm.weight", "output_norm.weight", (hidden,)
    yield "lm_head.weight", "output.weight", (shape["vocab"], hidden)


def constant(name, shape):
    """What a vector has in every place, in Hugging Face's files and in GGUF's."""
    if name.endswith(".A_log"):
        return 0.0, -1.0   # GGUF files have -exp(A_log)
    if "states" in shape and name.endswith("norm.weight") and ".linear_attn." not in name:
        return 0.0, 1.0    # the family multiplies by 1 + w
    return 1.0, 1.0


def matrix(rng, rows, columns):
    """Normal numbers such that products keep the size of their input, rounded to bf16; as float32."""
    values = rng.standard_normal((rows, columns), dtype=np.float32) / np.sqrt(columns).astype(np.float32)
    return (values.view(np.uint32) & 0xFFFF0000).view(np.float32)


def gguf_rows(name, values, shape):
    """The order of rows in GGUF files of the architecture llama: pairs of rotary dimensions are neighbours."""
    heads = {"attn_q": shape["heads"], "attn_k": shape["kv_heads"]}.get(name)
    if heads is None or FAMILIES[family_of(shape)][1] != "llama":
        return values
    rows, columns = values.shape
    return values.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def bf16(values):
    return (values.view(np.uint32) >> 16).astype(np.uint16)


class Safetensors:
    """Writes a file tensor by tensor; the shapes are known before."""

    def __init__(self, path, shapes):
        header, offset = {}, 0
        for name, extents in shapes:
            size = 2 * int(np.prod(extents))
            header[name] = {"dtype": "BF16", "shape": list(extents), "data_offsets": [offset, offset + size]}
            offset += size
        text = json.dumps(header).encode()
        text += b" " * (-(8 + len(text)) % 64)
        self.file = open(path, "wb")
        self.file.write(struct.pack("<Q", len(text)) + text)

    def add(self, values):
        bf16(np.ascontiguousarray(values, dtype=np.float32)).tofile(self.file)

    def close(self):
        self.file.close()


def pieces():
    return ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]


def write_texts(folder, shape):
    config = dict(architectures=[FAMILIES[family_of(shape)][0]], model_type=family_of(shape),
                  hidden_size=shape["hidden"], intermediate_size=shape["ffn"], num_hidden_layers=shape["layers"],
                  num_attention_heads=shape["heads"], num_key_value_heads=shape["kv_heads"],
                  head_dim=head_of(shape), vocab_size=shape["vocab"], hidden_act="silu",
                  max_position_embeddings=CONTEXT, rms_norm_eps=1e-5, rope_theta=10000.0, tie_word_embeddings=False,
                  torch_dtype="bfloat16", bos_token_id=1, eos_token_id=2)
    if "experts" in shape:
        config["num_experts_per_tok"] = shape["per_token"]
    if family_of(shape) == "mixtral":
        config.update(num_local_experts=shape["experts"], sliding_window=None)
    if family_of(shape) == "qwen3_moe":
        config.update(num_experts=shape["experts"], moe_intermediate_size=shape["ffn"], norm_topk_prob=True,
                      decoder_sparse_step=1, mlp_only_layers=[])
    if "states" in shape:
        config.update(
            linear_num_key_heads=shape["states"], linear_num_value_heads=shape["states"], linear_key_head_dim=shape["state"],
            linear_value_head_dim=shape["state"], linear_conv_kernel_dim=CONVOLUTION,
            layer_types=["linear_attention" if keeps_states(shape, i) else "full_attention" for i in range(shape["layers"])],
            rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=ROTARY))
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    vocab = {piece: i for i, piece in enumerate(pieces())}
    vocab.update({f"t{i}": i for i in range(len(vocab), shape["vocab"])})
    tokenizer = dict(version="1.0", added_tokens=[], normalizer=None, pre_tokenizer={"type": "WhitespaceSplit"},
                     post_processor=None, decoder=None,
                     model={"type": "WordLevel", "vocab": vocab, "unk_token": "<unk>"})
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


def gguf_writer(path, shape):
    import gguf
    writer = gguf.GGUFWriter(path, FAMILIES[family_of(shape)][1])
    writer.add_block_count(shape["layers"])
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(shape["hidden"])
    writer.add_feed_forward_length(shape["ffn"])
    writer.add_head_count(shape["heads"])
    writer.add_head_count_kv(shape["kv_heads"])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(int(head_of(shape) * (ROTARY if "states" in shape else 1)))
    if "states" in shape:
        writer.add_key_length(head_of(shape))
        writer.add_value_length(head_of(shape))
        writer.add_rope_dimension_sections([11, 11, 10, 0])
        writer.add_ssm_conv_kernel(CONVOLUTION)
        writer.add_ssm_state_size(shape["state"])
        writer.add_ssm_group_count(shape["states"])
        writer.add_ssm_time_step_rank(shape["states"])
        writer.add_ssm_inner_size(shape["states"] * shape["state"])
        writer.add_full_attention_interval(4)
    if "experts" in shape:
        writer.add_expert_count(shape["experts"])
        writer.add_expert_used_count(shape["per_token"])
        writer.add_expert_feed_forward_length(shape["ffn"])
        writer.add_key_length(head_of(shape))
        writer.add_value_length(head_of(shape))
    writer.add_vocab_size(shape["vocab"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_tokenizer_model("llama")
    names = pieces()
    names += [f"t{i}" for i in range(len(names), shape["vocab"])]
    writer.add_token_list(names)
    writer.add_token_scores([0.0] * len(names))
    types = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
    types += [gguf.TokenType.BYTE] * 256 + [gguf.TokenType.NORMAL] * (len(names) - 259)
    writer.add_token_types(types)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    return writer


def write_model(folder, shape, with_gguf):
    rng = np.random.default_rng(1)
    hf = folder / "hf"
    hf.mkdir(parents=True, exist_ok=True)
    write_texts(hf, shape)
    shapes = []
    for name, _, extents in tensors(shape):
        experts = range(extents[0]) if len(extents) == 3 else [None]
        hf_extents = (extents[0], 1, extents[1]) if "conv1d" in name else extents[-2:]
        shapes += [(name.format(expert), hf_extents) for expert in experts]
    out = Safetensors(hf / "model.safetensors", shapes)
    writer = gguf_writer(folder / "f16.gguf", shape) if with_gguf else None
    for hf_name, name, extents in tensors(shape):
        vector = len(extents) == 1
        if vector:
            values, gguf_values = (np.full(extents, value, dtype=np.float32) for value in constant(hf_name, shape))
        else:
            values = gguf_values = matrix(rng, int(np.prod(extents[:-1])), extents[-1])
        out.add(values)  # experts lie one after the other
        if writer is not None:
            rows = gguf_rows(name.split(".")[-2], gguf_values, shape).reshape(extents)
            as_they_are = vector or ".ffn_gate_inp." in name or ".ssm_conv1d." in name
            writer.add_tensor(name, rows if as_they_are else rows.astype(np.float16))
    out.close()
    if writer is not None:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def write_panels(folder, shape):
    """FOLDER/q4: a model of random 4-bit weights, as `loramux quantize` writes it (src/tensor/group_panel.h). For shapes
    whose floats would fill the disk."""
    assert family_of(shape) == "llama", "--panels makes Llama's shapes alone"
    rng = np.random.default_rng(2)
    folder = folder / "q4"
    folder.mkdir(parents=True, exist_ok=True)
    write_texts(folder, shape)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "loramux", "layout": "panel32-group32"}
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    matrices = [("model.embed_tokens", shape["vocab"], shape["hidden"], 8)]
    for layer in range(shape["layers"]):
        matrices += [(f"model.layers.{layer}.{name}", rows, columns, 4) for name, _, rows, columns in attention(shape, layer)]
        matrices += [(f"model.layers.{layer}.mlp.{name}_proj", rows, columns, 4)
                     for name, _, rows, columns in feed_forward(shape)]
    matrices.append(("lm_head", shape["vocab"], shape["hidden"], 8))
    norms = [f"model.layers.{layer}.{name}" for layer in range(shape["layers"])
             for name in ("input_layernorm", "post_attention_layernorm")] + ["model.norm"]
    header, offset = {}, 0
    for name, rows, columns, bits in matrices:
        extents = [(rows + 31) // 32, columns // 32 * (640 if bits == 4 else 1088)]
        header[name + ".weight"] = {"dtype": "U8", "shape": extents, "data_offsets": [offset, offset + extents[0] * extents[1]]}
        offset += extents[0] * extents[1]
    for name in norms:
        header[name + ".weight"] = {"dtype": "F32", "shape": [shape["hidden"]],
                                    "data_offsets": [offset, offset + 4 * shape["hidden"]]}
        offset += 4 * shape["hidden"]
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 64)
    with open(folder / "model.safetensors", "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for _, rows, columns, bits in matrices:
            limit = np.sqrt(3 / columns)
            groups = (rows + 31) // 32 * (columns // 32)
            panel = rng.integers(1, 256, (groups, 512 if bits == 4 else 1024), dtype=np.uint8)
            scales = np.full(32, limit * (2 / 15 if bits == 4 else 1 / 127), dtype=np.float16)
            heads = [scales, np.full(32, -limit, dtype=np.float16)] if bits == 4 else [scales]
            head = np.concatenate(heads).view(np.uint8)
            np.hstack([np.broadcast_to(head, (groups, len(head))), panel]).tofile(out)
        for _ in norms:
            np.ones(shape["hidden"], dtype=np.float32).tofile(out)


def write_adapter(folder, shape, rank, seed, with_gguf):
    rng = np.random.default_rng(1000 + seed)
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"{part}_proj" for part in "qkvo"]
    (folder / "adapter_config.json").write_text(json.dumps(
        dict(peft_type="LORA", r=rank, lora_alpha=rank, target_modules=names, task_type="CAUSAL_LM")))
    shapes, values = [], []
    for layer in range(shape["layers"]):
        for name, gguf_name, rows, columns in [] if keeps_states(shape, layer) else attention(shape, layer):
            for part, extents in (("A", (rank, columns)), ("B", (rows, rank))):
                shapes.append((f"base_model.model.model.layers.{layer}.{name}.lora_{part}.weight", extents))
                small = matrix(rng, *extents) * np.float32(0.1)
                values.append((f"blk.{layer}.{gguf_name}.weight.lora_{part.lower()}", small, gguf_name, part))
    out = Safetensors(folder / "adapter_model.safetensors", shapes)
    for _, small, *_ in values:
        out.add(small)
    out.close()
    if not with_gguf:
        return
    import gguf
    writer = gguf.GGUFWriter(folder / "adapter.gguf", FAMILIES[family_of(shape)][1])
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
    writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, float(rank))
    for name, small, linear, part in values:
        rows = gguf_rows(linear, small, shape) if part == "B" else small
        writer.add_tensor(name, rows.astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_expert_adapter(folder, shape, rank, seed):
    """As PEFT saves target_parameters: A has the rows of one expert after the other, B the columns of all experts for
    each rank. The outer wrapper is that of down_proj, `base_layer` the one of gate and up."""
    rng = np.random.default_rng(2000 + seed)
    folder.mkdir(parents=True, exist_ok=True)
    experts, hidden, ffn = shape["experts"], shape["hidden"], shape["ffn"]
    (folder / "adapter_config.json").write_text(json.dumps(
        dict(peft_type="LORA", peft_version="0.21.2", r=rank, lora_alpha=rank, target_modules=[], task_type="CAUSAL_LM",
             target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"])))
    shapes = []
    for layer in range(shape["layers"]):
        prefix = f"base_model.model.model.layers.{layer}.mlp.experts."
        shapes += [(prefix + "base_layer.lora_A.weight", (experts * rank, hidden)),
                   (prefix + "base_layer.lora_B.weight", (2 * ffn, experts * rank)),
                   (prefix + "lora_A.weight", (experts * rank, ffn)),
                   (prefix + "lora_B.weight", (hidden, experts * rank))]
    out = Safetensors(folder / "adapter_model.safetensors", shapes)
    for name, extents in shapes:
        size = 0.1 * np.sqrt(experts) if ".lora_B." in name else 0.1  # the inputs of a sum are those of one expert
        out.add(matrix(rng, *extents) * np.float32(size))
    out.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--shapes", default="160m,1.1b", help="comma-separated; also 8b, mixtral, qwen3-moe, qwen3.5")
    parser.add_argument("--adapters", type=int, default=len(RANKS), help="their number; ranks repeat")
    parser.add_argument("--llama-quantize", help="llama.cpp's program; without it only F16 is made")
    parser.add_argument("--no-gguf", action="store_true", help="only what loramux reads")
    parser.add_argument("--panels", action="store_true", help="only SHAPE/q4, 4 bits for loramux, and the adapters")
    args = parser.parse_args()
    for name in args.shapes.split(","):
        shape, folder = SHAPES[name], args.folder / name
        print(f"{name}: weights", flush=True)
        with_gguf = not args.no_gguf and not args.panels
        if args.panels:
            write_panels(folder, shape)
        else:
            write_model(folder, shape, with_gguf)
        for i in range(args.adapters):
            write_adapter(folder / "adapters" / f"a{i}", shape, RANKS[i % len(RANKS)], i, with_gguf)
        for i in range(args.adapters if "experts" in shape else 0):
            rank = EXPERT_RANKS[i % len(EXPERT_RANKS)]
            write_expert_adapter(folder / "expert_adapters" / f"e{i}", shape, rank, i)
        if args.llama_quantize and with_gguf:
            for kind in ("q8_0", "q4_k_m"):
                print(f"{name}: {kind}", flush=True)
                subprocess.run([args.llama_quantize, folder / "f16.gguf", folder / f"{kind}.gguf", kind.upper()],
                               check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
