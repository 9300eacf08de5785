#include "kubernetes/lora_adapter.h"

#include <algorithm>
#include <ctime>

#include <fmt/format.h>

#include "http/json_reader.h"
#include "hub/adapter_source.h"

namespace loramux {
namespace {

constexpr std::size_t kMaxNameBytes = 256, kMaxObjectNameBytes = 253;
constexpr std::int64_t kMostReplicas = 10'000;

std::string TextOf(const Json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return object.is_object() && found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

std::int64_t NumberOf(const Json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  const bool number = object.is_object() && found != object.end() && found->is_number_integer();
  return number ? found->get<std::int64_t>() : 0;
}

const Json& PartOf(const Json& object, const char* key) {
  static const Json kNone;
  const auto found = object.is_object() ? object.find(key) : object.end();
  return object.is_object() && found != object.end() ? *found : kNone;
}

// A name that may stand in a path.
bool IsObjectName(const std::string& name) {
  return !name.empty() && name.size() <= kMaxObjectNameBytes && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.';
  }) && name.front() != '.';
}

std::string WhyInvalid(const LoraAdapterObject& object) {
  const FleetAdapter& wanted = object.wanted;
  const bool bad_name = std::any_of(object.name.begin(), object.name.end(),
                                    [](unsigned char c) { return c < 0x20 || c == 0x7f || c == ','; });
  if (object.name.empty() || object.name.size() > kMaxNameBytes || bad_name) {
    return "spec.name: expected 1 to 256 bytes without commas and control characters";
  }
  if (!wanted.source.starts_with("file:///")) {
    if (const auto source = ParseAdapterSource(wanted.source); !source.ok())
      return "spec.source: " + source.error().message;
  }
  const bool hexadecimal = wanted.digest.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (!wanted.digest.empty() && (wanted.digest.size() != 64 || !hexadecimal)) {
    return "spec.digest: expected 64 hexadecimal digits in lower case";
  }
  if (wanted.replicas < 0 || wanted.replicas > kMostReplicas) return "spec.replicas: expected 0 to 10000";
  return {};
}

LoraAdapterStatus StatusIn(const Json& status, std::string& ready_since) {
  LoraAdapterStatus result{.observed_generation = NumberOf(status, "observedGeneration"),
                           .catalogue_generation = NumberOf(status, "catalogueGeneration"),
                           .loaded = NumberOf(status, "loaded"),
                           .failed = NumberOf(status, "failed")};
  for (const Json& condition : PartOf(status, "conditions")) {
    if (TextOf(condition, "type") != "Ready") continue;
    result.ready = TextOf(condition, "status");
    result.reason = TextOf(condition, "reason");
    result.message = TextOf(condition, "message");
    ready_since = TextOf(condition, "lastTransitionTime");
  }
  return result;
}

Result<LoraAdapterObject> ObjectIn(const Json& json) {
  const Json &metadata = PartOf(json, "metadata"), &spec = PartOf(json, "spec");
  LoraAdapterObject object{
      .object = TextOf(metadata, "name"),
      .created = TextOf(metadata, "creationTimestamp"),
      .generation = NumberOf(metadata, "generation"),
      .name = TextOf(spec, "name"),
      .wanted = {
          .source = TextOf(spec, "source"), .digest = TextOf(spec, "digest"), .replicas = NumberOf(spec, "replicas")}};
  if (!IsObjectName(object.object)) return InvalidArgument("a LoraAdapter: expected metadata.name, found none");
  const Json& pinned = PartOf(spec, "pinned");
  object.wanted.pinned = pinned.is_boolean() && pinned.get<bool>();
  if (object.name.empty()) object.name = object.object;
  object.invalid = WhyInvalid(object);
  object.status = StatusIn(PartOf(json, "status"), object.ready_since);
  return object;
}

}  // namespace

std::string LoraAdaptersPath(const std::string& space) {
  return "/apis/loramux.io/v1alpha1/namespaces/" + space + "/loraadapters";
}

Result<LoraAdapterList> ParseLoraAdapterList(std::string_view text) {
  ASSIGN_OR_RETURN(const Json json, ParseJson(text, {.subject = "The list of LoraAdapters"}));
  const Json& items = PartOf(json, "items");
  if (!items.is_array()) return InvalidArgument("the list of LoraAdapters: expected `items`, an array");
  LoraAdapterList list{.resource_version = TextOf(PartOf(json, "metadata"), "resourceVersion")};
  if (list.resource_version.empty()) return InvalidArgument("the list of LoraAdapters: expected a resourceVersion");
  for (const Json& item : items) {
    ASSIGN_OR_RETURN(LoraAdapterObject object, ObjectIn(item));
    list.objects.push_back(std::move(object));
  }
  return list;
}

Result<LoraAdapterEvent> ParseLoraAdapterEvent(std::string_view line) {
  ASSIGN_OR_RETURN(const Json json, ParseJson(line, {.subject = "A line of the watch"}));
  using Kind = LoraAdapterEvent::Kind;
  const std::string type = TextOf(json, "type");
  const Json& object = PartOf(json, "object");
  LoraAdapterEvent event{.resource_version = TextOf(PartOf(object, "metadata"), "resourceVersion")};
  if (type == "ERROR") {
    event.kind = NumberOf(object, "code") == 410 ? Kind::kGone : Kind::kError;
    event.error = TextOf(object, "message");
    return event;
  }
  if (event.resource_version.empty()) return InvalidArgument("a line of the watch: expected a resourceVersion");
  if (type == "BOOKMARK") {
    event.kind = Kind::kBookmark;
    return event;
  }
  if (type != "ADDED" && type != "MODIFIED" && type != "DELETED") {
    return InvalidArgument("a line of the watch: expected a known type, found '" + type.substr(0, 40) + "'");
  }
  ASSIGN_OR_RETURN(event.object, ObjectIn(object));
  event.kind = type == "DELETED" ? Kind::kDeleted : Kind::kChanged;
  return event;
}

std::string StatusPatch(const LoraAdapterObject& object, const LoraAdapterStatus& status, const std::string& now) {
  const bool same = object.status.ready == status.ready && !object.ready_since.empty();
  Json condition = {{"type", "Ready"},
                    {"status", status.ready},
                    {"observedGeneration", status.observed_generation},
                    {"lastTransitionTime", same ? object.ready_since : now},
                    {"reason", status.reason},
                    {"message", status.message}};
  return DumpJson({{"status",
                    {{"observedGeneration", status.observed_generation},
                     {"catalogueGeneration", status.catalogue_generation},
                     {"loaded", status.loaded},
                     {"failed", status.failed},
                     {"conditions", Json::array({std::move(condition)})}}}});
}

std::string Rfc3339(std::int64_t unix_seconds) {
  const std::time_t time = unix_seconds;
  std::tm parts{};
  ::gmtime_r(&time, &parts);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday,
                     parts.tm_hour, parts.tm_min, parts.tm_sec);
}

}  // namespace loramux
