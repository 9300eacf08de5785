// The server as the program uses it: OpenAI's protocol over HTTP in front of an engine.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "adapter/registry.h"
#include "auth/admission.h"
#include "base/clock.h"
#include "base/result.h"
#include "http/activity.h"
#include "http/options.h"
#include "http/tls_context.h"
#include "server/adapters/adapter_admin.h"
#include "server/adapters/adapter_changes.h"
#include "server/adapters/upload_service.h"
#include "server/completion/completion_request.h"
#include "server/completion/completion_service.h"
#include "server/completion/embedding_plan.h"
#include "server/completion/length_guesser.h"
#include "server/fleet/snapshot_service.h"
#include "server/generation/generation_service.h"
#include "server/metrics/metrics.h"
#include "server/tracing/span_exporter.h"
#include "text/chat_template.h"
#include "text/grammar/grammar_compiler.h"
#include "text/tokenizer.h"

namespace loramux {

// Access control and limits.
struct ProtectionOptions {
  std::string api_key_file;           // empty: no file of keys
  std::vector<std::string> api_keys;  // keys without names; without these and a file every caller may use every model
  std::string limits_file;            // limits by adapter; empty: adapter_limits apply to all
  QuotaLimits adapter_limits;
  QuotaLimits key_limits{.concurrency = 1024};   // limits of each API key, where the file of keys sets no others
  std::int64_t max_sequences_per_request = 256;  // prompts times `n`
  std::string prefix_sharing;                    // as ReadPrefixSharing reads it
  std::int64_t max_queued = kMostQueued;  // sequences of all adapters that wait for their first token; 0: no limit
  TlsFiles tls;                           // empty: plain HTTP
  bool has_keys() const { return !api_key_file.empty() || !api_keys.empty(); }
};

// Reads the files of keys, limits and certificates as Server::Start does, so that an error in them is known before a
// model is loaded.
Status CheckProtection(const ProtectionOptions& options);

// Settings of a Server.
struct ServerOptions {
  HttpServerOptions http;
  int top_adapters = kTopAdapters;  // adapters with series of their own in /metrics; > 0
  ProtectionOptions protection;
  CompletionServiceOptions completion;  // its spans are those of ServerParts
  std::string model_path;               // as given on the command line, for /v1/models
  bool trust_fairness_header = false;   // the header x-gateway-inference-fairness-id names the tenant
  RequestDefaults defaults;             // defaults of sampling and lengths
  EmbeddingOptions embeddings;
  std::uint64_t seed = 0;  // seed of requests without one; secret; 0: seeds that cannot be repeated
  // How the model writes calls of tools and reasoning, as --tool-call-parser and --reasoning-parser take it: "auto",
  // "none" or a name, and ADAPTER=NAME for adapters that differ.
  std::vector<std::string> tool_call_parsers, reasoning_parsers;
  // Absent: adapters cannot be changed over HTTP. Empty: every caller may change them. Otherwise the key that callers
  // must send.
  std::optional<std::string> adapter_admin_key;
  std::size_t max_upload_bytes = UploadServiceOptions().max_bytes;
  std::string on_reload = "finish";  // --on-reload, for /server_info
  SnapshotServiceOptions fleet;      // its key_required is set from `protection`
  bool page = true;                  // the page for people at /, and /docs
};

// What the server works with. The server owns none of it; all of it must outlive the server. No pointer is null: a part
// that a program has not got does nothing, or refuses (ServingContext).
struct ServerParts {
  const Clock* clock = nullptr;
  GenerationService* generation = nullptr;
  const AdapterRegistry* registry = nullptr;
  const Tokenizer* tokenizer = nullptr;
  const ChatTemplate* chat_template = nullptr;
  const LengthGuesser* lengths = nullptr;
  GrammarCompiler* grammars = nullptr;
  SnapshotSource engine_snapshot;       // snapshots of the engine behind `generation`, for /metrics and routers
  AdapterFinder* finder = &NoFinder();  // finds adapters that are not registered
  AdapterChanges adapter_changes = {};  // changes by the admin routes; set if ServerOptions::adapter_admin_key is
  SpanExporter* spans = nullptr;        // takes the spans of requests
};

// The HTTP server with all its services. The methods may be called on any thread.
class Server {
 public:
  // Listens and serves on its own threads. Errors: a host or port that cannot be used, or a file of keys, limits or
  // certificates that cannot be used, or an unknown parser.
  static Result<std::unique_ptr<Server>> Start(ServerOptions options, ServerParts parts);
  // Calls Shutdown.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Returns the port in use.
  std::uint16_t port() const;
  // Returns the number of open client connections.
  int connections() const;
  // Reads the files of keys, limits and certificates again. A file with an error changes nothing; the log gives the
  // reason.
  void Reload();

  // Tells routers of the drain and lets them react (SnapshotService::Drain). Then stops accepting, waits for running
  // requests until the drain timeout, cancels the rest and reports them. Blocks until done. The engine must keep
  // stepping meanwhile. No engine callback touches the server afterwards.
  DrainReport Shutdown();

 private:
  struct Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace loramux
