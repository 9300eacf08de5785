// The address of the server.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace loramux::load {

// A parsed URL.
struct Url {
  bool tls = false;
  std::string host;  // without the brackets of an IPv6 address
  std::string port;
  std::string prefix;  // path before /v1, without a trailing slash
  // Returns "host:port" for the Host header.
  std::string authority() const;
};

// Parses http://HOST[:PORT][/PREFIX] or https://... . Drops a trailing /v1, which OpenAI clients write.
Result<Url> ParseUrl(std::string_view text);

}  // namespace loramux::load
