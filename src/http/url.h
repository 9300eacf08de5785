// The address of a server.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace loramux {

// A parsed URL.
struct Url {
  bool tls = false;
  std::string host;  // without the brackets of an IPv6 address
  std::string port;
  std::string prefix;  // path, without a trailing slash
  // Returns "host:port" for the Host header.
  std::string authority() const;
};

// Parses http://HOST[:PORT][/PREFIX] or https://... . The error names `flag`.
Result<Url> ParseUrl(std::string_view text, std::string_view flag);

}  // namespace loramux
