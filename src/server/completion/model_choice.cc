#include "server/completion/model_choice.h"

#include <algorithm>
#include <utility>

#include "http/json_reader.h"

namespace loramux {
namespace {

bool IsBase(const AdapterRegistry& registry, std::string_view name) {
  const auto& bases = registry.base_names();
  return std::find(bases.begin(), bases.end(), name) != bases.end();
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

std::string AdapterOf(const AdapterRegistry& registry, const std::string& model) {
  if (registry.Resolve(model).ok()) return model;
  for (const std::string& base : registry.base_names()) {
    const bool named = model.size() > base.size() + 1 && model.starts_with(base) && model[base.size()] == ':';
    if (named) return model.substr(base.size() + 1);
  }
  return model;
}

Result<ModelChoice> ChooseModel(const AdapterRegistry& registry, const std::string& model,
                                const std::optional<AdapterField>& adapter) {
  std::string name = AdapterOf(registry, model);
  if (!adapter || (adapter->name == name && adapter->parts.empty())) return ModelChoice{std::move(name), "model"};
  if (IsBase(registry, name)) return ModelChoice{adapter->name, adapter->field, adapter->parts};
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
  auto known = registry.Resolve(choice.name);
  if (known.ok()) return known;
  auto found = finder.Find(choice.name);
  if (!found.ok()) return NotServed(choice.field, found.error());
  return found;
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
