#include "adapter/registry.h"

#include <algorithm>

namespace loramux {
namespace {

constexpr std::size_t kMaxNameBytes = 256;

Status CheckName(const std::string& name) {
  if (name.empty()) return InvalidArgument("adapter name: expected at least one character, found none", "lora_name");
  if (name.size() > kMaxNameBytes) {
    return InvalidArgument("adapter name: expected at most " + std::to_string(kMaxNameBytes) + " bytes, found " +
                           std::to_string(name.size()), "lora_name");
  }
  const bool bad = std::any_of(name.begin(), name.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f || c == ','; });
  if (bad) {
    return InvalidArgument("adapter name '" + name + "': commas and control characters are not allowed (routers split "
                           "lists of names on commas)", "lora_name");
  }
  return Ok{};
}

}  // namespace

AdapterRegistry::AdapterRegistry(ModelConfig model, std::vector<std::string> base_names, Options options)
    : model_(std::move(model)), base_names_(std::move(base_names)), options_(std::move(options)) {}

Result<std::shared_ptr<const AdapterVersion>> AdapterRegistry::Register(const std::string& name,
                                                                        const std::filesystem::path& path,
                                                                        std::int64_t now_unix_seconds) {
  RETURN_IF_ERROR(CheckFree(name));   // before the work; Commit checks again
  auto version = std::make_shared<AdapterVersion>();
  version->name = name;
  version->path = path;
  version->created_unix_seconds = now_unix_seconds;
  ASSIGN_OR_RETURN(version->file, OpenAdapter(path, model_));
  if (version->file.max_rank > options_.max_rank) {
    return InvalidArgument("adapter '" + name + "' (" + path.string() + ") has rank " +
                           std::to_string(version->file.max_rank) + ", more than --max-lora-rank " +
                           std::to_string(options_.max_rank), "lora_path");
  }
  if (options_.check) RETURN_IF_ERROR(options_.check(version->file));
  const DType dtype = options_.forced_dtype.value_or(ChooseAdapterDType(version->file, options_.base_dtype));
  auto layout = LayoutAdapter(ModuleShapes(version->file), dtype, options_.page_bytes);
  if (!layout.ok()) {
    return Error{layout.error().code, "adapter '" + name + "' (" + path.string() + "): " + layout.error().message,
                 "lora_path"};
  }
  version->layout = std::move(layout).value();
  return Commit(std::move(version));
}

Result<std::shared_ptr<const AdapterVersion>> AdapterRegistry::Commit(std::shared_ptr<AdapterVersion> version) {
  RETURN_IF_ERROR(CheckName(version->name));
  RETURN_IF_ERROR(CheckFree(version->name));
  const std::lock_guard lock(mutex_);
  if (by_name_.contains(version->name)) return NameTaken(version->name);   // another thread was faster
  version->generation = AdapterGeneration{static_cast<std::uint32_t>(by_generation_.size() + 1)};
  by_generation_.push_back(version);
  by_name_.emplace(version->name, version);
  return std::shared_ptr<const AdapterVersion>(std::move(version));
}

Error AdapterRegistry::NameTaken(const std::string& name) {
  return InvalidArgument("The lora adapter '" + name + "' has already been loaded.", "lora_name");
}

Status AdapterRegistry::CheckFree(const std::string& name) const {
  if (std::find(base_names_.begin(), base_names_.end(), name) != base_names_.end()) {
    return InvalidArgument("adapter name '" + name + "' is the base model's name", "lora_name");
  }
  const std::lock_guard lock(mutex_);
  if (by_name_.contains(name)) return NameTaken(name);
  return Ok{};
}

Result<std::shared_ptr<const AdapterVersion>> AdapterRegistry::Resolve(std::string_view name) const {
  if (std::find(base_names_.begin(), base_names_.end(), name) != base_names_.end()) {
    return std::shared_ptr<const AdapterVersion>();
  }
  const std::lock_guard lock(mutex_);
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) return NotFound("The model `" + std::string(name) + "` does not exist.", "model");
  return found->second;
}

std::shared_ptr<const AdapterVersion> AdapterRegistry::Find(AdapterGeneration generation) const {
  const std::lock_guard lock(mutex_);
  if (generation == kBaseModel || generation.value > by_generation_.size()) return nullptr;
  return by_generation_[generation.value - 1];
}

std::vector<std::shared_ptr<const AdapterVersion>> AdapterRegistry::List() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<const AdapterVersion>> all;
  all.reserve(by_name_.size());
  for (const auto& [name, version] : by_name_) all.push_back(version);
  return all;
}

}  // namespace loramux
