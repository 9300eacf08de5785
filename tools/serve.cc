#include "tools/serve.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <vector>
#include <malloc.h>

#include <fmt/core.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "auth/access.h"
#include "auth/bearer_key.h"
#include "base/bytes.h"
#include "base/log.h"
#include "base/machine_memory.h"
#include "formats/dtype.h"
#include "formats/file.h"
#include "formats/model_config.h"
#include "http/bound_port.h"
#include "http/options.h"
#include "record/flight_recorder.h"
#include "runtime/history_keeper.h"
#include "schedule/presets.h"
#include "server/completion/length_guesser.h"
#include "server/generation/engine_service.h"
#include "server/metrics/metrics.h"
#include "server/server.h"
#include "step/sampling.h"
#include "text/bindings/loramux_text.h"
#include "text/chat_template.h"
#include "text/grammar/grammar_compiler.h"
#include "text/tokenizer.h"
#include "tools/adapter_flags.h"
#include "tools/fleet_member.h"
#include "tools/foreign_flags.h"
#include "tools/group_flags.h"
#include "tools/idle_flags.h"
#include "tools/listen_flags.h"
#include "tools/output_flags.h"
#include "tools/protection_flags.h"
#include "tools/request_parts.h"
#include "tools/runtime_flags.h"
#include "tools/service_notify.h"
#include "tools/signals.h"
#include "tools/startup_table.h"
#include "tools/throughput_log.h"
#include "tools/trace_flags.h"

namespace loramux {
namespace {

struct ServeFlags {
  RuntimeFlags runtime;
  GroupFlags group;
  ServerOptions server;  // what the flags leave open is set when the server starts
  AdapterFlags adapters;
  EtcdOptions etcd;
  Member self;  // in the fleet that etcd knows
  std::string fleet_key_file;
  bool no_page = false;
  std::string generation_config = "auto";
  std::string logprobs_mode{LogprobsModeName(LogprobsMode::kRawLogprobs)};
  std::string pooling = "auto";
  SpanExporterOptions spans;
  std::vector<std::string> span_headers;  // NAME=VALUE; secret
  std::string record;                     // file for a recording of the engine; empty: none
  FlightRecorderOptions recorder{.program = LORAMUX_VERSION};
  std::chrono::milliseconds stats_interval{10'000};
  std::vector<std::string> warnings;  // warnings of the command line and the environment
};

// Warnings of flags that the server alone has; those of the runtime come when it starts (StartRuntime).
std::vector<std::string> WarningsOfIdle(const ServeFlags& flags) {
  const bool loads = flags.adapters.enable_runtime_lora;
  const bool restores = loads || !flags.etcd.urls.empty() || !flags.adapters.state_dir.empty();
  const ProtectionOptions& protection = flags.server.protection;
  const bool keys = protection.has_keys();
  // A router with the fleet's key names the tenants of its callers.
  const bool tenants = keys || flags.server.trust_fairness_header || !flags.fleet_key_file.empty();
  const std::string no_loads = "adapters are not loaded at run time; use --enable-runtime-lora";
  const std::string no_tenants =
      "all requests are of one tenant; use --api-key-file, --trust-fairness-header, or a router with --fleet-key-file";
  return WarningsOfIdle(
      flags.runtime.given,
      std::vector<IdleFlags>{
          {"--admin-key-file,--insecure-no-admin-key", !loads, no_loads},
          {"--allowed-adapter-root", !restores && flags.runtime.adapter_dir.empty(), no_loads},
          {"--allowed-adapter-sources", !restores && !flags.adapters.sources_on_request, no_loads},
          {"--sources-on-request", flags.adapters.allowed_sources.empty(),
           "no source is allowed; use --allowed-adapter-sources PREFIX"},
          {"--on-reload", !restores, no_loads},
          {"--max-upload-size", !loads || flags.adapters.state_dir.empty(),
           "nothing can be uploaded without --enable-runtime-lora and --state-dir DIR"},
          {"--adapter-dir-eager", flags.runtime.adapter_dir.empty(), "no directory is served; use --adapter-dir DIR"},
          {"--key-concurrency", !keys, "there are no API keys; use --api-key or --api-key-file"},
          {"--prefix-sharing", !tenants && protection.prefix_sharing == "tenant", no_tenants},
          {"--tenant-weight", !tenants, no_tenants},
          {"--adapter-burst", protection.adapter_limits.requests_per_second == 0 && protection.limits_file.empty(),
           "the rate of requests has no limit; use --adapter-rate"},
          {"--record-limit", flags.record.empty(), "nothing is recorded; use --record FILE"},
          {"--otlp-headers,--otlp-service-name,--otlp-sample", flags.spans.endpoint.empty(),
           "no spans are sent; use --otlp-endpoint URL"}});
}

// Says which adapters of the directory are broken; the rest of a long list is in /v1/models.
std::size_t LogBroken(AdapterAdmin& adapters) {
  constexpr std::size_t kShown = 20;
  const std::vector<BrokenAdapter> broken = adapters.Broken();
  for (const BrokenAdapter& adapter : std::span(broken).first(std::min(broken.size(), kShown))) {
    spdlog::warn("adapter '{}' is broken and is not served: {}", adapter.name, adapter.reason);
  }
  if (broken.size() > kShown) {
    spdlog::warn("{} more adapters are broken and are not served; /v1/models lists them", broken.size() - kShown);
  }
  return broken.size();
}

// Programs wait for the first line; the table is for the user, and the fields are for readers of JSON.
void LogReady(const RuntimeFlags& flags, const StartupFacts& facts) {
  const std::string ready =
      fmt::format("ready: {}://{}:{} serves {} and {} adapters{}", facts.tls ? "https" : "http", facts.host, facts.port,
                  facts.path, facts.adapters,
                  facts.broken_adapters == 0 ? std::string() : fmt::format("; {} are broken", facts.broken_adapters));
  if (flags.log_format != "json") {
    spdlog::info("{}", ready);
    if (spdlog::should_log(spdlog::level::info)) fmt::print(stderr, "{}", StartupTable(facts));
    return;
  }
  LogWith(spdlog::level::info, ready,
          {{"model", facts.name},
           {"url", ClientUrl(facts)},
           {"weight_bytes", facts.weight_bytes},
           {"device_bytes", facts.device_bytes},
           {"host_bytes", facts.host_bytes},
           {"adapters", facts.adapters},
           {"broken_adapters", facts.broken_adapters}});
}

// What is learned of output lengths outlives the server where its state does. The adapter journal holds the directory's
// lock.
std::unique_ptr<HistoryKeeper> KeepHistory(const AdapterFlags& flags, Runtime& runtime) {
  if (flags.state_dir.empty() || runtime.history() == nullptr) return nullptr;
  return std::make_unique<HistoryKeeper>(&OsFileSystem(), std::filesystem::path(flags.state_dir) / "output_lengths",
                                         runtime.history());
}

Result<LengthGuesser> LoadLengthProxy(const RuntimeFlags& flags) {
  if (flags.length_proxy.empty()) return LengthGuesser();
  auto guesser = LengthGuesser::Load(flags.length_proxy);
  if (!guesser.ok()) return Error{guesser.error().code, "--length-proxy: " + guesser.error().message, "--length-proxy"};
  return guesser;
}

// Null: not asked for.
Result<std::unique_ptr<FlightRecorder>> StartRecorder(const ServeFlags& flags) {
  if (flags.record.empty()) return std::unique_ptr<FlightRecorder>();
  auto recorder = FlightRecorder::Create(&OsFileSystem(), flags.record, flags.recorder);
  if (!recorder.ok()) return Error{recorder.error().code, "--record: " + recorder.error().message, "--record"};
  return recorder;
}

// Memory that the text library keeps aside lets what runs end where the system has none left.
void GiveUpMemory() {
  if (!loramux_text_give_up_memory()) throw std::bad_alloc();
}

// Makes the C library give large blocks back when they are freed. By default it raises both thresholds with the first
// large block, and then keeps the memory of every long request.
void ReturnFreedMemory() {
  constexpr int kLargeBytes = 256 << 10;
  mallopt(M_MMAP_THRESHOLD, kLargeBytes);
  mallopt(M_TRIM_THRESHOLD, 4 * kLargeBytes);
}

// The origins, also as the JSON list that vLLM takes.
Result<std::vector<std::string>> AllowedOrigins(const std::vector<std::string>& texts) {
  const std::string joined = fmt::format("{}", fmt::join(texts, ","));
  if (!joined.starts_with('[')) return texts;
  const auto list = nlohmann::json::parse(joined, nullptr, /*allow_exceptions=*/false);
  const bool strings =
      list.is_array() && std::all_of(list.begin(), list.end(), [](const auto& origin) { return origin.is_string(); });
  if (strings) return list.get<std::vector<std::string>>();
  return InvalidArgument("--allowed-origins: expected origins, or a JSON list of them, found " + joined,
                         "--allowed-origins");
}

// What the server tells routers. The profile is one that the runtime reads too.
Status CompleteFleetOptions(const ServeFlags& flags, SnapshotServiceOptions& fleet) {
  constexpr std::size_t kMaxProfileBytes = std::size_t{1} << 20;
  if (!flags.fleet_key_file.empty()) {
    ASSIGN_OR_RETURN(fleet.key, ReadKeyFile(flags.fleet_key_file, "--fleet-key-file"));
  }
  if (flags.runtime.profile.empty()) return Ok{};
  ASSIGN_OR_RETURN(fleet.profile, ReadTextFile(flags.runtime.profile, kMaxProfileBytes));
  const Sha256 digest = Sha256Of(fleet.profile);
  fleet.profile_id = fmt::format("{:02x}", fmt::join(std::span(digest).first(8), ""));
  return Ok{};
}

// Sets what flags leave open, from the files that they name; the model's length is still to be set.
Status CompleteServerOptions(const ServeFlags& flags, ServerOptions& server) {
  server.http.max_held_body_bytes = std::max(server.http.max_held_body_bytes, server.http.max_body_bytes * 4);
  ASSIGN_OR_RETURN(server.http.allowed_origins, AllowedOrigins(server.http.allowed_origins));
  server.page = !flags.no_page;
  return CompleteFleetOptions(flags, server.fleet);
}

void LogServed(const EngineStats& stats) {
  spdlog::info("served {} requests, {} tokens in {} steps; {} preemptions, {} adapter loads, {} evictions",
               stats.finished, stats.tokens_generated, stats.steps, stats.preemptions, stats.adapters.device_loads,
               stats.adapters.device_evictions);
  spdlog::info("all memory is accounted for; KV pages in use: {}, cached: {}",
               stats.device.used(PageCategory::kKv) - stats.history_pages, stats.history_pages);
}

// What is read before the weights are: an error in it costs no time.
struct EarlyParts {
  std::unique_ptr<FlightRecorder> recorder;
  std::unique_ptr<SpanExporter> spans;
  LengthGuesser lengths;
  std::optional<Tokenizer> tokenizer;
  ChatTemplates templates;
};

Status CheckAccess(const ServerOptions& server) {
  const ProtectionOptions& protection = server.protection;
  if (server.adapter_admin_key && server.adapter_admin_key->empty() && protection.has_keys()) {
    return InvalidArgument(
        "--insecure-no-admin-key: refused with API keys, because clients must not change adapters; "
        "give --admin-key-file FILE",
        "--insecure-no-admin-key");
  }
  for (std::size_t i = 0; i < protection.api_keys.size(); ++i) {
    const std::size_t length = protection.api_keys[i].size();
    if (length >= kMinKeyBytes) continue;
    spdlog::warn("--api-key: key {} has {} characters, which can be guessed; give at least {}", i + 1, length,
                 kMinKeyBytes);
  }
  return CheckProtection(protection);
}

// Also completes the flags: the server's options, and folders in place of names.
Result<EarlyParts> ReadEarly(ServeFlags& flags) {
  EarlyParts parts;
  ServerOptions& server = flags.server;
  RuntimeFlags& runtime = flags.runtime;
  ASSIGN_OR_RETURN(server.adapter_admin_key, AdminKey(flags.adapters, runtime, server.http.host));
  server.on_reload = flags.adapters.on_reload;
  RETURN_IF_ERROR(CheckAccess(server));
  RETURN_IF_ERROR(CheckOutputFlags(server.tool_call_parsers, server.reasoning_parsers));
  RETURN_IF_ERROR(CompleteServerOptions(flags, server));
  ASSIGN_OR_RETURN(server.http.bound_port, BoundPort::Bind(server.http.host, server.http.port));
  RETURN_IF_ERROR(CompleteMember(flags.etcd, server.http.host, server.http.bound_port->port(),
                                 server.protection.tls.enabled(), flags.self));
  RETURN_IF_ERROR(OpenDeviceOf(runtime));
  RETURN_IF_ERROR(FetchNamed(runtime));
  RETURN_IF_ERROR(AllowedSources::Create(flags.adapters.allowed_sources));
  if (!flags.adapters.allowed_sources.empty()) RETURN_IF_ERROR(OpenRemoteAdapters(runtime));
  server.model_path = runtime.model_dir;
  ASSIGN_OR_RETURN(server.defaults, RequestDefaultsOf(flags.generation_config, runtime.model_dir));
  server.defaults.sampling.logprobs_mode = *FindLogprobsMode(flags.logprobs_mode);
  ASSIGN_OR_RETURN(server.embeddings, EmbeddingOptionsOf(flags.pooling, runtime.model_dir));
  ASSIGN_OR_RETURN(server.completion.tokenizer_info, TokenizerInfo(runtime.text_directory()));
  ASSIGN_OR_RETURN(parts.tokenizer, Tokenizer::Load(runtime.text_directory()));
  ASSIGN_OR_RETURN(parts.templates, LoadChatTemplates(runtime, BaseNamesOf(runtime)));
  if (parts.templates.of_base() == nullptr) {
    spdlog::warn(
        "the model has no chat template: /v1/chat/completions will refuse requests for it (--chat-template gives one)");
  }
  ASSIGN_OR_RETURN(parts.lengths, LoadLengthProxy(runtime));
  ASSIGN_OR_RETURN(parts.recorder, StartRecorder(flags));
  ASSIGN_OR_RETURN(parts.spans, StartSpanExporter(flags.spans, flags.span_headers, LORAMUX_VERSION));
  return parts;
}

// Waits until a signal asks for the end, and answers until the drain has ended.
void ServeUntilStopped(const ServeFlags& flags, Signals& signals, Server& server, FleetMember& fleet,
                       Runtime& runtime) {
  const auto stats = [&engine = runtime.engine()] { return engine.Stats(); };
  const ThroughputLog log(flags.stats_interval, &runtime.clock(), stats);
  const double timeout = SecondsOf(flags.server.http.drain_timeout);
  int signal = signals.Wait();
  for (; signal == SIGHUP; signal = signals.Wait()) server.Reload();
  const EngineStats now = stats();
  spdlog::info("{}: no new requests; waiting up to {} s for {} running ones; {} ends them at once",
               signal == SIGINT ? "Ctrl-C" : "SIGTERM", timeout, now.running + now.waiting,
               signal == SIGINT ? "Ctrl-C again" : "a second signal");
  NotifyStopping(SecondsOf(flags.server.fleet.drain_notice) + timeout);
  fleet.Leave();
  if (flags.runtime.remote_adapters != nullptr) flags.runtime.remote_adapters->Stop();
  LogDrained(server.Shutdown());
}

StartupFacts FactsOf(const ServeFlags& flags, const EarlyParts& early, const Server& server, Runtime& runtime,
                     AdapterAdmin& adapters) {
  const EngineStats stats = runtime.engine().Stats();
  const std::int64_t page_bytes = runtime.geometry().page_bytes;
  StartupFacts facts{.name = runtime.registry().base_names().front(),
                     .path = flags.runtime.model_dir,
                     .family = ModelFamilyName(runtime.config().family),
                     .dtype = WeightFormatName(runtime.weight_format()),
                     .max_model_len = runtime.max_model_len(),
                     .weight_bytes = runtime.weight_bytes(),
                     .device_bytes = stats.device.capacity_pages * page_bytes,
                     .host_bytes = stats.host.capacity_pages * page_bytes,
                     .weight_memory = runtime.on_device() ? 0 : MachineMemory(),
                     .host = flags.server.http.host,
                     .port = server.port(),
                     .tls = flags.server.protection.tls.enabled(),
                     .keys = flags.server.protection.has_keys(),
                     .chat = early.templates.of_base() != nullptr,
                     .page = flags.server.page};
  const auto loaded = runtime.registry().List();
  const auto offered = adapters.Offered();
  facts.adapters = static_cast<std::int64_t>(loaded.size() + offered.size());
  facts.broken_adapters = static_cast<std::int64_t>(adapters.Failed().size() + LogBroken(adapters));
  if (!offered.empty()) facts.first_adapter = offered.front().name;
  if (!loaded.empty()) facts.first_adapter = loaded.front()->name;
  return facts;
}

Result<std::unique_ptr<Server>> StartServer(ServerOptions options, EarlyParts& early, Runtime& runtime,
                                            EngineService& service, AdapterAdmin& adapters, FleetMember& fleet,
                                            GrammarCompiler* grammars) {
  options.completion.max_model_len = runtime.max_model_len();
  return Server::Start(
      std::move(options),
      {.clock = &runtime.clock(),
       .generation = &service,
       .registry = &runtime.registry(),
       .tokenizer = &*early.tokenizer,
       .chat_template = &early.templates.served(),
       .lengths = &early.lengths,
       .grammars = grammars,
       .engine_snapshot = [&engine = runtime.engine()](auto patience) { return engine.Snapshot(patience); },
       .finder = &adapters,
       .adapter_changes = fleet.ChangesTo(adapters),
       .spans = early.spans.get()});
}

// The end of a group is rank 0's to decide: signals, which mpirun gives to all, are for that.
Status Follow(ServeFlags& flags, Signals& signals) {
  signals.MarkReady();
  return FollowInGroup(flags.group, flags.runtime);
}

Status Serve(ServeFlags& flags) {
  Signals signals;
  RETURN_IF_ERROR(InitLogging(flags.runtime.log_level, flags.runtime.log_format));
  for (const std::string& warning : flags.warnings) spdlog::warn("{}", warning);
  for (const std::string& warning : WarningsOfIdle(flags)) spdlog::warn("{}", warning);
  ReturnFreedMemory();
  std::set_new_handler(GiveUpMemory);
  RETURN_IF_ERROR(JoinGroup(flags.group, flags.runtime));
  if (flags.runtime.options.weights.part.rank > 0) return Follow(flags, signals);
  RETURN_IF_ERROR(RaiseOpenFileLimit(flags.server.http.max_connections));
  ASSIGN_OR_RETURN(EarlyParts early, ReadEarly(flags));
  RETURN_IF_ERROR(AgreeInGroup(flags.group, flags.runtime));
  flags.runtime.options.on_group_end = [&signals] { signals.Stop(); };
  AdapterTextOptions text = AdapterTextOptionsOf(flags.runtime, *early.tokenizer, early.templates);
  text.defaults = DefaultsOfAdapters(flags.generation_config, flags.server.defaults);
  AdapterTextReader texts(std::move(text));
  ASSIGN_OR_RETURN(const std::unique_ptr<Runtime> runtime,
                   StartRuntime(EagerAdapters(flags.runtime, flags.adapters), texts.Hook(), early.recorder.get()));
  ASSIGN_OR_RETURN(const std::unique_ptr<AdapterAdmin> adapters,
                   OpenAdapterAdmin(flags.adapters, flags.runtime, *runtime));
  flags.server.defaults.speculates = runtime->speculates();
  const std::unique_ptr<HistoryKeeper> history = KeepHistory(flags.adapters, *runtime);

  const std::unique_ptr<GrammarCompiler> grammars = MakeGrammarCompiler(*early.tokenizer, *runtime);
  EngineService service(&runtime->engine());
  runtime->Start();
  adapters->Restore();
  flags.self.model = runtime->registry().base_names().front();
  auto fleet = FleetMember::Start(flags.etcd, flags.self, *adapters, runtime->clock());
  if (fleet.ok()) (*fleet)->WaitForAdapters();
  auto server = fleet.ok() ? StartServer(flags.server, early, *runtime, service, *adapters, **fleet, grammars.get())
                           : fleet.error();
  if (!server.ok()) {
    if (fleet.ok()) fleet->reset();
    runtime->Stop();
    return server.error();
  }
  (*fleet)->Join();
  signals.MarkReady();
  LogReady(flags.runtime, FactsOf(flags, early, **server, *runtime, *adapters));
  NotifyReady((*server)->port());
  ServeUntilStopped(flags, signals, **server, **fleet, *runtime);
  server->reset();  // before what its admin routes call
  fleet->reset();
  early.spans.reset();  // sends what is left
  runtime->Stop();
  if (early.recorder != nullptr) {
    early.recorder->Close();
    spdlog::info("recorded {} steps in {}: {}", early.recorder->steps(), FormatBytes(early.recorder->bytes()),
                 flags.record);
  }
  LogServed(runtime->engine().Stats());
  if (const std::string group = runtime->DescribeGroup(); !group.empty()) spdlog::info("{}", group);
  if (const auto lost = runtime->GroupFailure()) return *lost;
  return Ok{};
}

void AddConnectionFlags(CommandLine& line, ServeFlags& flags) {
  const std::string http = "HTTP";
  line.Add({.names = "--host",
            .target = &flags.server.http.host,
            .unit = "ADDRESS",
            .group = http,
            .help = "Address to listen on; the default is reachable from this machine only",
            .common = true});
  line.Add({.names = "--port",
            .target = &flags.server.http.port,
            .unit = "PORT",
            .group = http,
            .help = "TCP port to listen on; 0 takes a free one",
            .common = true});
  line.Add({.names = "--stats-interval",
            .target = &flags.stats_interval,
            .unit = "SECONDS",
            .group = http,
            .help = "Time between two lines of the log with tokens per second, while the server is busy; 0: none",
            .range = {{0.0, 86400.0}}});
  line.Add({.names = "--http-threads",
            .target = &flags.server.http.threads,
            .unit = "N",
            .group = http,
            .help = "Threads that serve connections",
            .range = {{1, 256}}});
  line.Add({.names = "--max-body-size",
            .target = &flags.server.http.max_body_bytes,
            .form = FlagForm::kBytes,
            .unit = "BYTES",
            .group = http,
            .help = "Largest request body, as in 16MiB; a larger one gets 413"});
  line.Add({.names = "--max-upload-size",
            .target = &flags.server.max_upload_bytes,
            .form = FlagForm::kBytes,
            .unit = "BYTES",
            .group = http,
            .help = "Largest adapter that a client may upload, as in 2GiB; a larger one gets 413"});
  line.Add({.names = "--max-tokenize-bytes",
            .target = &flags.server.completion.max_tokenize_bytes,
            .form = FlagForm::kBytes,
            .unit = "BYTES",
            .group = http,
            .help =
                "Longest text that /tokenize takes, as in 1MiB; 0: 16 bytes for each token of --max-model-len, and at "
                "least 64KiB"});
  line.Add(
      {.names = "--max-unread-output",
       .target = &flags.server.completion.max_buffered_bytes,
       .form = FlagForm::kBytes,
       .unit = "BYTES",
       .group = http,
       .help = "Output that may wait for a slow client, as in 1MiB; a client that is further behind is disconnected"});
  line.Add({.names = "--max-connections",
            .target = &flags.server.http.max_connections,
            .unit = "N",
            .group = http,
            .help = "Open connections at a time. A further one takes the place of one that waits for its client, if "
                    "that client has more of them; otherwise it gets 503",
            .range = {{1, 1 << 20}}});
  line.Add({.names = "--drain-timeout",
            .target = &flags.server.http.drain_timeout,
            .unit = "SECONDS",
            .group = http,
            .help = "Time that running requests get to finish after SIGTERM or SIGINT",
            .range = {{0.0, 86400.0}}});
  line.Add(
      {.names = "--metrics-top-adapters",
       .target = &flags.server.top_adapters,
       .unit = "N",
       .group = http,
       .help = "Adapters that have series of their own in /metrics: the busiest. The others are summed up as 'other'",
       .range = {{1, 10000}}});
  line.Add(
      {.names = "--allowed-origins",
       .target = &flags.server.http.allowed_origins,
       .unit = "ORIGIN",
       .group = http,
       .help = "Origins of web pages that may call this server (CORS), as in https://chat.example.com; * allows all",
       .comma_list = true});
  line.Add({.names = "--no-page",
            .target = &flags.no_page,
            .group = http,
            .help = "Serve no page for people at / and /docs; the API stays as it is"});
  line.Add({.names = "--sse-keepalive",
            .target = &flags.server.completion.sse_keepalive,
            .unit = "SECONDS",
            .group = http,
            .help = "Idle time after which a stream carries a comment line, so that proxies keep it open; 0: never",
            .range = {{0.0, 3600.0}}});
}

void AddFleetFlags(CommandLine& line, ServeFlags& flags) {
  const std::string fleet = "Routers (loramux route)";
  line.Add({.names = "--fleet-key-file",
            .target = &flags.fleet_key_file,
            .unit = "FILE",
            .group = fleet,
            .help = "File with the key that routers must send to read /internal/snapshot and /internal/profile, and "
                    "with which they sign whose request each one is. With API keys they are refused without it",
            .path = FlagPath::kExistingFile});
  line.Add({.names = "--drain-notice",
            .target = &flags.server.fleet.drain_notice,
            .unit = "SECONDS",
            .group = fleet,
            .help = "Time for which the server goes on to take requests after SIGTERM, if a router listens: until all "
                    "routers know of the drain",
            .range = {{0.0, 3600.0}}});
}

void AddFairnessFlags(CommandLine& line, ServeFlags& flags) {
  const std::string fairness = "Fairness";
  line.Add({.names = "--trust-fairness-header",
            .target = &flags.server.trust_fairness_header,
            .group = fairness,
            .help = "Let the header x-llm-d-inference-fairness-id or x-gateway-inference-fairness-id name the tenant, "
                    "within its API key if there are keys. Only behind a gateway that sets the header: a client could "
                    "invent tenants"});
}

void AddRecordingFlags(CommandLine& line, ServeFlags& flags) {
  const std::string recording = "Recording";
  line.Add({.names = "--record",
            .target = &flags.record,
            .unit = "FILE",
            .group = recording,
            .help = "Record the engine's inputs and a digest of its plans for `loramux simulate --replay`. The file "
                    "holds no text of requests or answers"});
  line.Add({.names = "--record-limit",
            .target = &flags.recorder.max_file_bytes,
            .form = FlagForm::kBytes,
            .unit = "BYTES",
            .group = recording,
            .help = "Size at which a recording ends"});
}

void AddServeFlags(CommandLine& line, ServeFlags& flags) {
  line.ReadConfiguration(&flags.warnings);
  line.TakeForeign(ForeignServeFlags());
  line.set_footer(
      "Examples:\n"
      "  loramux serve ~/models/Llama-3.2-1B-Instruct --adapter-dir ~/adapters\n"
      "  loramux serve Qwen/Qwen3-0.6B --lora-modules sql=~/lora/sql law=~/lora/law\n"
      "  LORAMUX_API_KEY=... loramux serve Qwen/Qwen3-0.6B --host 0.0.0.0\n"
      "Flags of vLLM and of other servers work too (docs/reference/flags.md).");
  AddRuntimeFlags(line, flags.runtime);
  AddDeviceFlag(line, flags.runtime);
  AddGroupFlags(line, flags.group);
  AddAdapterFlags(line, flags.adapters);
  AddFleetMemberFlags(line, flags.etcd, flags.self);
  AddConnectionFlags(line, flags);
  std::string presets;
  for (const Preset& preset : Presets()) presets += (presets.empty() ? "" : ", ") + std::string(preset.name);
  line.Add({.names = "--preset",
            .target = &flags.runtime.preset,
            .unit = "NAME",
            .help = "A whole system by name: cache regime, queue order, fairness and prefill mode. Other flags win "
                    "over it. One of " +
                    presets + " (loramux simulate --list-presets explains them)"});
  AddScheduleFlags(line, flags.runtime);
  AddOutputFlags(line, flags.server.tool_call_parsers, flags.server.reasoning_parsers);
  AddFleetFlags(line, flags);
  AddFairnessFlags(line, flags);
  AddProtectionFlags(line, flags.server.http, flags.server.protection);
  AddRecordingFlags(line, flags);
  AddTraceFlags(line, flags.spans, flags.span_headers);
  line.Add(GenerationConfigFlag(flags.generation_config));
  line.Add({.names = "--logprobs-mode",
            .target = &flags.logprobs_mode,
            .unit = "MODE",
            .help = "What logprobs are, in vLLM's words: of the model, before temperature, penalties, biases and "
                    "thresholds (raw_), or of what a token was drawn from, after them (processed_); log-probabilities, "
                    "or logits, which are not normalised",
            .choices = {"raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"}});
  line.Add(PoolingFlag(flags.pooling));
  line.Add({.names = "--seed",
            .target = &flags.server.seed,
            .unit = "N",
            .help = "Decides the seeds of requests that bring none. Keep it secret: with it, answers can be repeated. "
                    "0: seeds that cannot be predicted or repeated"});
}

int RunServe(ServeFlags flags) {
  const Status status = Serve(flags);
  if (status.ok()) return 0;
  int exit_status = FailCommand("serve", status.error());
  Collectives* const group = flags.runtime.options.group.get();
  if (group == nullptr) return exit_status;
  if (group->failure() && status.error().code == ErrorCode::kUnavailable) exit_status = kExitRankLost;
  group->Abort(exit_status);  // also those that wait for this one, or are only stopped
  return exit_status;
}

}  // namespace

Command ServeCommand() {
  const auto flags = std::make_shared<ServeFlags>();
  Command command{.name = "serve", .summary = "Serve a base model and its adapters behind an OpenAI-compatible API"};
  AddServeFlags(command.line, *flags);
  command.first_steps =
      "loramux serve needs a model. Three ways to start:\n"
      "\n"
      "  loramux demo                                            a small model with fourteen adapters, which came "
      "along\n"
      "  loramux serve Qwen/Qwen3-0.6B                           a model of Hugging Face's hub: 1.5 GB to download\n"
      "  loramux serve ~/models/MODEL --adapter-dir ~/adapters   your own: a model's folder or GGUF file, and a "
      "folder\n"
      "                                                          with one folder for each LoRA adapter\n"
      "\n"
      "The server then answers OpenAI's API at http://127.0.0.1:8000/v1; the `model` of a request names the adapter.\n"
      "`loramux doctor` looks at this machine first; `loramux serve --help` has the flags.\n";
  command.run = [flags] { return RunServe(*flags); };
  return command;
}

}  // namespace loramux
