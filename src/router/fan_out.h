// What administrators and trainers ask, passed on to all servers: loads and unloads of adapters (to one server where
// the servers share a catalogue), and pauses. Needs coroutines.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <boost/asio/awaitable.hpp>

#include "http/exchange.h"
#include "router/ask_servers.h"
#include "router/model_list.h"
#include "router/server_pool.h"

namespace loramux {

// The servers check the administrator's key, which the request carries. Use it on the thread of the pool's executor.
class FanOut {
 public:
  // Both must outlive it. `shared_catalogue`: the servers follow a catalogue, so one server is asked, the next one only
  // if there is no answer.
  // `admin_key`: RouterOptions::admin_key.
  FanOut(ServerPool& pool, ModelList& models, bool shared_catalogue, std::optional<std::string> admin_key)
      : pool_(pool), models_(models), shared_catalogue_(shared_catalogue), admin_key_(std::move(admin_key)) {}

  // Adds POST /v1/load_lora_adapter, /v1/unload_lora_adapter and the same without /v1, and /pause, /resume,
  // /abort_requests, /reset_prefix_cache and /flush_cache; and GET /server_info and /get_world_size, which
  // any one server answers. `?server=NAME` asks one server only. The reply has what each server said; its status is 200
  // if all did what was asked, or the highest status among the others.
  void AddRoutes(RouteTable& routes);

 private:
  enum class Operation { kLoad, kUnload, kPause, kQuestion };
  std::optional<HttpReply> Refusal(const HttpRequest& request) const;
  boost::asio::awaitable<void> Run(HttpExchange& exchange, Operation operation);
  // `one`: asks the next server only if there is no answer.
  boost::asio::awaitable<std::vector<ServerAnswer>> Ask(std::vector<std::shared_ptr<RoutedServer>> servers,
                                                        HttpCallRequest question, bool one,
                                                        RunningQuestions& running) const;

  ServerPool& pool_;
  ModelList& models_;
  const bool shared_catalogue_;
  const std::optional<std::string> admin_key_;
};

}  // namespace loramux
