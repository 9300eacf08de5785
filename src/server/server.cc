#include "server/server.h"

#include "auth/access.h"
#include "auth/caller_gate.h"
#include "auth/error_body.h"
#include "auth/tenancy.h"
#include "base/log.h"
#include "http/exchange.h"
#include "http/server.h"
#include "server/adapters/adapter_service.h"
#include "server/adapters/trainer_service.h"
#include "server/api/api_routes.h"
#include "server/api/openai/model_routes.h"
#include "server/completion/completion_service.h"
#include "server/metrics/metrics_service.h"
#include "server/page/live_service.h"
#include "server/page/openapi.h"
#include "server/page/page_service.h"

namespace loramux {
namespace {

// The guards that the options ask for. Null: not configured.
struct Guards {
  std::unique_ptr<AccessControl> access;
  std::unique_ptr<TlsContext> tls;
  QuotaTable quotas;
  PrefixSharing prefix_sharing = PrefixSharing::kKeys;
};

Result<QuotaTable> LoadQuotas(const ProtectionOptions& options) {
  if (options.limits_file.empty()) return QuotaTable(options.adapter_limits);
  return QuotaTable::Load(options.limits_file, options.adapter_limits);
}

Result<Guards> LoadGuards(const ProtectionOptions& options) {
  Guards guards;
  if (!options.api_key_file.empty()) {
    ASSIGN_OR_RETURN(guards.access, AccessControl::Load(options.api_key_file, options.key_limits));
  } else if (!options.api_keys.empty()) {
    ASSIGN_OR_RETURN(guards.access, AccessControl::OfKeys(options.api_keys, options.key_limits));
  }
  if (options.tls.enabled()) {
    ASSIGN_OR_RETURN(guards.tls, TlsContext::Load(options.tls));
  }
  ASSIGN_OR_RETURN(guards.quotas, LoadQuotas(options));
  ASSIGN_OR_RETURN(guards.prefix_sharing, ReadPrefixSharing(options.prefix_sharing));
  return guards;
}

}  // namespace

struct Server::Impl {
  Impl(const ServerOptions& options, const ServerParts& parts, Guards loaded, OutputFormatTable output_formats)
      : protection(options.protection),
        generation(*parts.generation),
        formats(std::move(output_formats)),
        guards(std::move(loaded)),
        defaults(options.defaults),
        embeddings(options.embeddings),
        admission(guards.quotas, protection.max_queued),
        seeds(options.seed),
        metrics(options.top_adapters, parts.registry->base_names().front(), options.completion.max_model_len),
        metrics_service(metrics, parts.engine_snapshot, *parts.registry, *parts.clock, *parts.grammars, *parts.spans),
        fleet(FleetOf(options), parts.engine_snapshot, *parts.registry, *parts.finder, prefixes, *parts.clock),
        live(metrics, parts.engine_snapshot, *parts.registry, *parts.finder, *parts.clock, WhoChangesAdapters(options)),
        models(*parts.registry, *parts.finder,
               {options.model_path, parts.clock->UnixSeconds(), options.completion.max_model_len}),
        service({.clock = parts.clock,
                 .generation = parts.generation,
                 .registry = parts.registry,
                 .tokenizer = parts.tokenizer,
                 .chat_template = parts.chat_template,
                 .seeds = &seeds,
                 .admission = &admission,
                 .finder = parts.finder,
                 .lengths = parts.lengths,
                 .grammars = parts.grammars,
                 .defaults = &defaults,
                 .formats = &formats,
                 .embeddings = &embeddings,
                 .prefixes = &prefixes,
                 .max_sequences = protection.max_sequences_per_request,
                 .prefix_sharing = guards.prefix_sharing},
                metrics, CompletionOf(options, parts)),
        http(WithHooks(options.http), routes, *parts.clock, guards.tls.get()) {
    routes.SetErrorForm(ErrorBody);
    service.AddProbes(routes);
    models.AddRoutes(routes);
    AddApiRoutes(routes, service, models.listing());
    metrics_service.AddRoutes(routes);
    fleet.AddRoutes(routes);
    live.AddRoutes(routes);
    if (options.page) AddPageRoutes(routes);
    if (options.adapter_admin_key) {
      const AdminGate gate{*options.adapter_admin_key, options.http.allowed_origins};
      adapters.emplace(parts.adapter_changes, *parts.clock, AdapterServiceOptions{.gate = gate});
      adapters->AddRoutes(routes);
      uploads.emplace(parts.adapter_changes, UploadServiceOptions{.gate = gate, .max_bytes = options.max_upload_bytes});
      uploads->AddRoutes(routes);
      trainers.emplace(*parts.generation, *parts.registry,
                       TrainerServiceOptions{gate, options.model_path, options.completion.max_model_len,
                                             options.defaults.sampling.logprobs_mode, options.on_reload});
      trainers->AddRoutes(routes);
    }
    AddOpenApi(routes);
    routes.SetGate(CallerGate(guards.access.get(), options.fleet.key, options.trust_fairness_header, *parts.clock));
  }

  // Last, when all other routes are in the table.
  static void AddOpenApi(RouteTable& table) {
    CHECK(RoutesWithoutText(table.routes()).empty());
    AddOpenApiRoute(table, OpenApiDocument(table.routes(), LORAMUX_VERSION));
  }

  static const char* WhoChangesAdapters(const ServerOptions& options) {
    if (!options.adapter_admin_key) return "none";
    return options.adapter_admin_key->empty() ? "open" : "key";
  }

  static CompletionServiceOptions CompletionOf(const ServerOptions& options, const ServerParts& parts) {
    CompletionServiceOptions completion = options.completion;
    completion.spans = parts.spans;
    return completion;
  }

  static SnapshotServiceOptions FleetOf(const ServerOptions& options) {
    SnapshotServiceOptions fleet = options.fleet;
    fleet.key_required = options.protection.has_keys();
    return fleet;
  }

  HttpServerOptions WithHooks(HttpServerOptions http_options) {
    http_options.hooks.responded = [this](int status) { metrics.CountResponse(status); };
    return http_options;
  }

  Status ReloadQuotas() {
    ASSIGN_OR_RETURN(QuotaTable quotas, LoadQuotas(protection));
    admission.SetQuotas(std::move(quotas));
    return Ok{};
  }

  const ProtectionOptions protection;
  GenerationService& generation;
  const OutputFormatTable formats;
  Guards guards;
  const RequestDefaults defaults;
  const EmbeddingOptions embeddings;
  Admission admission;
  SeedSource seeds;
  ServerMetrics metrics;
  MetricsService metrics_service;
  PrefixMemory prefixes;
  SnapshotService fleet;
  LiveService live;
  RouteTable routes;
  ModelRoutes models;
  CompletionService service;
  std::optional<AdapterService> adapters;
  std::optional<UploadService> uploads;
  std::optional<TrainerService> trainers;
  HttpServer http;  // last, so that its threads end before the objects that they use
};

Status CheckProtection(const ProtectionOptions& options) {
  ASSIGN_OR_RETURN(const Guards guards, LoadGuards(options));
  return Ok{};
}

Result<std::unique_ptr<Server>> Server::Start(ServerOptions options, ServerParts parts) {
  CHECK(parts.clock != nullptr && parts.generation != nullptr);
  CHECK(parts.registry != nullptr && parts.tokenizer != nullptr);
  CHECK(parts.chat_template != nullptr && parts.lengths != nullptr && parts.grammars != nullptr);
  CHECK(parts.finder != nullptr && parts.spans != nullptr);
  CHECK(!options.adapter_admin_key || parts.adapter_changes.load != nullptr);
  ASSIGN_OR_RETURN(Guards guards, LoadGuards(options.protection));
  ASSIGN_OR_RETURN(OutputFormatTable formats,
                   ReadOutputFormats(*parts.chat_template, options.tool_call_parsers, options.reasoning_parsers));
  auto impl = std::make_unique<Impl>(options, parts, std::move(guards), std::move(formats));
  RETURN_IF_ERROR(impl->http.Start());
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() { Shutdown(); }

std::uint16_t Server::port() const { return impl_->http.port(); }
int Server::connections() const { return impl_->http.connections(); }

DrainReport Server::Shutdown() {
  impl_->fleet.Drain();
  impl_->live.Stop();
  impl_->generation.SetHold(Hold::kNone);  // what a pause holds back ends as the rest does
  return impl_->http.Shutdown();
}

void Server::Reload() {
  const auto report = [](const char* what, const Status& status) {
    if (status.ok()) return spdlog::info("{} read again", what);
    spdlog::error("{} could not be read again, so the old ones stay in use: {}", what, status.error().message);
  };
  if (impl_->guards.access != nullptr) report("API keys", impl_->guards.access->Reload());
  if (impl_->guards.tls != nullptr) report("TLS certificate and key", impl_->guards.tls->Reload());
  if (!impl_->protection.limits_file.empty()) report("limits", impl_->ReloadQuotas());
}

}  // namespace loramux
