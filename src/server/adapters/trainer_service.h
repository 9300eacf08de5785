// The HTTP routes that trainers use between two versions of an adapter, by vLLM's names: what the server is, and a
// pause of its work. Needs coroutines.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include <boost/asio/awaitable.hpp>

#include "adapter/registry.h"
#include "http/exchange.h"
#include "server/adapters/admin_gate.h"
#include "server/generation/generation_service.h"
#include "step/sampling.h"

namespace loramux {

// What the server says of itself.
struct TrainerServiceOptions {
  AdminGate gate;
  std::string model_path;
  std::int64_t max_model_len = 0;  // tokens
  LogprobsMode logprobs_mode = LogprobsMode::kRawLogprobs;
  std::string on_reload;  // --on-reload
};

// Thread-safe: one instance serves all connections.
class TrainerService {
 public:
  // `generation` and `registry` must outlive the service; the service must outlive its HTTP server.
  TrainerService(GenerationService& generation, const AdapterRegistry& registry, TrainerServiceOptions options);

  // Adds POST /pause, /resume, /abort_requests, /reset_prefix_cache and /flush_cache (SGLang's name of it; not with
  // GET, which any page of a browser can send), and GET /is_paused, /server_info and /get_world_size.
  void AddRoutes(RouteTable& routes);

 private:
  boost::asio::awaitable<void> Pause(HttpExchange& exchange);
  boost::asio::awaitable<void> Resume(HttpExchange& exchange);
  boost::asio::awaitable<void> Abort(HttpExchange& exchange);
  boost::asio::awaitable<void> DropCache(HttpExchange& exchange);
  std::string ServerInfo() const;

  GenerationService& generation_;
  const AdapterRegistry& registry_;
  const TrainerServiceOptions options_;
  std::atomic<Hold> hold_{Hold::kNone};
};

}  // namespace loramux
