#include "tools/serve.h"

#include <algorithm>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <mutex>
#include <thread>
#include <pthread.h>

#include <fmt/core.h>

#include "base/bytes.h"
#include "base/log.h"
#include "base/prng.h"
#include "engine/flight_recorder.h"
#include "engine/history_keeper.h"
#include "schedule/presets.h"
#include "server/engine_service.h"
#include "server/length_guesser.h"
#include "server/server.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"
#include "tools/config_file.h"
#include "tools/protection_flags.h"
#include "tools/service_notify.h"

namespace loramux {
namespace {

// SIGINT, SIGTERM and SIGHUP are blocked in every thread (so this comes before any other thread is made) and waited for
// on one of their own. The first two end the process before the server is ready; the first one afterwards begins the
// shutdown, and a second one ends the process without waiting for it.
class Signals {
 public:
  Signals() {
    std::signal(SIGPIPE, SIG_IGN);  // a client that went away is an error code, not a death
    sigset_t set;
    sigemptyset(&set);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, signal);
    pthread_sigmask(SIG_BLOCK, &set, nullptr);
    std::thread([state = state_, set] {
      while (true) {
        int signal = 0;
        sigwait(&set, &signal);
        state->Take(signal);
      }
    }).detach();
  }
  // From now on a signal asks for a shutdown instead of ending the process.
  void MarkReady() {
    const std::lock_guard lock(state_->mutex);
    state_->ready = true;
  }
  // Blocks until the next signal after MarkReady: SIGHUP, or the one that asks for the shutdown.
  int Wait() {
    std::unique_lock lock(state_->mutex);
    state_->came.wait(lock, [this] { return state_->reload || state_->stop != 0; });
    if (state_->stop != 0) return state_->stop;
    state_->reload = false;
    return SIGHUP;
  }

 private:
  struct State {
    void Take(int signal) {
      const std::lock_guard lock(mutex);
      if (signal != SIGHUP && (!ready || stop != 0)) std::_Exit(128 + signal);
      if (signal == SIGHUP) {
        reload = true;
      } else {
        stop = signal;
      }
      came.notify_all();
    }
    std::mutex mutex;
    std::condition_variable came;
    bool ready = false, reload = false;
    int stop = 0;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

void LogDrained(const DrainReport& report) {
  for (const std::string& request : report.dropped) spdlog::warn("dropped at shutdown: {}", request);
  spdlog::info("{} requests were running; {} ended in time, {} were dropped", report.in_flight,
               report.in_flight - std::min(report.in_flight, static_cast<std::int64_t>(report.dropped.size())),
               report.dropped.size());
}

void LogReady(const ServeFlags& flags, const Server& server, std::size_t adapters) {
  spdlog::info("ready: {}://{}:{} serves {} and {} adapters", flags.protection.tls.enabled() ? "https" : "http",
               flags.http.host, server.port(), flags.runtime.model_dir, adapters);
}

// What is learned of output lengths outlives the server where its state does. The adapter journal holds the directory's
// lock.
std::unique_ptr<HistoryKeeper> KeepHistory(const AdapterFlags& flags, Runtime& runtime) {
  if (flags.state_dir.empty() || runtime.history() == nullptr) return nullptr;
  return std::make_unique<HistoryKeeper>(&OsFileSystem(), std::filesystem::path(flags.state_dir) / "output_lengths",
                                         runtime.history());
}

Result<std::optional<LengthGuesser>> LoadLengthProxy(const ScheduleFlags& flags) {
  if (flags.length_proxy.empty()) return std::optional<LengthGuesser>();
  auto guesser = LengthGuesser::Load(flags.length_proxy);
  if (!guesser.ok()) return Error{guesser.error().code, "--length-proxy: " + guesser.error().message, "--length-proxy"};
  return std::optional<LengthGuesser>(std::move(guesser).value());
}

// Null: not asked for.
Result<std::unique_ptr<FlightRecorder>> StartRecorder(const ServeFlags& flags) {
  if (flags.record.empty()) return std::unique_ptr<FlightRecorder>();
  FlightRecorderOptions options{.program = LORAMUX_VERSION};
  ASSIGN_OR_RETURN(options.max_file_bytes, ParseBytes(flags.record_limit, "--record-limit"));
  auto recorder = FlightRecorder::Create(&OsFileSystem(), flags.record, options);
  if (!recorder.ok()) return Error{recorder.error().code, "--record: " + recorder.error().message, "--record"};
  return recorder;
}

Status Serve(const ServeFlags& flags) {
  Signals signals;
  RaiseOpenFileLimit(flags.http.max_connections);
  ASSIGN_OR_RETURN(const std::optional<std::string> admin_key,
                   AdminKey(flags.adapters, flags.runtime, flags.http.host));
  if (admin_key && admin_key->empty() && !flags.protection.api_key_file.empty()) {
    return InvalidArgument(
        "--insecure-no-admin-key: refused with --api-key-file, whose clients may not change adapters; "
        "give --admin-key-file FILE",
        "--insecure-no-admin-key");
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<FlightRecorder> recorder, StartRecorder(flags));
  ASSIGN_OR_RETURN(const std::unique_ptr<Runtime> runtime,
                   StartRuntime(EagerAdapters(flags.runtime, flags.adapters), recorder.get()));
  ASSIGN_OR_RETURN(const std::unique_ptr<AdapterAdmin> adapters,
                   OpenAdapterAdmin(flags.adapters, flags.runtime, *runtime));
  const std::unique_ptr<HistoryKeeper> history = KeepHistory(flags.adapters, *runtime);
  ASSIGN_OR_RETURN(const std::optional<LengthGuesser> lengths, LoadLengthProxy(flags.runtime.schedule));
  ASSIGN_OR_RETURN(const Tokenizer tokenizer, Tokenizer::Load(flags.runtime.model_dir));
  ASSIGN_OR_RETURN(const std::optional<ChatTemplate> chat_template, ChatTemplate::Load(flags.runtime.model_dir));
  if (!chat_template) spdlog::warn("the model has no chat template: /v1/chat/completions will refuse requests");

  EngineService service(&runtime->engine());
  ServerOptions options;
  options.http = flags.http;
  options.metrics = flags.metrics;
  options.protection = flags.protection;
  ASSIGN_OR_RETURN(const std::int64_t body_bytes, ParseBytes(flags.max_body_size, "--max-body-size"));
  options.http.max_body_bytes = static_cast<std::size_t>(body_bytes);
  ASSIGN_OR_RETURN(const std::int64_t unread_bytes, ParseBytes(flags.max_unread_output, "--max-unread-output"));
  options.max_buffered_bytes = static_cast<std::size_t>(unread_bytes);
  options.http.max_held_body_bytes = std::max(options.http.max_held_body_bytes, options.http.max_body_bytes * 4);
  options.http.drain_timeout = std::chrono::milliseconds(static_cast<std::int64_t>(flags.drain_timeout_seconds * 1000));
  options.sse_keepalive = std::chrono::milliseconds(static_cast<std::int64_t>(flags.sse_keepalive_seconds * 1000));
  options.fairness_header = !flags.ignore_fairness_header;
  options.model_path = flags.runtime.model_dir;
  options.max_model_len = runtime->max_model_len();
  const Clock& clock = runtime->clock();
  options.seed = flags.seed != 0 ? flags.seed
                                 : SplitMix64(static_cast<std::uint64_t>(clock.Now()) ^
                                              SplitMix64(static_cast<std::uint64_t>(clock.UnixSeconds())));
  options.adapter_admin_key = admin_key;
  runtime->Start();
  adapters->Restore();
  auto server = Server::Start(
      options, {.clock = &runtime->clock(),
                .generation = &service,
                .registry = &runtime->registry(),
                .tokenizer = &tokenizer,
                .chat_template = chat_template ? &*chat_template : nullptr,
                .lengths = lengths ? &*lengths : nullptr,
                .engine_snapshot = [&engine = runtime->engine()](auto patience) { return engine.Snapshot(patience); },
                .adapters = adapters.get()});
  if (!server.ok()) {
    runtime->Stop();
    return server.error();
  }
  signals.MarkReady();
  LogReady(flags, **server, runtime->registry().List().size() + adapters->Offered().size());
  NotifyReady((*server)->port());
  int signal = signals.Wait();
  for (; signal == SIGHUP; signal = signals.Wait()) (*server)->Reload();
  spdlog::info("{}: no new requests; waiting up to {} s for the running ones", signal == SIGINT ? "SIGINT" : "SIGTERM",
               flags.drain_timeout_seconds);
  NotifyStopping(flags.drain_timeout_seconds);
  LogDrained((*server)->Shutdown());
  runtime->Stop();
  if (recorder != nullptr) {
    recorder->Close();
    spdlog::info("recorded {} steps in {}: {}", recorder->steps(), FormatBytes(recorder->bytes()), flags.record);
  }
  const EngineStats stats = runtime->engine().Stats();
  spdlog::info("served {} requests, {} tokens in {} steps; {} preemptions, {} adapter loads, {} evictions",
               stats.finished, stats.tokens_generated, stats.steps, stats.preemptions, stats.adapters.device_loads,
               stats.adapters.device_evictions);
  spdlog::info("memory agrees with its accounts; KV pages in use: {}, cached: {}",
               stats.device.used(PageCategory::kKv) - stats.history_pages, stats.history_pages);
  return Ok{};
}

}  // namespace

void AddServeFlags(CLI::App& command, ServeFlags& flags) {
  AddConfigFlag(command);
  AddRuntimeFlags(command, flags.runtime);
  AddAdapterFlags(command, flags.adapters);
  const std::string http = "HTTP";
  command
      .add_option("--host", flags.http.host, "Address to listen on (the default is reachable from this machine only)")
      ->group(http)
      ->capture_default_str();
  command.add_option("--port", flags.http.port, "Port to listen on; 0: any free one")
      ->group(http)
      ->capture_default_str();
  command.add_option("--http-threads", flags.http.threads, "Threads for connections")
      ->group(http)
      ->capture_default_str()
      ->check(CLI::Range(1, 256));
  command.add_option("--max-body-size", flags.max_body_size, "Largest request body")
      ->group(http)
      ->capture_default_str();
  command
      .add_option("--max-unread-output", flags.max_unread_output,
                  "Tokens that wait for a slow client; beyond, it is cut off")
      ->group(http)
      ->capture_default_str();
  command.add_option("--max-connections", flags.http.max_connections, "Further ones get 503")
      ->group(http)
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  command.add_option("--drain-timeout", flags.drain_timeout_seconds, "Seconds for running requests at SIGTERM")
      ->group(http)
      ->capture_default_str()
      ->check(CLI::Range(0.0, 86400.0));
  command
      .add_option("--metrics-top-adapters", flags.metrics.top_adapters,
                  "Adapters with series of their own in /metrics; the rest is summed up as \"other\"")
      ->group(http)
      ->capture_default_str()
      ->check(CLI::Range(1, 10000));
  command
      .add_option("--allowed-origins", flags.http.allowed_origins,
                  "Origins of web pages that may call this server, such as https://chat.example.com; * allows all")
      ->group(http)
      ->delimiter(',');
  command
      .add_option("--sse-keepalive", flags.sse_keepalive_seconds,
                  "Seconds without news after which a stream carries a comment line, for proxies; 0: never")
      ->group(http)
      ->capture_default_str()
      ->check(CLI::Range(0.0, 3600.0));
  std::string presets;
  for (const Preset& preset : Presets()) presets += (presets.empty() ? "" : ", ") + std::string(preset.name);
  command.add_option(
      "--preset", flags.runtime.preset,
      "A whole way to serve: cache, order, fairness, prompts in chunks or whole; other flags win over it. One of " +
          presets + " (explained by loramux simulate --list-presets)");
  AddScheduleFlags(command, flags.runtime.schedule);
  command
      .add_option("--profile", flags.runtime.profile,
                  "File of `loramux profile`, of a model of this shape: bypasses, quotas of lanes and reloads are "
                  "planned by what was "
                  "measured (default: by what is learned while serving)")
      ->group("Order of service");
  const std::string fairness = "Fairness";
  command
      .add_option("--fairness", flags.runtime.fairness,
                  "Who is served next: vtc (the tenant that got the least), none (first come, first served)")
      ->group(fairness)
      ->default_str("the preset's, or vtc");
  command
      .add_option("--tenant-weight", flags.runtime.tenant_weights,
                  "NAME=WEIGHT: a tenant's share relative to the others' (default 1); may be given more than once")
      ->group(fairness);
  command
      .add_option("--fairness-max-wait", flags.runtime.fairness_max_wait_seconds,
                  "Seconds without a turn after which a tenant is next whatever it got")
      ->group(fairness)
      ->capture_default_str()
      ->check(CLI::Range(0.0, 86400.0));
  command
      .add_flag("--ignore-fairness-header", flags.ignore_fairness_header,
                "The adapter is the tenant, whatever x-gateway-inference-fairness-id says")
      ->group(fairness);
  AddProtectionFlags(command, flags.http, flags.protection);
  const std::string recording = "Recording";
  command
      .add_option("--record", flags.record,
                  "Write what the engine is told, and a digest of what it plans, to FILE, for loramux simulate "
                  "--replay; no text of "
                  "requests or answers is in it")
      ->group(recording);
  command.add_option("--record-limit", flags.record_limit, "Largest size of it; then the recording ends")
      ->group(recording)
      ->capture_default_str();
  command.add_option("--seed", flags.seed, "Of requests that bring no seed (0: from the clock)");
}

int RunServe(const ServeFlags& flags) {
  const Status status = Serve(flags);
  if (status.ok()) return 0;
  fmt::print(stderr, "loramux serve: {}\n", status.error().message);
  return 1;
}

}  // namespace loramux
