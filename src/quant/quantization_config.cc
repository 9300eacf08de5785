#include "quant/quantization_config.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "formats/json_fields.h"
#include "formats/message.h"
#include "quant/module_names.h"

namespace loramux {
namespace {

using Store = QuantScheme::Store;
using Spread = QuantScheme::Spread;

constexpr std::int64_t kMostGroup = std::int64_t{1} << 24;
constexpr const char* kMethods =
    "gptq, awq, compressed-tensors, fp8, fbgemm_fp8 and bitsandbytes; or give weights in f32, bf16 or f16 and round "
    "them "
    "with --weights q8 or q4";

// The refusal of a value that another program may support.
Error NotServed(const JsonFields& fields, const char* key, const std::string& supported) {
  return Unsupported(fields.label() + key + ": found " + Describe(*fields.Find(key)) +
                     ", which is not supported; loramux serves " + supported);
}

std::string Lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

// A list of names; empty if the field is absent.
Result<std::vector<std::string>> NamesIn(const JsonFields& fields, const char* key) {
  std::vector<std::string> names;
  const nlohmann::json* list = fields.Find(key);
  if (list == nullptr) return names;
  if (!list->is_array()) return fields.Bad(key, "a list of names of modules");
  for (const nlohmann::json& name : *list) {
    if (!name.is_string()) return fields.Bad(key, "a list of names of modules");
    names.push_back(name.get<std::string>());
  }
  return names;
}

// Error: an option is on that changes the weights in a way that loramux does not know.
Status RefuseOptions(const JsonFields& fields, std::initializer_list<const char*> keys, const std::string& supported) {
  for (const char* key : keys) {
    const nlohmann::json* value = fields.Find(key);
    if (value != nullptr && !IsOff(*value)) return NotServed(fields, key, supported);
  }
  return Ok{};
}

// bits and group_size of GPTQ and AWQ; -1: a whole row.
Status ParseGroups(const JsonFields& fields, const char* bits, std::int64_t default_group, QuantScheme& scheme) {
  ASSIGN_OR_RETURN(const std::int64_t group, fields.IntOr("group_size", -1, kMostGroup, default_group));
  if (group == 0) return fields.Bad("group_size", "-1 (a whole row), or a number of inputs, as 128");
  ASSIGN_OR_RETURN(const std::int64_t found, fields.RequiredInt(bits, 1, 64));
  scheme.bits = static_cast<int>(found);
  scheme.spread = group < 0 ? Spread::kChannel : Spread::kGroup;
  scheme.group_size = std::max<std::int64_t>(0, group);
  return Ok{};
}

// ---- GPTQ

Result<QuantizationConfig> ParseGptq(const JsonFields& fields) {
  QuantizationConfig config;
  config.method = QuantMethod::kGptq;
  RETURN_IF_ERROR(ParseGroups(fields, "bits", -1, config.scheme));
  if (config.scheme.bits != 4 && config.scheme.bits != 8) return NotServed(fields, "bits", "GPTQ with 4 or 8 bits");
  ASSIGN_OR_RETURN(config.scheme.symmetric, fields.BoolOr("sym", true));
  config.says_symmetric = fields.Has("sym") && config.scheme.symmetric;
  RETURN_IF_ERROR(fields.BoolOr("desc_act", false));
  RETURN_IF_ERROR(RefuseOptions(fields, {"is_marlin_format", "dynamic", "rotation", "adapter"},
                                "GPTQ with the same bits for all layers, in the checkpoint formats gptq and gptq_v2"));
  ASSIGN_OR_RETURN(const auto pack, fields.String("pack_dtype"));
  if (pack && *pack != "int32") return NotServed(fields, "pack_dtype", "int32");
  const char* const key = fields.Has("checkpoint_format") ? "checkpoint_format" : "format";
  ASSIGN_OR_RETURN(const auto format, fields.String(key));
  if (format && *format != "gptq" && *format != "gptq_v2") return NotServed(fields, key, "gptq and gptq_v2");
  config.zero_offset = format == "gptq_v2" ? 0 : 1;
  return config;
}

// ---- AWQ

Result<QuantizationConfig> ParseAwq(const JsonFields& fields) {
  QuantizationConfig config;
  config.method = QuantMethod::kAwq;
  const char* const bits = !fields.Has("bits") && fields.Has("w_bit") ? "w_bit" : "bits";
  RETURN_IF_ERROR(ParseGroups(fields, bits, 128, config.scheme));
  if (config.scheme.bits != 4) return NotServed(fields, bits, "AWQ with 4 bits");
  const char* const key = fields.Has("version") ? "version" : "format";
  ASSIGN_OR_RETURN(const auto version, fields.String(key));
  if (version && Lower(*version) != "gemm") return NotServed(fields, key, "AWQ in the version gemm");
  ASSIGN_OR_RETURN(const bool zero_points, fields.BoolOr("zero_point", true));
  if (!zero_points) return NotServed(fields, "zero_point", "AWQ with zero points");
  config.scheme.symmetric = false;
  ASSIGN_OR_RETURN(const auto backend, fields.String("backend"));
  if (backend == "llm-awq") return NotServed(fields, "backend", "files that autoawq wrote");
  // What the file holds decides; the list must only be one.
  RETURN_IF_ERROR(NamesIn(fields, "modules_to_not_convert"));
  return config;
}

// ---- FP8

// [rows, columns] of the rectangles that share a scale.
Status ParseBlock(const JsonFields& fields, const char* key, QuantScheme& scheme) {
  const nlohmann::json* block = fields.Find(key);
  const std::string expected = "two extents, as [128, 128]";
  if (!block->is_array() || block->size() != 2) return fields.Bad(key, expected);
  const auto rows = IntegerIn((*block)[0], 1, kMostGroup), columns = IntegerIn((*block)[1], 1, kMostGroup);
  if (!rows || !columns) return fields.Bad(key, expected);
  scheme.spread = Spread::kBlock;
  scheme.block_rows = *rows;
  scheme.block_columns = *columns;
  return Ok{};
}

Result<QuantizationConfig> ParseFp8(const JsonFields& fields, bool fbgemm) {
  QuantizationConfig config;
  config.method = QuantMethod::kFp8;
  config.scheme.store = Store::kFloat8;
  config.scheme.bits = 8;
  config.scheme.spread = fbgemm ? Spread::kChannel : Spread::kTensor;
  RETURN_IF_ERROR(NamesIn(fields, "modules_to_not_convert"));
  config.kv_scales = fields.Has("kv_cache_scheme");
  if (fbgemm) {
    RETURN_IF_ERROR(fields.Number("activation_scale_ub"));
    config.static_activations = true;
    return config;
  }
  ASSIGN_OR_RETURN(const auto format, fields.String("fmt"));
  if (format && *format != "e4m3" && *format != "float8_e4m3fn") return NotServed(fields, "fmt", "FP8 as e4m3");
  ASSIGN_OR_RETURN(const auto scales, fields.String("scale_fmt"));
  if (scales && *scales != "float" && *scales != "float32") return NotServed(fields, "scale_fmt", "scales in floats");
  ASSIGN_OR_RETURN(const auto activations, fields.String("activation_scheme"));
  if (activations && *activations != "dynamic" && *activations != "static") {
    return NotServed(fields, "activation_scheme", "dynamic and static");
  }
  config.static_activations = activations == "static";
  RETURN_IF_ERROR(NamesIn(fields, "ignored_layers"));
  if (fields.Has("weight_block_size")) RETURN_IF_ERROR(ParseBlock(fields, "weight_block_size", config.scheme));
  return config;
}

// ---- bitsandbytes

Result<QuantizationConfig> ParseBitsAndBytes(const JsonFields& fields) {
  QuantizationConfig config;
  config.method = QuantMethod::kBitsAndBytes;
  ASSIGN_OR_RETURN(const bool four, fields.BoolOr("load_in_4bit", false));
  ASSIGN_OR_RETURN(const bool eight, fields.BoolOr("load_in_8bit", false));
  if (four == eight) {
    return InvalidArgument(fields.label() + "load_in_4bit, load_in_8bit: expected one of them to be true, found " +
                           (four ? "both" : "neither"));
  }
  config.scheme.bits = four ? 4 : 8;
  config.scheme.spread = four ? Spread::kGroup : Spread::kChannel;
  config.scheme.store = Store::kIntegers;
  RETURN_IF_ERROR(NamesIn(fields, "llm_int8_skip_modules"));
  ASSIGN_OR_RETURN(const auto type, fields.String("bnb_4bit_quant_type"));
  if (four && type && *type != "nf4" && *type != "fp4") {
    return NotServed(fields, "bnb_4bit_quant_type", "nf4 and fp4");
  }
  return config;
}

// ---- compressed-tensors

Status ParseSpread(const JsonFields& weights, QuantScheme& scheme) {
  const nlohmann::json* group = weights.Find("group_size");
  ASSIGN_OR_RETURN(const auto strategy, weights.String("strategy"));
  const std::string name = strategy.value_or(group != nullptr ? "group" : "tensor");
  if (name == "tensor") scheme.spread = Spread::kTensor;
  if (name == "channel") scheme.spread = Spread::kChannel;
  if (name == "tensor" || name == "channel") return Ok{};
  if (name == "group") {
    ASSIGN_OR_RETURN(const std::int64_t size, weights.RequiredInt("group_size", -1, kMostGroup));
    if (size == 0) return weights.Bad("group_size", "a number of inputs, as 128");
    scheme.spread = size < 0 ? Spread::kChannel : Spread::kGroup;
    scheme.group_size = std::max<std::int64_t>(0, size);
    return Ok{};
  }
  if (name == "block") {
    if (!weights.Has("block_structure")) return weights.Missing("block_structure", "two extents, as [128, 128]");
    return ParseBlock(weights, "block_structure", scheme);
  }
  return NotServed(weights, "strategy", "tensor, channel, group and block");
}

// `format` of the weights: what is stored. Naive is what has no format of its own.
Status ParseStore(const JsonFields& weights, const std::string& format, QuantScheme& scheme) {
  ASSIGN_OR_RETURN(const std::int64_t bits, weights.IntOr("num_bits", 1, 64, 8));
  ASSIGN_OR_RETURN(const auto type, weights.String("type"));
  const bool floats = type == "float";
  if (type && !floats && *type != "int") return NotServed(weights, "type", "int and float");
  scheme.bits = static_cast<int>(bits);
  const bool naive = format == "naive-quantized";
  if (format == "pack-quantized" && !floats) {
    scheme.store = Store::kPackedIntegers;
    if (bits != 4 && bits != 8) return NotServed(weights, "num_bits", "pack-quantized integers of 4 or 8 bits");
    return Ok{};
  }
  if (floats && (naive || format == "float-quantized")) {
    scheme.store = Store::kFloat8;
    if (bits != 8) return NotServed(weights, "num_bits", "floats of 8 bits (FP8) and integers of 4 or 8 bits");
    return Ok{};
  }
  if (!floats && (naive || format == "int-quantized")) {
    scheme.store = Store::kIntegers;
    if (bits != 8) return NotServed(weights, "num_bits", "int-quantized integers of 8 bits");
    return Ok{};
  }
  return Unsupported(weights.label() + "format " + Quote(format) + " with type " + (floats ? "float" : "int") +
                     " is not supported; loramux serves pack-quantized and int-quantized integers, and "
                     "float-quantized floats");
}

Status ParseWeights(const JsonFields& weights, const std::string& format, QuantScheme& scheme) {
  RETURN_IF_ERROR(ParseStore(weights, format, scheme));
  ASSIGN_OR_RETURN(scheme.symmetric, weights.BoolOr("symmetric", true));
  ASSIGN_OR_RETURN(const bool dynamic, weights.BoolOr("dynamic", false));
  if (dynamic) return NotServed(weights, "dynamic", "weights with stored scales");
  RETURN_IF_ERROR(ParseSpread(weights, scheme));
  if (scheme.spread == Spread::kBlock && scheme.store != Store::kFloat8) {
    return NotServed(weights, "strategy", "tensor, channel and group for integers");
  }
  if (scheme.store == Store::kFloat8 && !scheme.symmetric) {
    return NotServed(weights, "symmetric", "FP8 without zero points");
  }
  return Ok{};
}

// Activations that are rounded change nothing that is stored. Their stored scales are accepted and not used.
Status ParseActivations(const JsonFields& group, const char* key, QuantizationConfig& config) {
  const nlohmann::json* value = group.Find(key);
  if (value == nullptr) return Ok{};
  if (!value->is_object()) return group.Bad(key, "an object, or null");
  const JsonFields activations(*value, group.label() + key + ".");
  const nlohmann::json* dynamic = activations.Find("dynamic");
  if (dynamic == nullptr || *dynamic != true) config.static_activations = true;
  return Ok{};
}

Status ParseConfigGroup(const JsonFields& group, const std::optional<std::string>& format, QuantizationConfig& config) {
  QuantGroup parsed;
  ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(group, "targets"));
  if (names.empty()) return group.Missing("targets", "a list of modules, as [\"Linear\"]");
  ASSIGN_OR_RETURN(parsed.targets, ModuleNames::Compile(names, group.label() + "targets"));
  RETURN_IF_ERROR(ParseActivations(group, "input_activations", config));
  RETURN_IF_ERROR(ParseActivations(group, "output_activations", config));
  ASSIGN_OR_RETURN(const auto own, group.String("format"));
  const nlohmann::json* weights = group.Find("weights");
  if (weights == nullptr) return group.Missing("weights", "an object that says how weights are stored");
  if (!weights->is_object()) return group.Bad("weights", "an object");
  const std::string stored = own ? *own : format.value_or("naive-quantized");
  RETURN_IF_ERROR(ParseWeights(JsonFields(*weights, group.label() + "weights."), stored, parsed.scheme));
  config.groups.push_back(std::move(parsed));
  return Ok{};
}

Status RefuseTransforms(const JsonFields& fields) {
  RETURN_IF_ERROR(RefuseOptions(fields, {"transform_config"}, "weights without transforms"));
  const nlohmann::json* sparsity = fields.Find("sparsity_config");
  if (sparsity == nullptr || IsOff(*sparsity)) return Ok{};
  if (!sparsity->is_object()) return fields.Bad("sparsity_config", "an object, or null");
  const JsonFields sparse(*sparsity, fields.label() + "sparsity_config.");
  ASSIGN_OR_RETURN(const auto format, sparse.String("format"));
  if (format && *format != "dense") return NotServed(sparse, "format", "dense");
  return Ok{};
}

Result<QuantizationConfig> ParseCompressedTensors(const JsonFields& fields) {
  constexpr std::size_t kMostGroups = 64;
  QuantizationConfig config;
  config.method = QuantMethod::kCompressedTensors;
  RETURN_IF_ERROR(RefuseTransforms(fields));
  ASSIGN_OR_RETURN(const auto format, fields.String("format"));
  ASSIGN_OR_RETURN(const std::vector<std::string> ignored, NamesIn(fields, "ignore"));
  ASSIGN_OR_RETURN(config.ignored, ModuleNames::Compile(ignored, fields.label() + "ignore"));
  const nlohmann::json* kv = fields.Find("kv_cache_scheme");
  config.kv_scales = kv != nullptr && !IsOff(*kv);
  const nlohmann::json* groups = fields.Find("config_groups");
  if (groups == nullptr) return fields.Missing("config_groups", "an object of groups with targets and weights");
  if (!groups->is_object() || groups->empty() || groups->size() > kMostGroups) {
    return fields.Bad("config_groups", "an object of 1 to " + std::to_string(kMostGroups) + " groups");
  }
  for (const auto& [name, group] : groups->items()) {
    const std::string label = fields.label() + "config_groups." + Printable(name);
    if (!group.is_object()) return InvalidArgument(label + ": expected an object, found " + Describe(group));
    RETURN_IF_ERROR(ParseConfigGroup(JsonFields(group, label + "."), format, config));
  }
  return config;
}

// ---- all

// The name of the method; files of 2023 by bitsandbytes have none.
Result<std::string> MethodOf(const JsonFields& fields) {
  ASSIGN_OR_RETURN(const auto method, fields.String("quant_method"));
  if (method) return *method;
  if (fields.Has("load_in_4bit") || fields.Has("load_in_8bit")) return std::string("bitsandbytes");
  return fields.Missing("quant_method", "one of " + std::string(kMethods));
}

Result<QuantizationConfig> ParseMethod(const JsonFields& fields) {
  ASSIGN_OR_RETURN(const std::string method, MethodOf(fields));
  if (method == "gptq") return ParseGptq(fields);
  if (method == "awq") return ParseAwq(fields);
  if (method == "compressed-tensors") return ParseCompressedTensors(fields);
  if (method == "fp8") return ParseFp8(fields, /*fbgemm=*/false);
  if (method == "fbgemm_fp8") return ParseFp8(fields, /*fbgemm=*/true);
  if (method == "bitsandbytes") return ParseBitsAndBytes(fields);
  return NotServed(fields, "quant_method", kMethods);
}

std::string DescribeScheme(const QuantScheme& scheme) {
  std::string text = scheme.store == Store::kFloat8 ? "FP8" : std::to_string(scheme.bits) + " bits";
  if (scheme.spread == Spread::kTensor) text += " with a scale for each matrix";
  if (scheme.spread == Spread::kChannel) text += " with a scale for each output";
  if (scheme.spread == Spread::kGroup && scheme.group_size > 0) {
    text += " in groups of " + std::to_string(scheme.group_size);
  }
  if (scheme.spread == Spread::kBlock) {
    text += " in blocks of " + std::to_string(scheme.block_rows) + " x " + std::to_string(scheme.block_columns);
  }
  return text;
}

}  // namespace

const char* QuantMethodName(QuantMethod method) {
  static constexpr std::array<const char*, 5> kNames = {"gptq", "awq", "compressed-tensors", "fp8", "bitsandbytes"};
  return kNames[static_cast<std::size_t>(method)];
}

std::string Describe(const QuantizationConfig& config) {
  std::string text = QuantMethodName(config.method);
  if (config.groups.empty()) return text + ", " + DescribeScheme(config.scheme);
  for (const QuantGroup& group : config.groups) {
    const std::string scheme = DescribeScheme(group.scheme);
    if (text.find(scheme) == std::string::npos) text += ", " + scheme;
  }
  return text;
}

const QuantScheme* QuantizationConfig::SchemeOf(std::string_view module) const {
  if (ignored != nullptr && (ignored->HasLinear() || ignored->Names(module))) return nullptr;
  auto group =
      std::find_if(groups.begin(), groups.end(), [&](const QuantGroup& g) { return g.targets->Names(module); });
  if (group == groups.end()) {
    group = std::find_if(groups.begin(), groups.end(), [](const QuantGroup& g) { return g.targets->HasLinear(); });
  }
  return group == groups.end() ? nullptr : &group->scheme;
}

Result<QuantizationConfig> ParseQuantizationConfig(std::string_view json, const std::string& label) {
  const std::string name = label + ": quantization_config";
  ASSIGN_OR_RETURN(const nlohmann::json object, ParseJsonObject(json, name));
  return ParseMethod(JsonFields(object, name + "."));
}

}  // namespace loramux
