#include "etcd/etcd_messages.h"

#include <array>
#include <charconv>

#include <fmt/format.h>

#include "http/json_reader.h"

namespace loramux {
namespace {

constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr std::size_t kShownBytes = 200;  // bytes of a foreign message that an error shows
const JsonLimits kReplyLimits = {.max_depth = 16, .subject = "etcd's reply", .quote = false};

Error Unexpected(std::string_view what) {
  return Unavailable(fmt::format("etcd: its reply is not understood: {}; is this URL an etcd server?", what));
}

// A number, which the gateway writes as a string if it has 64 bits. Absent: 0. Sets `error` if it is none.
template <typename Number>
Number NumberOf(const Json& object, const char* name, std::optional<Error>& error) {
  const auto found = object.find(name);
  if (found == object.end() || found->is_null()) return 0;
  Number number = 0;
  if (found->is_string()) {
    const auto& text = found->template get_ref<const std::string&>();
    const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (problem == std::errc() && end == text.data() + text.size() && !text.starts_with('-')) return number;
  } else if (const auto whole = AsInteger(*found); whole && *whole >= 0) {
    return static_cast<Number>(*whole);
  }
  error = Unexpected(fmt::format("`{}` is {}, expected a whole number", name, DescribeJson(*found).substr(0, 80)));
  return 0;
}

bool BoolOf(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_boolean() && found->get<bool>();
}

std::string BytesOf(const Json& object, const char* name, std::optional<Error>& error) {
  const auto found = object.find(name);
  if (found == object.end() || found->is_null()) return {};
  if (found->is_string()) {
    auto bytes = FromBase64(found->get_ref<const std::string&>());
    if (bytes.ok()) return *std::move(bytes);
  }
  error = Unexpected(fmt::format("`{}` is not base64", name));
  return {};
}

EtcdHeader HeaderOf(const Json& object, std::optional<Error>& error) {
  const auto header = object.find("header");
  if (header == object.end() || !header->is_object()) {
    error = Unexpected("it has no `header`");
    return {};
  }
  return {NumberOf<std::uint64_t>(*header, "cluster_id", error), NumberOf<std::int64_t>(*header, "revision", error)};
}

EtcdKeyValue KeyValueOf(const Json& object, std::optional<Error>& error) {
  if (!object.is_object()) {
    error = Unexpected("a key with its value is no object");
    return {};
  }
  return {BytesOf(object, "key", error), BytesOf(object, "value", error),
          NumberOf<std::int64_t>(object, "mod_revision", error), NumberOf<std::int64_t>(object, "lease", error)};
}

std::vector<EtcdKeyValue> KeyValuesOf(const Json& object, std::optional<Error>& error) {
  std::vector<EtcdKeyValue> all;
  const auto list = object.find("kvs");
  if (list == object.end() || list->is_null()) return all;
  if (!list->is_array()) error = Unexpected("`kvs` is no array");
  for (const Json& item : *list) {
    if (error) break;
    all.push_back(KeyValueOf(item, error));
  }
  return all;
}

Result<Json> ParseObject(std::string_view text) {
  auto json = ParseJson(text, kReplyLimits);
  if (!json.ok()) return Unexpected(json.error().message);
  if (!json->is_object()) return Unexpected("it is no JSON object");
  return json;
}

// The object in `result`, as the gateway wraps the messages of streams.
Result<Json> ParseStreamed(std::string_view text) {
  ASSIGN_OR_RETURN(Json json, ParseObject(text));
  const auto result = json.find("result");
  if (result != json.end() && result->is_object()) return Json(std::move(*result));
  if (json.contains("error")) return Unavailable("etcd: " + ParseEtcdFailure(200, text).message);
  return Unexpected("it has no `result`");
}

Result<EtcdLeaseReply> LeaseOf(const Json& object) {
  std::optional<Error> error;
  const EtcdLeaseReply reply{NumberOf<std::int64_t>(object, "ID", error), NumberOf<std::int64_t>(object, "TTL", error)};
  if (error) return *error;
  return reply;
}

Json RangeOf(std::string_view key, std::string_view range_end) {
  Json range = {{"key", ToBase64(key)}};
  if (!range_end.empty()) range["range_end"] = ToBase64(range_end);
  return range;
}

}  // namespace

std::string ToBase64(std::string_view bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    std::uint32_t group = 0;
    const std::size_t size = std::min<std::size_t>(3, bytes.size() - at);
    for (std::size_t i = 0; i < 3; ++i) {
      group = group << 8 | (i < size ? static_cast<unsigned char>(bytes[at + i]) : 0u);
    }
    for (std::size_t i = 0; i < 4; ++i) text += i <= size ? kDigits[group >> (18 - 6 * i) & 63] : '=';
  }
  return text;
}

Result<std::string> FromBase64(std::string_view text) {
  const Error error = InvalidArgument("not base64");
  if (text.size() % 4 != 0) return error;
  std::size_t digits = text.size();
  while (digits > 0 && text.size() - digits < 2 && text[digits - 1] == '=') --digits;
  std::string bytes;
  bytes.reserve(digits * 3 / 4);
  std::uint32_t group = 0;
  int bits = 0;
  for (const char c : text.substr(0, digits)) {
    const std::size_t value = kDigits.find(c);
    if (value == std::string_view::npos) return error;
    group = group << 6 | static_cast<std::uint32_t>(value);
    bits += 6;
    if (bits < 8) continue;
    bits -= 8;
    bytes += static_cast<char>(group >> bits & 0xff);
  }
  return bytes;
}

std::string PrefixEnd(std::string prefix) {
  CHECK(!prefix.empty());
  while (!prefix.empty() && static_cast<unsigned char>(prefix.back()) == 0xff) prefix.pop_back();
  if (prefix.empty()) return std::string(1, '\0');  // etcd's word for "to the end"
  prefix.back() = static_cast<char>(static_cast<unsigned char>(prefix.back()) + 1);
  return prefix;
}

std::string EtcdRangeBody(const EtcdRangeRequest& request) {
  Json body = RangeOf(request.key, request.range_end);
  if (request.limit > 0) body["limit"] = std::to_string(request.limit);
  if (request.revision > 0) body["revision"] = std::to_string(request.revision);
  if (request.serializable) body["serializable"] = true;
  return DumpJson(body);
}

std::string EtcdPutBody(std::string_view key, std::string_view value, std::int64_t lease) {
  return DumpJson({{"key", ToBase64(key)}, {"value", ToBase64(value)}, {"lease", std::to_string(lease)}});
}

std::string EtcdDeleteBody(std::string_view key, std::string_view range_end) {
  return DumpJson(RangeOf(key, range_end));
}

std::string EtcdSwapBody(const EtcdSwapRequest& request) {
  Json change;
  if (request.value) {
    change["request_put"] = {
        {"key", ToBase64(request.key)}, {"value", ToBase64(*request.value)}, {"lease", std::to_string(request.lease)}};
  } else {
    change["request_delete_range"] = {{"key", ToBase64(request.key)}};
  }
  const Json compare = {{"key", ToBase64(request.key)},
                        {"target", "MOD"},
                        {"result", "EQUAL"},
                        {"mod_revision", std::to_string(request.mod_revision)}};
  const Json read = {{"request_range", {{"key", ToBase64(request.key)}}}};
  return DumpJson({{"compare", Json::array({compare})},
                   {"success", Json::array({std::move(change)})},
                   {"failure", Json::array({read})}});
}

std::string EtcdGrantBody(std::int64_t ttl_seconds) { return DumpJson({{"TTL", std::to_string(ttl_seconds)}}); }
std::string EtcdLeaseBody(std::int64_t id) { return DumpJson({{"ID", std::to_string(id)}}); }

std::string EtcdWatchBody(std::string_view key, std::string_view range_end, std::int64_t start_revision) {
  Json create = RangeOf(key, range_end);
  create["start_revision"] = std::to_string(start_revision);
  create["progress_notify"] = true;
  return DumpJson({{"create_request", std::move(create)}});
}

std::string EtcdAuthenticateBody(std::string_view user, std::string_view password) {
  return DumpJson({{"name", user}, {"password", password}});
}

Result<EtcdHeader> ParseEtcdHeader(std::string_view text) {
  ASSIGN_OR_RETURN(const Json json, ParseObject(text));
  std::optional<Error> error;
  const EtcdHeader header = HeaderOf(json, error);
  if (error) return *error;
  return header;
}

Result<EtcdRangeReply> ParseEtcdRange(std::string_view text) {
  ASSIGN_OR_RETURN(const Json json, ParseObject(text));
  std::optional<Error> error;
  EtcdRangeReply reply{.header = HeaderOf(json, error)};
  if (!error) reply.key_values = KeyValuesOf(json, error);
  reply.more = BoolOf(json, "more");
  if (error) return *error;
  return reply;
}

Result<EtcdSwapReply> ParseEtcdSwap(std::string_view text) {
  ASSIGN_OR_RETURN(const Json json, ParseObject(text));
  std::optional<Error> error;
  EtcdSwapReply reply{.header = HeaderOf(json, error), .swapped = BoolOf(json, "succeeded")};
  if (error) return *error;
  if (reply.swapped) return reply;
  const auto responses = json.find("responses");
  if (responses == json.end() || !responses->is_array() || responses->size() != 1 || !(*responses)[0].is_object()) {
    return Unexpected("`responses` of a transaction that did not succeed: expected one");
  }
  const auto range = (*responses)[0].find("response_range");
  if (range == (*responses)[0].end() || !range->is_object()) return Unexpected("it has no `response_range`");
  std::vector<EtcdKeyValue> found = KeyValuesOf(*range, error);
  if (error) return *error;
  if (!found.empty()) reply.current = std::move(found.front());
  return reply;
}

Result<EtcdLeaseReply> ParseEtcdGrant(std::string_view text) {
  ASSIGN_OR_RETURN(const Json json, ParseObject(text));
  ASSIGN_OR_RETURN(const EtcdLeaseReply reply, LeaseOf(json));
  if (reply.id == 0 || reply.ttl_seconds <= 0) return Unexpected("`ID` or `TTL` of a new lease is missing");
  return reply;
}

Result<EtcdLeaseReply> ParseEtcdKeepAlive(std::string_view text) {
  ASSIGN_OR_RETURN(const Json json, ParseStreamed(text));
  return LeaseOf(json);
}

Result<EtcdWatchReply> ParseEtcdWatch(std::string_view text) {
  ASSIGN_OR_RETURN(const Json json, ParseStreamed(text));
  std::optional<Error> error;
  EtcdWatchReply reply{.header = HeaderOf(json, error),
                       .created = BoolOf(json, "created"),
                       .canceled = BoolOf(json, "canceled"),
                       .compact_revision = NumberOf<std::int64_t>(json, "compact_revision", error)};
  if (const auto reason = json.find("cancel_reason"); reason != json.end() && reason->is_string()) {
    reply.cancel_reason = reason->get<std::string>().substr(0, kShownBytes);
  }
  const auto events = json.find("events");
  if (events != json.end() && !events->is_array()) error = Unexpected("`events` is no array");
  if (error) return *error;
  if (events == json.end()) return reply;
  for (const Json& item : *events) {
    const auto key_value = item.is_object() ? item.find("kv") : item.end();
    if (!item.is_object() || key_value == item.end()) return Unexpected("an event without `kv`");
    const auto type = item.find("type");
    reply.events.push_back({type != item.end() && *type == "DELETE", KeyValueOf(*key_value, error)});
    if (error) return *error;
  }
  return reply;
}

Result<std::string> ParseEtcdToken(std::string_view text) {
  ASSIGN_OR_RETURN(const Json json, ParseObject(text));
  const auto token = json.find("token");
  if (token == json.end() || !token->is_string()) return Unexpected("it has no `token`");
  auto value = token->get<std::string>();
  for (const char c : value) {
    if (c <= ' ' || c > '~') return Unexpected("`token` has characters that no header may have");
  }
  return value;
}

EtcdFailure ParseEtcdFailure(int http_status, std::string_view text) {
  EtcdFailure failure{.message = fmt::format("status {}", http_status)};
  const auto parsed = ParseObject(text);
  if (!parsed.ok()) return failure;
  const Json* json = &*parsed;
  const auto inner = json->find("error");  // in a stream it is an object
  if (inner != json->end() && inner->is_object()) json = &*inner;
  std::optional<Error> ignored;
  for (const char* name : {"code", "grpc_code"}) {
    if (json->contains(name)) failure.code = NumberOf<std::int64_t>(*json, name, ignored);
  }
  for (const char* name : {"error", "message"}) {
    const auto found = json->find(name);
    if (found == json->end() || !found->is_string()) continue;
    failure.message = found->get_ref<const std::string&>().substr(0, kShownBytes);
  }
  return failure;
}

}  // namespace loramux
