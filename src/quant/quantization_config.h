// How the weights of a published quantised model are stored: `quantization_config` of its config.json.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace loramux {

class ModuleNames;

// The libraries that wrote the files; fbgemm_fp8 counts as kFp8.
enum class QuantMethod { kGptq, kAwq, kCompressedTensors, kFp8, kBitsAndBytes, kMxfp4, kModelOpt };

// "gptq", "compressed-tensors": as quant_method says it.
const char* QuantMethodName(QuantMethod method);

// How the weights of some layers are stored.
struct QuantScheme {
  enum class Store { kPackedIntegers, kIntegers, kFloat8, kFloat4 };
  // What shares a scale: the matrix, an output, neighbouring inputs of an output, or a rectangle.
  enum class Spread { kTensor, kChannel, kGroup, kBlock };

  Store store = Store::kPackedIntegers;
  Spread spread = Spread::kGroup;
  int bits = 4;
  std::int64_t group_size = 0;                     // kGroup: inputs; above 0
  std::int64_t block_rows = 0, block_columns = 0;  // kBlock; above 0
  bool symmetric = true;                           // no zero points
  bool inverse = false;                            // kFloat8: a value is the stored one divided by its scale
  bool exponents = false;                          // kGroup: scales are exponents of two (the MX formats)
};

// One entry of compressed-tensors' config_groups.
struct QuantGroup {
  std::shared_ptr<const ModuleNames> targets;
  QuantScheme scheme;
};

// A configuration that loramux can serve.
struct QuantizationConfig {
  QuantMethod method = QuantMethod::kGptq;
  // kGptq, kAwq: bits and group size; kFp8, kModelOpt: store and spread. Others have them elsewhere.
  QuantScheme scheme;
  int zero_offset = 0;             // kGptq: what the stored zero points lack: 1 in the format gptq, 0 in gptq_v2
  std::vector<QuantGroup> groups;  // kCompressedTensors
  std::shared_ptr<const ModuleNames> ignored;  // kCompressedTensors
  bool static_activations = false;             // scales of activations may be stored; they are not used
  bool says_symmetric = false;                 // GPTQ: `sym` is there and true
  bool kv_scales = false;                      // scales of keys and values may be stored; they are not used

  // kCompressedTensors: how the matrix of this module ("model.layers.0.mlp.up_proj") is stored; null: as floats.
  const QuantScheme* SchemeOf(std::string_view module) const;
};

// For reports: "gptq, 4 bits in groups of 128".
std::string Describe(const QuantizationConfig& config);

// Parses the text of `quantization_config` of a config.json (ModelConfig::quantization). Errors name the field, what
// was found and the nearest that is supported; a key that loramux does not know is one, unless it is off. `label` names
// the file. The text is untrusted.
Result<QuantizationConfig> ParseQuantizationConfig(std::string_view json, const std::string& label);

}  // namespace loramux
