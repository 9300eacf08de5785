#include "router/forwarded_headers.h"

#include <algorithm>
#include <array>
#include <charconv>

#include <boost/beast/core/string.hpp>

#include "auth/access.h"
#include "auth/tenancy.h"
#include "auth/vouched_caller.h"
#include "router/route_headers.h"

namespace loramux {
namespace {

using boost::beast::iequals;

template <std::size_t N>
bool IsOneOf(std::string_view name, const std::array<std::string_view, N>& names) {
  return std::any_of(names.begin(), names.end(), [&](std::string_view other) { return iequals(name, other); });
}

// True for fields that belong to one connection only (RFC 9110, 7.6.1).
bool IsOfConnection(std::string_view name) {
  static constexpr std::array<std::string_view, 11> kNames = {
      "Connection", "Keep-Alive",        "Proxy-Connection", "Proxy-Authenticate", "Proxy-Authorization", "TE",
      "Trailer",    "Transfer-Encoding", "Upgrade"};
  return IsOneOf(name, kNames);
}

// Headers that `Connection` names belong to the connection too.
std::string ConnectionOptions(const HttpFields& headers) {
  std::string options;
  for (const auto& [name, value] : headers) {
    if (iequals(name, "Connection")) options += "," + value;
  }
  return options;
}

bool Names(std::string_view options, std::string_view name) {
  while (!options.empty()) {
    const auto end = std::min(options.find(','), options.size());
    std::string_view option = options.substr(0, end);
    while (option.starts_with(' ') || option.starts_with('\t')) option.remove_prefix(1);
    while (option.ends_with(' ') || option.ends_with('\t')) option.remove_suffix(1);
    if (iequals(option, name)) return true;
    options.remove_prefix(std::min(end + 1, options.size()));
  }
  return false;
}

bool IsOwnOfResponse(std::string_view name) {
  static constexpr std::array<std::string_view, 6> kNames = {kSessionTokenHeader, "Server",     "X-Request-Id",
                                                             "traceparent",       "tracestate", "x-loramux-server"};
  return IsOneOf(name, kNames) || iequals(name.substr(0, 15), "Access-Control-");
}

bool IsOwnOfRequest(std::string_view name) {
  static constexpr std::array<std::string_view, 11> kNames = {"Host",
                                                              "Content-Length",
                                                              "Expect",
                                                              "X-Request-Id",
                                                              "traceparent",
                                                              "tracestate",
                                                              "X-Forwarded-For",
                                                              "x-loramux-require-digest",
                                                              kVouchedCallerHeader,
                                                              "x-llm-d-model-name-rewrite",
                                                              "x-gateway-model-name-rewrite"};
  return IsOneOf(name, kNames);
}

bool IsKey(std::string_view name) { return iequals(name, "Authorization") || iequals(name, "x-api-key"); }

}  // namespace

PassedHead ReadPassedHead(const HttpFields& headers) {
  PassedHead head;
  const std::string options = ConnectionOptions(headers);
  for (const auto& [name, value] : headers) {
    if (iequals(name, "Content-Type")) {
      head.content_type = value;
    } else if (iequals(name, "Content-Length")) {
      std::uint64_t length = 0;
      const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), length);
      if (error == std::errc() && end == value.data() + value.size()) head.content_length = length;
    } else if (!IsOfConnection(name) && !IsOwnOfResponse(name) && !Names(options, name)) {
      head.not_started = head.not_started || (iequals(name, kNotStartedHeader) && value == "1");
      head.other_content = head.other_content || iequals(name, kOtherContentHeader);
      head.headers.emplace_back(name, value);
    }
  }
  return head;
}

HttpFields RequestHeaders(const HttpExchange& exchange, std::string_view fleet_key, std::int64_t unix_seconds) {
  const HttpRequest& request = exchange.request();
  const std::string options = ConnectionOptions(request.headers);
  HttpFields headers;
  headers.reserve(request.headers.size() + 6);
  std::string forwarded;
  for (const auto& [name, value] : request.headers) {
    if (iequals(name, "X-Forwarded-For")) forwarded += value + ", ";
    if (IsOfConnection(name) || IsOwnOfRequest(name) || Names(options, name)) continue;
    // The gate has read it, and took it if clients are trusted with it.
    if (IsOneOf(name, kFairnessHeaders) && request.tenant.empty()) continue;
    // The gate read the first one; a second one would be another caller.
    const bool repeated =
        IsKey(name) && std::ranges::any_of(headers, [&](const auto& h) { return iequals(h.first, name); });
    if (!repeated) headers.emplace_back(name, value);
  }
  for (auto& header : exchange.trace().Headers()) headers.push_back(std::move(header));
  headers.emplace_back("X-Forwarded-For", forwarded + request.address);
  if (request.tenant.empty()) headers.emplace_back(kFairnessHeader, WorkTenant(request));
  if (!fleet_key.empty()) {
    const VouchedCaller vouched{.key = CallerOf(request).name, .id = request.tenant, .address = request.address};
    headers.emplace_back(kVouchedCallerHeader, Vouch(vouched, fleet_key, exchange.trace().request_id, unix_seconds));
  }
  return headers;
}

}  // namespace loramux
