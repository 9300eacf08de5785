#!/usr/bin/env bash
# llama.cpp's GELU on a processor has the precision of 16-bit floats, also in a model of 32-bit floats.
#
# Versions    llama-cpp-python 0.3.36 (its source archive has llama.cpp, which is compiled: some minutes)
# Behaviour   GELU of a float comes from a table: the input is rounded to 16 bits, and the table's values are rounded to 16
#             bits. SiLU is computed in 32 bits.
# Why         The logits of a small random model of Gemma 2 or 3 in float32 differ by 1e-3 of the largest from those of
#             transformers, where those of families with SiLU differ by 1e-6. A comparison that allows 1e-4 fails, and the fault
#             is in neither model nor file.
# What to do  Compare families with GELU less strictly, or round GELU likewise in the reference.
# Seen        GELU: off by more than 1e-4 of the exact value, and equal to it when input and output are rounded to 16 bits
#             (but for one unit in the last of 16-bit places); SiLU: off by less than 1e-6
source "$(dirname "$0")/common.sh"
packages numpy==2.4.6
CMAKE_ARGS="-DLLAVA_BUILD=OFF" "$work/venv/bin/pip" install --quiet --disable-pip-version-check \
  --no-binary llama-cpp-python llama-cpp-python==0.3.36
check <<'EOF2'
import ctypes, os, pathlib

import llama_cpp
import numpy as np

folder = pathlib.Path(os.environ.get("LLAMA_CPP_LIB_PATH") or pathlib.Path(llama_cpp.__file__).parent / "lib")
base = ctypes.CDLL(folder / "libggml-base.so", mode=ctypes.RTLD_GLOBAL)
cpu = ctypes.CDLL(folder / "libggml-cpu.so")


class Params(ctypes.Structure):
    _fields_ = [("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]


pointer = ctypes.c_void_p
for function, arguments in ((base.ggml_init, [Params]), (base.ggml_new_tensor_1d, [pointer, ctypes.c_int, ctypes.c_int64]),
                            (base.ggml_gelu, [pointer] * 2), (base.ggml_silu, [pointer] * 2),
                            (base.ggml_get_data_f32, [pointer]), (base.ggml_new_graph, [pointer])):
    function.argtypes, function.restype = arguments, pointer
base.ggml_build_forward_expand.argtypes = [pointer] * 2
cpu.ggml_graph_compute_with_ctx.argtypes = [pointer, pointer, ctypes.c_int]
cpu.ggml_cpu_init()


def computed(function, x):
    context = base.ggml_init(Params(1 << 24, None, False))
    tensor = base.ggml_new_tensor_1d(context, 0, len(x))
    ctypes.memmove(base.ggml_get_data_f32(tensor), x.tobytes(), x.nbytes)
    result = function(context, tensor)
    graph = base.ggml_new_graph(context)
    base.ggml_build_forward_expand(graph, result)
    assert cpu.ggml_graph_compute_with_ctx(context, graph, 1) == 0
    return np.frombuffer(ctypes.string_at(base.ggml_get_data_f32(result), x.nbytes), dtype=np.float32)


def gelu(x):
    x = x.astype(np.float64)
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


x = np.random.default_rng(1).uniform(0.5, 4, 1000).astype(np.float32)
found, exact = computed(base.ggml_gelu, x), gelu(x)
seen("GELU: off by more than 1e-4", float(np.abs(found / exact - 1).max()) > 1e-4, True)
halves = gelu(x.astype(np.float16)).astype(np.float16)
steps = np.abs(found.astype(np.float16).view(np.int16).astype(int) - halves.view(np.int16))
seen("GELU: is a number of 16 bits, and that of the rounded input", (bool((found == found.astype(np.float16)).all()),
                                                                     int(steps.max()) <= 1), (True, True))
silu = x / (1 + np.exp(-x.astype(np.float64)))
seen("SiLU: off by less than 1e-6", float(np.abs(computed(base.ggml_silu, x) / silu - 1).max()) < 1e-6, True)
EOF2
