#include "http/request_framing.h"

#include <algorithm>
#include <charconv>

#include <boost/asio/ip/address_v6.hpp>
#include <boost/beast/core/string.hpp>
#include <fmt/format.h>

namespace loramux {
namespace {

namespace beast = boost::beast;
namespace http = boost::beast::http;

constexpr std::size_t kMaxHostBytes = 255;  // longest name in the DNS

bool IsNameCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         std::string_view("-._~!$&'()*+,;=%").find(c) != std::string_view::npos;
}

bool IsPort(std::string_view text) {
  std::uint16_t port = 0;
  const char* end = text.data() + text.size();
  const auto [read, error] = std::from_chars(text.data(), end, port);
  return text.empty() || (error == std::errc() && read == end);
}

bool IsAddressInBrackets(std::string_view text) {
  if (text.size() < 2 || text.front() != '[' || text.back() != ']') return false;
  boost::system::error_code error;
  boost::asio::ip::make_address_v6(std::string(text.substr(1, text.size() - 2)), error);
  return !error;
}

bool IsName(std::string_view text) {
  return !text.empty() && text.size() <= kMaxHostBytes && std::all_of(text.begin(), text.end(), IsNameCharacter);
}

std::string TransferEncodingFault(const http::fields& fields, unsigned version) {
  const std::size_t count = fields.count(http::field::transfer_encoding);
  if (count == 0) return {};
  if (version == 10) return "Transfer-Encoding: expected none in HTTP/1.0, found one";
  if (count > 1) return fmt::format("Transfer-Encoding: expected one field, found {}", count);
  if (!beast::iequals(fields[http::field::transfer_encoding], "chunked")) {
    return "Transfer-Encoding: expected chunked alone, found something else";
  }
  if (fields.count(http::field::content_length) > 0) {
    return "Transfer-Encoding and Content-Length: expected one of them, found both";
  }
  return {};
}

std::string ContentLengthFault(const http::fields& fields) {
  const std::size_t count = fields.count(http::field::content_length);
  if (count > 1) return fmt::format("Content-Length: expected one field, found {}", count);
  const auto value = fields[http::field::content_length];
  const bool digits = std::all_of(value.begin(), value.end(), [](char c) { return c >= '0' && c <= '9'; });
  return count == 0 || (digits && !value.empty()) ? std::string()
                                                  : "Content-Length: expected one number, found something else";
}

std::string HostFault(const http::fields& fields, unsigned version) {
  const std::size_t count = fields.count(http::field::host);
  if (count == 0 && version == 10) return {};
  if (count != 1) return fmt::format("Host: expected one field, found {}", count == 0 ? "none" : std::to_string(count));
  return IsHost(fields[http::field::host]) ? std::string()
                                           : "Host: expected a name or an address, with or without a port";
}

}  // namespace

bool IsHost(std::string_view text) {
  const auto colon = text.rfind(':');
  const bool has_port = colon != std::string_view::npos && text.find(']', colon) == std::string_view::npos;
  if (has_port && !IsPort(text.substr(colon + 1))) return false;
  const std::string_view host = has_port ? text.substr(0, colon) : text;
  return IsName(host) || IsAddressInBrackets(host);
}

std::optional<std::string_view> AuthorityOf(std::string_view target) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!beast::iequals(target.substr(0, scheme.size()), scheme)) continue;
    const std::string_view rest = target.substr(scheme.size());
    return rest.substr(0, rest.find_first_of("/?"));
  }
  return std::nullopt;
}

std::string OriginForm(std::string_view target) {
  const auto authority = AuthorityOf(target);
  if (!authority) return std::string(target);
  const auto behind = static_cast<std::size_t>(authority->data() + authority->size() - target.data());
  const std::string_view rest = target.substr(behind);
  return (rest.starts_with('/') ? "" : "/") + std::string(rest);
}

std::string FramingFault(const http::fields& fields, unsigned version) {
  std::string fault = TransferEncodingFault(fields, version);
  if (fault.empty()) fault = ContentLengthFault(fields);
  if (fault.empty()) fault = HostFault(fields, version);
  return fault;
}

}  // namespace loramux
