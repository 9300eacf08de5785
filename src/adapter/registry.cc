#include "adapter/registry.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/message.h"
#include "formats/adapter_join.h"
#include "formats/base_model_name.h"

namespace loramux {
namespace {

constexpr std::size_t kMaxNameBytes = 256;

Status CheckNameText(const std::string& name) {
  if (name.empty()) return InvalidArgument("adapter name: expected at least one character, found none", "lora_name");
  if (name.size() > kMaxNameBytes) {
    return InvalidArgument("adapter name: expected at most " + std::to_string(kMaxNameBytes) + " bytes, found " +
                               std::to_string(name.size()),
                           "lora_name");
  }
  const bool bad =
      std::any_of(name.begin(), name.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f || c == ','; });
  if (bad) {
    return InvalidArgument("adapter name '" + name +
                               "': commas and control characters are not allowed (routers split "
                               "lists of names on commas)",
                           "lora_name");
  }
  return Ok{};
}

}  // namespace

using VersionPtr = std::shared_ptr<const AdapterVersion>;

std::string WeightVersionOf(const AdapterVersion& version) {
  return std::to_string(version.generation.value) + ":" + version.file.digest;
}

AdapterRegistry::AdapterRegistry(ModelConfig model, std::vector<std::string> base_names, Options options)
    : model_(std::move(model)), base_names_(std::move(base_names)), options_(std::move(options)) {}

Result<VersionPtr> AdapterRegistry::Register(const std::string& name, const std::filesystem::path& path,
                                             std::int64_t now_unix_seconds) {
  {
    const std::lock_guard lock(mutex_);
    if (by_name_.contains(name)) return NameTaken(name);  // before the work; Publish checks again
  }
  ASSIGN_OR_RETURN(VersionPtr version, Prepare(name, path, now_unix_seconds));
  auto published = Publish(version, /*replace=*/false);
  if (!published.ok()) Discard(*version);  // another thread took the name first
  return published;
}

Result<VersionPtr> AdapterRegistry::Prepare(const std::string& name, const std::filesystem::path& path,
                                            std::int64_t now_unix_seconds, const OpenedFileCheck& opened,
                                            AdapterOrigin origin) {
  RETURN_IF_ERROR(CheckName(name));
  ASSIGN_OR_RETURN(std::shared_ptr<AdapterVersion> version, Open(name, path, opened));
  if (!origin.source.empty()) version->path = std::move(origin.source);
  version->held = std::move(origin.held);
  version->created_unix_seconds = now_unix_seconds;
  const std::lock_guard lock(mutex_);
  Enter(version);
  return VersionPtr(std::move(version));
}

Result<std::shared_ptr<AdapterVersion>> AdapterRegistry::Open(const std::string& name,
                                                              const std::filesystem::path& path,
                                                              const OpenedFileCheck& opened) const {
  auto version = std::make_shared<AdapterVersion>();
  version->name = name;
  version->path = path;
  auto file = OpenAdapter(path, model_, opened);
  if (!file.ok()) return Explain(std::move(file).error(), path, opened);
  version->file = std::move(file).value();
  ASSIGN_OR_RETURN(version->layout, LayOut(name, path, version->file));
  if (options_.meet_base) {
    RETURN_IF_ERROR(options_.meet_base(version->file));
    // Only rows that differ from the base's remain of own matrices.
    if (!version->file.own.empty()) {
      ASSIGN_OR_RETURN(version->layout, LayOut(name, path, version->file));
    }
  }
  if (HasRowFactors(version->layout.dtype)) {
    ASSIGN_OR_RETURN(version->rounding, ErrorInEightBits(version->file, version->layout.dtype));
  }
  const std::string& trained_on = version->file.config.base_model_name;
  if (IsOfAnotherModel(trained_on)) {
    version->warning = "it was trained on " + Quote(trained_on) + ", and the base model here is " + Quote(BaseModel()) +
                       ": the shapes fit, but its answers may be wrong";
  }
  if (options_.complete) RETURN_IF_ERROR(options_.complete(model_, *version, path, opened));
  return version;
}

Result<std::int64_t> AdapterRegistry::Check(const std::string& name, const std::filesystem::path& path,
                                            const OpenedFileCheck& opened) const {
  RETURN_IF_ERROR(CheckName(name));
  const auto file = OpenAdapterHeaders(path, model_, opened);
  if (!file.ok()) return Explain(file.error(), path, opened);
  ASSIGN_OR_RETURN(const AdapterLayout layout, LayOut(name, path, *file));
  return file->head ? file->head->classes() : 0;
}

// Places the adapter in pages, if its rank is permitted.
Result<AdapterLayout> AdapterRegistry::LayOut(const std::string& name, const std::filesystem::path& path,
                                              const AdapterFile& file) const {
  if (file.max_rank > options_.max_rank) {
    return InvalidArgument("adapter '" + name + "' (" + path.string() + ") has rank " + std::to_string(file.max_rank) +
                               ", more than --max-lora-rank " + std::to_string(options_.max_rank),
                           "lora_path");
  }
  const DType dtype = options_.forced_dtype.value_or(ChooseAdapterDType(file, options_.base_dtype));
  auto layout = LayoutAdapter(file, dtype, options_.page_bytes, model_, options_.part);
  if (layout.ok()) return layout;
  return Error{layout.error().code, "adapter '" + name + "' (" + path.string() + "): " + layout.error().message,
               "lora_path"};
}

bool AdapterRegistry::IsOfAnotherModel(std::string_view trained_on) const {
  if (trained_on.empty() || options_.model_names.empty()) return false;
  const auto same = [&](const std::string& name) { return SameModelName(trained_on, name); };
  return std::none_of(base_names_.begin(), base_names_.end(), same) &&
         std::none_of(options_.model_names.begin(), options_.model_names.end(), same);
}

std::string AdapterRegistry::BaseModel() const {
  return options_.model_names.empty() ? base_names_.front() : options_.model_names.front();
}

// Names both models in an error about an adapter that was trained on another one: that is the likely cause.
Error AdapterRegistry::Explain(Error error, const std::filesystem::path& path, const OpenedFileCheck& opened) const {
  if (error.code != ErrorCode::kInvalidArgument) return error;
  const auto config = ReadAdapterConfig(path, opened);
  if (!config.ok() || !IsOfAnotherModel(config->base_model_name)) return error;
  error.message += "; the adapter was trained on " + Quote(config->base_model_name) + ", and the base model here is " +
                   Quote(BaseModel());
  return error;
}

Result<VersionPtr> AdapterRegistry::Publish(VersionPtr version, bool replace) {
  CHECK(version->generation != kBaseModel);
  VersionPtr old;  // released after the lock
  {
    const std::lock_guard lock(mutex_);
    CHECK(!entries_.at(version->generation).retired);
    const auto [named, is_new] = by_name_.try_emplace(version->name, version);
    if (!is_new && !replace) return NameTaken(version->name);
    if (!is_new) {
      old = std::exchange(named->second, version);
      Retire(old->generation);
    }
  }
  if (old != nullptr && options_.on_retire) options_.on_retire();
  if (options_.on_publish) options_.on_publish(version);
  return version;
}

Result<VersionPtr> AdapterRegistry::Commit(std::shared_ptr<AdapterVersion> version, bool replace) {
  RETURN_IF_ERROR(CheckName(version->name));
  {
    const std::lock_guard lock(mutex_);
    if (!replace && by_name_.contains(version->name)) return NameTaken(version->name);
    Enter(version);
  }
  auto published = Publish(version, replace);
  if (!published.ok()) Discard(*version);  // another thread took the name first
  return published;
}

Result<VersionPtr> AdapterRegistry::Remove(std::string_view name) {
  VersionPtr old;
  {
    const std::lock_guard lock(mutex_);
    const auto found = by_name_.find(name);
    if (found == by_name_.end()) {
      return NotFound("The lora adapter '" + std::string(name) + "' cannot be found.", "lora_name");
    }
    old = std::move(found->second);
    by_name_.erase(found);
    Retire(old->generation);
  }
  if (options_.on_retire) options_.on_retire();
  return old;
}

void AdapterRegistry::Discard(const AdapterVersion& version) {
  {
    const std::lock_guard lock(mutex_);
    Retire(version.generation);
  }
  if (options_.on_retire) options_.on_retire();
}

void AdapterRegistry::Enter(const std::shared_ptr<AdapterVersion>& version) {
  CHECK_LT(last_generation_, UINT32_MAX);
  version->generation = AdapterGeneration{++last_generation_};
  entries_.emplace(version->generation, Entry{version, false});
}

// A composite must not outlive a part's name: the next request for it is to get the part that has the name then.
void AdapterRegistry::Retire(AdapterGeneration generation) {
  RetireOne(generation);
  std::erase_if(composites_, [&](const Composite& composite) {
    const bool has = std::ranges::any_of(composite.parts, [&](const auto& part) { return part.first == generation; });
    if (has) RetireOne(composite.version->generation);
    return has;
  });
}

void AdapterRegistry::RetireOne(AdapterGeneration generation) {
  entries_.at(generation).retired = true;
  retired_.push_back(generation);
  retired_and_held_.push_back(generation);
  if (retired_and_held_.size() >= forget_at_) ForgetUnheld();
}

// Runs when the list is twice as long as after the last run: amortised constant time for each retirement.
void AdapterRegistry::ForgetUnheld() {
  std::erase_if(retired_and_held_, [this](AdapterGeneration generation) {
    const auto entry = entries_.find(generation);
    if (!entry->second.version.expired()) return false;
    entries_.erase(entry);
    return true;
  });
  forget_at_ = std::max<std::size_t>(16, 2 * retired_and_held_.size());
}

VersionPtr AdapterRegistry::FindComposite(const std::vector<WeightedAdapter>& parts) const {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find_if(composites_, [&](const Composite& composite) {
    return std::ranges::equal(composite.parts, parts, [](const auto& a, const WeightedAdapter& b) {
      return a.first == b.version->generation && a.second == b.weight;
    });
  });
  if (found == composites_.end()) return nullptr;
  std::rotate(found, found + 1, composites_.end());
  return composites_.back().version;
}

Result<VersionPtr> AdapterRegistry::Compose(const std::vector<WeightedAdapter>& parts, std::int64_t now_unix_seconds) {
  CHECK(!parts.empty() && parts.size() <= kMaxWeightedAdapters);
  const std::lock_guard composing(composing_);
  if (VersionPtr known = FindComposite(parts)) return known;
  auto version = std::make_shared<AdapterVersion>();
  Composite composite;
  std::vector<AdapterShare> shares;
  for (const WeightedAdapter& part : parts) {
    shares.push_back({&part.version->file, part.version->name, part.weight});
    version->name += (version->name.empty() ? "" : "+") + part.version->name;
    if (part.weight != 1) version->name += fmt::format("*{}", part.weight);
    version->parts.push_back(part.version);
    composite.parts.emplace_back(part.version->generation, part.weight);
    if (version->text != nullptr || part.version->text == nullptr) continue;
    version->text = part.version->text;
    version->text_digest = part.version->text_digest;
  }
  version->path = version->name;
  version->created_unix_seconds = now_unix_seconds;
  if (!options_.part.whole()) {
    return Unsupported(
        "a group of ranks (--tensor-parallel-size) serves one adapter for each request, found " + version->name,
        "model");
  }
  ASSIGN_OR_RETURN(version->file, JoinAdapters(shares, version->name));
  ASSIGN_OR_RETURN(version->layout, LayOut(version->name, version->path, version->file));
  VersionPtr oldest;  // released after the lock
  {
    const std::lock_guard lock(mutex_);
    for (const WeightedAdapter& part : parts) {
      const auto entry = entries_.find(part.version->generation);
      if (entry != entries_.end() && !entry->second.retired) continue;
      return Unavailable("The adapter `" + part.version->name +
                         "` was unloaded or replaced meanwhile; send the request again.");
    }
    if (composites_.size() >= kMaxComposites) {
      oldest = std::move(composites_.front().version);
      composites_.erase(composites_.begin());
      RetireOne(oldest->generation);
    }
    Enter(version);
    composite.version = version;
    composites_.push_back(std::move(composite));
  }
  if (oldest != nullptr && options_.on_retire) options_.on_retire();
  return VersionPtr(std::move(version));
}

void AdapterRegistry::TakeRetired(std::vector<AdapterGeneration>& retired) {
  const std::lock_guard lock(mutex_);
  retired.insert(retired.end(), retired_.begin(), retired_.end());
  retired_.clear();
}

bool AdapterRegistry::IsRetired(AdapterGeneration generation) const {
  const std::lock_guard lock(mutex_);
  const auto entry = entries_.find(generation);
  return entry == entries_.end() || entry->second.retired;
}

Error AdapterRegistry::NameTaken(const std::string& name) {
  return InvalidArgument("The lora adapter '" + name + "' has already been loaded.", "lora_name");
}

bool AdapterRegistry::IsBaseName(std::string_view name) const {
  return std::find(base_names_.begin(), base_names_.end(), name) != base_names_.end();
}

Status AdapterRegistry::CheckName(const std::string& name) const {
  RETURN_IF_ERROR(CheckNameText(name));
  if (IsBaseName(name)) {
    return InvalidArgument("The lora adapter name '" + name +
                               "' conflicts with a served base model: give the adapter (in --adapter-dir, its folder) "
                               "another name, or the base model (--served-model-name)",
                           "lora_name");
  }
  return Ok{};
}

Result<VersionPtr> AdapterRegistry::Resolve(std::string_view name) const {
  if (IsBaseName(name)) return VersionPtr();
  const std::lock_guard lock(mutex_);
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) return NotFound("The model `" + std::string(name) + "` does not exist.", "model");
  return found->second;
}

VersionPtr AdapterRegistry::Find(AdapterGeneration generation) const {
  const std::lock_guard lock(mutex_);
  const auto entry = entries_.find(generation);
  return entry == entries_.end() ? nullptr : entry->second.version.lock();
}

std::vector<VersionPtr> AdapterRegistry::List() const {
  const std::lock_guard lock(mutex_);
  std::vector<VersionPtr> all;
  all.reserve(by_name_.size());
  for (const auto& [name, version] : by_name_) all.push_back(version);
  return all;
}

std::size_t AdapterRegistry::held_generations() const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::size_t>(std::count_if(entries_.begin(), entries_.end(),
                                                [](const auto& entry) { return !entry.second.version.expired(); }));
}

}  // namespace loramux
