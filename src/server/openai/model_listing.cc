#include "server/openai/model_listing.h"

#include <map>
#include <utility>

#include "http/json_reader.h"
#include "server/guard/access.h"

namespace loramux {
namespace {

Json ModelCard(std::string_view id, std::int64_t created, const std::string& root, Json parent,
               std::int64_t max_model_len) {
  Json permission = {{"id", "modelperm-" + std::string(id)},
                     {"object", "model_permission"},
                     {"created", created},
                     {"allow_create_engine", false},
                     {"allow_sampling", true},
                     {"allow_logprobs", true},
                     {"allow_search_indices", false},
                     {"allow_view", true},
                     {"allow_fine_tuning", false},
                     {"organization", "*"},
                     {"group", nullptr},
                     {"is_blocking", false}};
  return {{"id", id},
          {"object", "model"},
          {"created", created},
          {"owned_by", "loramux"},
          {"root", root},
          {"parent", std::move(parent)},
          {"max_model_len", max_model_len},
          {"permission", Json::array({std::move(permission)})}};
}

Json BaseCard(const std::string& name, const ModelListing& listing) {
  return ModelCard(name, listing.base_created, listing.base_root, nullptr, listing.max_model_len);
}

Json AdapterCard(const AdapterRegistry& registry, const OfferedAdapter& adapter, const ModelListing& listing) {
  const auto& bases = registry.base_names();
  return ModelCard(adapter.name, adapter.created_unix_seconds, adapter.path,
                   bases.empty() ? Json() : Json(bases.front()), listing.max_model_len);
}

OfferedAdapter AsOffered(const AdapterVersion& version) {
  return {version.name, version.path.string(), version.created_unix_seconds};
}

bool Visible(std::string_view name, const ApiKey* caller) { return caller == nullptr || caller->Allows(name); }

}  // namespace

std::string ModelListBody(const AdapterRegistry& registry, const ModelListing& listing, AdapterFinder* finder,
                          const ApiKey* caller) {
  std::map<std::string, OfferedAdapter> adapters;
  if (finder != nullptr) {
    for (OfferedAdapter& adapter : finder->Offered()) adapters.emplace(adapter.name, std::move(adapter));
  }
  for (const auto& version : registry.List()) adapters.insert_or_assign(version->name, AsOffered(*version));
  Json data = Json::array();
  for (const std::string& name : registry.base_names()) {
    if (Visible(name, caller)) data.push_back(BaseCard(name, listing));
  }
  for (const auto& [name, adapter] : adapters) {
    if (Visible(name, caller)) data.push_back(AdapterCard(registry, adapter, listing));
  }
  return DumpJson({{"object", "list"}, {"data", std::move(data)}});
}

Result<std::string> ModelBody(const AdapterRegistry& registry, const ModelListing& listing, std::string_view id,
                              AdapterFinder* finder, const ApiKey* caller) {
  if (!Visible(id, caller)) return UnknownModel(id);
  const auto version = registry.Resolve(id);
  if (version.ok() && *version == nullptr) return DumpJson(BaseCard(std::string(id), listing));
  if (version.ok()) return DumpJson(AdapterCard(registry, AsOffered(**version), listing));
  if (finder == nullptr) return UnknownModel(id);
  for (const OfferedAdapter& adapter : finder->Offered()) {
    if (adapter.name == id) return DumpJson(AdapterCard(registry, adapter, listing));
  }
  return UnknownModel(id);
}

}  // namespace loramux
