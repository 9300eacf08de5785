// The models of all servers as one list, for GET /v1/models. Needs coroutines.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include <boost/asio/awaitable.hpp>

#include "base/clock.h"
#include "http/exchange.h"
#include "http/json_reader.h"
#include "router/server_pool.h"

namespace loramux {

// Lists are kept for each API key, because servers may show each key other models. A list is asked for again when a
// server has changed since and the list is older than a second, or when it is older than ten. Use it on the thread of
// the pool's executor.
class ModelList {
 public:
  // `pool` must outlive the list.
  explicit ModelList(ServerPool& pool) : pool_(pool) {}

  // Adds GET /v1/models and GET /v1/models/NAME.
  void AddRoutes(RouteTable& routes);
  // Forgets all lists, because adapters were loaded or unloaded.
  void Forget();

 private:
  struct List {
    TimeNs at = 0;
    std::uint64_t changes = 0;
    std::map<std::string, Json> bases, adapters, broken;  // by id
  };
  boost::asio::awaitable<void> Answer(HttpExchange& exchange, bool all);
  boost::asio::awaitable<bool> Refresh(const HttpRequest& request, const std::string& key);
  void Drop(TimeNs now);

  ServerPool& pool_;
  std::map<std::string, List> lists_;  // by what the request's API key is
};

}  // namespace loramux
