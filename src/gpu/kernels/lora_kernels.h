// The two kernels of the batched LoRA product.
#pragma once

#include "gpu/kernels/lora_expand_kernel.h"
#include "gpu/kernels/lora_shrink_kernel.h"
