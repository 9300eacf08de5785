#include "server/api/openai/model_listing.h"

#include <map>
#include <utility>

#include "auth/access.h"
#include "http/json_reader.h"
#include "server/completion/adapter_text.h"

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
  Json card = ModelCard(adapter.name, adapter.created_unix_seconds, adapter.path,
                        bases.empty() ? Json() : Json(bases.front()), listing.max_model_len);
  if (adapter.classes == 1) card["capabilities"] = {"classify", "score", "rerank"};
  if (adapter.classes > 1) card["capabilities"] = {"classify"};
  return card;
}

OfferedAdapter AsOffered(const AdapterVersion& version) {
  return {version.name, version.path.string(), version.created_unix_seconds,
          version.file.head ? version.file.head->classes() : 0};
}

Json DefaultsJson(const GenerationDefaults& defaults) {
  Json object = Json::object();
  const auto set = [&object](const char* name, const auto& value) {
    if (value) object[name] = *value;
  };
  set("temperature", defaults.temperature);
  set("top_p", defaults.top_p);
  set("top_k", defaults.top_k);
  set("min_p", defaults.min_p);
  set("repetition_penalty", defaults.repetition_penalty);
  set("max_new_tokens", defaults.max_new_tokens);
  return object;
}

Json CardOf(const AdapterRegistry& registry, const AdapterVersion& version, const ModelListing& listing) {
  Json card = AdapterCard(registry, AsOffered(version), listing);
  if (!version.warning.empty()) card["warning"] = version.warning;
  if (version.rounding) {
    card["rounding"] = {{"dtype", EightBitName(version.layout.dtype)},
                        {"error", version.rounding->all},
                        {"worst_row", version.rounding->worst}};
  }
  if (version.text == nullptr) return card;
  const AdapterText& text = *version.text;
  if (!text.template_name.empty()) card["chat_template"] = text.template_name;
  if (!text.end_tokens.empty()) card["eos_token_ids"] = text.end_tokens;
  if (text.defaults != nullptr) card["generation_config"] = DefaultsJson(text.own_defaults);
  return card;
}

// The adapters that cannot be served, with the reasons.
Json BrokenCards(AdapterFinder& finder, const ApiKey& caller) {
  Json cards = Json::array();
  for (const BrokenAdapter& adapter : finder.Broken()) {
    if (!caller.Allows(adapter.name)) continue;
    cards.push_back({{"id", adapter.name}, {"root", adapter.path}, {"reason", adapter.reason}});
  }
  return cards;
}

}  // namespace

std::string ModelListBody(const AdapterRegistry& registry, const ModelListing& listing, AdapterFinder& finder,
                          const ApiKey& caller) {
  std::map<std::string, Json> adapters;
  for (const OfferedAdapter& adapter : finder.Offered()) {
    adapters.emplace(adapter.name, AdapterCard(registry, adapter, listing));
  }
  for (const auto& version : registry.List()) {
    adapters.insert_or_assign(version->name, CardOf(registry, *version, listing));
  }
  Json data = Json::array();
  for (const std::string& name : registry.base_names()) {
    if (caller.Allows(name)) data.push_back(BaseCard(name, listing));
  }
  for (auto& [name, card] : adapters) {
    if (caller.Allows(name)) data.push_back(std::move(card));
  }
  Json list = {{"object", "list"}, {"data", std::move(data)}};
  Json broken = BrokenCards(finder, caller);
  if (!broken.empty()) list["broken"] = std::move(broken);
  return DumpJson(list);
}

Result<std::string> ModelBody(const AdapterRegistry& registry, const ModelListing& listing, std::string_view id,
                              AdapterFinder& finder, const ApiKey& caller) {
  if (!caller.Allows(id)) return UnknownModel(id);
  const auto version = registry.Resolve(id);
  if (version.ok() && *version == nullptr) return DumpJson(BaseCard(std::string(id), listing));
  if (version.ok()) return DumpJson(CardOf(registry, **version, listing));
  for (const OfferedAdapter& adapter : finder.Offered()) {
    if (adapter.name == id) return DumpJson(AdapterCard(registry, adapter, listing));
  }
  for (const BrokenAdapter& adapter : finder.Broken()) {
    if (adapter.name == id)
      return NotFound("The adapter `" + adapter.name + "` cannot be served: " + adapter.reason, "model");
  }
  return UnknownModel(id);
}

}  // namespace loramux
