// The server as the program sees it: OpenAI's protocol over HTTP in front of an engine.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "adapter/registry.h"
#include "base/clock.h"
#include "base/result.h"
#include "server/adapter_admin.h"
#include "server/admission.h"
#include "server/generation_service.h"
#include "server/http_activity.h"
#include "server/http_options.h"
#include "server/length_guesser.h"
#include "server/metrics.h"
#include "server/tls_context.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace loramux {

// Who may do how much.
struct ProtectionOptions {
  std::string api_key_file;  // empty: everybody may use everything
  std::string limits_file;   // of adapters; empty: adapter_limits for all
  QuotaLimits adapter_limits;
  AdmissionOptions admission;
  TlsFiles tls;  // none: plain HTTP
};

struct ServerOptions {
  HttpServerOptions http;
  MetricsOptions metrics;
  ProtectionOptions protection;
  int tokenizer_threads = 1;
  std::size_t max_buffered_bytes = std::size_t{1} << 20;  // of tokens that a slow client has not taken, a request
  // a comment line in streams that are silent so long; 0: never
  std::chrono::milliseconds sse_keepalive{0};
  std::string model_path;          // as the operator gave it, for /v1/models
  std::int64_t max_model_len = 0;  // for /v1/models
  bool fairness_header = true;     // x-gateway-inference-fairness-id names the tenant
  std::uint64_t seed = 0;          // of ids and of requests that bring no seed
  // set: adapters can be changed over HTTP; empty: by anybody
  std::optional<std::string> adapter_admin_key;
};

// What the server serves from. It owns none of it; all of it must outlive the server.
struct ServerParts {
  const Clock* clock = nullptr;
  GenerationService* generation = nullptr;
  const AdapterRegistry* registry = nullptr;
  const Tokenizer* tokenizer = nullptr;
  const ChatTemplate* chat_template = nullptr;  // null: the model has none
  const LengthGuesser* lengths = nullptr;       // null: nobody guesses answers' lengths from the text
  SnapshotSource engine_snapshot;               // of the engine behind `generation`, for /metrics
  AdapterAdmin* adapters = nullptr;             // null: adapters are what the registry holds
};

class Server {
 public:
  // Listens and serves on its own threads. Errors: a host or port that cannot be listened on, files of keys, limits or
  // certificates that cannot be used.
  static Result<std::unique_ptr<Server>> Start(ServerOptions options, ServerParts parts);
  // Shuts down.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  std::uint16_t port() const;
  // Open client connections.
  int connections() const;
  // Reads the files of keys, limits and certificates again. One that is wrong changes nothing; the log says why.
  void Reload();

  // Stops accepting, waits for running requests up to the drain timeout, cancels the rest and says which; blocks until
  // done. The engine must go on stepping meanwhile. No engine callback touches the server afterwards.
  DrainReport Shutdown();

 private:
  struct Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace loramux
