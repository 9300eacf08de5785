#include "server/tracing/span.h"

#include <algorithm>
#include <charconv>

#include <nlohmann/json.hpp>

namespace loramux {
namespace {

using nlohmann::ordered_json;

// Integers of 64 bits are strings in this encoding, because other languages read numbers as doubles.
ordered_json ValueJson(const SpanValue& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return {{"stringValue", *text}};
  if (const auto* count = std::get_if<std::int64_t>(&value)) return {{"intValue", std::to_string(*count)}};
  return {{"doubleValue", std::get<double>(value)}};
}

ordered_json AttributeJson(const std::string& key, const SpanValue& value) {
  return {{"key", key}, {"value", ValueJson(value)}};
}

ordered_json SpanJson(const Span& span, std::int64_t unix_minus_clock) {
  ordered_json attributes = ordered_json::array();
  for (const auto& [key, value] : span.attributes) attributes.push_back(AttributeJson(key, value));
  ordered_json json = {{"traceId", span.trace_id}, {"spanId", span.span_id}};
  if (!span.parent_id.empty()) json["parentSpanId"] = span.parent_id;
  if (!span.tracestate.empty()) json["traceState"] = span.tracestate;
  json["name"] = span.name;
  json["kind"] = static_cast<int>(span.kind);
  json["startTimeUnixNano"] = std::to_string(span.start + unix_minus_clock);
  json["endTimeUnixNano"] = std::to_string(std::max(span.start, span.end) + unix_minus_clock);
  json["attributes"] = std::move(attributes);
  json["status"] = ordered_json::object();
  if (span.failed) json["status"]["code"] = 2;
  return json;
}

}  // namespace

std::string ExportBody(const SpanResource& resource, std::span<const Span> spans, std::int64_t unix_minus_clock) {
  ordered_json list = ordered_json::array();
  for (const Span& span : spans) list.push_back(SpanJson(span, unix_minus_clock));
  ordered_json attributes = ordered_json::array();
  attributes.push_back(AttributeJson("service.name", resource.service_name));
  attributes.push_back(AttributeJson("service.version", resource.service_version));
  attributes.push_back(AttributeJson("service.instance.id", resource.instance));
  ordered_json scope_spans = ordered_json::object();
  scope_spans["scope"] = {{"name", "loramux"}, {"version", resource.service_version}};
  scope_spans["spans"] = std::move(list);
  ordered_json resource_spans = ordered_json::object();
  resource_spans["resource"] = {{"attributes", std::move(attributes)}};
  resource_spans["scopeSpans"] = ordered_json::array({std::move(scope_spans)});
  ordered_json body = ordered_json::object();
  body["resourceSpans"] = ordered_json::array({std::move(resource_spans)});
  return body.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

std::int64_t RejectedSpans(const std::string& body) {
  const auto json = nlohmann::json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return 0;
  const auto partial = json.find("partialSuccess");
  if (partial == json.end() || !partial->is_object()) return 0;
  const auto rejected = partial->find("rejectedSpans");
  if (rejected == partial->end()) return 0;
  std::int64_t count = 0;
  if (rejected->is_number_integer()) count = rejected->get<std::int64_t>();
  if (rejected->is_string()) {
    const auto& text = rejected->get_ref<const std::string&>();
    std::from_chars(text.data(), text.data() + text.size(), count);
  }
  return std::max<std::int64_t>(0, count);
}

}  // namespace loramux
