#include "server/completion/model_choice.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "cluster/pinned_name.h"
#include "http/json_reader.h"

namespace loramux {
namespace {

bool IsBase(const AdapterRegistry& registry, std::string_view name) {
  const auto& bases = registry.base_names();
  return std::find(bases.begin(), bases.end(), name) != bases.end();
}

// The choice of a name that may pin a digest. A name that is registered as a whole pins none.
ModelChoice Pinned(const AdapterRegistry& registry, std::string name, std::string field) {
  const PinnedName pinned = SplitPinnedName(name);
  if (pinned.digest.empty() || registry.Resolve(name).ok()) return {std::move(name), std::move(field)};
  return {std::string(pinned.name), std::move(field), {}, std::string(pinned.digest)};
}

// The composite of the choice's parts, each of which the caller may use.
Result<std::shared_ptr<const AdapterVersion>> ResolveSum(const AdapterRegistry& registry, AdapterFinder& finder,
                                                         const ApiKey& caller, const ModelChoice& choice) {
  std::vector<WeightedAdapter> parts;
  for (const NamedWeight& part : choice.parts) {
    ASSIGN_OR_RETURN(auto version, ResolveModel(registry, finder, caller, {part.name, choice.field}));
    parts.push_back({std::move(version), part.weight});
  }
  if (auto known = registry.FindComposite(parts)) return known;
  auto made = finder.Compose(parts);
  if (made.ok()) return made;
  return NotServed(choice.field, made.error());
}

}  // namespace

std::string_view DigestOf(const AdapterVersion* version) {
  return version == nullptr ? std::string_view("none") : std::string_view(version->file.digest);
}

std::string OtherContent(std::string_view name, std::string_view digest, const AdapterVersion* version) {
  return fmt::format("The model '{}' has other content on this server: expected the digest {}, found {}", name, digest,
                     DigestOf(version));
}

std::string AdapterOf(const AdapterRegistry& registry, const std::string& model) {
  if (registry.Resolve(model).ok()) return model;
  for (const std::string& base : registry.base_names()) {
    if (const auto adapter = AdapterAfter(base, model)) return std::string(*adapter);
  }
  return model;
}

Result<ModelChoice> ChooseModel(const AdapterRegistry& registry, const std::string& model,
                                const std::optional<AdapterField>& adapter) {
  std::string name = AdapterOf(registry, model);
  if (!adapter || (adapter->name == name && adapter->parts.empty())) return Pinned(registry, std::move(name), "model");
  if (IsBase(registry, name)) {
    ModelChoice choice = Pinned(registry, adapter->name, adapter->field);
    choice.parts = adapter->parts;
    return choice;
  }
  return InvalidArgument("`" + adapter->field + "`: expected the adapter that `model` names (" +
                             DescribeJson(Json(name)) + "), or the base model in `model`, found " +
                             DescribeJson(Json(adapter->name)),
                         adapter->field);
}

Result<std::shared_ptr<const AdapterVersion>> ResolveModel(const AdapterRegistry& registry, AdapterFinder& finder,
                                                           const ApiKey& caller, const ModelChoice& choice) {
  if (!choice.parts.empty()) return ResolveSum(registry, finder, caller, choice);
  const Error unknown = NotServed(choice.field, UnknownModel(choice.name));
  if (!caller.Allows(choice.name)) return unknown;
  if (choice.field != "model" && IsBase(registry, choice.name)) return unknown;
  auto version = registry.Resolve(choice.name);
  if (!version.ok()) version = finder.Find(choice.name);
  if (!version.ok()) return NotServed(choice.field, version.error());
  if (choice.digest.empty() || DigestOf(version->get()) == choice.digest) return version;
  return NotServed(choice.field, NotFound(OtherContent(choice.name, choice.digest, version->get()), "model"));
}

bool IsRegistered(const AdapterRegistry& registry, const ApiKey& caller, const ModelChoice& choice) {
  if (choice.parts.empty()) return !caller.Allows(choice.name) || registry.Resolve(choice.name).ok();
  std::vector<WeightedAdapter> parts;
  for (const NamedWeight& part : choice.parts) {
    auto version = registry.Resolve(part.name);
    if (!version.ok()) return false;
    parts.push_back({*std::move(version), part.weight});
  }
  return registry.FindComposite(parts) != nullptr;
}

Error Elsewhere(std::string_view digest, Error error) {
  if (!digest.empty() && error.code == ErrorCode::kNotFound) error.code = ErrorCode::kUnavailable;
  return error;
}

Error NotServed(std::string_view field, Error error) {
  if (field == "model") return error;
  const bool unknown = error.code == ErrorCode::kNotFound;
  if (unknown) error.code = ErrorCode::kInvalidArgument;
  const std::string expected = unknown ? "expected the name of an adapter that is served. " : "";
  error.message = "`" + std::string(field) + "`: " + expected + error.message;
  error.param = field;
  return error;
}

}  // namespace loramux
