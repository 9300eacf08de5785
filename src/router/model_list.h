// The models of all servers as one list, for GET /v1/models. Needs coroutines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include <boost/asio/awaitable.hpp>

#include "base/clock.h"
#include "http/exchange.h"
#include "router/server_pool.h"

namespace loramux {

// Lists are kept for each API key, because servers may show each key other models. A list is asked for again when a
// server has changed since and the list is older than a second, or when it is older than ten; requests that need the
// same list wait for one answer of the servers. Use it on the thread of the pool's executor.
class ModelList {
 public:
  // All lists that servers send for one answer, and all that are kept, have at most so many bytes.
  static constexpr std::size_t kMostBytes = std::size_t{64} << 20;

  // `pool` must outlive the list.
  explicit ModelList(ServerPool& pool) : pool_(pool) {}

  // Adds GET /v1/models and GET /v1/models/NAME.
  void AddRoutes(RouteTable& routes);
  // Forgets all lists, because adapters were loaded or unloaded.
  void Forget();

 private:
  // Cards as JSON texts, by id. Immutable once it is kept.
  struct List {
    TimeNs at = 0;
    std::uint64_t changes = 0;
    std::size_t bytes = 0;  // bytes of all cards
    std::map<std::string, std::string> bases, adapters, broken;
  };
  using ListPtr = std::shared_ptr<const List>;
  struct Flight;

  boost::asio::awaitable<void> Answer(HttpExchange& exchange, bool all);
  boost::asio::awaitable<ListPtr> Fresh(const HttpRequest& request, const std::string& key);
  boost::asio::awaitable<ListPtr> Ask(const HttpRequest& request) const;
  ListPtr Kept(const std::string& key, TimeNs now) const;
  void Keep(const std::string& key, ListPtr list);

  ServerPool& pool_;
  std::map<std::string, ListPtr> lists_;                    // by what the request's API key is
  std::map<std::string, std::shared_ptr<Flight>> flights_;  // requests to the servers that are under way, by the same
};

}  // namespace loramux
