#include "server/openai/model_choice.h"

#include <algorithm>
#include <utility>

#include "http/json_reader.h"

namespace loramux {
namespace {

bool IsBase(const AdapterRegistry& registry, std::string_view name) {
  const auto& bases = registry.base_names();
  return std::find(bases.begin(), bases.end(), name) != bases.end();
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
  if (!adapter || adapter->name == name) return ModelChoice{std::move(name), "model"};
  if (IsBase(registry, name)) return ModelChoice{adapter->name, adapter->field};
  return InvalidArgument("`" + adapter->field + "`: expected the adapter that `model` names (" +
                             DescribeJson(Json(name)) + "), or the base model in `model`, found " +
                             DescribeJson(Json(adapter->name)),
                         adapter->field);
}

Result<std::shared_ptr<const AdapterVersion>> ResolveModel(const AdapterRegistry& registry, AdapterFinder* finder,
                                                           const ApiKey* caller, const ModelChoice& choice) {
  const Error unknown = NotServed(choice.field, UnknownModel(choice.name));
  if (caller != nullptr && !caller->Allows(choice.name)) return unknown;
  if (choice.field != "model" && IsBase(registry, choice.name)) return unknown;
  auto known = registry.Resolve(choice.name);
  if (known.ok()) return known;
  if (finder == nullptr) return unknown;
  auto found = finder->Find(choice.name);
  if (!found.ok()) return NotServed(choice.field, found.error());
  return found;
}

Error Elsewhere(std::string_view digest, Error error) {
  if (!digest.empty() && error.code == ErrorCode::kNotFound) error.code = ErrorCode::kUnavailable;
  return error;
}

Error NotServed(std::string_view field, Error error) {
  if (field == "model") return error;
  if (error.code == ErrorCode::kNotFound) error.code = ErrorCode::kInvalidArgument;
  error.message = "`" + std::string(field) + "`: expected the name of one adapter that is served. " + error.message;
  error.param = field;
  return error;
}

}  // namespace loramux
