// The HTTP routes that load and unload adapters. Needs coroutines.
#pragma once

#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/thread_pool.hpp>

#include "auth/fair_work_queue.h"
#include "http/exchange.h"
#include "server/adapters/adapter_admin.h"
#include "server/adapters/adapter_changes.h"
#include "server/adapters/admin_gate.h"

namespace loramux {

// Settings of an AdapterService.
struct AdapterServiceOptions {
  AdminGate gate;
  int threads = 2;       // operations that run at a time
  int max_waiting = 64;  // operations that run or wait; requests beyond this get status 503
  // The same for loads from sources, which wait for the network. Half of the threads are for one source.
  int download_threads = 8;
  int max_downloads = 64;
};

// Thread-safe: one instance serves all connections.
class AdapterService {
 public:
  // `clock` and what `changes` refers to must outlive the service; the service must outlive its HTTP server.
  AdapterService(AdapterChanges changes, const Clock& clock, AdapterServiceOptions options);
  // Waits for the operations that run.
  ~AdapterService();

  // Adds POST /v1/load_lora_adapter and /v1/unload_lora_adapter (vLLM), and POST /load_lora_adapter and
  // /unload_lora_adapter (SGLang), and POST /adapters and DELETE /adapters/NAME (SageMaker).
  void AddRoutes(RouteTable& routes);

 private:
  enum class Dialect { kVllm, kSglang, kSageMaker, kSkyRl };
  static Result<AdapterAdmin::LoadRequest> Parse(const HttpRequest& request, Dialect dialect);
  // Neither waits for the network. nullopt: a load from a source, which LoadFromSource carries out.
  using Operation = std::optional<HttpReply> (AdapterService::*)(const HttpRequest& request, Dialect dialect);
  boost::asio::awaitable<void> Run(HttpExchange& exchange, Operation operation, Dialect dialect);
  std::optional<HttpReply> Load(const HttpRequest& request, Dialect dialect);
  std::optional<HttpReply> Unload(const HttpRequest& request, Dialect dialect);
  HttpReply LoadFromSource(const HttpRequest& request, Dialect dialect);
  HttpReply LoadParsed(const Result<AdapterAdmin::LoadRequest>& parsed, Dialect dialect);
  // `version`: what a load made; null: nothing.
  HttpReply Reply(const Status& status, std::string text, Dialect dialect, const AdapterVersion* version) const;

  const AdapterChanges changes_;
  const AdapterServiceOptions options_;
  std::atomic<int> in_{0}, downloading_{0};
  boost::asio::thread_pool workers_;
  FairWorkQueue downloads_;  // by bucket or organisation
};

}  // namespace loramux
