#!/usr/bin/env bash
# TRL: the asynchronous GRPO trainer cannot be made on a machine without a GPU.
#
# Versions    trl 1.16.0, accelerate 1.15.0, transformers 5.24.0, torch 2.15.0 (needs 6 GB of disk while it runs)
# Behaviour   To know the peak FLOPs of the device, the trainer asks CUDA for the device's name, which raises on a CPU, although
#             its configuration takes use_cpu=True. The table of peaks itself answers None for a device that it does not know.
# Why         Whoever tries the trainer against a CPU server sees an error about a missing driver before a request is sent.
# What to do  Give the device a name first: torch.cuda.get_device_name = lambda *_: "CPU"
# Seen        the peak of "CPU" by the table: None; by the trainer's function: an error that speaks of CUDA, and None once the
#             name is given
source "$(dirname "$0")/common.sh"
packages trl==1.16.0 accelerate==1.15.0 transformers==5.24.0 torch==2.15.0
check <<'EOF2'
import os

os.environ["CUDA_VISIBLE_DEVICES"] = ""
import torch
from accelerate import Accelerator
from trl.trainer.utils import get_peak_flops, get_peak_flops_per_device


def peak():
    try:
        return get_peak_flops_per_device(Accelerator(cpu=True), "float32")
    except (RuntimeError, AssertionError, ValueError) as error:
        return f"raises, and speaks of CUDA: {any(word in str(error) for word in ('CUDA', 'NVIDIA', 'cuda'))}"


seen("the peak of a device that the table does not know", get_peak_flops("CPU", "float32"), None)
seen("the peak of the CPU", peak(), "raises, and speaks of CUDA: True")
torch.cuda.get_device_name = lambda *_: "CPU"
seen("the peak of the CPU, once it has a name", peak(), None)
EOF2
