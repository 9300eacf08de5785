// The whole engine on synthetic bf16 models, against the machine's limits measured in the same run: single-stream
// decode against the read bandwidth, prefill against the multiply-add peak, and 16 streams with 16 different adapters
// against the same 16 without and against one stream. Then what adapters cost: each load with and without, in turn.
#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <mutex>

#include <unistd.h>

#include "formats/random_adapter.h"
#include "lab/bench/machine_limits.h"
#include "lab/bench/shapes.h"
#include "runtime/runtime.h"
#include "tools/command_line/command_line.h"

namespace loramux {
namespace {

ModelConfig ShapeTinyLlama() {
  ModelConfig config;
  config.hidden_size = 2048;
  config.num_layers = 22;
  config.num_heads = 32;
  config.num_kv_heads = 4;
  config.head_dim = 64;
  config.intermediate_size = 5632;
  config.vocab_size = 32000;
  config.max_position = 2048;
  config.sliding_window.assign(22, 0);
  return config;
}

// Weights that a token's step reads: all layers and the output head.
std::int64_t StepWeights(const ModelConfig& c) {
  const std::int64_t layer =
      c.hidden_size * (c.QDim() + 2 * c.KvDim()) + c.QDim() * c.hidden_size + 3 * c.hidden_size * c.intermediate_size;
  return c.num_layers * layer + c.vocab_size * c.hidden_size;
}

// Multiply-adds x 2 of a prompt of `tokens` tokens with the logits of the last.
double PrefillFlops(const ModelConfig& c, std::int64_t tokens) {
  const double layers = static_cast<double>(StepWeights(c) - c.vocab_size * c.hidden_size);
  const double attention = 2.0 * static_cast<double>(c.num_layers * c.QDim()) * static_cast<double>(tokens) *
                           static_cast<double>(tokens + 1) / 2;
  return 2 * (layers * static_cast<double>(tokens) + attention + static_cast<double>(c.vocab_size * c.hidden_size));
}

struct Measured {
  double ttft_seconds = 0;              // mean
  double decode_tokens_per_second = 0;  // all streams together, from the last first token to the first end
  double total_tokens_per_second = 0;   // generated tokens, from submission to the last end
};

struct Stream {
  AdapterGeneration adapter = kBaseModel;
  TimeNs first = 0, end = 0, arrival = 0;
};

// Runs all streams at once; each generates exactly `output` tokens.
Measured RunStreams(Runtime& runtime, std::vector<Stream> streams, std::int64_t prompt, std::int32_t output) {
  std::mutex mutex;
  std::condition_variable condition;
  std::size_t open = streams.size();
  for (std::size_t i = 0; i < streams.size(); ++i) {
    GenerationRequest request;
    for (std::int64_t t = 0; t < prompt; ++t) {
      request.prompt.push_back(static_cast<TokenId>((t * 37 + static_cast<std::int64_t>(i) * 101 + 5) % 32000));
    }
    request.adapter = streams[i].adapter;
    request.sampling.temperature = 0;
    request.max_tokens = output;
    request.ignore_eos = true;
    request.on_event = [&, i](const GenerationEvent& event) {
      const std::lock_guard lock(mutex);
      if (streams[i].first == 0) streams[i].first = event.now;
      streams[i].arrival = event.arrival;
      if (event.finish == FinishReason::kNone) return;
      CHECK(event.finish == FinishReason::kLength);
      streams[i].end = event.now;
      if (--open == 0) condition.notify_one();
    };
    CHECK(runtime.engine().Submit(std::move(request)).ok());
  }
  std::unique_lock lock(mutex);
  condition.wait(lock, [&] { return open == 0; });
  Measured measured;
  TimeNs begin = streams[0].arrival, last_first = 0, last_end = 0;
  for (const Stream& stream : streams) {
    measured.ttft_seconds += static_cast<double>(stream.first - stream.arrival) / kNsPerSecond;
    begin = std::min(begin, stream.arrival);
    last_first = std::max(last_first, stream.first);
    last_end = std::max(last_end, stream.end);
  }
  const double count = static_cast<double>(streams.size());
  measured.ttft_seconds /= count;
  measured.decode_tokens_per_second =
      count * (output - 1) / (static_cast<double>(last_end - last_first) / kNsPerSecond);
  measured.total_tokens_per_second = count * output / (static_cast<double>(last_end - begin) / kNsPerSecond);
  return measured;
}

Measured Best(int repetitions, const std::function<Measured()>& run) {
  Measured best = run();
  for (int i = 1; i < repetitions; ++i) {
    const Measured next = run();
    best.ttft_seconds = std::min(best.ttft_seconds, next.ttft_seconds);
    best.decode_tokens_per_second = std::max(best.decode_tokens_per_second, next.decode_tokens_per_second);
    best.total_tokens_per_second = std::max(best.total_tokens_per_second, next.total_tokens_per_second);
  }
  return best;
}

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

struct Flags {
  std::string shape = "all";
  int threads = 2, repetitions = 3;
  std::int32_t output = 64;
  std::string only, instructions;
  std::string weights = "bf16", lora_dtype = "bf16";  // types in which the cost of adapters is measured
};

void Row(const char* what, double value, const char* unit, double ratio, const char* of, double target) {
  std::printf("  %-46s %9.1f %-8s %6.2f %-28s target %.2f %s\n", what, value, unit, ratio, of, target,
              ratio >= target ? "met" : "MISSED");
}

void BenchShape(const char* name, const ModelConfig& config, const Flags& flags) {
  std::printf("\n%s: hidden %lld, %lld layers, ffn %lld, vocabulary %lld; bf16, %d threads\n", name,
              static_cast<long long>(config.hidden_size), static_cast<long long>(config.num_layers),
              static_cast<long long>(config.intermediate_size), static_cast<long long>(config.vocab_size),
              flags.threads);
  const std::int64_t weight_bytes = StepWeights(config) * 2;
  double bandwidth = 0, peak = 0;
  const auto measure_limits = [&] {
    ThreadPool pool(flags.threads);
    bandwidth = std::max(bandwidth, ReadBandwidth(pool, weight_bytes, 5));
    peak = std::max(peak, FmaPeak(pool, 5));
  };
  measure_limits();

  RuntimeOptions options;
  options.threads = flags.threads;
  options.device_memory = std::int64_t{3} << 30;
  options.host_memory = 0;
  options.spec.keep_history = false;  // every prompt is computed
  options.spec.prefill_chunk = 512;
  options.base_names = {"base"};
  auto runtime =
      std::move(Runtime::Create(std::make_unique<Model>(config, RandomModelWeights(config, DType::kBF16, 1)), options))
          .value();
  const auto run = [&](const std::vector<Stream>& streams, std::int64_t prompt, std::int32_t output) {
    return Best(flags.repetitions, [&] { return RunStreams(*runtime, streams, prompt, output); });
  };
  runtime->Start();
  std::vector<Stream> base(16), adapted(16);
  RunStreams(*runtime, base, 16, 4);  // warm-up
  const Measured unaware = run(base, 16, flags.output);

  const std::filesystem::path directory =
      std::filesystem::temp_directory_path() / ("loramux-bench-" + std::to_string(getpid()));
  constexpr std::int32_t kRanks[] = {8, 16, 32, 64, 128};
  std::int64_t rank_sum = 0, adapter_bytes = 0;
  for (std::size_t i = 0; i < adapted.size(); ++i) {
    const std::int32_t rank = kRanks[i % std::size(kRanks)];
    rank_sum += rank;
    const auto path = directory / std::to_string(i);
    CHECK(WriteRandomAdapter(path, config, rank, {LoraTarget::kQ, LoraTarget::kK, LoraTarget::kV, LoraTarget::kO}, i)
              .ok());
    const auto version = runtime->registry().Register("adapter-" + std::to_string(i), path, 0);
    CHECK(version.ok());
    adapted[i].adapter = (*version)->generation;
    adapter_bytes += (*version)->layout.payload_bytes;
  }
  RunStreams(*runtime, adapted, 16, 4);  // warm-up: loads the adapters and grows the workspace
  const Measured one = run({Stream{}}, 16, flags.output);
  const Measured prefill = run({Stream{}}, 512, 1);
  const Measured many = run(base, 16, flags.output);
  const Measured mixed = run(adapted, 16, flags.output);
  measure_limits();  // again: the machine may have been busy the first time

  std::printf("  limits: read bandwidth %.1f GB/s over %.0f MB, multiply-add peak %.0f GFLOP/s\n", bandwidth / 1e9,
              static_cast<double>(weight_bytes) / 1e6, peak / 1e9);
  std::printf("  16 adapters: rank sum %lld, %.0f MB\n", static_cast<long long>(rank_sum),
              static_cast<double>(adapter_bytes) / 1e6);
  Row("one stream, decode", one.decode_tokens_per_second, "tok/s",
      one.decode_tokens_per_second * static_cast<double>(weight_bytes) / bandwidth, "of read bandwidth", 0.75);
  Row("prefill of 512 tokens", 512 / prefill.ttft_seconds, "tok/s",
      PrefillFlops(config, 512) / prefill.ttft_seconds / peak, "of multiply-add peak", 0.70);
  Row("16 streams, no adapters, decode", many.decode_tokens_per_second, "tok/s",
      many.decode_tokens_per_second / one.decode_tokens_per_second, "x one stream", 1.0);
  // Peers, point 12: loaded but unused adapters must cost nothing.
  Row("the same, 16 adapters loaded and idle", many.decode_tokens_per_second, "tok/s",
      many.decode_tokens_per_second / unaware.decode_tokens_per_second, "of the rate before loading", 0.98);
  Row("16 streams, 16 adapters, decode", mixed.decode_tokens_per_second, "tok/s",
      mixed.decode_tokens_per_second / many.decode_tokens_per_second, "of 16 without adapters", 0.80);
  Row("", mixed.decode_tokens_per_second, "tok/s", mixed.decode_tokens_per_second / one.decode_tokens_per_second,
      "x one stream", 4.5);
  std::printf("  %-46s %9.1f tok/s, mean TTFT %.3f s\n", "16 streams, 16 adapters, input and output tokens",
              mixed.total_tokens_per_second, mixed.ttft_seconds);
  runtime->Stop();
  std::filesystem::remove_all(directory);
}

constexpr LoraTarget kAttentionTargets[] = {LoraTarget::kQ, LoraTarget::kK, LoraTarget::kV, LoraTarget::kO};

// A load with adapters, and what of the same load without them it should keep or stay within.
struct AdapterLoad {
  const char* name;
  std::vector<std::int32_t> ranks;  // ranks of the streams' adapters
  std::int64_t prompt;
  double target;  // prompt of 16: least share of the decode rate; longer: most times the TTFT
};

DType AdapterDType(const Flags& flags) {
  if (flags.lora_dtype == "int8") return DType::kI8;
  return flags.lora_dtype == "fp8" ? DType::kF8E4M3 : DType::kBF16;
}

// One request at a time, or 16 at once. Loads with and without adapters take turns, so that a change of the machine's
// speed meets both. Reports the medians, and the median of the ratios of neighbours.
void BenchAdapterCost(const char* name, const ModelConfig& config, const Flags& flags) {
  const std::vector<std::int32_t> mixed = {8, 16, 32, 64, 128, 8, 16, 32, 64, 128, 8, 16, 32, 64, 128, 8};
  const AdapterLoad loads[] = {{"one stream, rank 8", {8}, 16, 0.97},
                               {"one stream, rank 16", {16}, 16, 0.97},
                               {"one stream, rank 128", {128}, 16, 0},
                               {"16 streams, 16 adapters", mixed, 16, flags.instructions == "AVX2" ? 0.85 : 0.88},
                               {"prompt of 128 tokens, rank 8", {8}, 128, 1.25},
                               {"prompt of 128 tokens, rank 128", {128}, 128, 1.25},
                               {"prompt of 512 tokens, rank 128", {128}, 512, 1.25}};
  RuntimeOptions options;
  options.threads = flags.threads;
  options.device_memory = std::int64_t{3} << 30;
  options.host_memory = 0;
  options.spec.keep_history = false;
  options.spec.prefill_chunk = 512;
  options.base_names = {"base"};
  options.lora_dtype = AdapterDType(flags);
  const WeightFormat format = ParseWeightFormat(flags.weights).value();
  auto runtime =
      std::move(Runtime::Create(std::make_unique<Model>(config, RandomModelWeights(config, format, 1)), options))
          .value();
  runtime->Start();
  std::printf("\n%s: what adapters on q, k, v and o cost; %s, adapters in %s, %d threads, medians of %d rounds\n", name,
              flags.weights.c_str(), flags.lora_dtype.c_str(), flags.threads, flags.repetitions);
  const std::filesystem::path directory =
      std::filesystem::temp_directory_path() / ("loramux-bench-" + std::to_string(getpid()));
  int adapters = 0;
  for (const AdapterLoad& load : loads) {
    std::vector<Stream> streams(load.ranks.size());
    for (std::size_t i = 0; i < streams.size(); ++i) {
      const std::string id = std::to_string(adapters++);
      const std::vector<LoraTarget> targets(std::begin(kAttentionTargets), std::end(kAttentionTargets));
      CHECK(WriteRandomAdapter(directory / id, config, load.ranks[i], targets, i).ok());
      const auto version = runtime->registry().Register("adapter-" + id, directory / id, 0);
      CHECK(version.ok());
      streams[i].adapter = (*version)->generation;
    }
    const bool prefill = load.prompt > 16;
    const auto measure = [&](const std::vector<Stream>& of) {
      const Measured measured = RunStreams(*runtime, of, load.prompt, prefill ? 2 : flags.output);
      return prefill ? measured.ttft_seconds * 1e3 : measured.decode_tokens_per_second;
    };
    const std::vector<Stream> base(streams.size());
    measure(base), measure(streams);  // warm-up: loads the adapters and grows the workspace
    std::vector<double> without, with, ratio;
    for (int round = 0; round < flags.repetitions; ++round) {
      without.push_back(measure(base));
      with.push_back(measure(streams));
      ratio.push_back(with.back() / without.back());
    }
    const double kept = Median(ratio);
    std::printf("  %-32s without %8.2f, with %8.2f %-5s  %6.3f  %s\n", load.name, Median(without), Median(with),
                prefill ? "ms" : "tok/s", kept,
                load.target == 0                                        ? ""
                : (prefill ? kept <= load.target : kept >= load.target) ? "met"
                                                                        : "MISSED");
  }
  runtime->Stop();
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace loramux

int main(int argc, char** argv) {
  loramux::Flags flags;
  loramux::Command command{.name = "serving_bench",
                           .summary = "The engine against the limits of this machine, measured in the same run"};
  command.line.Add({.names = "--shape",
                    .target = &flags.shape,
                    .unit = "NAME",
                    .help = "Shape of the model",
                    .choices = {"160m", "tinyllama", "all"}});
  command.line.Add({.names = "--threads", .target = &flags.threads, .unit = "N", .help = "Threads of the executor"});
  command.line.Add({.names = "--repetitions",
                    .target = &flags.repetitions,
                    .unit = "N",
                    .help = "Number of runs; the best one counts"});
  command.line.Add(
      {.names = "--output", .target = &flags.output, .unit = "N", .help = "Tokens that each stream generates"});
  command.line.Add({.names = "--only",
                    .target = &flags.only,
                    .unit = "PART",
                    .help = "limits (against the machine's) or adapters (what they cost); default: both",
                    .choices = {"limits", "adapters"}});
  command.line.Add({.names = "--weights",
                    .target = &flags.weights,
                    .unit = "DTYPE",
                    .help = "Weights of the model, for what adapters cost",
                    .choices = {"f32", "bf16", "q8", "q4"}});
  command.line.Add({.names = "--lora-dtype",
                    .target = &flags.lora_dtype,
                    .unit = "DTYPE",
                    .help = "Weights of the adapters, likewise",
                    .choices = {"bf16", "int8", "fp8"}});
  command.line.Add({.names = "--instructions",
                    .target = &flags.instructions,
                    .unit = "NAME",
                    .help = "Highway's name of an instruction set, such as AVX2; default: the best"});
  command.run = [&flags] {
    if (!flags.instructions.empty() && !loramux::UseInstructionSet(flags.instructions)) {
      std::fprintf(stderr, "serving_bench: --instructions: expected one of %s\n", loramux::InstructionSets().c_str());
      return loramux::kExitUsage;
    }
    const auto bench = [&flags](const char* name, const loramux::ModelConfig& config) {
      if (flags.only != "adapters") loramux::BenchShape(name, config, flags);
      if (flags.only != "limits") loramux::BenchAdapterCost(name, config, flags);
    };
    if (flags.shape != "tinyllama") bench("160M shape", loramux::Shape160M());
    if (flags.shape != "160m") bench("TinyLlama-1.1B shape", loramux::ShapeTinyLlama());
    return 0;
  };
  return loramux::RunCommand(command, argc, argv);
}
