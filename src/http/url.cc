#include "http/url.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

namespace loramux {
namespace {

bool IsPort(std::string_view text) {
  int port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  return error == std::errc() && end == text.data() + text.size() && port >= 1 && port <= 65535;
}

bool IsPlain(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7f && c != '"' && c != '\\'; });
}

}  // namespace

std::string Url::authority() const {
  const std::string name = host.find(':') == std::string::npos ? host : "[" + host + "]";
  return name + ":" + port;
}

Result<Url> ParseUrl(std::string_view text, std::string_view flag) {
  const Error error =
      InvalidArgument(fmt::format("{}: expected http://HOST[:PORT] or https://HOST[:PORT], found '{}'", flag, text));
  Url url;
  std::string_view rest = text;
  url.tls = rest.starts_with("https://");
  if (!url.tls && !rest.starts_with("http://")) return error;
  rest.remove_prefix(url.tls ? 8 : 7);
  const auto slash = std::min(rest.find('/'), rest.size());
  std::string_view prefix = rest.substr(slash), host = rest.substr(0, slash);
  while (prefix.ends_with('/')) prefix.remove_suffix(1);
  url.prefix = prefix;
  url.port = url.tls ? "443" : "80";
  const auto colon = host.rfind(':');
  const auto bracket = host.find(']');
  if (colon != std::string_view::npos && (bracket == std::string_view::npos || colon > bracket)) {
    url.port = host.substr(colon + 1);
    host = host.substr(0, colon);
  }
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  url.host = host;
  if (url.host.empty() || !IsPort(url.port) || !IsPlain(text) || host.find('@') != std::string_view::npos) return error;
  return url;
}

}  // namespace loramux
