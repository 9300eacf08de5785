// Where the server is.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace loramux::load {

struct Url {
  bool tls = false;
  std::string host;  // without the brackets of an IPv6 address
  std::string port;
  std::string prefix;  // path before /v1, without a trailing slash
  // "host:port" for the Host header.
  std::string authority() const;
};

// http://HOST[:PORT][/PREFIX] or https://...; a trailing /v1 is dropped, as OpenAI clients write it.
Result<Url> ParseUrl(std::string_view text);

}  // namespace loramux::load
