#include "formats/adapter_gguf.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <utility>

#include "base/message.h"
#include "formats/adapter_form.h"
#include "formats/gguf_architecture.h"
#include "formats/gguf_file.h"

namespace loramux {
namespace {

// Metadata and descriptions of tensors; those of the largest adapters take some hundred KB.
constexpr std::size_t kMaxHeadBytes = std::size_t{16} << 20;

// Keys of an adapter that change nothing of what it computes, or that are read below.
constexpr std::array<std::string_view, 4> kAdapterKeys = {"adapter.type", "adapter.lora.alpha",
                                                          "adapter.lora.task_name", "adapter.alora.invocation_tokens"};

Status CheckGgufAdapter(const GgufFile& file) {
  ASSIGN_OR_RETURN(const auto type, file.Text("general.type"));
  if (type.value_or("model") != "adapter") {
    return InvalidArgument(file.label() + ": expected an adapter (general.type), found " +
                           Quote(type.value_or("model")) + ": serve it as the base model");
  }
  ASSIGN_OR_RETURN(const auto kind, file.Text("adapter.type"));
  if (kind.value_or("") != "lora") return file.Bad("adapter.type", "'lora'");
  for (const std::string& key : file.keys()) {
    if (!key.starts_with("adapter.") || std::find(kAdapterKeys.begin(), kAdapterKeys.end(), key) != kAdapterKeys.end())
      continue;
    return Unsupported(file.label() + ": metadata " + Quote(key) + " = " + DescribeGguf(*file.Find(key)) +
                       " may change what the adapter computes, and loramux does not know it");
  }
  return Ok{};
}

Status ReadInvocation(const GgufFile& file, AdapterConfig& config) {
  constexpr const char* kKey = "adapter.alora.invocation_tokens";
  ASSIGN_OR_RETURN(const auto invocation, file.Array(kKey, GgufArray::Element::kNumber));
  if (!invocation) return Ok{};
  if (invocation->size() > kMaxInvocationTokens) {
    return file.Bad(kKey, "at most " + std::to_string(kMaxInvocationTokens) + " token ids");
  }
  for (const double token : invocation->Numbers()) {
    if (!(token >= 0 && token <= std::numeric_limits<TokenId>::max()) || std::floor(token) != token) {
      return file.Bad(kKey, "token ids");
    }
    config.invocation_tokens.push_back(static_cast<TokenId>(token));
  }
  return Ok{};
}

Result<std::string> BaseOfGgufAdapter(const GgufFile& file) {
  for (const char* key : {"general.base_model.0.repo_url", "general.base_model.0.name"}) {
    ASSIGN_OR_RETURN(auto name, file.Text(key));
    if (name && !name->empty()) return *std::move(name);
  }
  return std::string();
}

// The types that an adapter may have, and what they are read as.
struct StoredType {
  std::uint32_t id;
  DType dtype;
  bool q8_0 = false;
};
constexpr std::array<StoredType, 4> kAdapterTypes = {
    {{0, DType::kF32}, {1, DType::kF16}, {30, DType::kBF16}, {8, DType::kF32, true}}};

Result<TensorEntry> EntryOfGgufTensor(const GgufTensor& tensor, const std::string& label) {
  const auto* const type = std::find_if(kAdapterTypes.begin(), kAdapterTypes.end(),
                                        [&](const StoredType& known) { return known.id == tensor.type->id; });
  if (type == kAdapterTypes.end()) {
    return Unsupported(label + ": tensor " + Quote(tensor.name) + ": expected type F32, F16, BF16 or Q8_0, found " +
                       tensor.type->name);
  }
  TensorEntry entry{.name = tensor.name, .dtype = type->dtype, .shape = tensor.shape, .offset = tensor.offset};
  entry.bytes = DTypeSize(type->dtype);
  for (const std::int64_t extent : tensor.shape) {
    if (__builtin_mul_overflow(entry.bytes, static_cast<std::uint64_t>(extent), &entry.bytes)) {
      return InvalidArgument(label + ": tensor " + Quote(tensor.name) + ": its shape " + ShapeToString(tensor.shape) +
                             " is too large");
    }
  }
  if (type->q8_0 && tensor.shape.size() == 2) {
    entry.view = std::make_shared<const TensorView>(
        TensorView{.rows = tensor.shape[0], .columns = tensor.shape[1], .q8_0 = true});
  }
  return entry;
}

bool IsTurned(std::string_view name) {
  return name.ends_with(".attn_q.weight.lora_b") || name.ends_with(".attn_k.weight.lora_b");
}

// The rank that most modules have becomes r, and the others go into rank_pattern: the file says alpha alone.
Status SetRanks(const std::vector<TensorEntry>& tensors, const std::string& label, AdapterConfig& config) {
  constexpr std::string_view kRoot = "base_model.model.", kEnd = ".lora_A.weight";
  std::map<std::int64_t, std::vector<std::string>> of_rank;
  for (const TensorEntry& tensor : tensors) {
    if (!tensor.peft_name.ends_with(kEnd) || tensor.shape.size() != 2) continue;
    if (tensor.shape[0] > kMaxLoraRank) {
      return InvalidArgument(label + ": tensor " + Quote(tensor.name) + ": expected a rank from 1 to " +
                             std::to_string(kMaxLoraRank) + ", found " + std::to_string(tensor.shape[0]));
    }
    const std::size_t length = tensor.peft_name.size() - kRoot.size() - kEnd.size();
    of_rank[tensor.shape[0]].push_back(tensor.peft_name.substr(kRoot.size(), length));
  }
  config.r = 1;
  std::size_t most = 0;
  for (const auto& [rank, modules] : of_rank) {
    if (modules.size() > most) config.r = rank;
    most = std::max(most, modules.size());
  }
  for (const auto& [rank, modules] : of_rank) {
    for (const std::string& module : modules) {
      if (rank != config.r) config.rank_pattern.emplace_back(module, rank);
    }
  }
  return config.CompilePatterns(label);
}

}  // namespace

Result<GgufAdapter> ParseGgufAdapter(std::span<const std::byte> head, std::uint64_t file_bytes,
                                     const ModelConfig* model, const TensorFileLimits& limits,
                                     const std::string& label) {
  ASSIGN_OR_RETURN(const GgufFile file, GgufFile::ParseHead(head, file_bytes, label));
  RETURN_IF_ERROR(CheckGgufAdapter(file));
  ASSIGN_OR_RETURN(const bool interleaved, GgufHeadsAreInterleaved(file));
  if (file.tensors().size() > limits.max_tensors) {
    return InvalidArgument(label + ": expected at most " + std::to_string(limits.max_tensors) + " tensors, found " +
                           std::to_string(file.tensors().size()));
  }
  GgufAdapter adapter;
  adapter.config.form = AdapterForm::kGguf;
  for (const GgufTensor& tensor : file.tensors()) {
    ASSIGN_OR_RETURN(TensorEntry entry, EntryOfGgufTensor(tensor, label));
    RETURN_IF_ERROR(AsPeft(AdapterForm::kGguf, label, entry));
    if (interleaved && IsTurned(tensor.name)) {
      adapter.rows_need_base = model == nullptr;
      if (model != nullptr) OrderInterleavedRows(model->head_dim, entry);
    }
    adapter.tensors.push_back(std::move(entry));
  }
  RETURN_IF_ERROR(SetRanks(adapter.tensors, label, adapter.config));
  ASSIGN_OR_RETURN(const auto alpha, file.Number("adapter.lora.alpha"));
  adapter.config.lora_alpha = alpha.value_or(0);
  if (adapter.config.lora_alpha == 0) {  // so does llama.cpp
    adapter.config.factor = 1;
    adapter.config.lora_alpha = static_cast<double>(adapter.config.r);
  }
  RETURN_IF_ERROR(ReadInvocation(file, adapter.config));
  ASSIGN_OR_RETURN(adapter.config.base_model_name, BaseOfGgufAdapter(file));
  return adapter;
}

Result<GgufAdapter> ReadGgufAdapter(const RegularFile& file, const std::filesystem::path& path,
                                    const ModelConfig* model, const TensorFileLimits& limits) {
  std::vector<std::byte> head(std::min(kMaxHeadBytes, file.size()));
  RETURN_IF_ERROR(file.ReadAt(0, head, path));
  return ParseGgufAdapter(head, file.size(), model, limits, path.string());
}

}  // namespace loramux
