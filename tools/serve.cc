#include "tools/serve.h"

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <future>
#include <memory>
#include <thread>
#include <pthread.h>

#include <fmt/core.h>

#include "base/bytes.h"
#include "base/log.h"
#include "base/prng.h"
#include "server/server.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace loramux {
namespace {

// The engine, as the server sees it.
class EngineService final : public GenerationService {
 public:
  explicit EngineService(Engine* engine) : engine_(engine) {}
  Result<RequestId> Submit(GenerationRequest request) override { return engine_->Submit(std::move(request)); }
  void Cancel(RequestId id) override { engine_->Cancel(id); }
  std::int64_t MaxSequenceTokens(AdapterGeneration adapter) const override { return engine_->MaxSequenceTokens(adapter); }
  GenerationLoad Load() const override {
    const EngineStats stats = engine_->Stats();
    return {.running = stats.running, .waiting = stats.waiting};
  }

 private:
  Engine* engine_;
};

// SIGINT and SIGTERM are blocked in every thread (so this comes before any other thread is made) and waited for on one
// of their own: before the server is ready they end the process, the first afterwards begins the shutdown, and a second
// one ends the process without waiting for it.
class StopSignals {
 public:
  StopSignals() {
    std::signal(SIGPIPE, SIG_IGN);   // a client that went away is an error code, not a death
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set, nullptr);
    std::thread([state = state_, set] {
      for (bool first = true;; first = false) {
        int signal = 0;
        sigwait(&set, &signal);
        if (!first || !state->ready.load()) std::_Exit(128 + signal);
        state->stop.set_value(signal);
      }
    }).detach();
  }
  // From now on a signal asks for a shutdown instead of ending the process.
  void MarkReady() { state_->ready.store(true); }
  // Blocks until the first signal after MarkReady. REQUIRES: called once.
  int Wait() { return state_->stop.get_future().get(); }

 private:
  struct State {
    std::atomic<bool> ready{false};
    std::promise<int> stop;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

void LogReady(const ServeFlags& flags, const Server& server, std::size_t adapters) {
  spdlog::info("ready: http://{}:{} serves {} and {} adapters", flags.http.host, server.port(), flags.runtime.model_dir,
               adapters);
}

Status Serve(const ServeFlags& flags) {
  StopSignals signals;
  ASSIGN_OR_RETURN(const std::optional<std::string> admin_key, AdminKey(flags.adapters, flags.runtime, flags.http.host));
  ASSIGN_OR_RETURN(const std::unique_ptr<Runtime> runtime, StartRuntime(EagerAdapters(flags.runtime, flags.adapters)));
  ASSIGN_OR_RETURN(const std::unique_ptr<AdapterAdmin> adapters, OpenAdapterAdmin(flags.adapters, flags.runtime, *runtime));
  ASSIGN_OR_RETURN(const Tokenizer tokenizer, Tokenizer::Load(flags.runtime.model_dir));
  ASSIGN_OR_RETURN(const std::optional<ChatTemplate> chat_template, ChatTemplate::Load(flags.runtime.model_dir));
  if (!chat_template) spdlog::warn("the model has no chat template: /v1/chat/completions will refuse requests");

  EngineService service(&runtime->engine());
  ServerOptions options;
  options.http = flags.http;
  ASSIGN_OR_RETURN(const std::int64_t body_bytes, ParseBytes(flags.max_body_size, "--max-body-size"));
  options.http.max_body_bytes = static_cast<std::size_t>(body_bytes);
  options.http.drain_timeout = std::chrono::milliseconds(static_cast<std::int64_t>(flags.drain_timeout_seconds * 1000));
  options.model_path = flags.runtime.model_dir;
  options.max_model_len = runtime->max_model_len();
  const Clock& clock = runtime->clock();
  options.seed = flags.seed != 0 ? flags.seed
                                 : SplitMix64(static_cast<std::uint64_t>(clock.Now()) ^
                                              SplitMix64(static_cast<std::uint64_t>(clock.UnixSeconds())));
  options.adapter_admin_key = admin_key;
  runtime->Start();
  adapters->Restore();
  auto server = Server::Start(options, {.clock = &runtime->clock(), .generation = &service,
                                        .registry = &runtime->registry(), .tokenizer = &tokenizer,
                                        .chat_template = chat_template ? &*chat_template : nullptr,
                                        .adapters = adapters.get()});
  if (!server.ok()) {
    runtime->Stop();
    return server.error();
  }
  signals.MarkReady();
  LogReady(flags, **server, runtime->registry().List().size() + adapters->Offered().size());
  const int signal = signals.Wait();
  spdlog::info("{}: no new requests; waiting up to {} s for the running ones", signal == SIGINT ? "SIGINT" : "SIGTERM",
               flags.drain_timeout_seconds);
  (*server)->Shutdown();
  runtime->Stop();
  const EngineStats stats = runtime->engine().Stats();
  spdlog::info("served {} requests, {} tokens in {} steps; {} preemptions, {} adapter loads, {} evictions", stats.finished,
               stats.tokens_generated, stats.steps, stats.preemptions, stats.adapters.device_loads,
               stats.adapters.device_evictions);
  return Ok{};
}

}  // namespace

void AddServeFlags(CLI::App& command, ServeFlags& flags) {
  AddRuntimeFlags(command, flags.runtime);
  AddAdapterFlags(command, flags.adapters);
  const std::string http = "HTTP";
  command.add_option("--host", flags.http.host, "Address to listen on (the default is reachable from this machine only)")
      ->group(http)->capture_default_str();
  command.add_option("--port", flags.http.port, "Port to listen on; 0: any free one")->group(http)
      ->capture_default_str();
  command.add_option("--http-threads", flags.http.threads, "Threads for connections")->group(http)
      ->capture_default_str()->check(CLI::Range(1, 256));
  command.add_option("--max-body-size", flags.max_body_size, "Largest request body")->group(http)->capture_default_str();
  command.add_option("--max-connections", flags.http.max_connections, "Further ones get 503")->group(http)
      ->capture_default_str()->check(CLI::Range(1, 1 << 20));
  command.add_option("--drain-timeout", flags.drain_timeout_seconds, "Seconds for running requests at SIGTERM")
      ->group(http)->capture_default_str()->check(CLI::Range(0.0, 86400.0));
  command.add_option("--seed", flags.seed, "Of requests that bring no seed (0: from the clock)");
}

int RunServe(const ServeFlags& flags) {
  const Status status = Serve(flags);
  if (status.ok()) return 0;
  fmt::print(stderr, "loramux serve: {}\n", status.error().message);
  return 1;
}

}  // namespace loramux
