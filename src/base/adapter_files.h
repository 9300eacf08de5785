// The names of an adapter's files.
#pragma once

#include <array>

namespace loramux {

inline constexpr const char* kAdapterConfigFile = "adapter_config.json";
// The file of tensors, by the tools that write it: PEFT, mlx-lm. The first that exists is fetched.
inline constexpr std::array<const char*, 2> kAdapterTensorFiles = {"adapter_model.safetensors", "adapters.safetensors"};

}  // namespace loramux
