#include "envoy/grpc/convert.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace loramux {
namespace {

namespace wire = envoy::service::ext_proc::v3;
using google::protobuf::Struct;
using google::protobuf::Value;

// The names that the endpoint-picker protocol gives to its metadata.
constexpr const char* kMetadata = "envoy.lb";
constexpr const char* kDestination = "x-gateway-destination-endpoint";
constexpr const char* kServed = "x-gateway-destination-endpoint-served";
constexpr const char* kSubsetMetadata = "envoy.lb.subset_hint";
constexpr const char* kSubset = "x-gateway-destination-endpoint-subset";

ProxyHeaders HeadersOf(wire::HeaderMap& map) {
  ProxyHeaders headers;
  headers.reserve(static_cast<std::size_t>(map.headers_size()));
  for (wire::HeaderValue& header : *map.mutable_headers()) {
    std::string& value = header.raw_value().empty() ? *header.mutable_value() : *header.mutable_raw_value();
    headers.emplace_back(std::move(*header.mutable_key()), std::move(value));
  }
  return headers;
}

void TakeHeaders(wire::HttpHeaders& from, ProxyPart part, ProxyMessage& message) {
  message.part = part;
  message.headers = HeadersOf(*from.mutable_headers());
  message.end_of_stream = from.end_of_stream();
}

void TakeBody(wire::HttpBody& from, ProxyPart part, ProxyMessage& message) {
  message.part = part;
  message.body = std::move(*from.mutable_body());
  message.end_of_stream = from.end_of_stream();
}

void TakeTrailers(wire::HttpTrailers& from, ProxyPart part, ProxyMessage& message) {
  message.part = part;
  message.headers = HeadersOf(*from.mutable_trailers());
  message.end_of_stream = true;
}

// Null: the structure has no such field.
const Value* FieldOf(const Struct& structure, const char* name) {
  const auto field = structure.fields().find(name);
  return field == structure.fields().end() ? nullptr : &field->second;
}

const Value* MetadataOf(const wire::ProcessingRequest& request, const char* space, const char* name) {
  const auto& metadata = request.metadata_context().filter_metadata();
  const auto structure = metadata.find(space);
  return structure == metadata.end() ? nullptr : FieldOf(structure->second, name);
}

void AddEndpoints(std::string_view list, std::vector<std::string>& endpoints) {
  while (!list.empty()) {
    const std::size_t comma = std::min(list.find(','), list.size());
    std::string_view one = list.substr(0, comma);
    while (one.starts_with(' ')) one.remove_prefix(1);
    while (one.ends_with(' ')) one.remove_suffix(1);
    if (!one.empty()) endpoints.emplace_back(one);
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
}

// A list of strings, or one string with commas.
std::vector<std::string> EndpointsOf(const Value& value) {
  std::vector<std::string> endpoints;
  AddEndpoints(value.string_value(), endpoints);
  for (const Value& one : value.list_value().values()) AddEndpoints(one.string_value(), endpoints);
  return endpoints;
}

std::string Attribute(const wire::ProcessingRequest& request, const char* name) {
  for (const auto& [filter, attributes] : request.attributes()) {
    if (const Value* value = FieldOf(attributes, name)) return value->string_value();
  }
  return {};
}

ProxyBodyMode ModeOf(std::int32_t mode) {
  const bool known = mode >= 0 && mode <= static_cast<std::int32_t>(ProxyBodyMode::kFullDuplex);
  return known ? static_cast<ProxyBodyMode>(mode) : ProxyBodyMode::kNone;
}

void SetHeaders(const ProxyReply& reply, wire::HeaderMutation& mutation) {
  for (const auto& [name, value] : reply.set_headers) {
    wire::HeaderValueOption& option = *mutation.add_set_headers();
    option.mutable_header()->set_key(name);
    option.mutable_header()->set_raw_value(value);
    option.set_append_action(wire::HeaderValueOption::OVERWRITE_IF_EXISTS_OR_ADD);
  }
  for (const std::string& name : reply.remove_headers) mutation.add_remove_headers(name);
}

void FillCommon(ProxyReply& reply, wire::CommonResponse& common) {
  if (!reply.set_headers.empty() || !reply.remove_headers.empty()) {
    SetHeaders(reply, *common.mutable_header_mutation());
    common.set_clear_route_cache(reply.part != ProxyPart::kResponseHeaders);
  }
  if (reply.replaces_body) common.mutable_body_mutation()->set_body(std::move(reply.body));
  if (reply.streamed) {
    wire::StreamedBodyResponse& piece = *common.mutable_body_mutation()->mutable_streamed_response();
    piece.set_body(std::move(reply.body));
    piece.set_end_of_stream(reply.end_of_stream);
  }
}

void FillImmediate(ProxyReply& reply, wire::ImmediateResponse& immediate) {
  immediate.mutable_status()->set_code(reply.status);
  SetHeaders(reply, *immediate.mutable_headers());
  immediate.set_body(std::move(reply.body));
  immediate.set_details("loramux_endpoint_picker");
}

}  // namespace

ProxyMessage MessageOf(wire::ProcessingRequest& request) {
  ProxyMessage message;
  switch (request.request_case()) {
    case wire::ProcessingRequest::kRequestHeaders:
      TakeHeaders(*request.mutable_request_headers(), ProxyPart::kRequestHeaders, message);
      break;
    case wire::ProcessingRequest::kRequestBody:
      TakeBody(*request.mutable_request_body(), ProxyPart::kRequestBody, message);
      break;
    case wire::ProcessingRequest::kRequestTrailers:
      TakeTrailers(*request.mutable_request_trailers(), ProxyPart::kRequestTrailers, message);
      break;
    case wire::ProcessingRequest::kResponseHeaders:
      TakeHeaders(*request.mutable_response_headers(), ProxyPart::kResponseHeaders, message);
      break;
    case wire::ProcessingRequest::kResponseBody:
      TakeBody(*request.mutable_response_body(), ProxyPart::kResponseBody, message);
      break;
    case wire::ProcessingRequest::kResponseTrailers:
      TakeTrailers(*request.mutable_response_trailers(), ProxyPart::kResponseTrailers, message);
      break;
    case wire::ProcessingRequest::REQUEST_NOT_SET:
      break;
  }
  if (request.has_protocol_config()) {
    message.request_body_mode = ModeOf(request.protocol_config().request_body_mode());
    message.response_body_mode = ModeOf(request.protocol_config().response_body_mode());
  }
  if (const Value* subset = MetadataOf(request, kSubsetMetadata, kSubset)) message.subset = EndpointsOf(*subset);
  if (const Value* served = MetadataOf(request, kMetadata, kServed)) message.served = served->string_value();
  if (message.served.empty()) message.served = Attribute(request, "upstream.address");
  message.details = Attribute(request, "response.code_details");
  return message;
}

wire::ProcessingResponse ResponseOf(ProxyReply& reply) {
  wire::ProcessingResponse response;
  switch (reply.part) {
    case ProxyPart::kRequestHeaders:
      FillCommon(reply, *response.mutable_request_headers()->mutable_response());
      break;
    case ProxyPart::kRequestBody:
      FillCommon(reply, *response.mutable_request_body()->mutable_response());
      break;
    case ProxyPart::kRequestTrailers:
      response.mutable_request_trailers();
      break;
    case ProxyPart::kResponseHeaders:
      FillCommon(reply, *response.mutable_response_headers()->mutable_response());
      break;
    case ProxyPart::kResponseBody:
      FillCommon(reply, *response.mutable_response_body()->mutable_response());
      break;
    case ProxyPart::kResponseTrailers:
      response.mutable_response_trailers();
      break;
    case ProxyPart::kImmediate:
      FillImmediate(reply, *response.mutable_immediate_response());
      break;
    case ProxyPart::kOther:
      break;
  }
  if (!reply.endpoints.empty()) {
    Struct& picked = *(*response.mutable_dynamic_metadata()->mutable_fields())[kMetadata].mutable_struct_value();
    (*picked.mutable_fields())[kDestination].set_string_value(reply.endpoints);
  }
  return response;
}

}  // namespace loramux
