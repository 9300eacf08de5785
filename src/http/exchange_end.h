// The outcome of an exchange, as its client saw it.
#pragma once

#include <string>

namespace loramux {

// How an exchange ended.
struct ExchangeEnd {
  // kConnect: no connection. kGarbled: the response was not HTTP. kRefused: its reader wanted no more of it.
  enum class Kind { kComplete, kConnect, kTimeout, kBroken, kGarbled, kRefused, kCancelled };
  Kind kind = Kind::kComplete;
  std::string detail;
  bool ok() const { return kind == Kind::kComplete; }
};

}  // namespace loramux
