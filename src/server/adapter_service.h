// The HTTP routes that change which adapters there are. Needs coroutines.
#pragma once

#include <atomic>
#include <string>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/thread_pool.hpp>

#include "server/adapter_admin.h"
#include "server/http_exchange.h"

namespace loramux {

struct AdapterServiceOptions {
  std::string admin_key;  // empty: whoever reaches the port may change adapters
  int threads = 2;        // operations at one time
  int max_waiting = 64;   // operations that are in; further ones get 503
};

// Thread-safe: one instance serves all connections.
class AdapterService {
 public:
  // `admin` must outlive the service, and the service its HTTP server.
  AdapterService(AdapterAdmin* admin, AdapterServiceOptions options);
  ~AdapterService();

  // POST /v1/load_lora_adapter, /v1/unload_lora_adapter (vLLM) and /load_lora_adapter, /unload_lora_adapter (SGLang).
  void AddRoutes(RouteTable& routes);

 private:
  enum class Dialect { kVllm, kSglang };
  using Operation = HttpReply (AdapterService::*)(const HttpRequest& request, Dialect dialect);
  boost::asio::awaitable<void> Run(HttpExchange& exchange, Operation operation, Dialect dialect);
  bool Authorised(const HttpRequest& request) const;
  HttpReply Load(const HttpRequest& request, Dialect dialect);
  HttpReply Unload(const HttpRequest& request, Dialect dialect);
  HttpReply Reply(const Status& status, std::string text, Dialect dialect) const;

  AdapterAdmin* admin_;
  const AdapterServiceOptions options_;
  std::atomic<int> in_{0};
  boost::asio::thread_pool workers_;
};

}  // namespace loramux
