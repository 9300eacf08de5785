#include "quant/quantization_config.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <span>
#include <utility>

#include "base/message.h"
#include "formats/json_fields.h"
#include "quant/module_names.h"

namespace loramux {
namespace {

using Store = QuantScheme::Store;
using Spread = QuantScheme::Spread;

constexpr std::int64_t kMostGroup = std::int64_t{1} << 24;
constexpr const char* kMethods =
    "gptq, awq, compressed-tensors, modelopt, fp8, fbgemm_fp8, mxfp4 and bitsandbytes; or give weights in f32, bf16 or "
    "f16 and "
    "round "
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

// Keys that say how a model was made or is run elsewhere: what they hold changes no stored value.
constexpr std::string_view kNeutralKeys[] = {
    // keys of every method
    "quant_method", "method", "version", "backend", "meta", "quantizer", "uri", "dequantize", "dataset", "tokenizer",
    "modules_to_not_convert", "modules_to_convert", "ignored_layers", "lm_head", "quant_lm_head", "batch_size",
    "provider", "producer",
    // AutoGPTQ, GPTQModel, transformers
    "damp_percent", "damp_auto_increment", "static_groups", "true_sequential", "act_group_aware", "mse", "v2",
    "v2_alpha", "model_name_or_path", "model_file_base_name", "use_cuda_fp16", "use_exllama", "disable_exllama",
    "exllama_config", "max_input_length", "cache_block_outputs", "modules_in_block_to_quantize",
    "block_name_to_quantize", "module_name_preceding_first_block", "pad_token_id", "model_seqlen", "gptaq", "foem",
    "offload_to_disk", "offload_to_disk_path", "pack_impl", "fallback", "failsafe", "hessian", "gc_mode",
    "parallel_packing", "device", "inject_fused_attention", "inject_fused_mlp", "warmup_triton", "trainable",
    // AutoAWQ, transformers
    "do_fuse", "modules_to_fuse", "fuse_max_seq_len",
    // AutoRound
    "autoround_version", "iters", "lr", "minmax_lr", "nsamples", "seqlen", "enable_quanted_input",
    "enable_minmax_tuning", "enable_norm_bias_tuning", "gradient_accumulate_steps", "low_gpu_mem_usage",
    "low_cpu_mem_usage", "amp", "scale_dtype", "to_quant_block_names", "quant_block_list", "not_use_best_mse",
    "dynamic_max_gap", "supported_types", "train_bs", "sampler", "device_map", "enable_torch_compile", "enable_alg_ext",
    "seed", "momentum", "lr_scheduler", "act_bits", "act_group_size", "act_sym", "act_dynamic", "act_data_type"};

// Error: there is a key that is neither neutral nor one of those that the caller reads (`read`), and it is not off.
Status RefuseUnknown(const JsonFields& fields, const nlohmann::json& object, std::span<const std::string_view> read) {
  for (const auto& [key, value] : object.items()) {
    if (IsOff(value) || std::ranges::find(read, key) != read.end()) continue;
    if (std::ranges::find(kNeutralKeys, key) != std::end(kNeutralKeys)) continue;
    return Unsupported(
        fields.label() + Printable(key) + " is " + Describe(value) +
        ": loramux does not know this key, which may change the values of the weights; remove it only if "
        "it does not");
  }
  return Ok{};
}

// GPTQModel's `dynamic`: patterns of modules with settings of their own, or with -: before the pattern, that are left
// in floats. What the file holds says which these are.
Status CheckDynamic(const JsonFields& fields) {
  const nlohmann::json* dynamic = fields.Find("dynamic");
  if (dynamic == nullptr || IsOff(*dynamic)) return Ok{};
  if (!dynamic->is_object()) return fields.Bad("dynamic", "an object of patterns");
  for (const auto& [pattern, settings] : dynamic->items()) {
    if (pattern.starts_with("-:")) continue;
    return Unsupported(fields.label() + "dynamic: found settings for the modules " + Quote(pattern) +
                       ", which is not supported; loramux serves the same settings for all quantised modules, and "
                       "patterns that leave modules in floats (-:PATTERN)");
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
  RETURN_IF_ERROR(CheckDynamic(fields));
  RETURN_IF_ERROR(RefuseOptions(fields, {"is_marlin_format", "rotation", "adapter"},
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
  RETURN_IF_ERROR(CheckDynamic(fields));
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

// How GPTQModel says what scales mean, and what shares one.
Status ParseScaleMethod(const JsonFields& fields, QuantScheme& scheme) {
  ASSIGN_OR_RETURN(const auto semantics, fields.String("weight_scale_semantics"));
  if (semantics && *semantics != "inverse") return NotServed(fields, "weight_scale_semantics", "inverse");
  scheme.inverse = semantics.has_value();
  if (fields.Has("weight_block_size")) RETURN_IF_ERROR(ParseBlock(fields, "weight_block_size", scheme));
  ASSIGN_OR_RETURN(const auto method, fields.String("weight_scale_method"));
  if (!method) return Ok{};
  if (*method == "tensor") {
    scheme.spread = Spread::kTensor;
  } else if (*method == "row") {
    scheme.spread = Spread::kChannel;
  } else if (*method != "block") {
    return NotServed(fields, "weight_scale_method", "tensor, row and block");
  }
  if ((*method == "block") == fields.Has("weight_block_size")) return Ok{};
  return InvalidArgument(fields.label() + "weight_scale_method " + Quote(*method) +
                         " and weight_block_size: expected " +
                         "both for scales of blocks, and else no weight_block_size");
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
  for (const char* key : {"fmt", "format", "checkpoint_format"}) {
    ASSIGN_OR_RETURN(const auto format, fields.String(key));
    if (format && *format != "e4m3" && *format != "float8_e4m3fn") return NotServed(fields, key, "FP8 as e4m3");
  }
  ASSIGN_OR_RETURN(const std::int64_t bits, fields.IntOr("bits", 1, 64, 8));
  if (bits != 8) return NotServed(fields, "bits", "FP8 with 8 bits");
  RETURN_IF_ERROR(CheckDynamic(fields));
  ASSIGN_OR_RETURN(const auto scales, fields.String("scale_fmt"));
  if (scales && *scales != "float" && *scales != "float32") return NotServed(fields, "scale_fmt", "scales in floats");
  ASSIGN_OR_RETURN(const auto activations, fields.String("activation_scheme"));
  if (activations && *activations != "dynamic" && *activations != "static") {
    return NotServed(fields, "activation_scheme", "dynamic and static");
  }
  config.static_activations = activations == "static";
  RETURN_IF_ERROR(NamesIn(fields, "ignored_layers"));
  RETURN_IF_ERROR(ParseScaleMethod(fields, config.scheme));
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
  if (name == "group" || (name == "tensor_group" && scheme.store == Store::kFloat4)) {
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
  if (floats && (format == "nvfp4-pack-quantized" || format == "mxfp4-pack-quantized")) {
    scheme.store = Store::kFloat4;
    scheme.exponents = format.starts_with("mxfp4");
    if (bits != 4) return NotServed(weights, "num_bits", "floats of 4 bits in " + format);
    return Ok{};
  }
  if (floats && format == "mxfp8-quantized") {
    scheme.store = Store::kFloat8;
    scheme.exponents = true;
    if (bits != 8) return NotServed(weights, "num_bits", "floats of 8 bits in " + format);
    return Ok{};
  }
  if (floats && (naive || format == "float-quantized")) {
    scheme.store = Store::kFloat8;
    if (bits != 8) return NotServed(weights, "num_bits", "floats of 8 bits (FP8) and integers of 4 or 8 bits");
    return Ok{};
  }
  if (!floats && (naive || format == "int-quantized")) {
    scheme.store = Store::kIntegers;
    // A byte holds each, however few bits it has.
    if (bits < 2 || bits > 8) return NotServed(weights, "num_bits", "int-quantized integers of 2 to 8 bits");
    return Ok{};
  }
  return Unsupported(weights.label() + "format " + Quote(format) + " with type " + (floats ? "float" : "int") +
                     " is not supported; loramux serves pack-quantized and int-quantized integers, and "
                     "float-quantized, nvfp4-pack-quantized, mxfp4-pack-quantized and mxfp8-quantized floats");
}

// The formats with scales of 8 bits have groups of one size.
Status CheckGroupsOfFloats(const JsonFields& weights, const QuantScheme& scheme) {
  if (scheme.store != Store::kFloat4 && !scheme.exponents) return Ok{};
  const std::int64_t size = scheme.exponents ? 32 : 16;
  if (scheme.spread == Spread::kGroup && scheme.group_size == size) return Ok{};
  if (!weights.Has("group_size")) return weights.Missing("group_size", std::to_string(size) + ", as of its format");
  return NotServed(weights, "group_size", std::to_string(size) + " inputs in each group of this format");
}

Status ParseWeights(const JsonFields& weights, const nlohmann::json& object, const std::string& format,
                    QuantScheme& scheme) {
  static constexpr std::string_view kRead[] = {"num_bits",   "type",     "symmetric",       "strategy",
                                               "group_size", "dynamic",  "block_structure", "actorder",
                                               "observer",   "zp_dtype", "observer_kwargs", "scale_dtype"};
  RETURN_IF_ERROR(RefuseUnknown(weights, object, kRead));
  RETURN_IF_ERROR(ParseStore(weights, format, scheme));
  ASSIGN_OR_RETURN(scheme.symmetric, weights.BoolOr("symmetric", true));
  ASSIGN_OR_RETURN(const bool dynamic, weights.BoolOr("dynamic", false));
  if (dynamic) return NotServed(weights, "dynamic", "weights with stored scales");
  RETURN_IF_ERROR(ParseSpread(weights, scheme));
  RETURN_IF_ERROR(CheckGroupsOfFloats(weights, scheme));
  if (scheme.spread == Spread::kBlock && scheme.store != Store::kFloat8) {
    return NotServed(weights, "strategy", "tensor, channel and group for integers");
  }
  if ((scheme.store == Store::kFloat8 || scheme.store == Store::kFloat4) && !scheme.symmetric) {
    return NotServed(weights, "symmetric", "floats without zero points");
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

Status ParseConfigGroup(const JsonFields& group, const nlohmann::json& object, const std::optional<std::string>& format,
                        QuantizationConfig& config) {
  static constexpr std::string_view kRead[] = {"targets", "weights", "input_activations", "output_activations",
                                               "format"};
  RETURN_IF_ERROR(RefuseUnknown(group, object, kRead));
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
  RETURN_IF_ERROR(ParseWeights(JsonFields(*weights, group.label() + "weights."), *weights, stored, parsed.scheme));
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
    RETURN_IF_ERROR(ParseConfigGroup(JsonFields(group, label + "."), group, format, config));
  }
  return config;
}

// ---- ModelOpt

// Error: a group says something else of its weights, or more than loramux knows.
Status CheckModelOptGroups(const JsonFields& fields, const QuantScheme& scheme) {
  static constexpr std::string_view kOfGroup[] = {"targets", "weights", "input_activations", "output_activations"};
  static constexpr std::string_view kOfWeights[] = {"num_bits", "type", "dynamic", "group_size", "strategy"};
  const nlohmann::json* const groups = fields.Find("config_groups");
  if (groups == nullptr) return Ok{};
  if (!groups->is_object()) return fields.Bad("config_groups", "an object of groups");
  for (const auto& [name, group] : groups->items()) {
    const std::string label = fields.label() + "config_groups." + Printable(name) + ".";
    if (!group.is_object()) return InvalidArgument(label + ": expected an object, found " + Describe(group));
    const JsonFields of_group(group, label);
    RETURN_IF_ERROR(RefuseUnknown(of_group, group, kOfGroup));
    const nlohmann::json* const object = of_group.Find("weights");
    if (object == nullptr || !object->is_object()) return of_group.Missing("weights", "an object");
    const JsonFields weights(*object, label + "weights.");
    RETURN_IF_ERROR(RefuseUnknown(weights, *object, kOfWeights));
    ASSIGN_OR_RETURN(const auto type, weights.String("type"));
    if (!type) return weights.Missing("type", "float");
    if (*type != "float") return NotServed(weights, "type", "float");
    ASSIGN_OR_RETURN(const std::int64_t bits, weights.RequiredInt("num_bits", 1, 64));
    ASSIGN_OR_RETURN(const bool dynamic, weights.BoolOr("dynamic", false));
    if (dynamic) return NotServed(weights, "dynamic", "weights with stored scales");
    if (bits != scheme.bits)
      return NotServed(weights, "num_bits", std::to_string(scheme.bits) + " with this quant_algo");
    if (scheme.store != Store::kFloat4) continue;
    ASSIGN_OR_RETURN(const std::int64_t size, weights.IntOr("group_size", 1, kMostGroup, scheme.group_size));
    if (size != scheme.group_size) return NotServed(weights, "group_size", std::to_string(scheme.group_size));
  }
  return Ok{};
}

// As ModelOpt exports it: groups like those of compressed-tensors, of which `quant_algo` says the format. What the file
// holds decides which modules are quantised, so `ignore`, in which names may have wildcards, is not asked.
Result<QuantizationConfig> ParseModelOpt(const JsonFields& fields) {
  constexpr const char* kServed = "FP8, FP8_PER_CHANNEL_PER_TOKEN, NVFP4, W4A16_NVFP4 and W4A8_NVFP4_FP8";
  QuantizationConfig config;
  config.method = QuantMethod::kModelOpt;
  config.static_activations = true;
  RETURN_IF_ERROR(NamesIn(fields, "ignore"));
  config.kv_scales = fields.Has("kv_cache_scheme");
  ASSIGN_OR_RETURN(const auto algorithm, fields.String("quant_algo"));
  if (!algorithm) return fields.Missing("quant_algo", kServed);
  const std::string name = *algorithm;
  QuantScheme scheme;
  if (name == "FP8" || name == "FP8_PER_CHANNEL_PER_TOKEN") {
    scheme.store = Store::kFloat8;
    scheme.bits = 8;
    scheme.spread = name == "FP8" ? Spread::kTensor : Spread::kChannel;
  } else if (name == "NVFP4" || name == "W4A16_NVFP4" || name == "W4A8_NVFP4_FP8") {
    scheme.store = Store::kFloat4;
    scheme.group_size = 16;
  } else {
    return NotServed(fields, "quant_algo", kServed);
  }
  RETURN_IF_ERROR(CheckModelOptGroups(fields, scheme));
  config.scheme = scheme;
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

// A method, the keys that it reads, and how it is read.
struct Method {
  const char* name;
  std::vector<std::string_view> keys;
  Result<QuantizationConfig> (*parse)(const JsonFields& fields);
};

const std::vector<Method>& Methods() {
  static const std::vector<Method> methods = {
      {"gptq",
       {"bits", "group_size", "sym", "desc_act", "pack_dtype", "checkpoint_format", "format", "dynamic", "data_type"},
       ParseGptq},
      {"awq",
       {"bits", "w_bit", "group_size", "q_group_size", "format", "checkpoint_format", "zero_point", "dynamic", "sym",
        "desc_act", "pack_dtype", "data_type"},
       ParseAwq},
      {"compressed-tensors",
       {"format", "ignore", "kv_cache_scheme", "config_groups", "sparsity_config", "quantization_status",
        "global_compression_ratio", "run_compressed", "use_optimized_inference"},
       ParseCompressedTensors},
      {"modelopt", {"config_groups", "ignore", "quant_algo", "kv_cache_scheme"}, ParseModelOpt},
      {"fp8",
       {"fmt", "format", "checkpoint_format", "scale_fmt", "activation_scheme", "weight_block_size", "kv_cache_scheme",
        "expert_dtype", "bits", "group_size", "sym", "desc_act", "pack_dtype", "dynamic", "weight_scale_method",
        "weight_scale_semantics"},
       [](const JsonFields& fields) { return ParseFp8(fields, /*fbgemm=*/false); }},
      {"fbgemm_fp8",
       {"activation_scale_ub", "kv_cache_scheme"},
       [](const JsonFields& fields) { return ParseFp8(fields, /*fbgemm=*/true); }},
      {"bitsandbytes",
       {"load_in_4bit", "load_in_8bit", "_load_in_4bit", "_load_in_8bit", "llm_int8_threshold", "llm_int8_skip_modules",
        "llm_int8_enable_fp32_cpu_offload", "llm_int8_has_fp16_weight", "bnb_4bit_compute_dtype", "bnb_4bit_quant_type",
        "bnb_4bit_use_double_quant", "bnb_4bit_quant_storage"},
       ParseBitsAndBytes},
      {"mxfp4", {}, [](const JsonFields&) { return Result<QuantizationConfig>({.method = QuantMethod::kMxfp4}); }},
  };
  return methods;
}

Result<QuantizationConfig> ParseMethod(const JsonFields& fields, const nlohmann::json& object) {
  ASSIGN_OR_RETURN(const std::string name, MethodOf(fields));
  const auto method = std::ranges::find(Methods(), name, &Method::name);
  if (method == Methods().end()) return NotServed(fields, "quant_method", kMethods);
  ASSIGN_OR_RETURN(QuantizationConfig config, method->parse(fields));
  RETURN_IF_ERROR(RefuseUnknown(fields, object, method->keys));
  return config;
}

std::string DescribeScheme(const QuantScheme& scheme) {
  std::string text = std::to_string(scheme.bits) + " bits";
  if (scheme.store == Store::kFloat8) text = scheme.exponents ? "MXFP8" : "FP8";
  if (scheme.store == Store::kFloat4) text = scheme.exponents ? "MXFP4" : "NVFP4";
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
  static constexpr std::array<const char*, 7> kNames = {"gptq",  "awq",     "compressed-tensors", "fp8", "bitsandbytes",
                                                        "mxfp4", "modelopt"};
  return kNames[static_cast<std::size_t>(method)];
}

std::string Describe(const QuantizationConfig& config) {
  std::string text = QuantMethodName(config.method);
  if (config.method == QuantMethod::kMxfp4) return text + ", experts in 4 bits";
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
  return ParseMethod(JsonFields(object, name + "."), object);
}

}  // namespace loramux
