// OpenAdapter: from a directory to pairs of tensors that fit the base model.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/adapter_files.h"
#include "base/message.h"
#include "formats/adapter_config.h"
#include "formats/adapter_folder.h"
#include "formats/adapter_form.h"
#include "formats/adapter_fused.h"
#include "formats/adapter_gguf.h"
#include "formats/adapter_own_parts.h"
#include "formats/adapter_patterns.h"
#include "formats/adapter_tensor_name.h"
#include "formats/file.h"
#include "formats/gguf_file.h"
#include "formats/json_fields.h"
#include "formats/model_files.h"

namespace loramux {
namespace {

constexpr const char* kConfigFile = kAdapterConfigFile;
constexpr const char* kPickleFile = "adapter_model.bin";
constexpr std::int64_t kMaxLayersWithoutBase = 1024;                   // the largest number that a model may have
constexpr std::int64_t kMaxExtentWithoutBase = std::int64_t{1} << 24;  // the largest extent that a module may have
// adapter_config.json with a rank for each module of the largest model takes about 60 KB.
constexpr std::size_t kMaxConfigBytes = std::size_t{1} << 20;
// A header has about 250 bytes for each tensor, and text in __metadata__.
constexpr std::uint64_t kHeaderBytesPerTensor = 512;
constexpr std::uint64_t kMetadataBytes = std::uint64_t{1} << 20;
// A, B and two vectors of each of the seven linear layers, and four norms, fit twice: a file that is a little too large
// for the model gets an error that names the tensor.
constexpr std::int64_t kMaxTensorsPerLayer = 64;
constexpr std::int64_t kMaxTensorsWithoutBase = 16384;  // 1,024 layers with 14 tensors, and more for lm_head
// A tensor in another order than PEFT's is brought into it in memory.
constexpr std::uint64_t kMaxViewBytes = std::uint64_t{1} << 30;
// A large adapter in several files, and the index that names them.
constexpr std::size_t kMaxIndexBytes = std::size_t{8} << 20;
constexpr std::size_t kMaxShards = 256;
// An adapter whose lora_B is zero may have been stored as a sparse file.
constexpr std::uint64_t kMaxHoleBytes = std::uint64_t{1} << 30;

constexpr std::array<const char*, kNumLoraTargets + 14> kTargetNames = {"q_proj",
                                                                        "k_proj",
                                                                        "v_proj",
                                                                        "o_proj",
                                                                        "gate_proj",
                                                                        "up_proj",
                                                                        "down_proj",
                                                                        "lm_head",
                                                                        "embed_tokens",
                                                                        "gate",
                                                                        "shared_expert_gate",
                                                                        "in_proj_qkv",
                                                                        "in_proj_z",
                                                                        "in_proj_b",
                                                                        "in_proj_a",
                                                                        "in_proj",
                                                                        "out_proj",
                                                                        "per_layer_input_gate",
                                                                        "per_layer_projection",
                                                                        "per_layer_model_projection",
                                                                        "project_in",
                                                                        "project_out"};

constexpr std::string_view kEmbeddingModule = "model.embed_tokens";

// The tensors of a module while the file is being read. Ordered by layer and target, lm_head last.
struct PairKey {
  bool is_lm_head = false;
  std::int32_t layer = 0;
  LoraTarget target = LoraTarget::kQ;
  std::int32_t expert = -1;
  auto operator<=>(const PairKey&) const = default;
};
struct Pair {
  std::string module;  // as in the file, for the patterns; with the parameter, if it is of all experts
  bool of_parameter = false;
  std::string plain_module;
  const TensorEntry* a = nullptr;
  const TensorEntry* b = nullptr;
  const TensorEntry* magnitude = nullptr;
  const TensorEntry* b_bias = nullptr;
  const TensorEntry* bias = nullptr;
};
using Pairs = std::map<PairKey, Pair>;

bool Exists(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

// A file missing from a directory is an error of the directory's content, not a wrong path.
Error AsContentError(Error error, const std::filesystem::path& directory, AdapterForm form = AdapterForm::kPeft) {
  if (error.code != ErrorCode::kNotFound) return error;
  const std::string hint = WhatAdapterFolderHolds(directory);
  return InvalidArgument(error.message + "; " +
                         (hint.empty() ? std::string("an adapter directory of ") + AdapterFormName(form) + " holds " +
                                             kConfigFile + " and " + AdapterTensorFileName(form)
                                       : hint));
}

// Error: the path is neither a directory nor a GGUF file.
Status CheckDirectory(const std::filesystem::path& directory) {
  std::error_code error;
  const auto status = std::filesystem::status(directory, error);
  if (!std::filesystem::exists(status)) return NotFound(directory.string() + ": no such adapter directory");
  if (!std::filesystem::is_directory(status) && !IsGgufPath(directory)) {
    return InvalidArgument(directory.string() + ": expected an adapter directory or a GGUF file, found a file");
  }
  return Ok{};
}

Result<RegularFile> OpenChecked(const std::filesystem::path& path, const OpenedFileCheck& check) {
  ASSIGN_OR_RETURN(RegularFile file, RegularFile::Open(path));
  if (check) {
    ASSIGN_OR_RETURN(const std::filesystem::path real, file.RealPath());
    RETURN_IF_ERROR(check(real));
  }
  return file;
}

Result<std::string> ReadChecked(const std::filesystem::path& path, const OpenedFileCheck& check) {
  return ReadAdapterText(path, kMaxConfigBytes, check);
}

// No adapter of the model (null: of any model) needs more.
TensorFileLimits AdapterLimits(const ModelConfig* model) {
  std::int64_t tensors = kMaxTensorsWithoutBase;
  if (model != nullptr) {
    const std::int64_t of_experts = model->experts ? 6 * model->experts->route.experts : 0;
    tensors = std::min(tensors, (kMaxTensorsPerLayer + of_experts) * (model->num_layers + 1));
  }
  const auto count = static_cast<std::uint64_t>(tensors);
  return {.max_header_bytes = kMetadataBytes + count * kHeaderBytesPerTensor,
          .max_tensors = static_cast<std::size_t>(count),
          .max_hole_bytes = kMaxHoleBytes};
}

// The names of the files that an index names, in their order. Error: no index, or a name that is a path.
Result<std::set<std::string>> ShardsOf(const std::filesystem::path& index, const OpenedFileCheck& check) {
  ASSIGN_OR_RETURN(const std::string text, ReadAdapterText(index, kMaxIndexBytes, check));
  ASSIGN_OR_RETURN(const nlohmann::json object, ParseJsonObject(text, index.string()));
  const auto map = object.find("weight_map");
  if (map == object.end() || !map->is_object() || map->empty()) {
    return InvalidArgument(index.string() + ": weight_map: expected an object of tensors and their files");
  }
  std::set<std::string> shards;
  for (const auto& [tensor, file] : map->items()) {
    const bool plain = file.is_string() && file.get<std::string>().find('/') == std::string::npos &&
                       file.get<std::string>().ends_with(".safetensors");
    if (!plain) {
      return InvalidArgument(index.string() + ": tensor " + Quote(tensor) +
                             ": expected the name of a safetensors file beside the index, found " + Describe(file));
    }
    shards.insert(file.get<std::string>());
    if (shards.size() > kMaxShards) {
      return InvalidArgument(index.string() + ": expected at most " + std::to_string(kMaxShards) + " files");
    }
  }
  return shards;
}

// Opens the files of an adapter that was saved in several. A tensor that the index names must be in one of them.
Result<TensorReader> OpenShards(const std::filesystem::path& directory, const std::filesystem::path& index,
                                const ModelConfig* model, const OpenedFileCheck& check) {
  ASSIGN_OR_RETURN(const std::set<std::string> shards, ShardsOf(index, check));
  std::optional<TensorReader> reader;
  TensorFileLimits limits = AdapterLimits(model);
  for (const std::string& shard : shards) {
    const std::filesystem::path path = directory / shard;
    auto opened = OpenChecked(path, check);
    if (!opened.ok()) {
      return opened.error().code == ErrorCode::kNotFound
                 ? InvalidArgument(index.string() + " names " + Quote(shard) + ", which is missing")
                 : std::move(opened).error();
    }
    if (!reader) {
      ASSIGN_OR_RETURN(reader, TensorReader::Open(std::move(opened).value(), path, limits));
    } else {
      RETURN_IF_ERROR(reader->Add(std::move(opened).value(), path, limits));
    }
    limits.max_tensors =
        AdapterLimits(model).max_tensors - std::min(AdapterLimits(model).max_tensors, reader->tensors().size());
  }
  return *std::move(reader);
}

Result<TensorReader> OpenReader(const std::filesystem::path& path, const ModelConfig* model,
                                const OpenedFileCheck& check) {
  ASSIGN_OR_RETURN(RegularFile file, OpenChecked(path, check));
  return TensorReader::Open(std::move(file), path, AdapterLimits(model));
}

Result<AdapterConfig> ReadConfig(const std::filesystem::path& directory, const OpenedFileCheck& check) {
  const std::filesystem::path path = directory / kConfigFile;
  auto text = ReadChecked(path, check);
  if (!text.ok()) return AsContentError(std::move(text).error(), directory);
  return ParseAdapterConfig(*text, path.string());
}

Result<TensorReader> OpenTensors(const std::filesystem::path& directory, AdapterForm form, const ModelConfig* model,
                                 const OpenedFileCheck& check) {
  const std::filesystem::path path = directory / AdapterTensorFileName(form);
  if (!Exists(path) && Exists(directory / kPickleFile)) {
    return Unsupported(directory.string() + ": found " + kPickleFile + " but no " + AdapterTensorFileName(form) +
                       ": loramux reads safetensors only, because unpickling runs code; save the adapter with "
                       "safe_serialization=True");
  }
  const std::filesystem::path index = path.string() + ".index.json";
  auto tensors =
      !Exists(path) && Exists(index) ? OpenShards(directory, index, model, check) : OpenReader(path, model, check);
  if (!tensors.ok()) return AsContentError(std::move(tensors).error(), directory, form);
  return tensors;
}

Error TensorError(const std::string& label, const TensorEntry& tensor, const std::string& what) {
  const bool transposed = tensor.view != nullptr && tensor.view->transposed;
  return InvalidArgument(label + ": tensor " + Quote(tensor.name) + ": " + what +
                         (transposed ? " (both as PEFT has it; the file has it transposed)" : ""));
}

bool IsVector(AdapterTensorName::Part part) {
  using Part = AdapterTensorName::Part;
  return part == Part::kMagnitude || part == Part::kLoraBBias || part == Part::kBias;
}

// `dimensions`: that its part has, at most three.
Status CheckTensor(const TensorEntry& tensor, std::size_t dimensions, const std::string& label) {
  if (!IsWeightDType(tensor.dtype)) {
    return Unsupported(label + ": tensor " + Quote(tensor.name) + ": expected dtype F32, BF16 or F16, found " +
                       DTypeName(tensor.dtype));
  }
  if (tensor.shape.size() != dimensions) {
    constexpr const char* kExpected[] = {"", "one dimension", "two dimensions", "three dimensions"};
    return TensorError(label, tensor,
                       std::string("expected ") + kExpected[dimensions] + ", found " + ShapeToString(tensor.shape));
  }
  if (std::ranges::any_of(tensor.shape, [](std::int64_t extent) { return extent > kMaxExtentWithoutBase; })) {
    return TensorError(label, tensor,
                       "expected extents of at most " + WithSeparators(kMaxExtentWithoutBase) +
                           ", the largest of any model; found " + ShapeToString(tensor.shape));
  }
  if (tensor.view != nullptr && tensor.bytes > kMaxViewBytes) {
    return TensorError(
        label, tensor,
        "expected at most " + WithSeparators(kMaxViewBytes) + " bytes, found " + WithSeparators(tensor.bytes));
  }
  return Ok{};
}

const TensorEntry*& SlotOf(AdapterTensorName::Part part, Pair& pair) {
  using Part = AdapterTensorName::Part;
  if (part == Part::kLoraA) return pair.a;
  if (part == Part::kLoraB) return pair.b;
  if (part == Part::kMagnitude) return pair.magnitude;
  return part == Part::kLoraBBias ? pair.b_bias : pair.bias;
}

Status AddToPair(const AdapterTensorName& name, const LayerTensor& layer, const std::string& label, Pairs& pairs) {
  Pair& pair = pairs[{layer.target == LoraTarget::kLmHead, name.layer, layer.target, layer.expert}];
  using Part = AdapterTensorName::Part;
  const Part part = !layer.exchanged ? name.part : name.part == Part::kLoraA ? Part::kLoraB : Part::kLoraA;
  const TensorEntry*& slot = SlotOf(part, pair);
  const std::string parameter = layer.parameter == nullptr ? "" : "." + std::string(layer.parameter);
  const std::string module = name.module + parameter;
  if (slot != nullptr || (!pair.module.empty() && pair.module != module)) {
    return TensorError(label, *layer.tensor,
                       "the file holds its module twice" + (slot == nullptr ? "" : ", also as " + Quote(slot->name)));
  }
  slot = layer.tensor;
  pair.module = module;
  pair.plain_module = name.plain_module + parameter;
  pair.of_parameter = layer.parameter != nullptr;
  return Ok{};
}

// Assigns every tensor to its pair; a tensor that belongs to none is an error.
Result<Pairs> CollectPairs(const ModelConfig* model, const std::string& label, AdapterFile& file) {
  const std::int64_t num_layers = model == nullptr ? kMaxLayersWithoutBase : model->num_layers;
  const NormNames& norms = model == nullptr ? GuessNormNames(file.tensors->tensors()) : InfoOf(model->family).norms;
  const FamilyNames* const names =
      model == nullptr ? GuessFamilyNames(file.tensors->tensors()) : NamesOf(model->family);
  OwnPartsReader own(file.config, model, label);
  Pairs pairs;
  for (const TensorEntry& tensor : file.tensors->tensors()) {
    const std::string& peft_name = tensor.peft_name.empty() ? tensor.name : tensor.peft_name;
    ASSIGN_OR_RETURN(const AdapterTensorName name, ParseAdapterTensorName(peft_name, num_layers, norms, label, names));
    if (name.part == AdapterTensorName::Part::kTraining) continue;
    const bool is_vector = IsVector(name.part) || (name.own && IsNorm(*name.own));
    RETURN_IF_ERROR(CheckTensor(tensor, is_vector ? 1 : name.stacked ? 3 : 2, label));
    if (name.own || name.head) {
      RETURN_IF_ERROR(own.Take(name, tensor));
      continue;
    }
    ASSIGN_OR_RETURN(const auto layers, TensorsOfLayers(name, tensor, file.config, model, label, *file.tensors));
    for (const LayerTensor& layer : layers) RETURN_IF_ERROR(AddToPair(name, layer, label, pairs));
  }
  RETURN_IF_ERROR(own.Finish(file));
  return pairs;
}

Status CheckComplete(const Pair& pair, const std::string& label) {
  if (pair.a != nullptr && pair.b != nullptr) return Ok{};
  if (pair.a != nullptr) return TensorError(label, *pair.a, "lora_A without its lora_B");
  if (pair.b != nullptr) return TensorError(label, *pair.b, "lora_B without its lora_A");
  if (pair.magnitude != nullptr) return TensorError(label, *pair.magnitude, "a magnitude without lora_A and lora_B");
  if (pair.b_bias != nullptr) return TensorError(label, *pair.b_bias, "a bias of lora_B without lora_A and lora_B");
  return Ok{};
}

// PEFT ignores a tensor that the configuration does not speak of, and makes up one that the file lacks.
Status CheckSaid(const char* option, bool said, const TensorEntry* found, const Pair& pair, const std::string& label) {
  if (said == (found != nullptr)) return Ok{};
  if (!said) {
    return TensorError(label, *found,
                       std::string("expected ") + option + " true in " + kConfigFile + ", found false or none");
  }
  return TensorError(
      label, *pair.a,
      std::string(option) + " is true in " + kConfigFile + ", but the file lacks its tensor for " + Quote(pair.module));
}

bool HasBias(const ModelConfig& model, LoraTarget target) {
  if (target == LoraTarget::kInAll) return model.recurrent && model.recurrent->input_bias;
  if (target == LoraTarget::kOut) return model.recurrent && model.recurrent->output_bias;
  if (target >= LoraTarget::kLmHead) return false;
  if (target == LoraTarget::kO) return model.attention_output_bias;
  return target < LoraTarget::kO ? model.attention_qkv_bias : model.mlp_bias;
}

// `model` may be null.
Status CheckVectors(const PairKey& key, const Pair& pair, const AdapterConfig& config, const ModelConfig* model,
                    const std::string& label) {
  if (pair.a != nullptr) {
    RETURN_IF_ERROR(CheckSaid("use_dora", config.use_dora, pair.magnitude, pair, label));
    RETURN_IF_ERROR(CheckSaid("lora_bias", config.lora_bias, pair.b_bias, pair, label));
  }
  const bool of_experts = key.expert >= 0 || IsOfRouting(key.target);
  for (const TensorEntry* vector : {pair.magnitude, pair.b_bias, pair.bias}) {
    if (vector == nullptr || (!of_experts && !IsBesideBlocks(key.target))) continue;
    const char* const what =
        of_experts ? "experts and routers" : "projections outside attention and feed-forward blocks";
    return Unsupported(label + ": tensor " + Quote(vector->name) + ": of " + what +
                       ", only LoRA is supported, without DoRA and trained biases; merge the adapter into the base "
                       "model");
  }
  if (pair.bias != nullptr && !config.invocation_tokens.empty()) {
    return TensorError(
        label, *pair.bias,
        "a trained bias (`bias` other than none) in an activated LoRA: PEFT adds it before the invocation "
        "too, so that the adapter could share no context; train it with bias none");
  }
  if (pair.bias != nullptr && model != nullptr && !HasBias(*model, key.target)) {
    return TensorError(label, *pair.bias,
                       "a trained bias (`bias` other than none), but the base model's layer has no bias: the adapter "
                       "fits another base model");
  }
  for (const TensorEntry* vector : {pair.magnitude, pair.b_bias, pair.bias}) {
    if (vector == nullptr || (model == nullptr && pair.b == nullptr)) continue;
    const std::int64_t out =
        model == nullptr ? pair.b->shape[0] : TargetShape(*model, key.target, key.layer, key.expert).out;
    if (vector->shape[0] == out) continue;
    return TensorError(
        label, *vector,
        "expected [" + std::to_string(out) + "] for the base layer's output, found " + ShapeToString(vector->shape));
  }
  return Ok{};
}

// What PEFT makes of LoRA of the output layer beside own rows of its matrix: the sum, if they are the tied embedding's.
Status CheckOwnOutput(const Pairs& pairs, const AdapterFile& file, const std::string& label) {
  const auto output = std::ranges::find(file.own, OwnKind::kOutput, &OwnPart::kind);
  const auto head = pairs.find({true, 0, LoraTarget::kLmHead});
  if (output == file.own.end() || head == pairs.end()) return Ok{};
  if (!output->tied) {
    return TensorError(label, *output->tensor,
                       "the output matrix is the adapter's own, and has LoRA beside it, which PEFT does not define");
  }
  if (head->second.magnitude == nullptr) return Ok{};
  return Unsupported(
      label + ": tensor " + Quote(head->second.magnitude->name) +
      ": DoRA of the output layer beside trained rows of the tied embedding, of which its lengths depend, "
      "is not supported; merge the adapter into the base model");
}

// LoRA of the embedding is beside the base model's matrix alone, with the rows of added tokens. `model` may be null.
Status CheckOwnEmbedding(const Pairs& pairs, const AdapterFile& file, const ModelConfig* model,
                         const std::string& label) {
  const auto found = pairs.find({false, 0, LoraTarget::kEmbedding});
  if (found == pairs.end() || found->second.a == nullptr) return Ok{};
  const Pair& pair = found->second;
  if (!file.config.invocation_tokens.empty()) {
    return Unsupported(label + ": tensor " + Quote(pair.a->name) +
                       ": LoRA of the embedding in an activated LoRA, which PEFT does not define");
  }
  const auto own = std::ranges::find(file.own, OwnKind::kEmbedding, &OwnPart::kind);
  const bool has_own = own != file.own.end();
  if (has_own && own->tensor != file.embedding_base_copy) {
    return TensorError(label, *own->tensor,
                       "rows of the embedding are the adapter's own, and have LoRA beside them, which PEFT does not "
                       "define");
  }
  if (has_own && pair.magnitude != nullptr) {
    return Unsupported(label + ": tensor " + Quote(pair.magnitude->name) +
                       ": DoRA of the embedding beside rows of added tokens, of which its lengths depend, is not "
                       "supported; merge the adapter into the base model");
  }
  if (model == nullptr) return Ok{};
  const std::int64_t tokens = model->BaseTokens() + (has_own ? static_cast<std::int64_t>(own->rows.size()) : 0);
  if (pair.a->shape[1] == tokens || pair.a->shape[1] > model->vocab_size) return Ok{};  // or CheckFit refuses it
  return TensorError(label, *pair.a,
                     "expected [rank, " + std::to_string(tokens) + "], a column for each row of the embedding" +
                         (has_own ? " in the file" : "") + ", found " + ShapeToString(pair.a->shape) +
                         ": save the adapter with save_embedding_layers=True");
}

Status CheckPatternWork(const Pairs& pairs, const AdapterConfig& config, const std::string& label) {
  std::uint64_t name_bytes = 0;
  for (const auto& [key, pair] : pairs) name_bytes += pair.module.size() + pair.plain_module.size();
  return config.patterns->CheckWork(name_bytes, label);
}

// The embedding in which the adapter was trained has more rows than the base model.
Error TooManyTokens(const Pair& pair, const ModelConfig& model, const std::string& label) {
  const std::int64_t added = pair.a->shape[1] - model.BaseTokens();
  return TensorError(label, *pair.a,
                     "expected [rank, " + std::to_string(model.BaseTokens()) + "] for the base model's tokens, found " +
                         ShapeToString(pair.a->shape) +
                         ": the vocabulary was resized for the training (resize_token_embeddings) by " +
                         std::to_string(added) + " tokens; expected at most " + std::to_string(model.added_tokens) +
                         ": start the server with --adapter-tokens " + std::to_string(added));
}

// Whether the block beside experts has the name of one without them.
bool IsBlockOfAll(const ModelConfig& model) {
  return std::string_view(InfoOf(model.family).experts.shared_block) == "mlp.";
}

bool IsOfFeedForward(LoraTarget target) {
  return target == LoraTarget::kGate || target == LoraTarget::kUp || target == LoraTarget::kDown;
}

// A layer lacks the part that the module belongs to.
Error NoSuchPart(const PairKey& key, const Pair& pair, const char* has, const std::string& label) {
  return TensorError(label, pair.a != nullptr ? *pair.a : *pair.bias,
                     "the base model has no module " + Quote(pair.module) + ": its layer " + std::to_string(key.layer) +
                         " has " + has);
}

// A layer has attention or is recurrent.
Status CheckAttentionKind(const PairKey& key, const Pair& pair, const ModelConfig& model, const std::string& label) {
  const bool recurrent = model.IsRecurrent(key.layer), of_states = IsOfStates(key.target);
  if (!of_states && key.target > LoraTarget::kO) return Ok{};
  const bool mamba = model.recurrent && model.recurrent->mamba;
  const auto named = [&](const char* part) { return pair.plain_module.find(part) != std::string::npos; };
  // Qwen3-Next has these in two matrices, Qwen 3.5 in four.
  const bool fused = named(".in_proj_qkvz") || named(".in_proj_ba"), in_parts = key.target <= LoraTarget::kInA;
  const bool fits = named(".mamba.") == mamba && (!in_parts || fused == (model.family == ModelFamily::kQwen3Next));
  if (of_states ? recurrent && fits : model.HasAttention(key.layer)) return Ok{};
  if (!model.Has(LayerPart::kMixer, key.layer)) return NoSuchPart(key, pair, "neither attention nor a state", label);
  return TensorError(label, pair.a != nullptr ? *pair.a : *pair.bias,
                     "the base model has no module " + Quote(pair.plain_module) + ": its layer " +
                         std::to_string(key.layer) + " has " +
                         (!recurrent ? "full attention, self_attn"
                          : mamba    ? "Mamba-2, mamba"
                          : model.family == ModelFamily::kQwen3Next
                              ? "linear attention, linear_attn, with in_proj_qkvz, in_proj_ba and out_proj"
                              : "linear attention, linear_attn"));
}

// Layers have inputs of their own or not, and embeddings are narrower than hidden states or not.
Status CheckBesideBlocks(const PairKey& key, const Pair& pair, const ModelConfig& model, const std::string& label) {
  const LinearShape shape = TargetShape(model, key.target, key.layer);
  if (shape.in > 0 && shape.out > 0) return Ok{};
  const bool projects = key.target == LoraTarget::kProjectIn || key.target == LoraTarget::kProjectOut;
  return TensorError(
      label, pair.a != nullptr ? *pair.a : *pair.bias,
      "the base model has no module " + Quote(pair.plain_module) + ": its " +
          (projects ? "embedding is as wide as its hidden states" : "layers have no inputs of their own"));
}

// A layer has a block of its own, a shared expert, or neither.
Status CheckBlock(const PairKey& key, const Pair& pair, const ModelConfig& model, const std::string& label) {
  if (key.is_lm_head) return Ok{};
  RETURN_IF_ERROR(CheckAttentionKind(key, pair, model, label));
  if (IsOfStates(key.target)) return Ok{};
  if (IsBesideBlocks(key.target)) return CheckBesideBlocks(key, pair, model, label);
  const bool of_experts = key.expert >= 0 || IsOfRouting(key.target);
  const bool has_it = key.target == LoraTarget::kSharedGate
                          ? model.HasExperts(key.layer) && model.experts->shared_gate
                          : model.HasExperts(key.layer) && key.expert < model.experts->route.experts;
  if (of_experts && has_it) return Ok{};
  const TensorEntry& tensor = pair.a != nullptr ? *pair.a : *pair.bias;
  if (key.target == LoraTarget::kV && model.ValuesAreKeys(key.layer)) {
    return TensorError(label, tensor,
                       "the base model has no module " + Quote(pair.plain_module) + ": the values of its layer " +
                           std::to_string(key.layer) + " are the keys");
  }
  const bool of_keys = key.target == LoraTarget::kK || key.target == LoraTarget::kV;
  if (of_keys && model.SharesKv(key.layer)) {
    return TensorError(label, tensor,
                       "the base model has no module " + Quote(pair.plain_module) + ": its layer " +
                           std::to_string(key.layer) + " reads the keys and values of layer " +
                           std::to_string(model.KvSource(key.layer)));
  }
  if (of_experts) {
    const std::string has = model.HasExperts(key.layer) ? std::to_string(model.experts->route.experts) : "no";
    return TensorError(label, tensor,
                       "the base model has no module " + Quote(pair.plain_module) + ": its layer " +
                           std::to_string(key.layer) + " has " + has + " experts" +
                           (key.target == LoraTarget::kSharedGate ? " and no gate of a shared one" : ""));
  }
  if (!IsOfFeedForward(key.target)) return Ok{};
  if (!model.Has(LayerPart::kFeedForward, key.layer)) return NoSuchPart(key, pair, "no feed-forward block", label);
  if (!model.gated && key.target == LoraTarget::kGate) {
    return NoSuchPart(key, pair, "a feed-forward block without a gate", label);
  }
  const bool of_shared = pair.plain_module.find(".shared_expert.") != std::string::npos;
  const bool beside = model.HasExperts(key.layer) && !IsBlockOfAll(model);
  if (model.HasOwnBlock(key.layer) && of_shared == beside) return Ok{};
  const char* const has = !beside                        ? "one feed-forward block, mlp"
                          : model.HasOwnBlock(key.layer) ? "experts and a shared one, mlp.shared_expert"
                                                         : "experts, mlp.experts, and no other feed-forward block";
  return TensorError(label, tensor,
                     "the base model has no module " + Quote(pair.plain_module) + ": its layer " +
                         std::to_string(key.layer) + " has " + has);
}

// Checks the outer extents against the base layer.
Status CheckFit(const PairKey& key, const Pair& pair, const ModelConfig& model, const std::string& label) {
  const LinearShape shape = TargetShape(model, key.target, key.layer, key.expert);
  const bool has_more = key.target == LoraTarget::kEmbedding && pair.a->shape[1] > shape.in;
  if (has_more && pair.a->shape[1] > model.vocab_size) return TooManyTokens(pair, model, label);
  if (pair.a->shape[1] != shape.in && !has_more) {
    return TensorError(label, *pair.a,
                       "expected [rank, " + std::to_string(shape.in) + "] for the base layer's input, found " +
                           ShapeToString(pair.a->shape));
  }
  if (pair.b->shape[0] != shape.out) {
    return TensorError(label, *pair.b,
                       "expected [" + std::to_string(shape.out) + ", rank] for the base layer's output, found " +
                           ShapeToString(pair.b->shape));
  }
  return Ok{};
}

Status CheckRanks(const Pair& pair, std::int64_t rank, const std::string& label) {
  if (pair.a->shape[0] != rank) {
    return TensorError(label, *pair.a,
                       "expected rank " + std::to_string(rank) + " as in " + kConfigFile + ", found " +
                           std::to_string(pair.a->shape[0]));
  }
  if (pair.b->shape[1] != rank) {
    return TensorError(label, *pair.b,
                       "expected rank " + std::to_string(rank) + " as in lora_A and " + kConfigFile + ", found " +
                           std::to_string(pair.b->shape[1]));
  }
  return Ok{};
}

Result<LoraModule> CheckPair(const PairKey& key, const Pair& pair, const AdapterConfig& config,
                             const ModelConfig* model, const std::string& label) {
  RETURN_IF_ERROR(CheckComplete(pair, label));
  if (model != nullptr) RETURN_IF_ERROR(CheckBlock(key, pair, *model, label));
  RETURN_IF_ERROR(CheckVectors(key, pair, config, model, label));
  // The bias of a layer that the adapter leaves as it is otherwise (`bias` "all").
  if (pair.a == nullptr) return LoraModule{.layer = key.layer, .target = key.target, .bias = pair.bias};
  // PEFT gives the tied output layer the LoRA of the embedding, without naming it, and a scale of its own.
  const bool tied =
      key.is_lm_head && config.ensure_weight_tying && config.Targets(kEmbeddingModule) && !config.Targets(pair.module);
  // The matrix of a module may be named as a parameter: routers are no linear layers to newer versions of PEFT.
  const bool as_parameter = config.TargetsParameter(pair.module + ".weight");
  const bool targeted = pair.of_parameter
                            ? config.TargetsParameter(pair.module)
                            : config.Targets(pair.module) || config.Targets(pair.plain_module) || as_parameter;
  if (!tied && !targeted) {
    return TensorError(label, *pair.a,
                       std::string("the module is not among ") + AdapterTargetsField(config.form) + " of " +
                           kConfigFile + ": one of the two is wrong");
  }
  const std::int64_t rank = config.RankOf(tied ? kEmbeddingModule : pair.module);
  CHECK(rank >= 1 && rank <= kMaxLoraRank);
  if (model != nullptr) RETURN_IF_ERROR(CheckFit(key, pair, *model, label));
  RETURN_IF_ERROR(CheckRanks(pair, rank, label));
  const double scale = config.ScaleOf(pair.module);
  if (!(std::abs(scale) <= static_cast<double>(std::numeric_limits<float>::max()))) {
    return InvalidArgument(label + ": module " + Quote(pair.module) +
                           ": its scale does not fit a float; lora_alpha in " + kConfigFile + " is too large");
  }
  return LoraModule{.layer = key.layer,
                    .target = key.target,
                    .expert = key.expert,
                    .rank = static_cast<std::int32_t>(rank),
                    .scale = static_cast<float>(scale),
                    .a = pair.a,
                    .b = pair.b,
                    .magnitude = pair.magnitude,
                    .b_bias = pair.b_bias,
                    .bias = pair.bias};
}

// Reads the configuration and what the files of tensors hold. `model` may be null.
Status ReadParts(const std::filesystem::path& directory, const ModelConfig* model, const OpenedFileCheck& check,
                 AdapterFile& file) {
  if (const auto gguf = GgufFileOfAdapter(directory)) {
    ASSIGN_OR_RETURN(RegularFile opened, OpenChecked(*gguf, check));
    const TensorFileLimits limits = AdapterLimits(model);
    ASSIGN_OR_RETURN(GgufAdapter adapter, ReadGgufAdapter(opened, *gguf, model, limits));
    file.config = std::move(adapter.config);
    file.rows_need_base = adapter.rows_need_base;
    ASSIGN_OR_RETURN(TensorReader tensors,
                     TensorReader::Of(std::move(opened), *gguf, std::move(adapter.tensors), limits));
    file.tensors = std::make_unique<TensorReader>(std::move(tensors));
    return Ok{};
  }
  ASSIGN_OR_RETURN(file.config, ReadConfig(directory, check));
  if (model != nullptr) {
    RETURN_IF_ERROR(ApplyLastLayers(model->num_layers, (directory / kConfigFile).string(), file.config));
  }
  ASSIGN_OR_RETURN(TensorReader tensors, OpenTensors(directory, file.config.form, model, check));
  file.tensors = std::make_unique<TensorReader>(std::move(tensors));
  const std::string label = file.tensors->path().string();
  const AdapterForm form = file.config.form;
  if (form == AdapterForm::kPeft && HasTorchtuneNames(file.tensors->tensors())) {
    ASSIGN_OR_RETURN(file.rows_need_base, AsPeftFromTorchtune(model, label, *file.tensors, file.config));
    return Ok{};
  }
  return file.tensors->ChangeEach([&](TensorEntry& tensor) { return AsPeft(form, label, tensor); });
}

// What the folder says of the head's classes.
Status ReadHeadLabels(const std::filesystem::path& directory, const OpenedFileCheck& check, AdapterFile& file) {
  if (!file.head) return Ok{};
  const std::filesystem::path path = directory / "config.json";
  const auto text = ReadChecked(path, check);
  if (!text.ok() && text.error().code == ErrorCode::kNotFound) return Ok{};
  if (!text.ok()) return text.error();
  return ReadClassLabels(*text, path.string(), *file.head);
}

// `model` may be null: then nothing is checked against it. The result has no digest yet.
Result<AdapterFile> Open(const std::filesystem::path& directory, const ModelConfig* model,
                         const OpenedFileCheck& check) {
  RETURN_IF_ERROR(CheckDirectory(directory));
  AdapterFile file;
  file.directory = directory;
  RETURN_IF_ERROR(ReadParts(directory, model, check, file));
  const std::string label = file.tensors->path().string();
  ASSIGN_OR_RETURN(const Pairs pairs, CollectPairs(model, label, file));
  if (std::ranges::none_of(pairs, [](const auto& entry) { return entry.second.a || entry.second.b; })) {
    return InvalidArgument(label + ": expected lora_A and lora_B tensors, found none");
  }
  RETURN_IF_ERROR(ReadHeadLabels(directory, check, file));
  RETURN_IF_ERROR(CheckOwnOutput(pairs, file, label));
  RETURN_IF_ERROR(CheckOwnEmbedding(pairs, file, model, label));
  RETURN_IF_ERROR(CheckPatternWork(pairs, file.config, (directory / kConfigFile).string()));
  for (const auto& [key, pair] : pairs) {
    ASSIGN_OR_RETURN(const LoraModule module, CheckPair(key, pair, file.config, model, label));
    file.max_rank = std::max(file.max_rank, module.rank);
    file.modules.push_back(module);
  }
  file.embedding =
      LoadEmbeddingConfig(directory, [&check](const std::filesystem::path& path) { return ReadChecked(path, check); });
  return file;
}

// Reads every byte of the weights.
Result<AdapterFile> WithDigest(Result<AdapterFile> file) {
  if (file.ok() && file->head) RETURN_IF_ERROR(file->tensors->Read(*file->head->tensor, file->head->weights));
  if (!file.ok() || file->rows_need_base) return file;
  ASSIGN_OR_RETURN(file->digest, ScanAdapterTensors(*file, {}, [&](std::size_t, const Sha256Digest& so_far) -> Status {
                     file->layer_digests.push_back(so_far);
                     return Ok{};
                   }));
  return file;
}

}  // namespace

const char* LoraTargetName(LoraTarget target) {
  const auto index = static_cast<std::size_t>(target);
  CHECK_LT(index, kTargetNames.size());
  return kTargetNames[index];
}

LinearShape TargetShape(const ModelConfig& model, LoraTarget target, std::int64_t layer, std::int32_t expert) {
  const std::int64_t between = expert < 0 ? model.BlockSize(layer) : model.experts->intermediate_size;
  switch (target) {
    case LoraTarget::kQ:
      return {model.hidden_size, model.QProjDim(layer)};
    case LoraTarget::kK:
    case LoraTarget::kV:
      return {model.hidden_size, model.KvDim(layer)};
    case LoraTarget::kO:
      return {model.QDim(layer), model.hidden_size};
    case LoraTarget::kGate:
    case LoraTarget::kUp:
      return {model.hidden_size, between};
    case LoraTarget::kDown:
      return {between, model.hidden_size};
    case LoraTarget::kLmHead:
      return {model.EmbeddingSize(), model.BaseTokens()};
    case LoraTarget::kEmbedding:
      return {model.BaseTokens(), model.EmbeddingSize()};
    case LoraTarget::kRouter:
      return {model.hidden_size, model.experts ? model.experts->route.experts : 0};
    case LoraTarget::kSharedGate:
      return {model.hidden_size, 1};
    case LoraTarget::kInQkv:
      return {model.hidden_size, model.recurrent ? model.recurrent->Channels() : 0};
    case LoraTarget::kInZ:
      return {model.hidden_size, model.recurrent ? model.recurrent->Values() : 0};
    case LoraTarget::kInB:
    case LoraTarget::kInA:
      return {model.hidden_size, model.recurrent ? model.recurrent->value_heads : 0};
    case LoraTarget::kInAll:
      return {model.hidden_size, model.recurrent ? model.recurrent->InputRows() : 0};
    case LoraTarget::kOut:
      return {model.recurrent ? model.recurrent->Values() : 0, model.hidden_size};
    case LoraTarget::kInputGate:
      return {model.hidden_size, model.layer_input_size};
    case LoraTarget::kInputProjection:
      return {model.layer_input_size, model.hidden_size};
    case LoraTarget::kLayerContext:
      return {model.hidden_size, model.num_layers * model.layer_input_size};
    case LoraTarget::kProjectIn:
      return {model.embedding_size, model.hidden_size};
    case LoraTarget::kProjectOut:
      return {model.hidden_size, model.embedding_size};
  }
  CHECK(false);
}

Result<AdapterFile> OpenAdapter(const std::filesystem::path& directory, const ModelConfig& model,
                                const OpenedFileCheck& check) {
  return WithDigest(Open(directory, &model, check));
}

Result<AdapterFile> OpenAdapterHeaders(const std::filesystem::path& directory, const ModelConfig& model,
                                       const OpenedFileCheck& check) {
  return Open(directory, &model, check);
}

Result<std::string> ReadAdapterText(const std::filesystem::path& path, std::size_t max_bytes,
                                    const OpenedFileCheck& check) {
  ASSIGN_OR_RETURN(const RegularFile file, OpenChecked(path, check));
  return ReadText(file, max_bytes, path);
}

Result<AdapterConfig> ReadAdapterConfig(const std::filesystem::path& directory, const OpenedFileCheck& check) {
  return ReadConfig(directory, check);
}

Result<AdapterFile> OpenAdapterWithoutBase(const std::filesystem::path& directory) {
  return WithDigest(Open(directory, nullptr, {}));
}

}  // namespace loramux
