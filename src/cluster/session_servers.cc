#include "cluster/session_servers.h"

#include <fmt/format.h>

#include "cluster/offered_names.h"

namespace loramux {

std::string SessionToken(std::string_view server) { return fmt::format("{:016x}", NameFingerprint(server)); }

std::string_view SessionServers::Find(std::string_view id, TimeNs now) const {
  const auto found = sessions_.find(std::string(id));
  if (found == sessions_.end() || now - found->second.used_at > kKeptFor) return {};
  return found->second.server;
}

void SessionServers::Bind(std::string_view id, std::string_view server, TimeNs now) {
  if (id.empty() || id.size() > kMostIdBytes) return;
  const auto [session, is_new] = sessions_.try_emplace(std::string(id));
  if (!is_new) order_.erase(session->second.order);
  session->second = {std::string(server), now, order_.insert(order_.end(), session->first)};
  if (sessions_.size() <= kMost) return;
  const std::string oldest(order_.front());
  order_.pop_front();
  sessions_.erase(oldest);
}

}  // namespace loramux
