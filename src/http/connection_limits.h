// How much of a server one client address may take, and which connection makes room for a newcomer.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <boost/asio/ip/address.hpp>

#include "base/clock.h"

namespace loramux {

// Returns the name under which an address is counted: "192.0.2.1". For IPv6 it is the network of 64 bits,
// "2001:db8::/64", because one client commonly has all its addresses. An IPv4 address within IPv6 counts as IPv4.
std::string AddressGroup(const boost::asio::ip::address& address);

// One open connection, as ConnectionToClose sees it.
struct OpenConnection {
  static constexpr TimeNs kAnswering = -1;

  std::string_view address;  // its group
  // Since when the server waits for the whole next request of the connection; kAnswering: it answers one.
  TimeNs waiting_since = kAnswering;
};

// Returns the index of the connection that makes room for one more of the group `newcomer` where all places are taken:
// the one that the server has waited for longest, among those of the group with the most connections. nullopt: refuse
// the newcomer, because no group with more connections than its own has one that waits.
std::optional<std::size_t> ConnectionToClose(std::span<const OpenConnection> connections, std::string_view newcomer);

}  // namespace loramux
