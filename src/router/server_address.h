// The address of a server behind a router, and its name.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "http/url.h"

namespace loramux {

// A server that requests may be sent to.
struct ServerAddress {
  std::string name;  // in metrics, logs and the header x-loramux-server; names of a router's servers differ
  Url url;
  std::string tls_name;  // the name in its certificate; empty: the URL's host
  friend bool operator==(const ServerAddress& a, const ServerAddress& b) {
    return a.name == b.name && a.url.tls == b.url.tls && a.url.host == b.url.host && a.url.port == b.url.port &&
           a.url.prefix == b.url.prefix && a.tls_name == b.tls_name;
  }
};

// Reads HOST:PORT, http://HOST[:PORT][/PREFIX] or https://... . The name is "HOST:PORT", and the prefix if there is
// one. The error names `flag`.
Result<ServerAddress> ParseServerAddress(std::string_view text, std::string_view flag);

}  // namespace loramux
