// The benefit of starting with the first layers of an adapter or of history while later ones arrive. Measures the time
// to first token of a lone request with its adapter (history) in the host tier, loaded layer by layer or as a whole,
// over links of several speeds. "unbounded" is memory to memory, where layer-by-layer loading must not be slower.
#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <filesystem>
#include <mutex>

#include <unistd.h>

#include "formats/random_adapter.h"
#include "lab/bench/shapes.h"
#include "runtime/runtime.h"
#include "tools/command_line/command_line.h"

namespace loramux {
namespace {

// Removes the progress of jobs, so that a transfer is visible only when it ends.
class WholeTransfer final : public PageTransfer {
 public:
  explicit WholeTransfer(std::unique_ptr<PageTransfer> real) : real_(std::move(real)) {}
  void Submit(TransferJob job) override {
    job.progress = nullptr;
    real_->Submit(std::move(job));
  }
  std::optional<TransferCompletion> Poll() override { return real_->Poll(); }

 private:
  std::unique_ptr<PageTransfer> real_;
};

struct Flags {
  int threads = 2, repetitions = 3;
  std::int32_t rank = 128;
  std::int64_t prompt = 64, history = 384;
  std::vector<double> links = {0.1, 0.3, 1, 0};  // GB/s; 0: unbounded
};

std::vector<TokenId> Prompt(std::int64_t tokens, std::int64_t seed) {
  std::vector<TokenId> prompt;
  for (std::int64_t t = 0; t < tokens; ++t) prompt.push_back(static_cast<TokenId>((t * 37 + seed * 101 + 5) % 32000));
  return prompt;
}

// A runtime on the 160M shape with two large adapters, of which the device holds one.
class World {
 public:
  World(const Flags& flags, const std::filesystem::path& directory, double bytes_per_second, bool layers)
      : flags_(flags) {
    const ModelConfig config = Shape160M();
    RuntimeOptions options;
    options.threads = flags.threads;
    options.host_memory = std::int64_t{512} << 20;
    options.device_memory = Memory(config, directory);
    options.spec.prefill_chunk = options.spec.max_batch_tokens = 512;
    options.base_names = {"base"};
    options.transfer.bytes_per_second = bytes_per_second;
    if (!layers) {
      options.wrap_transfer = [](std::unique_ptr<PageTransfer> real) {
        return std::make_unique<WholeTransfer>(std::move(real));
      };
    }
    runtime_ = std::move(Runtime::Create(std::make_unique<Model>(config, RandomModelWeights(config, DType::kBF16, 1)),
                                         options))
                   .value();
    for (int i = 0; i < 2; ++i) {
      const auto version =
          runtime_->registry().Register("adapter-" + std::to_string(i), directory / std::to_string(i), 0);
      CHECK(version.ok());
      adapters_[i] = *version;
    }
    runtime_->Start();
  }
  ~World() { runtime_->Stop(); }

  // Seconds from the arrival of the request to its first token.
  double FirstToken(std::vector<TokenId> prompt, AdapterGeneration adapter) {
    std::mutex mutex;
    std::condition_variable condition;
    double seconds = -1;
    GenerationRequest request;
    request.prompt = std::move(prompt);
    request.adapter = adapter;
    request.max_tokens = 1;
    request.ignore_eos = true;
    request.on_event = [&](const GenerationEvent& event) {
      CHECK(event.finish == FinishReason::kLength);
      const std::lock_guard lock(mutex);
      seconds = static_cast<double>(event.now - event.arrival) / kNsPerSecond;
      condition.notify_one();
    };
    CHECK(runtime_->engine().Submit(std::move(request)).ok());
    std::unique_lock lock(mutex);
    condition.wait(lock, [&] { return seconds >= 0; });
    return seconds;
  }

  // Each request evicts the other adapter; both are in the host tier after the first two.
  double AdapterFirstToken() {
    for (int i = 0; i < 2; ++i) FirstToken(Prompt(flags_.prompt, ++seed_), adapters_[i]->generation);
    double sum = 0;
    for (int i = 0; i < 2 * flags_.repetitions; ++i)
      sum += FirstToken(Prompt(flags_.prompt, ++seed_), adapters_[i % 2]->generation);
    return sum / (2 * flags_.repetitions);
  }
  // The history of a session is evicted for another one's (and for an adapter), and comes back with the session's next
  // turn.
  double HistoryFirstToken() {
    double sum = 0;
    for (int i = 0; i < flags_.repetitions; ++i) {
      std::vector<TokenId> session = Prompt(flags_.history, ++seed_);
      FirstToken(session, kBaseModel);
      for (std::int64_t other = 0; other < others_; ++other) FirstToken(Prompt(flags_.history, ++seed_), kBaseModel);
      const std::vector<TokenId> turn = Prompt(flags_.prompt, ++seed_);
      session.insert(session.end(), turn.begin(), turn.end());
      sum += FirstToken(std::move(session), kBaseModel);
    }
    return sum / flags_.repetitions;
  }
  EngineStats Stats() { return runtime_->engine().Stats(); }
  double adapter_megabytes() const {
    return static_cast<double>(adapters_[0]->layout.pages * runtime_->geometry().page_bytes) / 1e6;
  }
  double history_megabytes() const {
    return static_cast<double>(flags_.history / runtime_->geometry().kv.page_tokens * runtime_->geometry().page_bytes) /
           1e6;
  }

 private:
  // One adapter and one and a half histories.
  std::int64_t Memory(const ModelConfig& config, const std::filesystem::path& directory) {
    const std::int64_t adapter =
        static_cast<std::int64_t>(std::filesystem::file_size(directory / "0/adapter_model.safetensors"));
    const std::int64_t token = config.num_layers * 2 * config.KvDim() * 2;
    const std::int64_t memory = adapter + std::max(adapter / 2, token * (flags_.history * 3 / 2 + flags_.prompt));
    others_ = memory / (token * flags_.history) + 1;
    return memory;
  }

  const Flags flags_;
  std::unique_ptr<Runtime> runtime_;
  std::shared_ptr<const AdapterVersion> adapters_[2];
  std::int64_t seed_ = 0, others_ = 0;  // histories that fill the device
};

void Row(const char* what, double bytes_per_second, double whole, double layers, const EngineStats& stats) {
  char link[32] = "unbounded";
  if (bytes_per_second > 0) std::snprintf(link, sizeof(link), "%.2f GB/s", bytes_per_second / 1e9);
  std::printf("  %-10s %-12s %9.1f %9.1f %8.2f   %lld requests began early; steps waited %.1f ms in total\n", what,
              link, whole * 1e3, layers * 1e3, whole / layers, static_cast<long long>(stats.early_admissions),
              static_cast<double>(stats.step_wait_total) / kNsPerMs);
  std::fflush(stdout);
}

void Bench(const Flags& flags, const std::filesystem::path& directory) {
  const ModelConfig config = Shape160M();
  for (int i = 0; i < 2; ++i) {
    CHECK(WriteRandomAdapter(directory / std::to_string(i), config, flags.rank,
                             {LoraTarget::kQ, LoraTarget::kK, LoraTarget::kV, LoraTarget::kO, LoraTarget::kGate,
                              LoraTarget::kUp, LoraTarget::kDown},
                             static_cast<std::uint64_t>(i))
              .ok());
  }
  bool header = false;
  for (const double gigabytes_per_second : flags.links) {
    const double link = gigabytes_per_second * 1e9;
    World whole(flags, directory, link, /*layers=*/false), layers(flags, directory, link, /*layers=*/true);
    if (!header) {
      std::printf(
          "160M shape, %d threads, prompts of %lld tokens; an adapter of rank %d takes %.0f MB, a history of %lld "
          "tokens %.0f MB\n",
          flags.threads, static_cast<long long>(flags.prompt), flags.rank, whole.adapter_megabytes(),
          static_cast<long long>(flags.history), whole.history_megabytes());
      std::printf("  %-10s %-12s %9s %9s %8s\n", "cold", "link", "whole ms", "layers ms", "ratio");
      header = true;
    }
    const double adapter_whole = whole.AdapterFirstToken();
    const double adapter_layers = layers.AdapterFirstToken();
    Row("adapter", link, adapter_whole, adapter_layers, layers.Stats());
    const double history_whole = whole.HistoryFirstToken();
    const EngineStats before = layers.Stats();
    const double history_layers = layers.HistoryFirstToken();
    EngineStats stats = layers.Stats();
    stats.early_admissions -= before.early_admissions;
    stats.step_wait_total -= before.step_wait_total;
    Row("history", link, history_whole, history_layers, stats);
  }
}

}  // namespace
}  // namespace loramux

int main(int argc, char** argv) {
  loramux::Flags flags;
  loramux::Command command{.name = "arrival_bench",
                           .summary = "Time to the first token with and without layer-wise transfers"};
  command.line.Add({.names = "--threads", .target = &flags.threads, .unit = "N", .help = "Threads of the executor"});
  command.line.Add(
      {.names = "--repetitions", .target = &flags.repetitions, .unit = "N", .help = "Repetitions of each run"});
  command.line.Add({.names = "--rank", .target = &flags.rank, .unit = "N", .help = "Rank of the adapter"});
  command.line.Add({.names = "--prompt", .target = &flags.prompt, .unit = "N", .help = "Tokens of the prompt"});
  command.line.Add({.names = "--history", .target = &flags.history, .unit = "N", .help = "Tokens of the history"});
  command.line.Add({.names = "--links",
                    .target = &flags.links,
                    .unit = "GB/S",
                    .help = "Link rates, separated by commas; 0: the rate of memory",
                    .comma_list = true});
  command.run = [&flags] {
    const std::filesystem::path directory =
        std::filesystem::temp_directory_path() / ("loramux-arrival-" + std::to_string(getpid()));
    loramux::Bench(flags, directory);
    std::filesystem::remove_all(directory);
    return 0;
  };
  return loramux::RunCommand(command, argc, argv);
}
