// Who may change the server while it runs: load and unload adapters, pause and resume.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "http/exchange.h"

namespace loramux {

struct AdminGate {
  std::string key;  // the key that callers must send; empty: every caller may
  // Origins of web pages that may, by name: "*" does not count here, because it names no page.
  std::vector<std::string> allowed_origins;

  // Returns why the request is refused, and logs it; nullopt: it is not.
  std::optional<HttpReply> Refusal(const HttpRequest& request) const;
  // The same for a request whose body does not say that it is JSON. (Web pages can send other types without asking.)
  static std::optional<HttpReply> TypeRefusal(const HttpRequest& request);
};

}  // namespace loramux
