#!/usr/bin/env python3
"""Makes tests/golden/quantised: layers and tiny models in the formats in which quantised models are published, and what
they are in floats (README.md describes the files).

compressed-tensors and bitsandbytes write their files themselves, and say what the values are. GPTQ, AWQ and FP8 files are
packed here by their published layouts, and their values are computed from the integers before packing."""

import argparse
import copy
import json
import pathlib
import tempfile

from golden_common import HERE, fresh_dir, stable_seed, versions, write_json

import bitsandbytes
import peft
import torch
import transformers
from bitsandbytes import functional as bnb
from compressed_tensors.compressors.mxfp4 import MXFP4PackedCompressor
from compressed_tensors.compressors.mxfp8 import MXFP8QuantizationCompressor
from compressed_tensors.compressors.naive_quantized import NaiveQuantizationCompressor
from compressed_tensors.compressors.nvfp4 import NVFP4PackedCompressor
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.compressors.pack_quantized import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize
from compressed_tensors.quantization.quant_scheme import preset_name_to_scheme
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from safetensors.torch import load_file, save_file

import make_models

try:
    from modelopt.torch.quantization.qtensor import NVFP4QTensor
except ImportError:  # needed for the cases modelopt_nvfp4* alone
    NVFP4QTensor = None

COMPRESSORS = {"pack-quantized": PackedQuantizationCompressor, "nvfp4-pack-quantized": NVFP4PackedCompressor,
               "mxfp4-pack-quantized": MXFP4PackedCompressor, "mxfp8-quantized": MXFP8QuantizationCompressor}
ROWS, COLUMNS = 40, 96
OUT = HERE / "quantised"


def cdiv(a, b):
    return -(-a // b)


def words(codes, bits, dim):
    """Packs unsigned integers along a dimension into int32, lowest bits first."""
    codes = codes.movedim(dim, -1).to(torch.int64)
    per_word = 32 // bits
    codes = torch.nn.functional.pad(codes, (0, -codes.shape[-1] % per_word))
    parts = codes.unflatten(-1, (-1, per_word)) << (torch.arange(per_word) * bits)
    packed = parts.sum(-1)
    packed = torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32)
    return packed.movedim(-1, dim).contiguous()


def affine(weight, bits, groups, symmetric):
    """(codes [out, in], scales [out, groups], zeros [out, groups]) for the group of each input."""
    out, count = weight.shape[0], int(groups.max()) + 1
    most = 2**bits - 1
    codes = torch.zeros(weight.shape, dtype=torch.int64)
    scales, zeros = torch.zeros(out, count), torch.zeros(out, count, dtype=torch.int64)
    for g in range(count):
        w = weight[:, groups == g]
        low, high = w.amin(1).clamp(max=0), w.amax(1).clamp(min=0)
        if symmetric:
            high = torch.maximum(high, -low)
            scale = (2 * high / most).half().float()
            zero = torch.full((out,), 2**(bits - 1))
        else:
            scale = ((high - low) / most).half().float()
            zero = (-low / scale).round().clamp(1, most).long()
        codes[:, groups == g] = ((w / scale[:, None]).round().long() + zero[:, None]).clamp(0, most)
        scales[:, g], zeros[:, g] = scale, zero
    return codes, scales, zeros


def values(codes, scales, zeros, groups):
    return scales[:, groups] * (codes - zeros[:, groups]).float()


# Each returns (tensors by suffix, values in float32).

def gptq(weight, bits=4, group=32, symmetric=True, act_order=False, v2=False):
    columns = weight.shape[1]
    groups = torch.arange(columns) // (group if group > 0 else columns)
    if act_order:
        groups = groups[torch.randperm(columns, generator=torch.Generator().manual_seed(3))]
    codes, scales, zeros = affine(weight, bits, groups, symmetric)
    return {"qweight": words(codes.T, bits, 0), "scales": scales.T.half().contiguous(),
            "qzeros": words((zeros - (0 if v2 else 1)).T, bits, 1), "g_idx": groups.to(torch.int32),
            }, values(codes, scales, zeros, groups)


def awq(weight, group=32):
    groups = torch.arange(weight.shape[1]) // group
    codes, scales, zeros = affine(weight, 4, groups, symmetric=False)
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])

    def interleaved(lines):
        return words(lines.unflatten(-1, (-1, 8))[..., order].flatten(-2), 4, 1)
    return {"qweight": interleaved(codes.T), "qzeros": interleaved(zeros.T),
            "scales": scales.T.half().contiguous()}, values(codes, scales, zeros, groups)


def fp8(weight, block, name, dtype=torch.float32):
    """Scales of rectangles."""
    rows, columns = cdiv(weight.shape[0], block[0]), cdiv(weight.shape[1], block[1])
    scales = torch.zeros(rows, columns)
    spread = torch.zeros(weight.shape)
    for r in range(rows):
        for c in range(columns):
            part = (slice(r * block[0], (r + 1) * block[0]), slice(c * block[1], (c + 1) * block[1]))
            scales[r, c] = (weight[part].abs().max() / 448).to(dtype).float()
            spread[part] = scales[r, c]
    stored = (weight / spread).to(torch.float8_e4m3fn)
    return {"weight": stored, name: scales.to(dtype)}, stored.float() * spread


def fp8_inverse(weight, block):
    """As GPTQModel's TorchFP8Linear: a value is the stored one divided by its scale. None: a whole matrix; a number
    of rows and columns: blocks; "row"."""
    high = weight.abs().max() if block is None else weight.abs().amax(1) if block == "row" else \
        weight.unflatten(0, (-1, block[0])).unflatten(2, (-1, block[1])).abs().amax((1, 3))
    scales = 448 / high
    spread = scales if block is None else scales[:, None] if block == "row" else \
        scales.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
    stored = (weight * spread).clamp(-448, 448).to(torch.float8_e4m3fn)
    return {"weight": stored, "weight_scale_inv": scales}, stored.float() / spread


def compressed(weight, scheme, format, dtype=torch.float32):
    args = scheme.weights
    if args.strategy == "block":
        rows, columns = args.block_structure
        parts = [[weight[r:r + rows, c:c + columns].abs().max() for c in range(0, weight.shape[1], columns)]
                 for r in range(0, weight.shape[0], rows)]
        high = torch.tensor(parts)
        low = -high
    else:
        of_groups = (weight.shape[0], -1, args.group_size or 1)
        shape = {"tensor": (1, -1), "channel": (weight.shape[0], 1, -1), "group": of_groups,
                 "tensor_group": of_groups}[args.strategy]
        low, high = weight.reshape(shape).amin(-1), weight.reshape(shape).amax(-1)
    whole = {"weight_global_scale": generate_gparam(low.min(), high.max())} if args.strategy == "tensor_group" else {}
    scale, zero = calculate_qparams(low, high, args, global_scale=whole.get("weight_global_scale"))
    scale = scale.to(dtype)
    state = {"weight": weight.to(dtype), "weight_scale": scale, "weight_zero_point": zero, **whole}
    compressor = COMPRESSORS.get(format, NaiveQuantizationCompressor)
    stored = compressor.compress(state, scheme)
    as_floats = {k: v.float() if k == "weight_scale" and v.dtype != torch.uint8 else v for k, v in stored.items()}
    if whole:  # as in float32: the library's `decompress` rounds scales to bfloat16
        codes = unpack_fp4_from_uint8(stored["weight_packed"], *weight.shape, dtype=torch.float32)
        return stored, dequantize(x_q=codes, scale=as_floats["weight_scale"], args=args, dtype=torch.float32, **{
            "global_scale": whole["weight_global_scale"]})
    return stored, compressor.decompress(as_floats, scheme)["weight"].float()


def modelopt_nvfp4(weight):
    """As ModelOpt's export names the parts."""
    packed, scales, whole = NVFP4QTensor.quantize(weight, 16)
    expected = packed.dequantize(dtype=torch.float32, scale=scales, double_scale=whole, block_sizes={-1: 16})
    return {"weight": packed._quantized_data, "weight_scale": scales, "weight_scale_2": whole.reshape(()),
            "input_scale": torch.tensor(0.01)}, expected.float()


def modelopt_fp8(weight, rows=None):
    stored, expected = fp8(weight, (1, COLUMNS) if rows else tuple(weight.shape), "weight_scale")
    scales = stored["weight_scale"].flatten() if rows else stored["weight_scale"].reshape(())
    return {**stored, "weight_scale": scales, "input_scale": torch.tensor(0.01)}, expected


def nibbles(weight, kind="nf4", nested=False):
    quantised, state = bnb.quantize_4bit(weight.contiguous(), blocksize=64, quant_type=kind, compress_statistics=nested)
    tensors = {"weight": quantised}
    tensors.update({f"weight.{k}": v for k, v in state.as_dict(packed=True).items()})
    if weight.shape[1] % 64 == 0:
        return tensors, bnb.dequantize_4bit(quantised, state).float()
    # On a CPU the library takes the blocks of such rows for those of a padded matrix, unlike on a GPU.
    codes = torch.stack([quantised.flatten() >> 4, quantised.flatten() & 15], 1).flatten().long()
    assert not nested
    return tensors, (state.code[codes] * state.absmax.repeat_interleave(64)).reshape(weight.shape)


def scaled_int8(weight):
    stored, scales, _ = bnb.int8_vectorwise_quant(weight.half())
    return {"weight": stored, "SCB": scales.float(), "weight_format": torch.tensor(0, dtype=torch.uint8)}, \
        bnb.int8_vectorwise_dequant(stored, scales.float()).float()


# --------------------------------------------------------------------------- configurations

def gptq_config(bits=4, group=32, symmetric=True, act_order=False, v2=False):
    return {"quant_method": "gptq", "bits": bits, "group_size": group, "sym": symmetric, "desc_act": act_order,
            "damp_percent": 0.1, "static_groups": False, "true_sequential": True,
            "checkpoint_format": "gptq_v2" if v2 else "gptq"}


def fp8_inverse_config(method, **more):
    """As GPTQModel 7.7 writes it, without most of `meta`."""
    return {"quant_method": "fp8", "method": "fp8", "bits": 8, "group_size": -1, "desc_act": False, "lm_head": False,
            "format": "float8_e4m3fn", "checkpoint_format": "float8_e4m3fn", "pack_dtype": "int32",
            "meta": {"quantizer": ["gptqmodel:7.7.0"]}, "weight_scale_method": method,
            "weight_scale_semantics": "inverse", **more}


def scheme_of(strategy, bits=4, kind="int", symmetric=True, **more):
    return QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(
        num_bits=bits, type=kind, strategy=strategy, symmetric=symmetric, **more))


def compressed_config(scheme, format):
    weights = json.loads(scheme.weights.model_dump_json())
    return {"quant_method": "compressed-tensors", "format": format, "ignore": ["lm_head"],
            "quantization_status": "compressed", "kv_cache_scheme": None,
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "output_activations": None,
                                          "input_activations": None}}}


def modelopt_config(algorithm, weights):
    """As ModelOpt 0.47 writes it into config.json."""
    weights = {"dynamic": False, "type": "float", **weights}
    return {"quant_method": "modelopt", "quant_algo": algorithm, "ignore": ["lm_head", "*router*"],
            "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
            "producer": {"name": "modelopt", "version": "0.47.0"},
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": dict(weights)}}}


def nf4_config(kind="nf4", nested=False):
    return {"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False, "bnb_4bit_quant_type": kind,
            "bnb_4bit_use_double_quant": nested, "bnb_4bit_quant_storage": "uint8", "bnb_4bit_compute_dtype": "bfloat16",
            "llm_int8_skip_modules": None}


def layer_cases():
    """name -> (configuration, function of a weight)"""
    cases = {}
    for name, options in {"gptq": {}, "gptq_asymmetric": dict(symmetric=False, group=-1),
                          "gptq_v2": dict(symmetric=False, v2=True), "gptq_act_order": dict(act_order=True),
                          "gptq_8": dict(bits=8), "gptq_8_asymmetric": dict(bits=8, symmetric=False)}.items():
        cases[name] = gptq_config(**options), lambda w, options=options: gptq(w, **options)
    cases["awq"] = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True,
                    "modules_to_not_convert": None}, awq
    for name, scheme, format in [
            ("compressed_int4", scheme_of("group", group_size=32), "pack-quantized"),
            ("compressed_int4_asymmetric", scheme_of("group", group_size=32, symmetric=False), "pack-quantized"),
            ("compressed_int4_channel", scheme_of("channel"), "pack-quantized"),
            ("compressed_packed_int8", scheme_of("group", bits=8, group_size=32), "pack-quantized"),
            ("compressed_int8", scheme_of("channel", bits=8), "int-quantized"),
            ("compressed_int4_in_bytes", scheme_of("group", group_size=32), "int-quantized"),
            ("compressed_int4_in_bytes_asymmetric", scheme_of("group", group_size=32, symmetric=False),
             "int-quantized"),
            ("compressed_int8_asymmetric", scheme_of("channel", bits=8, symmetric=False), "int-quantized"),
            ("compressed_int8_tensor", scheme_of("tensor", bits=8), "int-quantized"),
            ("compressed_fp8", scheme_of("channel", bits=8, kind="float"), "float-quantized"),
            ("compressed_fp8_tensor", scheme_of("tensor", bits=8, kind="float"), "float-quantized"),
            ("compressed_fp8_block", scheme_of("block", bits=8, kind="float", block_structure=[16, 64]),
             "float-quantized"),
            ("compressed_nvfp4", preset_name_to_scheme("NVFP4", ["Linear"]), "nvfp4-pack-quantized"),
            ("compressed_mxfp4", preset_name_to_scheme("MXFP4A16", ["Linear"]), "mxfp4-pack-quantized"),
            ("compressed_mxfp8", preset_name_to_scheme("MXFP8", ["Linear"]), "mxfp8-quantized")]:
        cases[name] = (compressed_config(scheme, format),
                       lambda w, scheme=scheme, format=format: compressed(w, scheme, format))
    block = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [16, 64]}
    cases["fp8_block"] = block, lambda w: fp8(w, (16, 64), "weight_scale_inv")
    cases["gptq_skips"] = {**gptq_config(), "dynamic": {"-:.*mlp.*": {}}}, gptq
    cases["fp8_inverse_tensor"] = fp8_inverse_config("tensor"), lambda w: fp8_inverse(w, None)
    cases["fp8_inverse_rows"] = fp8_inverse_config("row"), lambda w: fp8_inverse(w, "row")
    cases["fp8_inverse_block"] = (fp8_inverse_config("block", weight_block_size=[8, 32]),
                                  lambda w: fp8_inverse(w, (8, 32)))
    cases["fp8_rows"] = ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0, "modules_to_not_convert": []},
                         lambda w: fp8(w, (1, COLUMNS), "weight_scale"))
    cases["modelopt_nvfp4"] = modelopt_config("NVFP4", {"num_bits": 4, "group_size": 16}), modelopt_nvfp4
    cases["modelopt_fp8"] = modelopt_config("FP8", {"num_bits": 8}), modelopt_fp8
    cases["modelopt_fp8_rows"] = (modelopt_config("FP8_PER_CHANNEL_PER_TOKEN", {"num_bits": 8, "strategy": "channel"}),
                                  lambda w: modelopt_fp8(w, rows=True))
    cases["nf4"] = nf4_config(), nibbles
    cases["nf4_odd"] = nf4_config(), nibbles
    cases["nf4_nested"] = nf4_config(nested=True), lambda w: nibbles(w, nested=True)
    cases["fp4"] = nf4_config("fp4"), lambda w: nibbles(w, "fp4")
    cases["llm_int8"] = {"quant_method": "bitsandbytes", "load_in_8bit": True, "load_in_4bit": False}, scaled_int8
    return cases


def make_layers(names):
    for name, (config, quantise) in layer_cases().items():
        if names and name not in names:
            continue
        out = fresh_dir(OUT / "layers" / name)
        generator = torch.Generator().manual_seed(stable_seed("layer", name))
        columns = 128 if name in ("nf4", "nf4_nested", "fp4") else COLUMNS
        weight = torch.randn(ROWS, columns, generator=generator) * torch.rand(ROWS, 1, generator=generator) * 0.3
        weight = weight.half().float()
        tensors, expected = quantise(weight)
        difference = (expected - weight).abs().max() / weight.abs().max()
        assert expected.shape == weight.shape and difference < 0.25, (name, difference)
        write_json(out / "config.json", {"quantization_config": config})
        save_file({f"layer.{k}": v.contiguous() for k, v in tensors.items()}, out / "model.safetensors")
        save_file({"layer.weight": expected.contiguous()}, out / "expected.safetensors")
        print(f"{name}: largest difference {difference:.3f} of the largest weight")


# --------------------------------------------------------------------------- models

def model_cases():
    cases = layer_cases()
    return {name: cases[name] for name in ("gptq", "awq", "compressed_int8", "compressed_mxfp4", "compressed_nvfp4", "fp8_block",
                                           "nf4_nested")}


def make_model(name, config, quantise):
    """A model whose linear layers are quantised. What is expected of it is computed with their values as floats."""
    spec = make_models.case(f"quantised_{name}", "llama", make_models.shape(64, 4, 2, 128, 96, **make_models.rope()), [
        make_models.adapter("all_r4", r=4, lora_alpha=8, target_modules=make_models.ALL_LINEAR, notes="scale 8/4")])
    out = fresh_dir(OUT / "models" / name)
    with tempfile.TemporaryDirectory() as folder:
        floats = pathlib.Path(folder) / "floats"
        make_models.store_model(spec, floats)
        tensors = load_file(floats / "model.safetensors")
        stored = {}
        for key, weight in list(tensors.items()):
            module = key.removesuffix(".weight")
            if "_proj" not in key:
                stored[key] = weight
                continue
            parts, tensors[key] = quantise(weight.half().float())
            stored.update({f"{module}.{k}": v.contiguous() for k, v in parts.items()})
        save_file({k: v.contiguous() for k, v in tensors.items()}, floats / "model.safetensors",
                  metadata={"format": "pt"})
        (out / "model").mkdir()
        raw = json.loads((floats / "config.json").read_text())
        write_json(out / "model" / "config.json", {**raw, "quantization_config": copy.deepcopy(config)})
        save_file(stored, out / "model" / "model.safetensors", metadata={"format": "pt"})
        base = make_models.load_model(floats)
        runs, expected, _ = make_models.make_runs(base, spec, None, False, 0)
        [adapter] = spec["adapters"]
        make_models.store_adapter(floats, spec["name"], adapter, out / "adapters" / "all_r4")
        model = peft.PeftModel.from_pretrained(make_models.load_model(floats), out / "adapters" / "all_r4").eval()
        more, more_expected, _ = make_models.make_runs(model, spec, "all_r4", False, len(expected) // 2, base)
    save_file({**expected, **more_expected}, out / "expected.safetensors")
    write_json(out / "case.json", {
        "format": 1, "name": name, "model": {"dir": "model"},
        "made_with": {**versions(), "bitsandbytes": bitsandbytes.__version__},
        "adapters": [{"name": "all_r4", "dir": "adapters/all_r4"}], "runs": runs + more})
    print(f"model {name}", flush=True)


def in_8_bits(weight):
    """As loramux rounds to q8."""
    groups = weight.unflatten(-1, (-1, 32))
    scales = (groups.abs().amax(-1, keepdim=True) / 127).half().float()
    return ((groups / scales).round().clamp(-127, 127) * scales).flatten(-2)


def print_errors():
    """What rounding to 8 bits adds to the error of formats that are not kept as they are."""
    weight = torch.randn(512, 4096, generator=torch.Generator().manual_seed(0))

    def of_weight(difference):
        return f"{(difference.square().mean() / weight.square().mean()).sqrt():.2%}"
    for name, (_, kept) in {"FP8, blocks of 128 x 128": fp8(weight, (128, 128), "weight_scale_inv"),
                            "NF4": nibbles(weight),
                            "NVFP4": compressed(weight, preset_name_to_scheme("NVFP4", ["Linear"]), "nvfp4-pack-quantized"), "GPTQ, act-order": gptq(weight, group=128, act_order=True)}.items():
        print(f"{name}: error of the format {of_weight(kept - weight)}, in 8 bits {of_weight(in_8_bits(kept) - weight)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--errors", action="store_true", help="write nothing: print errors of rounding")
    parser.add_argument("layers", nargs="*", help="make only these layers (all of them, and the models, otherwise)")
    parser.add_argument("--models", nargs="*", default=[], help="and these models")
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    if args.errors:
        return print_errors()
    make_layers(args.layers)
    chosen = {n: c for n, c in model_cases().items() if not args.layers or n in args.models}
    for name, (config, quantise) in chosen.items():
        make_model(name, config, quantise)
    for path in OUT.rglob("*.safetensors"):  # safetensors writes 0600
        path.chmod(0o644)


if __name__ == "__main__":
    main()
