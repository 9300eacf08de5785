// `loramux route`: one address for many servers. It knows where adapters are and what each server has to do, and sends
// each request to the server that will answer it first (cluster/dispatcher.h).
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "auth/quota.h"
#include "base/clock.h"
#include "base/result.h"
#include "cluster/dispatcher.h"
#include "http/activity.h"
#include "http/options.h"
#include "http/tls_context.h"
#include "router/catalogue.h"
#include "router/proxy.h"
#include "router/server_address.h"
#include "router/server_pool.h"

namespace loramux {

// Settings of a Router.
struct RouterOptions {
  HttpServerOptions http;  // `threads` does not count: one thread does all
  DispatcherOptions dispatch;
  ServerAccess access;
  // A server that sends nothing for so long is given up: before its answer begins, and between two pieces of it.
  std::chrono::milliseconds answer_timeout{600'000};
  std::string api_key_file;                     // checked before requests go to servers; empty: the servers check
  QuotaLimits key_limits{.concurrency = 1024};  // limits of each API key, where the file sets no others
  bool trust_fairness_header = false;           // clients may name their tenants
  TlsFiles tls;                                 // certificate of the router itself; empty: plain HTTP
  // The servers share a catalogue of adapters, so a load or an unload at one of them reaches all.
  bool shared_catalogue = false;
  // The key that loads and unloads of adapters need, which the servers are given too. Empty: only the servers check;
  // nullopt: refused.
  std::optional<std::string> admin_key;
  std::string version;  // for /version
};

// Reads the files of keys and certificates as Router::Start does, so that an error in them is known early.
Status CheckRouterFiles(const RouterOptions& options);

// A router with its HTTP server. The methods may be called on any thread.
class Router {
 public:
  // Listens, and answers on a thread of its own. `clock` must outlive the router. Errors: a host or port that cannot be
  // used, a file of keys or certificates that cannot be used, an unknown policy.
  static Result<std::unique_ptr<Router>> Start(RouterOptions options, const Clock& clock);
  // Calls Shutdown.
  ~Router();
  Router(const Router&) = delete;
  Router& operator=(const Router&) = delete;

  // Returns the port in use.
  std::uint16_t port() const;
  // The servers that exist from now on. Requests that run at one that left run to their end.
  void SetServers(std::vector<ServerAddress> servers);
  // The adapters that the fleet should have, from now on.
  void SetCatalogue(Catalogue catalogue);
  // Reads the files of keys and certificates again. A file with an error changes nothing; the log gives the reason.
  void Reload();

  // /health says from now on that this router should get no more requests; it answers them all the same.
  void StartDraining();
  // Stops accepting, waits for running requests until the drain timeout, tells the clients of the rest, and reports.
  // Blocks until done.
  DrainReport Shutdown();

 private:
  struct Impl;
  explicit Router(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace loramux
