#include "tools/inspect.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include <fmt/core.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "adapter/layout.h"
#include "base/bytes.h"
#include "base/message.h"
#include "base/result.h"
#include "formats/adapter_config.h"
#include "formats/adapter_folder.h"
#include "formats/gguf_file.h"
#include "formats/model_config.h"
#include "formats/model_files.h"
#include "formats/safetensors.h"
#include "memory/page_geometry.h"
#include "model/device_model.h"
#include "model/model_tensors.h"
#include "quant/model_source.h"
#include "runtime/placed_model.h"
#include "schedule/system_spec.h"
#include "server/completion/adapter_text.h"
#include "tensor/weight_format.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"
#include "tools/inspect_devices.h"
#include "tools/inspect_report.h"
#include "tools/runtime_flags.h"

namespace loramux {
namespace {

struct InspectFlags {
  std::string directory;  // empty only with `devices`
  std::string base;       // model directory that an adapter is for; empty: shapes from its tensors only
  bool devices = false;   // lists the devices of this machine, instead of a directory
  bool json = false;
};

namespace fs = std::filesystem;
using nlohmann::ordered_json;

// 1100048384 -> "1.10 billion", 49968 -> "49,968".
std::string LargeCount(std::int64_t count) {
  if (count >= 1'000'000'000) return fmt::format("{:.2f} billion", static_cast<double>(count) / 1e9);
  if (count >= 1'000'000) return fmt::format("{:.1f} million", static_cast<double>(count) / 1e6);
  return WithSeparators(static_cast<std::uint64_t>(count));
}

// {0, 1, 2, 5} -> "0-2, 5".
std::string Ranges(const std::set<std::int64_t>& numbers) {
  std::string text;
  for (auto it = numbers.begin(); it != numbers.end();) {
    const std::int64_t first = *it;
    std::int64_t last = first;
    while (++it != numbers.end() && *it == last + 1) last = *it;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", first);
    if (last > first) text += fmt::format("-{}", last);
  }
  return text;
}

template <typename Value>
std::string Joined(const std::set<Value>& values) {
  return fmt::format("{}", fmt::join(values, ", "));
}

// Stored tensors by element type: how many elements and bytes.
struct StoredTotals {
  std::map<std::string, std::int64_t> elements;
  std::int64_t bytes = 0;

  void Add(const StoredTensor& tensor) {
    Add(tensor.dtype, tensor.ElementCount(), static_cast<std::int64_t>(tensor.data.size()));
  }
  void Add(const TensorEntry& tensor) {
    Add(tensor.dtype, tensor.ElementCount(), static_cast<std::int64_t>(tensor.bytes));
  }
  void Add(DType dtype, std::int64_t count, std::int64_t size) { Add(DTypeName(dtype), count, size); }
  void Add(const GgufTensor& tensor) {
    const std::int64_t count =
        std::accumulate(tensor.shape.begin(), tensor.shape.end(), std::int64_t{1}, std::multiplies<std::int64_t>());
    Add(tensor.type->name, count, static_cast<std::int64_t>(tensor.data.size()));
  }
  void Add(const char* type, std::int64_t count, std::int64_t size) {
    elements[type] += count;
    bytes += size;
  }
  // `quantised`: the parameters, where the elements are codes and scales and not those.
  void AddTo(Report& report, std::optional<std::int64_t> quantised = std::nullopt) const {
    std::int64_t parameters = 0;
    std::string text;
    for (const auto& [dtype, count] : elements) {
      parameters += count;
      text +=
          fmt::format("{}{}{}", text.empty() ? "" : ", ", dtype, elements.size() > 1 ? ": " + LargeCount(count) : "");
    }
    parameters = quantised.value_or(parameters);
    loramux::Add(report, "parameters", "parameters", parameters, LargeCount(parameters));
    loramux::Add(report, "dtypes", "element types", elements, text);
    AddBytes(report, "weight_bytes", "weights", bytes);
  }
};

std::string DescribeRope(const ModelConfig& config, const RopeConfig& rope) {
  std::string theta = fmt::format("theta {}", rope.theta);
  if (config.RotaryDim(rope) != config.head_dim) theta += fmt::format(", {} elements of a head", rope.rotary_dim);
  switch (rope.scaling) {
    case RopeConfig::Scaling::kNone:
      return theta;
    case RopeConfig::Scaling::kLinear:
      return theta + fmt::format(", linear scaling by {:g}", rope.factor);
    case RopeConfig::Scaling::kDynamic:
      return theta + fmt::format(", dynamic scaling by {:g} beyond {}, for --max-model-len up to {}", rope.factor,
                                 config.max_position, config.MostPositions());
    case RopeConfig::Scaling::kLlama3:
      return theta + fmt::format(", llama3 scaling by {:g} beyond {}", rope.factor, rope.original_max_position);
    case RopeConfig::Scaling::kYarn:
      return theta + fmt::format(", yarn scaling by {:g} beyond {}", rope.factor, rope.original_max_position);
    case RopeConfig::Scaling::kProportional:
      return theta + fmt::format(", the first {} of {} pairs turn", rope.turning_pairs, config.RotaryDim(rope) / 2);
    case RopeConfig::Scaling::kLongRope:
      return theta + fmt::format(", longrope scaling by {:g}, with other factors beyond {}", rope.factor,
                                 rope.original_max_position);
  }
  return theta;
}

void AddSlidingWindows(Report& report, const ModelConfig& config) {
  std::set<std::int64_t> windows, layers;
  for (std::size_t layer = 0; layer < config.sliding_window.size(); ++layer) {
    if (config.sliding_window[layer] == 0) continue;
    windows.insert(config.sliding_window[layer]);
    layers.insert(static_cast<std::int64_t>(layer));
  }
  Add(report, "sliding_window", "sliding window", config.sliding_window,
      windows.empty() ? "none" : Joined(windows) + " in layers " + Ranges(layers));
}

void AddExperts(Report& report, const ModelConfig& config) {
  if (!config.experts) {
    AddCount(report, "intermediate_size", "feed-forward size", config.intermediate_size);
    return;
  }
  const ExpertsConfig& experts = *config.experts;
  AddCount(report, "experts", "experts", experts.route.experts);
  AddCount(report, "experts_per_token", "experts per token", experts.route.per_token);
  AddCount(report, "expert_intermediate_size", "expert size", experts.intermediate_size);
  if (experts.shared_size > 0) {
    AddCount(report, "shared_expert_intermediate_size", "shared expert size", experts.shared_size);
  }
  const auto without = std::ranges::count(experts.layers, false);
  if (without == 0) return;
  AddCount(report, "layers_without_experts", "layers without experts", without);
  AddCount(report, "intermediate_size", "their feed-forward size", config.intermediate_size);
}

void AddShapes(Report& report, const ModelConfig& config) {
  AddCount(report, "hidden_size", "hidden size", config.hidden_size);
  AddCount(report, "num_layers", "layers", config.num_layers);
  AddCount(report, "num_heads", "query heads", config.num_heads);
  AddCount(report, "num_kv_heads", "key/value heads", config.num_kv_heads);
  AddCount(report, "head_dim", "head size", config.head_dim);
  AddExperts(report, config);
  AddCount(report, "vocab_size", "vocabulary", config.vocab_size);
  AddCount(report, "max_position", "positions", config.max_position);
  if (config.other_heads) {
    AddText(
        report, "other_heads", config.other_slide ? "of layers with a window" : "of full layers",
        fmt::format("{} key/value heads of size {}", config.other_heads->num_kv_heads, config.other_heads->head_dim));
  }
  if (config.shared_kv_layers > 0) {
    AddCount(report, "shared_kv_layers", "layers without keys of their own", config.shared_kv_layers);
  }
  if (config.alibi != Alibi::kNone) AddText(report, "positions", "positions", "linear biases (ALiBi)");
  AddText(report, "rope", "rotary embedding", DescribeRope(config, config.rope));
  if (config.local_rope) {
    AddText(report, "local_rope", "of layers with a window", DescribeRope(config, *config.local_rope));
  }
  const auto without = std::ranges::count(config.layer_rope, LayerRope::kNone);
  if (without > 0) AddCount(report, "layers_without_rope", "layers without it", without);
  AddSlidingWindows(report, config);
  Add(report, "tie_word_embeddings", "tied embeddings", config.tie_word_embeddings,
      config.tie_word_embeddings ? "yes" : "no");
  Add(report, "eos_token_ids", "end tokens", config.eos_token_ids,
      fmt::format("{}", fmt::join(config.eos_token_ids, ", ")));
}

// The type that the runtime takes for keys, values and adapters unless told otherwise: that of the output layer.
DType BaseDType(const TensorFile& tensors) {
  for (const char* quantised : {"lm_head.qweight", "lm_head.weight_packed"}) {
    if (tensors.Find(quantised) != nullptr) return DType::kBF16;
  }
  const StoredTensor* head = tensors.Find("lm_head.weight");
  for (const char* tied : {"model.embed_tokens.weight", "embed_tokens.weight"}) {
    if (head == nullptr) head = tensors.Find(tied);
  }
  if (head == nullptr) return DType::kF32;
  return IsWeightDType(head->dtype) ? head->dtype : DType::kBF16;  // integers: bf16
}

DType GgufBaseDType(const GgufFile& file) {
  const GgufTensor* head = file.FindTensor("output.weight");
  if (head == nullptr) head = file.FindTensor("token_embd.weight");
  const std::optional<DType> type = head == nullptr ? std::nullopt : ParseDType(head->type->name);
  return type && IsWeightDType(*type) ? *type : DType::kBF16;  // as a model in integers
}

void AddPages(Report& report, const PageGeometry& geometry) {
  AddText(report, "kv_dtype", "keys and values in", DTypeName(geometry.kv.dtype));
  AddBytes(report, "kv_bytes_per_token", "bytes per token", static_cast<std::int64_t>(geometry.kv.BytesPerToken()));
  if (geometry.kv.state_pages > 0) {
    AddCount(report, "state_pages", "pages of a sequence's states", geometry.kv.state_pages);
  }
  AddCount(report, "page_tokens", "tokens per page", geometry.kv.page_tokens);
  AddBytes(report, "page_bytes", "page", geometry.page_bytes);
}

// What the weights of a model, in a directory or a GGUF file, say.
struct ModelTotals {
  StoredTotals stored;
  std::int64_t files = 1;
  DType base_dtype = DType::kF32;
};

Result<ModelTotals> TotalsOf(const fs::path& model) {
  ModelTotals totals;
  if (IsGgufModel(model)) {
    ASSIGN_OR_RETURN(const GgufFile file, GgufFile::Open(model));
    for (const GgufTensor& tensor : file.tensors()) totals.stored.Add(tensor);
    totals.base_dtype = GgufBaseDType(file);
    return totals;
  }
  ASSIGN_OR_RETURN(const TensorFile tensors, TensorFile::OpenModelDirectory(model));
  for (const StoredTensor& tensor : tensors.tensors()) totals.stored.Add(tensor);
  totals.files = static_cast<std::int64_t>(tensors.files().size());
  totals.base_dtype = BaseDType(tensors);
  return totals;
}

// What the weights hold; if they are quantised, how, and what they take in memory.
void AddWeights(Report& report, const ModelConfig& config, const ModelSource& source, const ModelTensors& tensors) {
  Add(report, "generates", "makes", tensors.generates,
      tensors.generates ? "text and embeddings" : "embeddings only: the files hold no output layer");
  if (config.quantization.empty()) return;
  AddText(report, "quantization", "quantised", source.Description());
  ordered_json bytes = ordered_json::object();
  std::string text;
  for (const auto& [format, size] : MemoryBytes(tensors)) {
    bytes[WeightFormatName(format)] = size;
    text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", WeightFormatName(format), FormatBytes(size));
  }
  Add(report, "memory_bytes", "in memory", bytes, text);
}

// What it takes of a GPU's memory with batches as `serve` makes them by default.
void AddFit(Report& report, const ModelConfig& config, const ModelTensors& tensors) {
  const SystemSpec spec;
  const DeviceModelLimits limits = {.max_tokens = spec.max_batch_tokens,
                                    .max_sequences = spec.max_running,
                                    .max_logit_rows = spec.max_running,
                                    .max_positions = config.max_position,
                                    .max_rank = RuntimeOptions().max_lora_rank};
  ordered_json fits = ordered_json::object();
  std::string text;
  for (const std::optional<WeightFormat> as :
       {std::optional<WeightFormat>(), std::optional(WeightFormat::kQ8), std::optional(WeightFormat::kQ4)}) {
    const auto fit = DeviceModel::FitOf(config, tensors, {.layers = as}, limits);
    if (!fit.ok()) return AddText(report, "device", "on a GPU", fit.error().message);
    const std::string name = as ? WeightFormatName(*as) : "stored";
    fits[name] = {{"format", WeightFormatName(fit->layers)},
                  {"weight_bytes", fit->weights},
                  {"activation_bytes", fit->activations}};
    text += fmt::format("{}{} ({}{})", text.empty() ? "" : ", ", FormatBytes(fit->weights + fit->activations),
                        as ? "--weights " : "as stored: ", WeightFormatName(fit->layers));
  }
  Add(report, "device", "on a GPU", fits, text + ", beside keys, values and adapters");
}

// The devices of this machine, and what a model leaves on each GPU.
void AddDevices(Report& report) {
  const ordered_json fit = report.back().value;
  for (ReportLine& line : InspectDevices()) {
    if (line.key == "kind") continue;
    if (line.value.contains("compute_capability") && fit.is_object()) {
      const auto memory = line.value["memory_bytes"].get<std::int64_t>();
      const std::int64_t left = memory - DeviceReserve(memory) - fit["stored"]["weight_bytes"].get<std::int64_t>() -
                                fit["stored"]["activation_bytes"].get<std::int64_t>();
      line.value["left_bytes"] = left;
      line.text += left > 0 ? "; the model leaves " + FormatBytes(left) + " of it"
                            : "; the model needs " + FormatBytes(-left) + " more";
    }
    report.push_back(std::move(line));
  }
}

Result<Report> InspectModel(const fs::path& directory) {
  ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(directory));
  ASSIGN_OR_RETURN(const ModelTotals totals, TotalsOf(directory));
  ASSIGN_OR_RETURN(const std::unique_ptr<ModelSource> source, OpenModelSource(directory));
  ASSIGN_OR_RETURN(const ModelTensors tensors, FindModelTensors(config, *source));
  Report report;
  AddText(report, "kind", "kind", "model");
  AddText(report, "path", "path", directory.string());
  AddText(report, "family", "family", ModelFamilyName(config.family));
  const bool quantised = !config.quantization.empty() && !IsGgufModel(directory);
  totals.stored.AddTo(report, quantised ? std::optional(ParameterCount(config, tensors)) : std::nullopt);
  AddWeights(report, config, *source, tensors);
  AddCount(report, "files", "files", totals.files);
  AddShapes(report, config);
  AddPages(report, ChoosePageGeometry(config, totals.base_dtype));
  AddFit(report, config, tensors);
  return report;
}

void AddTrainedOn(Report& report, const AdapterFile& adapter) {
  AddText(report, "form", "written by", AdapterFormName(adapter.config.form));
  const std::string& name = adapter.config.base_model_name;  // untrusted: no control characters to a terminal
  Add(report, "base_model_name", "trained on", name, name.empty() ? "not stated" : Printable(name));
}

// Targets, and whether they are those of experts.
using Targets = std::set<std::tuple<LoraTarget, bool>>;

std::vector<std::string> NamesOf(const Targets& targets) {
  std::vector<std::string> names;
  for (const auto& [target, of_experts] : targets) {
    names.emplace_back(target == LoraTarget::kRouter ? "router" : LoraTargetName(target));
    if (of_experts) names.back() += " of experts";
  }
  return names;
}

void AddModules(Report& report, const AdapterFile& adapter) {
  std::set<std::int64_t> layers;
  std::set<std::int32_t> ranks;
  std::set<float> scales;
  Targets targets;
  std::set<const TensorEntry*> counted;  // gate and up of all experts share their lora_A
  std::set<std::int32_t> experts;
  StoredTotals totals;
  std::int64_t dora = 0, biases = 0;
  for (const LoraModule& module : adapter.modules) {
    if (module.target < LoraTarget::kLmHead) layers.insert(module.layer);
    if (module.a != nullptr) {
      ranks.insert(module.rank);
      scales.insert(module.scale);
    }
    targets.insert({module.target, module.expert >= 0});
    if (module.expert >= 0) experts.insert(module.expert);
    for (const TensorEntry* tensor : {module.a, module.b, module.magnitude, module.b_bias, module.bias}) {
      if (tensor != nullptr && counted.insert(tensor).second) totals.Add(*tensor);
    }
    dora += module.magnitude != nullptr ? 1 : 0;
    biases += module.b_bias != nullptr || module.bias != nullptr ? 1 : 0;
  }
  const std::vector<std::string> names = NamesOf(targets);
  Add(report, "ranks", ranks.size() == 1 ? "rank" : "ranks", ranks, Joined(ranks));
  Add(report, "lora_alpha", "alpha", adapter.config.lora_alpha,
      fmt::format("{:g}{}", adapter.config.lora_alpha, adapter.config.use_rslora ? " (rsLoRA)" : ""));
  Add(report, "scales", scales.size() == 1 ? "scale" : "scales", scales, Joined(scales));
  const std::vector<TokenId>& invocation = adapter.config.invocation_tokens;
  if (!invocation.empty())
    Add(report, "invocation_tokens", "acts from", invocation,
        fmt::format("the tokens {}", fmt::join(invocation, ", ")));
  Add(report, "targets", "targets", names, fmt::format("{}", fmt::join(names, ", ")));
  Add(report, "layers", "layers", layers, layers.empty() ? "none" : Ranges(layers));
  if (!experts.empty()) AddCount(report, "experts", "experts", static_cast<std::int64_t>(experts.size()));
  AddCount(report, "modules", "modules", static_cast<std::int64_t>(adapter.modules.size()));
  const auto norms = std::ranges::count_if(adapter.own, [](const OwnPart& own) { return IsNorm(own.kind); });
  if (norms > 0) AddCount(report, "own_norms", "own norms", norms);
  if (adapter.head) {
    AddCount(report, "head_classes", "classes of its head", adapter.head->classes());
    totals.Add(*adapter.head->tensor);
  }
  for (const OwnPart& own : adapter.own) {
    if (IsNorm(own.kind)) {
      totals.Add(*own.tensor);
      continue;
    }
    const bool of_output = own.kind == OwnKind::kOutput;
    AddCount(report, of_output ? "own_output_rows" : "own_embedding_rows",
             fmt::format("own rows of {}", OwnKindName(own.kind)), static_cast<std::int64_t>(own.rows.size()));
    if (!own.tied) totals.Add(*own.tensor);
  }
  if (dora > 0) AddCount(report, "dora_modules", "with DoRA", dora);
  if (biases > 0) AddCount(report, "modules_with_bias", "with a bias", biases);
  totals.AddTo(report);
}

// How far rows move in 8 bits.
void AddRounding(Report& report, const AdapterFile& adapter, DType dtype) {
  const std::string name = EightBitName(dtype);
  const auto add = [&](const std::string& key, const std::string& label, const Result<double>& error) {
    Add(report, key, label, error.ok() ? nlohmann::ordered_json(*error) : nullptr,
        error.ok() ? fmt::format("{:.2f} % of the weights' size (root mean square)", 100 * *error)
                   : error.error().message);
  };
  const Result<RoundingError> error = ErrorInEightBits(adapter, dtype);
  add(name + "_error", "error of " + name, error.ok() ? Result<double>(error->all) : error.error());
  if (error.ok()) add(name + "_worst_row_error", "  in its worst row", error->worst);
}

// What the adapter takes in the pool of its base model.
Status AddResidency(Report& report, const AdapterFile& adapter, const ModelConfig& base, DType base_dtype) {
  const PageGeometry geometry = ChoosePageGeometry(base, base_dtype);
  const DType dtype = ChooseAdapterDType(adapter, base_dtype);
  ASSIGN_OR_RETURN(const AdapterLayout layout,
                   LayoutAdapter(adapter, dtype, static_cast<std::size_t>(geometry.page_bytes)));
  AddText(report, "memory_dtype", "in memory as", DTypeName(dtype));
  AddCount(report, "pages", "pages", layout.pages);
  AddBytes(report, "page_bytes", "page", geometry.page_bytes);
  AddBytes(report, "memory_bytes", "memory", layout.pages * geometry.page_bytes);
  ASSIGN_OR_RETURN(const AdapterLayout in8,
                   LayoutAdapter(adapter, DType::kI8, static_cast<std::size_t>(geometry.page_bytes)));
  AddBytes(report, "int8_memory_bytes", "with --lora-dtype int8 or fp8", in8.pages * geometry.page_bytes);
  for (const DType eight : {DType::kI8, DType::kF8E4M3}) AddRounding(report, adapter, eight);
  return Ok{};
}

void AddAddedTokens(Report& report, const AdapterFile& adapter, const ModelConfig& model) {
  std::int64_t needed = 0;
  for (const OwnPart& own : adapter.own) {
    if (IsNorm(own.kind) || own.rows.empty()) continue;
    needed = std::max<std::int64_t>(needed, own.rows.back().token + 1 - model.BaseTokens());
  }
  if (needed > 0) AddCount(report, "added_tokens", "tokens that the base model lacks (--adapter-tokens)", needed);
}

// What the folder says of prompts and answers. Without a base model, what it would be measured by.
Status AddOwnText(Report& report, const AdapterFile& adapter, const fs::path& directory, const fs::path& base) {
  const ReadTextPath read = [](const fs::path& path) { return ReadAdapterText(path, kMaxAdapterTextBytes); };
  if (base.empty()) {
    ASSIGN_OR_RETURN(const auto own, ChatTemplate::LoadOfAdapter(directory, read, directory));
    const std::string name = own ? fs::path(own->label()).filename().string() : std::string();
    Add(report, "chat_template", "chat template", name, name.empty() ? "the base model's" : name);
    return Ok{};
  }
  ASSIGN_OR_RETURN(ModelConfig model, LoadModelConfig(base));
  model.AddTokens(kMostAdapterTokens);
  const Result<Tokenizer> tokenizer = Tokenizer::Load(base);
  if (!tokenizer.ok()) {  // weights alone can be checked too
    AddText(report, "warning", "tokenizer", tokenizer.error().message);
    return Ok{};
  }
  ASSIGN_OR_RETURN(const auto chat_template, ChatTemplate::Load(base));
  AdapterTextReader reader({.tokenizer = &*tokenizer,
                            .directory = base,
                            .chat_template = chat_template ? &*chat_template : nullptr,
                            .defaults = RequestDefaults()});
  ASSIGN_OR_RETURN(const auto found, reader.Read(model, directory.filename().string(), directory, {}, adapter.own));
  const AdapterText text = found == nullptr ? AdapterText() : *found;
  const auto or_base = [](const std::string& own) { return own.empty() ? std::string("the base model's") : own; };
  Add(report, "chat_template", "chat template", text.template_name, or_base(text.template_name));
  const Tokenizer& own = text.tokenizer == nullptr ? *tokenizer : text.tokenizer->tokenizer();
  std::vector<std::string> ends;
  for (const TokenId id : text.end_tokens) ends.push_back(fmt::format("{} ({})", id, Printable(own.IdToToken(id))));
  Add(report, "added_eos_token_ids", "added end tokens", text.end_tokens,
      ends.empty() ? "none" : fmt::format("{}", fmt::join(ends, ", ")));
  const std::string defaults = DescribeDefaults(text.own_defaults);
  Add(report, "generation_config", "request defaults", defaults, or_base(defaults));
  Add(report, "warning", "tokenizer", text.warning,
      !text.warning.empty()       ? text.warning
      : text.tokenizer == nullptr ? "agrees with the base model's"
                                  : "its own: it differs from the base model's");
  return Ok{};
}

Result<Report> InspectAdapter(const fs::path& directory, const fs::path& base) {
  Report report;
  AddText(report, "kind", "kind", "adapter");
  AddText(report, "path", "path", directory.string());
  if (base.empty()) {
    ASSIGN_OR_RETURN(const AdapterFile adapter, OpenAdapterWithoutBase(directory));
    AddTrainedOn(report, adapter);
    AddModules(report, adapter);
    RETURN_IF_ERROR(AddOwnText(report, adapter, directory, base));
    Add(report, "digest", "digest", adapter.digest,
        adapter.rows_need_base ? "give --base: the order of its rows depends on the base model" : adapter.digest);
    return report;
  }
  ASSIGN_OR_RETURN(ModelConfig config, LoadModelConfig(base));
  config.AddTokens(kMostAdapterTokens);
  ASSIGN_OR_RETURN(const ModelTotals totals, TotalsOf(base));
  ASSIGN_OR_RETURN(const AdapterFile adapter, OpenAdapter(directory, config));
  AddTrainedOn(report, adapter);
  AddText(report, "base", "checked against", base.string());
  AddModules(report, adapter);
  AddAddedTokens(report, adapter, config);
  RETURN_IF_ERROR(AddOwnText(report, adapter, directory, base));
  AddText(report, "digest", "digest", adapter.digest);
  RETURN_IF_ERROR(AddResidency(report, adapter, config, totals.base_dtype));
  return report;
}

// Whether the path is a GGUF file that says that it is an adapter, or a folder with one GGUF file and no model.
bool IsGgufAdapter(const fs::path& path) {
  const auto file = GgufFileOfAdapter(path);
  if (!file) return false;
  const auto read = GgufFile::Open(*file);
  if (!read.ok()) return false;
  const auto type = read->Text("general.type");
  return type.ok() && type->value_or("") == "adapter";
}

Result<Report> Inspect(const InspectFlags& flags) {
  if (flags.devices && flags.directory.empty()) return InspectDevices();
  if (flags.directory.empty()) {
    return InvalidArgument("name a model or an adapter directory, or give --devices", "directory");
  }
  const fs::path directory = flags.directory;
  std::error_code ignored;
  if (fs::exists(directory / "adapter_config.json", ignored) || IsGgufAdapter(directory))
    return InspectAdapter(directory, flags.base);
  if (IsGgufModel(directory) || fs::exists(directory / "config.json", ignored)) {
    if (flags.base.empty()) {
      ASSIGN_OR_RETURN(Report report, InspectModel(directory));
      if (flags.devices) AddDevices(report);
      return report;
    }
    return InvalidArgument("--base is for adapters, but " + directory.string() + " holds a model", "--base");
  }
  const std::string hint = WhatAdapterFolderHolds(directory);
  return NotFound(directory.string() +
                  ": expected a model directory (with config.json), a GGUF file or an adapter directory (with "
                  "adapter_config.json), found neither" +
                  (hint.empty() ? hint : "; " + hint));
}

std::string ReportAsJson(const Report& report) {
  ordered_json object = ordered_json::object();
  for (const ReportLine& line : report) object[line.key] = line.value;
  return object.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

std::string ReportAsTable(const Report& report) {
  std::size_t width = 0;
  for (const ReportLine& line : report) width = std::max(width, line.label.size());
  std::string table;
  for (const ReportLine& line : report) table += fmt::format("{:<{}}  {}\n", line.label, width, line.text);
  return table;
}

void AddInspectFlags(CommandLine& line, InspectFlags& flags) {
  line.Add({.names = "directory",
            .target = &flags.directory,
            .unit = "DIR",
            .help = "A Hugging Face model directory, a GGUF file, or a PEFT adapter directory"});
  line.Add({.names = "--base",
            .target = &flags.base,
            .unit = "DIR",
            .help = "Check an adapter against this model directory, and print the memory that it takes"});
  line.Add(
      {.names = "--devices",
       .target = &flags.devices,
       .help = "Print what this machine can compute on, and if no GPU, why; with a model, what it leaves on each GPU"});
  line.Add({.names = "--json", .target = &flags.json, .help = "Print one JSON object, with numbers as numbers"});
}

int RunInspect(const InspectFlags& flags) {
  const auto report = Inspect(flags);
  if (!report.ok()) return FailCommand("inspect", report.error());
  fmt::print("{}", flags.json ? ReportAsJson(*report) : ReportAsTable(*report));
  return 0;
}

}  // namespace

Command InspectCommand() {
  const auto flags = std::make_shared<InspectFlags>();
  Command command{.name = "inspect",
                  .summary = "Print what a model or adapter directory holds, or this machine's devices"};
  AddInspectFlags(command.line, *flags);
  command.run = [flags] { return RunInspect(*flags); };
  return command;
}

}  // namespace loramux
