#include "formats/adapter_writer.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/adapter_files.h"
#include "base/message.h"
#include "formats/adapter_tensor_name.h"
#include "formats/model_family.h"

namespace loramux {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

// What a folder says of prompts and answers, and how to use it.
constexpr std::array<const char*, 9> kOtherFiles = {
    "added_tokens.json",       "chat_template.jinja", "chat_template.json",    "config.json", "generation_config.json",
    "special_tokens_map.json", "tokenizer.json",      "tokenizer_config.json", "README.md"};
constexpr std::size_t kHeaderAlignment = 8;  // bytes; safetensors aligns the data that follows the header

std::string ShortName(const LoraModule& module) { return LoraTargetName(module.target); }

std::string FullName(const LoraModule& module) {
  if (module.target == LoraTarget::kLmHead) return ShortName(module);
  if (module.target == LoraTarget::kEmbedding) return "model." + ShortName(module);
  if (module.target >= LoraTarget::kLayerContext) return "model." + ShortName(module);
  const char* const block = module.target <= LoraTarget::kO ? ".self_attn."
                            : IsOfStates(module.target)     ? ".linear_attn."
                            : IsBesideBlocks(module.target) ? "."
                                                            : ".mlp.";
  return "model.layers." + std::to_string(module.layer) + block + ShortName(module);
}

std::string FullName(const OwnPart& part) {
  if (part.kind == OwnKind::kOutput) return "lm_head";
  return part.kind == OwnKind::kEmbedding ? "model.embed_tokens" : part.module;
}

// Whether PEFT saves the module as a whole.
bool IsSaved(const OwnPart& part) { return part.whole || IsNorm(part.kind); }

// Whether it is the rows that a copy of the base model's matrix has beyond that (save_embedding_layers).
bool IsOfCopy(const OwnPart& part) {
  return !IsSaved(part) && part.tensor->shape[0] != static_cast<std::int64_t>(part.rows.size());
}

struct NamedTensor {
  std::string name;
  const TensorEntry* tensor;
};

std::vector<NamedTensor> TensorsOf(const AdapterFile& file) {
  std::vector<NamedTensor> tensors;
  const auto add = [&](const std::string& name, const TensorEntry* tensor) {
    if (tensor != nullptr) tensors.push_back({"base_model.model." + name, tensor});
  };
  for (const LoraModule& module : file.modules) {
    const std::string name = FullName(module);
    const bool of_embedding = module.target == LoraTarget::kEmbedding;
    add(name + (of_embedding ? ".lora_embedding_A" : ".lora_A.weight"), module.a);
    add(name + (of_embedding ? ".lora_embedding_B" : ".lora_B.weight"), module.b);
    add(name + ".lora_B.bias", module.b_bias);
    add(name + ".lora_magnitude_vector", module.magnitude);
    add(name + (module.a == nullptr ? ".bias" : ".base_layer.bias"), module.bias);
  }
  for (const OwnPart& part : file.own) {
    if (part.tied) continue;  // PEFT makes it of the embedding's
    const bool beside_lora = IsOfCopy(part) && std::ranges::any_of(file.modules, [&](const LoraModule& module) {
                               return FullName(module) == FullName(part);
                             });
    add(FullName(part) + (beside_lora                       ? ".base_layer.weight"
                          : IsSaved(part) || IsOfCopy(part) ? ".weight"
                                                            : ".token_adapter.trainable_tokens_delta"),
        part.tensor);
  }
  if (file.head) add(file.head->module + ".weight", file.head->tensor);
  return tensors;
}

// The value that most modules with LoRA have.
template <typename Value, typename Of>
Value MostFrequent(const AdapterFile& file, const Of& of) {
  std::map<Value, int> times;
  for (const LoraModule& module : file.modules)
    if (module.a != nullptr) ++times[of(module)];
  const auto more = [](const auto& a, const auto& b) { return a.second < b.second; };
  return std::max_element(times.begin(), times.end(), more)->first;
}

// Exact: PEFT divides by the rank again, in doubles.
double AlphaOf(const LoraModule& module) { return static_cast<double>(module.scale) * module.rank; }

void AddRanks(const AdapterFile& file, ordered_json& config) {
  const auto rank_of = [](const LoraModule& module) { return module.rank; };
  const auto r = MostFrequent<std::int32_t>(file, rank_of);
  const auto alpha = MostFrequent<double>(file, AlphaOf);
  ordered_json ranks = ordered_json::object(), alphas = ordered_json::object();
  for (const LoraModule& module : file.modules) {
    if (module.a == nullptr) continue;
    if (module.rank != r) ranks[FullName(module)] = module.rank;
    if (AlphaOf(module) != alpha) alphas[FullName(module)] = AlphaOf(module);
  }
  config["r"] = r;
  config["lora_alpha"] = alpha;
  config["rank_pattern"] = std::move(ranks);
  config["alpha_pattern"] = std::move(alphas);
}

// The modules by short names where each of the adapter's layers has the same, else each by its whole name. PEFT makes
// modules that have no tensors, so it is told the layers too.
void AddTargets(const AdapterFile& file, const ModelConfig* model, ordered_json& config) {
  std::map<std::int32_t, std::set<std::string>> of_layer;
  std::set<std::string> whole, output;
  for (const LoraModule& module : file.modules) {
    if (module.a == nullptr) continue;
    whole.insert(FullName(module));
    if (module.target >= LoraTarget::kLmHead) {
      output.insert(FullName(module));
    } else {
      of_layer[module.layer].insert(ShortName(module));
    }
  }
  config["layers_to_transform"] = nullptr;
  const bool alike = !of_layer.empty() && std::ranges::all_of(of_layer, [&](const auto& layer) {
    return layer.second == of_layer.begin()->second;
  });
  if (!alike) {
    config["target_modules"] = whole;
    return;
  }
  std::set<std::string> targets = of_layer.begin()->second;
  targets.insert(output.begin(), output.end());
  config["target_modules"] = targets;
  if (model != nullptr && static_cast<std::int64_t>(of_layer.size()) == model->num_layers) return;
  ordered_json layers = ordered_json::array();
  for (const auto& [layer, names] : of_layer) layers.push_back(layer);
  config["layers_to_transform"] = std::move(layers);
}

// The weights of its own; the tokens of rows in the order of the rows.
void AddOwn(const AdapterFile& file, ordered_json& config) {
  ordered_json saved = ordered_json::array(), tokens = ordered_json::object();
  for (const OwnPart& part : file.own) {
    if (part.tied || IsOfCopy(part)) continue;
    if (IsSaved(part)) {
      saved.push_back(FullName(part));
      continue;
    }
    std::vector<OwnRow> rows = part.rows;
    std::ranges::sort(rows, {}, &OwnRow::row);
    for (const OwnRow& row : rows) tokens[FullName(part)].push_back(row.token);
  }
  if (file.head) saved.push_back(file.head->module);
  config["modules_to_save"] = saved.empty() ? ordered_json() : std::move(saved);
  config["trainable_token_indices"] = tokens.empty() ? ordered_json() : std::move(tokens);
}

const char* BiasOf(const AdapterFile& file) {
  const char* bias = "none";
  for (const LoraModule& module : file.modules) {
    if (module.bias == nullptr) continue;
    if (module.a == nullptr) return "all";
    bias = "lora_only";
  }
  return bias;
}

std::string ConfigOf(const AdapterFile& file, const ModelConfig* model) {
  ordered_json config = {
      {"peft_type", "LORA"}, {"task_type", file.head ? "SEQ_CLS" : "CAUSAL_LM"}, {"inference_mode", true}};
  const std::string& base = file.config.base_model_name;
  config["base_model_name_or_path"] = base.empty() ? ordered_json() : ordered_json(base);
  AddRanks(file, config);
  AddTargets(file, model, config);
  config["bias"] = BiasOf(file);
  const auto any = [&](const TensorEntry* LoraModule::*tensor) {
    return std::ranges::any_of(file.modules, [=](const LoraModule& module) { return module.*tensor != nullptr; });
  };
  config["use_dora"] = any(&LoraModule::magnitude);
  config["lora_bias"] = any(&LoraModule::b_bias);
  config["use_rslora"] = false;  // the alphas say it all
  config["fan_in_fan_out"] = false;
  config["init_lora_weights"] = true;
  config["lora_dropout"] = 0.0;
  AddOwn(file, config);
  if (!file.config.invocation_tokens.empty()) config["alora_invocation_tokens"] = file.config.invocation_tokens;
  return config.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

Status WriteTensors(const AdapterFile& file, const fs::path& path) {
  const std::vector<NamedTensor> tensors = TensorsOf(file);
  ordered_json header = {{"__metadata__", {{"format", "pt"}}}};
  std::uint64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    header[name] = {{"dtype", DTypeName(tensor->dtype)},
                    {"shape", tensor->shape},
                    {"data_offsets", {offset, offset + tensor->bytes}}};
    offset += tensor->bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + kHeaderAlignment - 1) / kHeaderAlignment * kHeaderAlignment, ' ');
  std::ofstream out(path, std::ios::binary);
  const std::uint64_t header_bytes = text.size();
  out.write(reinterpret_cast<const char*>(&header_bytes), sizeof(header_bytes));
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
  std::vector<std::byte> data;
  for (const auto& [name, tensor] : tensors) {
    RETURN_IF_ERROR(file.tensors->Read(*tensor, data));
    out.write(reinterpret_cast<const char*>(data.data()), static_cast<std::streamsize>(data.size()));
  }
  out.close();
  return out ? Status(Ok{}) : Status(IoError("cannot write " + path.string()));
}

Status CopyOtherFiles(const fs::path& from, const fs::path& to) {
  std::error_code error;
  if (!fs::is_directory(from, error)) return Ok{};
  for (const char* name : kOtherFiles) {
    if (!fs::is_regular_file(from / name, error)) continue;
    fs::copy_file(from / name, to / name, error);
    if (error) return IoError("cannot copy " + (from / name).string() + ": " + error.message());
  }
  return Ok{};
}

Status WriteAll(const AdapterFile& file, const ModelConfig* model, const fs::path& to) {
  std::error_code error;
  fs::create_directories(to, error);
  if (error) return IoError("cannot make " + to.string() + ": " + error.message());
  RETURN_IF_ERROR(CopyOtherFiles(file.directory, to));
  RETURN_IF_ERROR(WriteTensors(file, to / kAdapterTensorFiles[0]));
  std::ofstream config(to / kAdapterConfigFile, std::ios::binary);
  config << ConfigOf(file, model);
  config.close();
  if (!config) return IoError("cannot write " + (to / kAdapterConfigFile).string());
  const auto again = model == nullptr ? OpenAdapterWithoutBase(to) : OpenAdapter(to, *model);
  if (!again.ok()) return again.error();
  if (again->digest == file.digest) return Ok{};
  return InvalidArgument(file.directory.string() + ": what was written of it has the digest " + again->digest +
                         ", expected " + file.digest + ": its files changed while they were read; convert it again");
}

fs::path WithoutLastSlash(const fs::path& path) { return path.has_filename() ? path : path.parent_path(); }

// Where the folder grows until it is complete.
fs::path Growing(const fs::path& to) {
  fs::path growing = WithoutLastSlash(to);
  growing += ".partial";
  return growing;
}

}  // namespace

Status CheckNewAdapterDirectory(const fs::path& directory) {
  std::error_code error;
  for (const fs::path& path : {directory, Growing(directory)}) {
    if (!fs::exists(path, error) || (fs::is_directory(path, error) && fs::is_empty(path, error))) continue;
    return InvalidArgument("expected a new or an empty folder for the adapter, found " + path.string() +
                               " with content; choose another, or remove it",
                           "--output");
  }
  return Ok{};
}

Status WriteAdapter(const AdapterFile& file, const ModelConfig* model, const fs::path& directory) {
  RETURN_IF_ERROR(CheckNewAdapterDirectory(directory));
  if (file.rows_need_base) {
    return Unsupported(
        file.directory.string() + ": the order of its rows depends on the base model; name that by --base MODEL",
        "--base");
  }
  const bool of_experts = std::ranges::any_of(file.modules, [&](const LoraModule& module) {
    const bool feeds = module.target >= LoraTarget::kGate && module.target <= LoraTarget::kDown;
    const bool of_shared = feeds && model != nullptr && model->HasExperts(module.layer);
    return module.expert >= 0 || IsOfRouting(module.target) || of_shared;
  });
  if (of_experts) {
    return Unsupported(file.directory.string() +
                       " changes experts or routers of a mixture of experts, whose adapters loramux reads as they are "
                       "and does not write");
  }
  // Without the base model, the names of hybrid families alone are seen here.
  const FamilyNames* names = model == nullptr ? GuessFamilyNames(file.tensors->tensors()) : NamesOf(model->family);
  const bool mamba = std::ranges::any_of(file.tensors->tensors(), [](const TensorEntry& tensor) {
    return tensor.name.find(".mamba.") != std::string::npos;
  });
  if (names == nullptr && mamba) names = NamesOf(ModelFamily::kGraniteHybrid);
  const bool fused = model != nullptr && model->family == ModelFamily::kQwen3Next;
  if (fused || (names != nullptr && (model != nullptr || InfoOf(names->family).of_mamba))) {
    const ModelFamily family = names == nullptr ? model->family : names->family;
    return Unsupported(file.directory.string() + ": the modules of a " + ModelFamilyName(family) +
                           " have names of their own, under which converting is not supported; the adapter is served "
                           "as it is",
                       "--base");
  }
  const fs::path to = WithoutLastSlash(directory), growing = Growing(directory);
  std::error_code error;
  const Status written = WriteAll(file, model, growing);
  if (!written.ok()) {
    fs::remove_all(growing, error);
    return written;
  }
  fs::remove(to, error);  // an empty folder
  fs::rename(growing, to, error);
  if (error) return IoError("cannot rename " + growing.string() + " to " + to.string() + ": " + error.message());
  return Ok{};
}

}  // namespace loramux
