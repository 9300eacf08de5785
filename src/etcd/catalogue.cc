#include "etcd/catalogue.h"

#include <utility>

#include <fmt/format.h>

#include "base/log.h"
#include "http/json_reader.h"

namespace loramux {
namespace {

constexpr std::int64_t kMaxReplicas = 10'000;
const JsonLimits kEntryLimits = {
    .max_depth = 4, .max_values = 64, .max_string = 8192, .subject = "The catalogue's entry"};

FleetCatalogue CatalogueOf(const EtcdMirrorState& state) {
  FleetCatalogue catalogue{.revision = state.revision, .epoch = state.epoch};
  for (const auto& [name, item] : state.values) {
    auto entry = ParseFleetAdapter(item.value);
    if (entry.ok()) {
      catalogue.entries.emplace(name, *std::move(entry));
    } else {
      catalogue.broken.emplace(name, entry.error().message);
    }
  }
  return catalogue;
}

Error ChangedMeanwhile(const std::string& name) {
  return Unavailable(
      fmt::format("the adapter '{}' was changed in the catalogue at the same time; look at it and try again", name));
}

}  // namespace

std::string FleetAdapterAsJson(const FleetAdapter& entry) {
  return DumpJson({{"source", entry.source},
                   {"digest", entry.digest},
                   {"replicas", entry.replicas},
                   {"pinned", entry.pinned},
                   {"generation", entry.generation}});
}

Result<FleetAdapter> ParseFleetAdapter(std::string_view text) {
  ASSIGN_OR_RETURN(const Json json, ParseJson(text, kEntryLimits));
  if (!json.is_object()) return InvalidArgument("expected a JSON object, found " + DescribeJson(json));
  FieldReader fields(json, "");
  FleetAdapter entry;
  fields.String("source", entry.source);
  fields.String("digest", entry.digest);
  fields.Integer("replicas", 0, kMaxReplicas, entry.replicas);
  fields.Boolean("pinned", entry.pinned);
  fields.Integer("generation", 0, std::int64_t{1} << 62, entry.generation);
  if (entry.source.empty()) fields.Expect("source", "a directory or another source of an adapter", nullptr);
  if (!fields.ok()) return fields.error();
  return entry;
}

Result<CatalogueRecord> ReadCatalogue(EtcdClient& client, const std::string& name) {
  ASSIGN_OR_RETURN(const EtcdRangeReply reply, client.Range({.key = kAdaptersPrefix + name}));
  CatalogueRecord record{.store_revision = reply.header.revision};
  if (reply.key_values.empty()) return record;
  record.mod_revision = reply.key_values.front().mod_revision;
  auto entry = ParseFleetAdapter(reply.key_values.front().value);
  if (entry.ok()) record.entry = *std::move(entry);
  return record;
}

// Every change of the store takes a revision of its own, so the one after `seen` is above all generations before.
Result<CatalogueRecord> WriteCatalogue(EtcdClient& client, const std::string& name, FleetAdapter entry,
                                       const CatalogueRecord& seen) {
  entry.generation = seen.store_revision + 1;
  ASSIGN_OR_RETURN(const EtcdSwapReply reply, client.CompareAndSwap({.key = kAdaptersPrefix + name,
                                                                     .mod_revision = seen.mod_revision,
                                                                     .value = FleetAdapterAsJson(entry)}));
  if (!reply.swapped) return ChangedMeanwhile(name);
  return CatalogueRecord{std::move(entry), reply.header.revision, reply.header.revision};
}

Result<CatalogueRecord> RemoveFromCatalogue(EtcdClient& client, const std::string& name, const CatalogueRecord& seen) {
  ASSIGN_OR_RETURN(const EtcdSwapReply reply,
                   client.CompareAndSwap({.key = kAdaptersPrefix + name, .mod_revision = seen.mod_revision}));
  if (!reply.swapped) return ChangedMeanwhile(name);
  return CatalogueRecord{.store_revision = reply.header.revision};
}

std::unique_ptr<EtcdMirror> FollowCatalogue(EtcdClient& client, std::function<void(FleetCatalogue)> on_change) {
  return std::make_unique<EtcdMirror>(
      client, kAdaptersPrefix, "the catalogue of adapters",
      [on_change = std::move(on_change)](const EtcdMirrorState& state) { on_change(CatalogueOf(state)); });
}

std::string AdapterStatusAsJson(const AdapterStatus& status) {
  Json json = {{"state", status.loaded ? "loaded" : "failed"}, {"generation", status.generation}};
  if (!status.digest.empty()) json["digest"] = status.digest;
  if (!status.error.empty()) json["error"] = status.error;
  return DumpJson(json);
}

Result<AdapterStatus> ParseAdapterStatus(std::string_view text) {
  ASSIGN_OR_RETURN(const Json json, ParseJson(text, kEntryLimits));
  if (!json.is_object()) return InvalidArgument("expected a JSON object, found " + DescribeJson(json));
  FieldReader fields(json, "");
  AdapterStatus status;
  std::string state;
  fields.String("state", state);
  fields.Integer("generation", 0, std::int64_t{1} << 62, status.generation);
  fields.String("digest", status.digest);
  fields.String("error", status.error);
  if (!fields.ok()) return fields.error();
  status.loaded = state == "loaded";
  return status;
}

std::string StatusKey(const std::string& server_id, const std::string& name) {
  return kStatusPrefix + server_id + "/" + name;
}

}  // namespace loramux
