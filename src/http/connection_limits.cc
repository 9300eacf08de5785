#include "http/connection_limits.h"

#include <map>
#include <utility>

#include <boost/asio/ip/network_v6.hpp>

namespace loramux {

namespace ip = boost::asio::ip;

std::string AddressGroup(const ip::address& address) {
  if (address.is_v4()) return address.to_string();
  ip::address_v6 v6 = address.to_v6();
  if (v6.is_v4_mapped()) return ip::make_address_v4(ip::v4_mapped, v6).to_string();
  v6.scope_id(0);
  return ip::network_v6(v6, 64).canonical().to_string();
}

std::optional<std::size_t> ConnectionToClose(std::span<const OpenConnection> connections, std::string_view newcomer) {
  std::map<std::string_view, std::int64_t> counts;
  for (const OpenConnection& connection : connections) ++counts[connection.address];
  // More connections first, then the longer wait.
  std::optional<std::size_t> found;
  std::pair<std::int64_t, TimeNs> best(counts[newcomer], 0);
  for (std::size_t i = 0; i < connections.size(); ++i) {
    const OpenConnection& connection = connections[i];
    if (connection.waiting_since == OpenConnection::kAnswering) continue;
    const std::int64_t count = counts[connection.address];
    const bool better = count > best.first || (found && count == best.first && connection.waiting_since < best.second);
    if (!better) continue;
    found = i;
    best = {count, connection.waiting_since};
  }
  return found;
}

}  // namespace loramux
