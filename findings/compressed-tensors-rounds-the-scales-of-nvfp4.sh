#!/usr/bin/env bash
# compressed-tensors gives the values of an NVFP4 matrix in bfloat16, of weights and scales in float32 too.
#
# Versions    compressed-tensors 0.20.0, torch 2.15.0 (on a processor)
# Behaviour   NVFP4PackedCompressor.decompress unpacks the floats of 4 bits as bfloat16, and divides each group's scale
#             by the matrix's in that type. The values differ from code * scale / whole by up to half a unit of bfloat16.
#             dequantize of the same library, called with floats, gives these products.
# Why         unpack_fp4_from_uint8 has bfloat16 as its default, and the scales take its type.
# What to do  Compare with dequantize in float32, as programs with kernels for NVFP4 compute it; or expect errors of 2^-9.
# Seen        the largest relative difference: 0 of dequantize; above 1e-3 and at most 2^-8 of decompress
source "$(dirname "$0")/common.sh"
packages compressed-tensors==0.20.0 torch==2.15.0 transformers==5.24.0 numpy==2.4.6
check <<'EOF'
import torch
from compressed_tensors.compressors.nvfp4 import NVFP4PackedCompressor
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.quantization.lifecycle.forward import dequantize
from compressed_tensors.quantization.quant_scheme import preset_name_to_scheme
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

torch.manual_seed(1)
weight = torch.randn(40, 96)
scheme = preset_name_to_scheme("NVFP4", ["Linear"])
groups = weight.reshape(40, -1, 16)
low, high = groups.amin(-1), groups.amax(-1)
whole = generate_gparam(low.min(), high.max())
scale, zero = calculate_qparams(low, high, scheme.weights, global_scale=whole)
stored = NVFP4PackedCompressor.compress(
    {"weight": weight, "weight_scale": scale, "weight_zero_point": zero, "weight_global_scale": whole}, scheme)

codes = unpack_fp4_from_uint8(stored["weight_packed"], 40, 96, dtype=torch.float32)
scales = stored["weight_scale"].float()
exact = codes * (scales.double() / whole.double()).repeat_interleave(16, 1)
given = NVFP4PackedCompressor.decompress({**stored, "weight_scale": scales}, scheme)["weight"]
in_floats = dequantize(x_q=codes, scale=scales, args=scheme.weights, global_scale=whole, dtype=torch.float32)


def off(values):
    some = exact != 0
    return ((values.double() - exact)[some] / exact[some]).abs().max().item()


print(f"decompress, {given.dtype}: {off(given):.1e}; dequantize: {off(in_floats):.1e}")
seen("decompress is off by more than 1e-3, and at most 2^-8", 1e-3 < off(given) <= 2**-8, True)
seen("dequantize is off by less than 1e-6", off(in_floats) < 1e-6, True)
EOF
