// Flags of vLLM, SGLang, llama.cpp's server and TGI or LoRAX, and what they mean to `loramux serve`.
#pragma once

#include <span>

#include "tools/command_line/foreign_flag.h"

namespace loramux {

// The table, grouped by server. No name is one of `loramux serve` itself.
std::span<const ForeignFlag> ForeignServeFlags();

}  // namespace loramux
