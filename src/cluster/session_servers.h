// Which server answered a conversation last, so that its next request finds its cache there.
#pragma once

#include <cstddef>
#include <list>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/clock.h"

namespace loramux {

// What stands for a server in a client's hands: it tells neither name nor address, and all routers make the same.
std::string SessionToken(std::string_view server);

// The servers of the conversations that were used last. Not thread-safe.
class SessionServers {
 public:
  static constexpr std::size_t kMost = 16'384;
  static constexpr TimeNs kKeptFor = 1800 * kNsPerSecond;  // since its last request
  static constexpr std::size_t kMostIdBytes = 256;         // a longer id is not remembered

  // The server's name; empty: none is known.
  std::string_view Find(std::string_view id, TimeNs now) const;
  void Bind(std::string_view id, std::string_view server, TimeNs now);
  std::size_t size() const { return sessions_.size(); }

 private:
  struct Session {
    std::string server;
    TimeNs used_at = 0;
    std::list<std::string_view>::iterator order;
  };
  std::unordered_map<std::string, Session> sessions_;
  std::list<std::string_view> order_;  // ids; the one used last is the last
};

}  // namespace loramux
