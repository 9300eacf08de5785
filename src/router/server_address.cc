#include "router/server_address.h"

#include <fmt/format.h>

namespace loramux {

Result<ServerAddress> ParseServerAddress(std::string_view text, std::string_view flag) {
  const bool bare = text.find("://") == std::string_view::npos;
  if (bare && text.find(':') == std::string_view::npos) {
    return InvalidArgument(
        fmt::format("{}: expected HOST:PORT, http://HOST[:PORT] or https://HOST[:PORT], found '{}'", flag, text));
  }
  auto url = ParseUrl(bare ? "http://" + std::string(text) : std::string(text), flag);
  if (!url.ok()) return url.error();
  std::string name = url->authority() + url->prefix;
  return ServerAddress{std::move(name), std::move(*url), {}};
}

}  // namespace loramux
