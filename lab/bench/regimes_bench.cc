// Replays a trace under every cache regime on a virtual clock: the real scheduler, tree, residency and engine, with a
// modelled executor and modelled links. Shows which data the regimes keep and the benefit; it does not measure kernels.
//
// The trace is Mooncake's (a JSON object per line: timestamp in ms, hash_ids of 512-token blocks, a prefix chain). A
// block is one token here, and a page holds one. A conversation belongs to an adapter, drawn by a Zipf law from its
// first own block, so that all its turns use the same adapter. Every request generates one block. Times: 5 ms per step
// and 10 ms per block of prefill; a page of 64 MiB takes 6.4 ms from the host tier and 64 ms from disk.
//
// With --kv-host-tier, keys and values use the host tier too. --swapping both runs each regime with and without the
// proactive swapper, whatever the regime's definition says. --mappings N repeats everything with other adapters for the
// conversations, a row each. If memory is so short that requests are preempted, single runs vary.
//
//   regimes_bench TRACE [--adapters 200] [--pages 1000,2000,4000] [--host-pages 300] [--requests N] [--zipf 1.0]
//                       [--kv-host-tier] [--swapping regime|on|off|both] [--regimes lru,loramux] [--mappings 1]
//                       [--speed 1.0] [--no-fetch-ahead] [--adapter-prefetch histogram] [--periodic 50 --period 60
//                       --jitter 0.1]
#include <algorithm>
#include <cstdio>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/prng.h"
#include "engine/control_plane.h"
#include "engine/modeled_executor.h"
#include "residency/transfer.h"
#include "tools/command_line/command_line.h"
#include "workload/distributions.h"
#include "workload/trace.h"

namespace loramux {
namespace {

constexpr std::int64_t kPageBytes = 64;  // stands for 64 MiB: the links are slower by the same factor
constexpr std::int64_t kVocab = 1 << 20;

struct TraceRequest {
  TimeNs arrival = 0;
  std::vector<TokenId> blocks;
  std::size_t adapter = 0;  // index
  bool periodic = false;
};

struct Flags {
  std::string trace;
  std::size_t adapters = 200;
  std::int64_t requests = 0;  // 0: all
  std::vector<std::int64_t> pages = {1000, 2000, 4000};
  std::int64_t host_pages = 300;
  double zipf = 1.0;
  bool kv_host_tier = false, fetch_ahead = true;
  std::string swapping = "regime";
  std::vector<std::string> regimes;  // empty: all
  std::uint64_t mappings = 1;
  double speed = 1.0;  // factor of the arrivals' rate
  std::string adapter_prefetch = "none";
  std::size_t periodic = 0;  // additional adapters that are requested periodically
  double period_s = 60, jitter = 0.1;
};

Result<std::vector<TraceRequest>> ReadRequests(const Flags& flags, std::uint64_t mapping) {
  const WeightedChoice popularity(PowerLaw(flags.adapters, flags.zipf));
  ASSIGN_OR_RETURN(Trace trace, ReadTrace(flags.trace));
  std::erase_if(trace.arrivals, [](const Arrival& arrival) { return arrival.blocks.empty(); });
  ScaleTrace(trace, 1 / flags.speed, 1, {.requests = flags.requests});
  std::vector<TraceRequest> requests;
  for (Arrival& arrival : trace.arrivals) {
    // the first is the system prompt
    const TokenId own = arrival.blocks[std::min<std::size_t>(1, arrival.blocks.size() - 1)];
    const double draw =
        static_cast<double>(SplitMix64(static_cast<std::uint64_t>(own) + (mapping << 32)) >> 11) * 0x1p-53;
    requests.push_back({.arrival = arrival.at, .blocks = std::move(arrival.blocks), .adapter = popularity.At(draw)});
  }
  return requests;
}

// Adds adapters that are requested at regular times with some jitter, each with a short prompt of its own.
void AddPeriodic(const Flags& flags, std::vector<TraceRequest>& trace) {
  const TimeNs end = trace.empty() ? 0 : trace.back().arrival;
  Prng prng(1);
  const auto uniform = [&prng] { return static_cast<double>(prng.NextBelow(1 << 20)) * 0x1p-20; };
  for (std::size_t i = 0; i < flags.periodic; ++i) {
    const double period = flags.period_s * (0.5 + uniform());
    const auto next = [&](double at) { return at + period * (1 + flags.jitter * (2 * uniform() - 1)); };
    for (double at = period * uniform(); at * kNsPerSecond < static_cast<double>(end); at = next(at)) {
      const TokenId own = static_cast<TokenId>(kVocab - 1 - static_cast<std::int64_t>(i));
      trace.push_back({.arrival = static_cast<TimeNs>(at * kNsPerSecond),
                       .blocks = {own, static_cast<TokenId>(prng.NextBelow(kVocab))},
                       .adapter = flags.adapters + i,
                       .periodic = true});
    }
  }
  std::ranges::stable_sort(trace, {}, &TraceRequest::arrival);
}

// The hit rate of a cache that never evicts and is filled at once. The last block is always computed.
double InfiniteCache(const std::vector<TraceRequest>& trace) {
  std::set<std::pair<std::size_t, TokenId>> seen;  // a block's id also identifies all blocks before it
  std::size_t found = 0, blocks = 0;
  for (const TraceRequest& request : trace) {
    blocks += request.blocks.size();
    for (std::size_t i = 0; i + 1 < request.blocks.size() && seen.contains({request.adapter, request.blocks[i]}); ++i)
      ++found;
    for (const TokenId block : request.blocks) seen.emplace(request.adapter, block);
  }
  return static_cast<double>(found) / static_cast<double>(std::max<std::size_t>(1, blocks));
}

struct Outcome {
  double hit_rate = 0, invalid_share = 0, mean_ttft_ms = 0, p99_ttft_ms = 0, mean_load_ms = 0;
  std::int64_t fetches = 0, fetches_ahead = 0, pages_fetched = 0;
  double mean_fetch_ms = 0, periodic_mean_ms = 0, periodic_p99_ms = 0;
  AdapterPrefetchStats prefetches;
  std::int64_t adapter_loads = 0, disk_loads = 0, preemptions = 0, history_evictions = 0, refused = 0;
  SwapStats swaps;
};

class Replay {
 public:
  Replay(const Flags& flags, const CacheRegime& regime, std::int64_t pages) {
    SystemSpec spec{.cache = std::string(regime.name), .page_tokens = 1, .max_running = 64, .max_batch_tokens = 16};
    CHECK(Complete(spec, 512).ok());
    spec.proactive_swapping = regime.proactive_swapping;  // --swapping
    spec.fetch_ahead = flags.fetch_ahead;
    spec.adapter_prefetch = FindAdapterPrefetch(flags.adapter_prefetch).value();
    ControlPlaneOptions plane;
    plane.device = std::move(PagePool::Create("device", pages * kPageBytes, kPageBytes)).value();
    plane.host = std::move(PagePool::Create("host", flags.host_pages * kPageBytes, kPageBytes)).value();
    plane.engine = {.spec = spec, .max_model_len = 512, .eos_token_ids = {}, .vocab_size = kVocab};
    plane.kv_in_host_tier = flags.kv_host_tier;
    plane_ = std::move(ControlPlane::Create(std::move(plane))).value();
    engine_ = plane_->Connect(
        {.clock = clock_, .executor = executor_, .transfer = transfer_, .registry = registry_, .wakeup = wakeup_});
    constexpr std::int64_t kSizes[] = {1, 1, 2, 3, 5};  // ranks 8 to 64 on all linear layers of an 8B model
    for (std::size_t i = 0; i < flags.adapters + flags.periodic; ++i) {
      auto version = std::make_shared<AdapterVersion>();
      version->name = "adapter-" + std::to_string(i);
      version->layout.pages = kSizes[i % std::size(kSizes)];
      version->layout.max_rank = 16;
      generations_.push_back(registry_.Commit(std::move(version)).value()->generation);
    }
  }

  Outcome Run(const std::vector<TraceRequest>& trace) {
    Outcome outcome;
    std::size_t next = 0;
    double invalid = 0, history = 0;
    while (true) {
      while (next < trace.size() && trace[next].arrival <= clock_.Now()) outcome.refused += !Submit(trace[next++]);
      while (engine_->Step()) {
      }
      const EngineStats stats = engine_->Stats();
      invalid += static_cast<double>(stats.invalid_history_pages);
      history += static_cast<double>(stats.history_pages);
      TimeNs at = next < trace.size() ? trace[next].arrival : -1;
      const auto move = engine_->TimeToNextMove();
      const TimeNs move_at = move.has_value() && next < trace.size() ? clock_.Now() + move->count() : -1;
      for (const TimeNs event : {executor_.ends_at(), transfer_.next_end(), move_at}) {
        if (event >= 0 && (at < 0 || event < at)) at = event;
      }
      if (at < 0) break;
      clock_.AdvanceTo(std::max(at, clock_.Now()));
    }
    CHECK(engine_->Idle());
    engine_->CheckIntegrity();
    const EngineStats stats = engine_->Stats();
    outcome.hit_rate =
        static_cast<double>(stats.prefix.found_tokens) / static_cast<double>(std::max<std::int64_t>(1, looked_up_));
    outcome.invalid_share = history > 0 ? invalid / history : 0;
    outcome.adapter_loads = stats.adapters.device_loads;
    outcome.disk_loads = stats.adapters.disk_loads;
    outcome.preemptions = stats.preemptions;
    outcome.history_evictions = stats.history_evictions;
    outcome.swaps = stats.swaps;
    const auto loads = static_cast<double>(std::max<std::int64_t>(1, stats.adapters.device_loads));
    outcome.mean_load_ms = static_cast<double>(stats.adapters.load_time_total) / loads / kNsPerMs;
    outcome.fetches = stats.kv_tiers.fetches;
    outcome.fetches_ahead = stats.kv_tiers.fetches_ahead;
    outcome.pages_fetched = stats.kv_tiers.pages_fetched;
    const auto fetches = static_cast<double>(std::max<std::int64_t>(1, outcome.fetches));
    outcome.mean_fetch_ms = static_cast<double>(stats.kv_tiers.fetch_time_total) / fetches / kNsPerMs;
    outcome.prefetches = stats.prefetches;
    MeanAndP99(ttfts_, outcome.mean_ttft_ms, outcome.p99_ttft_ms);
    MeanAndP99(periodic_ttfts_, outcome.periodic_mean_ms, outcome.periodic_p99_ms);
    return outcome;
  }

 private:
  static void MeanAndP99(std::vector<double>& values, double& mean, double& p99) {
    if (values.empty()) return;
    std::sort(values.begin(), values.end());
    for (const double value : values) mean += value / static_cast<double>(values.size());
    p99 = values[values.size() * 99 / 100];
  }

  bool Submit(const TraceRequest& asked) {
    GenerationRequest request;
    request.prompt = asked.blocks;
    request.adapter = generations_[asked.adapter];
    request.max_tokens = 1;
    request.on_event = [this, &ttfts = asked.periodic ? periodic_ttfts_ : ttfts_](const GenerationEvent& event) {
      if (event.finish == FinishReason::kNone) return;
      CHECK(event.finish != FinishReason::kError);
      ttfts.push_back(static_cast<double>(event.now - event.arrival) / kNsPerMs);
    };
    if (!engine_->Submit(std::move(request)).ok()) return false;
    looked_up_ += static_cast<std::int64_t>(asked.blocks.size());
    return true;
  }

  VirtualClock clock_;
  std::unique_ptr<ControlPlane> plane_;
  ModeledTransfer transfer_{&clock_,
                            {.latency_ns = 5 * kNsPerMs, .bytes_per_second = 1000},
                            {.latency_ns = kNsPerMs / 10, .bytes_per_second = 10000}};
  ModeledExecutor executor_{
      &clock_, {.base_ns = 5 * kNsPerMs, .per_token_ns = 10 * kNsPerMs, .per_rank_ns = 0}, kVocab};
  AdapterRegistry registry_{ModelConfig{}, {"base"}, {}};
  Wakeup wakeup_;
  std::unique_ptr<Engine> engine_;
  std::vector<AdapterGeneration> generations_;
  std::vector<double> ttfts_, periodic_ttfts_;  // ms
  std::int64_t looked_up_ = 0;                  // blocks of all prompts
};

bool Wanted(const Flags& flags, const CacheRegime& regime) {
  return flags.regimes.empty() || std::ranges::find(flags.regimes, regime.name) != flags.regimes.end();
}

constexpr const char* kColumns[] = {"pages",
                                    "mapping",
                                    "regime",
                                    "swaps ahead",
                                    "hit rate",
                                    "TTFT mean ms",
                                    "p99 ms",
                                    "adapter loads",
                                    "from disk",
                                    "mean load ms",
                                    "invalid",
                                    "preempted",
                                    "refused",
                                    "pages fetched",
                                    "waited for",
                                    "mean ms",
                                    "fetched ahead",
                                    "history out/in",
                                    "adapters out/in",
                                    "prefetched",
                                    "used",
                                    "wasted",
                                    "periodic TTFT mean ms",
                                    "p99 ms"};

void RunRow(const Flags& flags, const CacheRegime& regime, std::int64_t pages, std::uint64_t mapping,
            const std::vector<TraceRequest>& trace) {
  const Outcome o = Replay(flags, regime, pages).Run(trace);
  const auto whole = [](std::int64_t value) { std::printf(" %ld |", static_cast<long>(value)); };
  std::printf("| %ld | %lu | `%s` | %s | %.2f %% | %.0f | %.0f |", static_cast<long>(pages),
              static_cast<unsigned long>(mapping), std::string(regime.name).c_str(),
              regime.proactive_swapping ? "yes" : "no", 100 * o.hit_rate, o.mean_ttft_ms, o.p99_ttft_ms);
  for (const std::int64_t value : {o.adapter_loads, o.disk_loads}) whole(value);
  std::printf(" %.0f | %.1f %% |", o.mean_load_ms, 100 * o.invalid_share);
  for (const std::int64_t value : {o.preemptions, o.refused, o.pages_fetched, o.fetches}) whole(value);
  std::printf(" %.0f | %ld | %ld/%ld | %ld/%ld |", o.mean_fetch_ms, static_cast<long>(o.fetches_ahead),
              static_cast<long>(o.swaps.history_out), static_cast<long>(o.swaps.history_in),
              static_cast<long>(o.swaps.adapters_out), static_cast<long>(o.swaps.adapters_in));
  for (const std::int64_t value : {o.prefetches.loads, o.prefetches.used, o.prefetches.wasted}) whole(value);
  std::printf(" %.1f | %.0f |\n", o.periodic_mean_ms, o.periodic_p99_ms);
  std::fflush(stdout);
}

Status Run(const Flags& flags) {
  for (std::uint64_t mapping = 0; mapping < flags.mappings; ++mapping) {
    ASSIGN_OR_RETURN(std::vector<TraceRequest> trace, ReadRequests(flags, mapping));
    AddPeriodic(flags, trace);
    std::printf(
        "%s%zu requests, %zu adapters (Zipf %.2f), host tier of %ld pages %s; an infinite cache would find %.2f %% of "
        "the "
        "blocks\n\n",
        mapping > 0 ? "\n" : "", trace.size(), flags.adapters, flags.zipf, static_cast<long>(flags.host_pages),
        flags.kv_host_tier ? "for adapters, keys and values" : "for adapters", 100 * InfiniteCache(trace));
    for (const char* column : kColumns) std::printf("| %s ", column);
    std::printf("|\n");
    for (std::size_t i = 0; i < std::size(kColumns); ++i) std::printf("|---");
    std::printf("|\n");
    for (const std::int64_t pages : flags.pages) {
      for (const CacheRegime& regime : CacheRegimes()) {
        if (!Wanted(flags, regime)) continue;
        for (const bool swaps : {false, true}) {
          const bool as_in_table = flags.swapping == "regime";
          if (as_in_table && swaps != regime.proactive_swapping) continue;
          if (!as_in_table && flags.swapping != "both" && swaps != (flags.swapping == "on")) continue;
          CacheRegime variant = regime;
          variant.proactive_swapping = swaps;
          RunRow(flags, variant, pages, mapping, trace);
        }
      }
    }
  }
  return Ok{};
}

void AddLoadFlags(CommandLine& line, Flags& flags) {
  line.Add({.names = "trace",
            .target = &flags.trace,
            .unit = "FILE",
            .help = "Trace in Mooncake's format",
            .path = FlagPath::kExistingFile,
            .required = true});
  line.Add({.names = "--adapters",
            .target = &flags.adapters,
            .unit = "N",
            .help = "Number of adapters",
            .range = {{1, 1e6}}});
  line.Add({.names = "--pages",
            .target = &flags.pages,
            .unit = "PAGES",
            .help = "Sizes of the device in pages, separated by commas; one table each",
            .comma_list = true});
  line.Add({.names = "--host-pages", .target = &flags.host_pages, .unit = "PAGES", .help = "Size of the host tier"});
  line.Add({.names = "--requests",
            .target = &flags.requests,
            .unit = "N",
            .help = "Largest number of requests to take from the trace; 0: all"});
  line.Add({.names = "--zipf",
            .target = &flags.zipf,
            .unit = "NUMBER",
            .help = "Zipf exponent of the adapters' popularity"});
  line.Add({.names = "--mappings",
            .target = &flags.mappings,
            .unit = "N",
            .help = "Number of random mappings of conversations to adapters"});
  line.Add({.names = "--speed",
            .target = &flags.speed,
            .unit = "FACTOR",
            .help = "Factor by which arrivals are accelerated",
            .range = {{1e-6, 1e6}}});
  line.Add({.names = "--periodic",
            .target = &flags.periodic,
            .unit = "N",
            .help = "Number of additional adapters that each receive periodic requests"});
  line.Add({.names = "--period",
            .target = &flags.period_s,
            .unit = "SECONDS",
            .help = "Mean period of these requests; each adapter's is between half and one and a half of it"});
  line.Add({.names = "--jitter",
            .target = &flags.jitter,
            .unit = "SHARE",
            .help = "Largest deviation of an arrival, as a fraction of the period"});
}

void AddRuleFlags(CommandLine& line, Flags& flags) {
  line.Add({.names = "--kv-host-tier",
            .target = &flags.kv_host_tier,
            .help = "Keep evicted keys and values in the host tier too"});
  line.Add({.names = "--swapping",
            .target = &flags.swapping,
            .unit = "RULE",
            .help = "Proactive swapping: as the regime specifies, on, off, or both",
            .choices = {"regime", "on", "off", "both"}});
  line.Add({.names = "--regimes",
            .target = &flags.regimes,
            .unit = "NAME",
            .help = "Cache regimes to run, separated by commas; default: all",
            .comma_list = true});
  line.Add({.names = "--fetch-ahead,!--no-fetch-ahead",
            .target = &flags.fetch_ahead,
            .help = "Fetch history before a request is admitted"});
  line.Add({.names = "--adapter-prefetch",
            .target = &flags.adapter_prefetch,
            .unit = "RULE",
            .help = "How adapters are expected",
            .choices = {"none", "histogram"}});
}

}  // namespace
}  // namespace loramux

int main(int argc, char** argv) {
  loramux::Flags flags;
  loramux::Command command{.name = "regimes_bench",
                           .summary = "Replay a trace under every cache regime, on a virtual clock"};
  loramux::AddLoadFlags(command.line, flags);
  loramux::AddRuleFlags(command.line, flags);
  command.run = [&flags] {
    const loramux::Status done = loramux::Run(flags);
    if (!done.ok()) std::fprintf(stderr, "regimes_bench: %s\n", done.error().message.c_str());
    return done.ok() ? 0 : loramux::kExitFailure;
  };
  return loramux::RunCommand(command, argc, argv);
}
