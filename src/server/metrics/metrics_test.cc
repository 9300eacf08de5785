// The content of /metrics for given snapshots and events.
#include "server/metrics/metrics.h"

#include <gmock/gmock.h>
#include <prometheus/text_serializer.h>

#include "server/adapters/adapter_usage.h"
#include "server/metrics/engine_metrics.h"
#include "server/metrics/metrics_page_for_test.h"
#include "server/metrics/metrics_service.h"

namespace loramux::metrics_test {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr TimeNs kSecond = kNsPerSecond;

std::shared_ptr<const AdapterVersion> Version(std::uint32_t generation, const std::string& name, std::int64_t pages = 4,
                                              std::int32_t rank = 8) {
  auto version = std::make_shared<AdapterVersion>();
  version->generation = AdapterGeneration{generation};
  version->name = name;
  version->layout.pages = pages;
  version->layout.max_rank = rank;
  return version;
}

// The tier that holds an adapter.
enum class Place { kDevice, kHost, kNowhere };

// An engine with a device of 100 pages of 64 bytes each.
struct WorldView {
  EngineSnapshot snapshot;
  std::vector<std::shared_ptr<const AdapterVersion>> registered;
  std::size_t top = 50;

  WorldView() {
    snapshot.page_tokens = 16;
    snapshot.stats.device = {.capacity_pages = 100, .free_pages = 100, .page_bytes = 64};
  }
  AdapterSnapshot& Add(const std::shared_ptr<const AdapterVersion>& version, Place place) {
    registered.push_back(version);
    AdapterSnapshot& adapter = snapshot.adapters.emplace_back();
    adapter.version = VersionSummary(*version);
    if (place == Place::kHost) adapter.host = TierState::kResident;
    if (place != Place::kDevice) return adapter;
    adapter.device = TierState::kResident;
    snapshot.stats.device.free_pages -= version->layout.pages;
    snapshot.stats.device.used_pages[static_cast<int>(PageCategory::kAdapter)] += version->layout.pages;
    return adapter;
  }
  std::string Text() const {
    return prometheus::TextSerializer().Serialize(EngineMetrics({&snapshot, registered, "base", top, 1700000000}));
  }
  MetricsPage Page() const { return MetricsPage(Text()); }
};

// ---- The engine's part ----

TEST(EngineMetrics, RequestsAndMemory) {
  WorldView world;
  world.snapshot.stats.running = 3;
  world.snapshot.stats.waiting = 7;
  world.snapshot.stats.held = 4;
  world.snapshot.stats.retargeted = {.moved = 5, .aborted = 2, .failed = 1};
  world.snapshot.stats.preemptions = 2;
  world.snapshot.stats.resumed = {.found = 90, .recomputed = 10};
  world.snapshot.stats.resumed_squashes = {.found = 40, .recomputed = 3};
  world.Add(Version(1, "idle", 20), Place::kDevice);
  AdapterSnapshot& used = world.Add(Version(2, "used", 40), Place::kDevice);
  used.running = 1;
  world.snapshot.stats.device.used_pages[static_cast<int>(PageCategory::kKv)] = 30;
  const MetricsPage page = world.Page();
  EXPECT_EQ(page.Sum("vllm:num_requests_running"), 3);
  EXPECT_EQ(page.Sum("vllm:num_requests_waiting"), 7);
  EXPECT_EQ(page.Sum("loramux:held_requests"), 4);
  EXPECT_EQ(page.Sum("loramux:reloaded_requests_total", "outcome=\"moved\""), 5);
  EXPECT_EQ(page.Sum("loramux:reloaded_requests_total"), 8);
  EXPECT_EQ(page.Sum("vllm:num_preemptions_total"), 2);
  EXPECT_EQ(page.Sum("loramux:resumed_tokens_total"), 100);
  EXPECT_EQ(page.Sum("loramux:resumed_tokens_total", "cause=\"squash\",found=\"cache\""), 40);
  EXPECT_EQ(page.Sum("loramux:resumed_tokens_total", "cause=\"memory\",found=\"nowhere\""), 7);
  EXPECT_DOUBLE_EQ(page.Sum("vllm:kv_cache_usage_perc"), 0.5);  // 30 of the 60 pages that the adapter in use leaves
  EXPECT_DOUBLE_EQ(page.Sum("vllm:gpu_cache_usage_perc"), 0.5);
  EXPECT_EQ(page.Sum("vllm:cache_config_info", "block_size=\"16\",num_gpu_blocks=\"100\""), 1);
  EXPECT_EQ(page.Sum("loramux:pool_bytes", "use=\"adapters\""), 60 * 64);
}

TEST(EngineMetrics, LoadTimesAreAHistogram) {
  WorldView world;
  world.snapshot.stats.adapters.load_times[0] = 2;  // up to 1 ms
  world.snapshot.stats.adapters.load_times[3] = 1;  // up to 10 ms
  world.snapshot.stats.adapters.load_times.back() = 1;
  world.snapshot.stats.adapters.load_time_total = 200 * kSecond;
  const MetricsPage page = world.Page();
  EXPECT_EQ(page.types.at("vllm:lora_adapter_load_seconds"), "histogram");
  EXPECT_EQ(page.Sum("vllm:lora_adapter_load_seconds_bucket", "le=\"0.001\""), 2);
  EXPECT_EQ(page.Sum("vllm:lora_adapter_load_seconds_bucket", "le=\"0.01\""), 3);
  EXPECT_EQ(page.Sum("vllm:lora_adapter_load_seconds_bucket", "le=\"+Inf\""), 4);
  EXPECT_EQ(page.Sum("vllm:lora_adapter_load_seconds_count"), 4);
  EXPECT_EQ(page.Sum("vllm:lora_adapter_load_seconds_sum"), 200);
}

TEST(EngineMetrics, ColdStartsAndTheStateOfAdapters) {
  WorldView world;
  AdapterStats& stats = world.snapshot.stats.adapters;
  stats.asked = 9;
  stats.asked_on_device = 4;
  stats.asked_in_host = 3;
  stats.active = 1;
  world.snapshot.stats.cold_begins = {.whole = 2, .while_read = 1};
  world.snapshot.stats.cold_starts = 7;
  world.snapshot.stats.exhausted = 4;
  world.Add(Version(1, "a", 20), Place::kDevice).loads = 3;
  world.Add(Version(2, "a", 10), Place::kDevice).loads = 2;  // another version of the name
  world.Add(Version(3, "never loaded"), Place::kHost);
  const MetricsPage page = world.Page();
  EXPECT_EQ(page.types.at("loramux:adapter_cold_starts_total"), "counter");
  EXPECT_EQ(page.Sum("loramux:adapter_cold_starts_total"), 5);
  EXPECT_EQ(page.Sum("loramux:adapter_lookups_total", "found=\"cpu\"") +
                page.Sum("loramux:adapter_lookups_total", "found=\"disk\""),
            5);
  EXPECT_EQ(page.Sum("loramux:adapter_awaited_loads_total"), 7);
  EXPECT_EQ(page.Sum("loramux:adapter_pool_exhausted_total"), 4);
  EXPECT_EQ(page.Sum("loramux:adapter_cold_begins_total", "from=\"cpu\""), 2);
  EXPECT_EQ(page.Sum("loramux:adapter_cold_begins_total", "from=\"disk\""), 1);
  EXPECT_EQ(page.Sum("loramux:adapter_loads", "adapter_name=\"a\""), 5);
  EXPECT_EQ(page.Count("loramux:adapter_loads"), 1);
  EXPECT_EQ(page.Sum("loramux:adapters_registered"), 3);
  EXPECT_EQ(page.Sum("loramux:adapters_active"), 1);
  EXPECT_DOUBLE_EQ(page.Sum("loramux:adapter_usage_perc"), 0.3);
}

// vllm#45325: routers could not see adapters that are loaded and idle.
TEST(Peers, Point9_IdleResidentsAreSeen) {
  WorldView world;
  world.Add(Version(1, "idle", 4, 16), Place::kDevice);
  const MetricsPage page = world.Page();
  EXPECT_THAT(page.Only("vllm:lora_requests_info"),
              HasSubstr("running_lora_adapters=\"idle\",waiting_lora_adapters=\"\""));
  EXPECT_EQ(page.Sum("vllm:lora_requests_info"), 1700000000);
  EXPECT_EQ(page.Sum("vllm:lora_adapter_loaded", "adapter_name=\"idle\",level=\"gpu\",pinned=\"false\",rank=\"16\""),
            1);
  EXPECT_EQ(page.Sum("vllm:num_gpu_loaded_lora_adapters"), 1);
  EXPECT_GE(page.Sum("vllm:max_gpu_lora_adapters"), 1);
}

TEST(Peers, Point9_EveryTierIsSeenAndWhoIsWaitedFor) {
  WorldView world;
  world.Add(Version(1, "b"), Place::kDevice).waiting = 1;  // waits for memory, not for the adapter
  world.Add(Version(2, "a"), Place::kDevice).pinned = true;
  world.Add(Version(3, "host"), Place::kHost).waiting = 2;
  world.Add(Version(4, "loading"), Place::kNowhere).waiting = 1;
  world.snapshot.adapters.back().device = TierState::kLoading;
  world.registered.push_back(Version(5, "never asked for"));
  const MetricsPage page = world.Page();
  EXPECT_THAT(page.Only("vllm:lora_requests_info"),
              HasSubstr("running_lora_adapters=\"a,b\",waiting_lora_adapters=\"host,loading\""));
  EXPECT_EQ(page.Sum("vllm:lora_adapter_loaded", "adapter_name=\"a\",level=\"gpu\",pinned=\"true\""), 1);
  EXPECT_EQ(page.Sum("vllm:lora_adapter_loaded", "adapter_name=\"host\",level=\"cpu\""), 1);
  EXPECT_EQ(page.Sum("vllm:lora_adapter_loaded", "adapter_name=\"loading\",level=\"disk\""), 1);
  EXPECT_EQ(page.Sum("vllm:lora_adapter_loaded", "adapter_name=\"never asked for\",level=\"disk\""), 1);
  EXPECT_EQ(page.Sum("loramux:adapter_requests_waiting", "adapter_name=\"host\""), 2);
}

// vLLM counts a copy in memory also where the adapter is on the device.
TEST(EngineMetrics, AdaptersInTheHostTier) {
  WorldView world;
  world.Add(Version(1, "both"), Place::kDevice).host = TierState::kResident;
  world.Add(Version(2, "device"), Place::kDevice);
  world.Add(Version(3, "host"), Place::kHost);
  world.Add(Version(4, "being read"), Place::kNowhere).host = TierState::kLoading;
  const MetricsPage page = world.Page();
  EXPECT_EQ(page.Sum("vllm:num_cpu_loaded_lora_adapters"), 2);
  EXPECT_EQ(page.Sum("vllm:num_gpu_loaded_lora_adapters"), 2);
}

TEST(EngineMetrics, WaitingByReasonAddsUp) {
  WorldView world;
  world.snapshot.stats.waiting = 7;
  world.Add(Version(1, "here"), Place::kDevice).waiting = 1;
  world.Add(Version(2, "host"), Place::kHost).waiting = 2;
  world.Add(Version(3, "loading"), Place::kNowhere).waiting = 1;
  world.snapshot.adapters.back().device = TierState::kLoading;
  MetricsPage page = world.Page();
  EXPECT_EQ(page.Sum("vllm:num_requests_waiting_by_reason", "reason=\"deferred\""), 3);
  EXPECT_EQ(page.Sum("vllm:num_requests_waiting_by_reason", "reason=\"capacity\""), 4);
  world.snapshot.stats.waiting = 2;  // a count of an earlier step than the adapters' counts
  page = world.Page();
  EXPECT_EQ(page.Sum("vllm:num_requests_waiting_by_reason", "reason=\"deferred\""), 2);
  EXPECT_EQ(page.Sum("vllm:num_requests_waiting_by_reason", "reason=\"capacity\""), 0);
}

// sgl#13349: latency rose sharply when slots ran out, whatever the adapters' sizes.
TEST(Peers, Point3_MaxLoraFollowsBytesNotSlots) {
  for (const auto& [pages, expected] : {std::pair(10, "max_lora=\"10\""), std::pair(2, "max_lora=\"50\"")}) {
    WorldView world;
    world.Add(Version(1, "one", pages), Place::kDevice);
    EXPECT_THAT(world.Text(), HasSubstr(expected));
    EXPECT_EQ(world.Page().Sum("vllm:max_gpu_lora_adapters"), 100 / pages);
  }
}

TEST(EngineMetrics, StaleSeriesAreGone) {
  WorldView world;
  world.Add(Version(1, "a"), Place::kDevice);
  const std::string before = world.Page().Only("vllm:lora_requests_info");
  world.snapshot.adapters[0].device = TierState::kAbsent;
  world.snapshot.adapters[0].host = TierState::kResident;
  const MetricsPage page = world.Page();
  EXPECT_THAT(before, HasSubstr("running_lora_adapters=\"a\""));
  EXPECT_THAT(page.Only("vllm:lora_requests_info"), HasSubstr("running_lora_adapters=\"\""));
  EXPECT_EQ(page.Count("vllm:lora_adapter_loaded"), 1);
  EXPECT_EQ(page.Sum("vllm:lora_adapter_loaded", "level=\"cpu\""), 1);
  world.registered.clear();
  EXPECT_EQ(world.Page().Sum("vllm:lora_adapter_loaded"), 1);  // still in memory
  world.snapshot.adapters[0].host = TierState::kAbsent;
  EXPECT_EQ(world.Page().Count("vllm:lora_adapter_loaded"), 0);
}

TEST(EngineMetrics, TwoVersionsOfANameAreOneSeriesATier) {
  WorldView world;
  world.Add(Version(1, "a"), Place::kDevice);
  world.Add(Version(2, "a"), Place::kDevice);
  world.Add(Version(3, kOtherAdapters), Place::kDevice);
  const MetricsPage page = world.Page();
  EXPECT_THAT(page.duplicates, IsEmpty());
  EXPECT_EQ(page.Sum("vllm:lora_adapter_loaded", "adapter_name=\"a\""), 2);
  EXPECT_THAT(page.Only("vllm:lora_requests_info"), HasSubstr("running_lora_adapters=\"a,other\""));
}

TEST(EngineMetrics, SeriesAreBoundedWith5000Adapters) {
  WorldView world;
  world.snapshot.stats.device.capacity_pages = world.snapshot.stats.device.free_pages = 1'000'000;
  for (std::uint32_t i = 1; i <= 5000; ++i) {
    const Place place = i % 3 == 0 ? Place::kDevice : i % 3 == 1 ? Place::kHost : Place::kNowhere;
    AdapterSnapshot& adapter =
        world.Add(Version(i, "adapter-" + std::to_string(i), 4, static_cast<std::int32_t>(i)), place);
    adapter.waiting = i % 7;
    if (i > 4990) adapter.running = 100;
    adapter.loads = 2;
  }
  const MetricsPage page = world.Page();
  EXPECT_LE(page.values.size(), 320u);
  EXPECT_EQ(page.Sum("vllm:lora_adapter_loaded"), 5000);
  EXPECT_EQ(page.Sum("loramux:adapters"), 5000);
  EXPECT_EQ(page.Sum("loramux:adapter_requests_running"), 1000);
  EXPECT_LE(page.Count("loramux:adapter_requests_waiting"), 51);
  EXPECT_EQ(page.Sum("loramux:adapter_loads"), 10000);
  EXPECT_EQ(page.Count("loramux:adapter_loads"), 51);
  for (int i = 4991; i <= 5000; ++i) {  // the busiest adapters have series of their own
    EXPECT_EQ(page.Count("vllm:lora_adapter_loaded", "adapter_name=\"adapter-" + std::to_string(i) + "\""), 1);
  }
}

TEST(EngineMetrics, HostileNamesAreEscaped) {
  WorldView world;
  world.Add(Version(1, "a\"} 1\nvllm:forged 1\\"), Place::kDevice);
  const std::string text = world.Text();
  EXPECT_THAT(text, Not(HasSubstr("\nvllm:forged")));
  EXPECT_THAT(text, HasSubstr(R"(adapter_name="a\"} 1\nvllm:forged 1\\")"));
}

// ---- Requests ----

GenerationEvent Token(TimeNs now, FinishReason finish = FinishReason::kNone) {
  GenerationEvent event;
  event.token = SampledToken{};
  event.finish = finish;
  event.prompt_tokens = 30;
  event.cached_prompt_tokens = 16;
  event.arrival = 2 * kSecond;
  event.first_scheduled = 3 * kSecond;
  event.now = now;
  return event;
}

MetricsPage PageOf(const ServerMetrics& metrics) {
  return MetricsPage(prometheus::TextSerializer().Serialize(metrics.Collect()));
}

TEST(ServerMetrics, OneSequence) {
  ServerMetrics metrics(kTopAdapters, "base", 4096);
  SequenceMetrics sequence(metrics, "sql", "acme", 1 * kSecond);
  sequence.Take(Token(5 * kSecond));
  sequence.Take(Token(6 * kSecond));
  EXPECT_EQ(PageOf(metrics).Sum("vllm:generation_tokens_total"), 2);  // counted as they arrive
  EXPECT_EQ(PageOf(metrics).Sum("vllm:request_success_total"), 0);
  sequence.Take(Token(9 * kSecond, FinishReason::kLength));
  sequence.End(FinishReason::kLength);
  sequence.End(FinishReason::kCancelled);  // by the job's destructor: has no effect
  const MetricsPage page = PageOf(metrics);
  const std::map<std::string, double> sums = {{"time_to_first_token_seconds", 4},
                                              {"inter_token_latency_seconds", 1 + 3},
                                              {"request_time_per_output_token_seconds", 2},
                                              {"e2e_request_latency_seconds", 8},
                                              {"request_queue_time_seconds", 1},
                                              {"request_prefill_time_seconds", 2},
                                              {"request_decode_time_seconds", 4},
                                              {"request_inference_time_seconds", 6},
                                              {"request_prompt_tokens", 30},
                                              {"request_generation_tokens", 3}};
  for (const auto& [name, sum] : sums) EXPECT_DOUBLE_EQ(page.Sum("vllm:" + name + "_sum"), sum) << name;
  EXPECT_EQ(page.Sum("vllm:inter_token_latency_seconds_count"), 2);
  EXPECT_EQ(page.Sum("vllm:e2e_request_latency_seconds_bucket", "le=\"5\""), 0);
  EXPECT_EQ(page.Sum("vllm:e2e_request_latency_seconds_bucket", "le=\"10\""), 1);
  EXPECT_EQ(page.Sum("vllm:prompt_tokens_total"), 30);
  EXPECT_EQ(page.Sum("vllm:prefix_cache_queries_total"), 30);
  EXPECT_EQ(page.Sum("vllm:prefix_cache_hits_total"), 16);
  EXPECT_EQ(page.Sum("vllm:prompt_tokens_cached_total"), 16);
  EXPECT_EQ(page.Sum("vllm:request_success_total", "finished_reason=\"length\""), 1);
  EXPECT_EQ(page.Sum("vllm:request_success_total"), 1);
  EXPECT_EQ(page.Sum("loramux:adapter_generation_tokens_total", "adapter_name=\"sql\""), 3);
  EXPECT_THAT(page.duplicates, IsEmpty());
}

TEST(ServerMetrics, AbortedSequencesHaveNoLatency) {
  ServerMetrics metrics(kTopAdapters, "base", 4096);
  SequenceMetrics sequence(metrics, "", "", 1 * kSecond);
  sequence.Take(Token(5 * kSecond));
  sequence.End(FinishReason::kCancelled);
  sequence.Take(Token(6 * kSecond));
  const MetricsPage page = PageOf(metrics);
  EXPECT_EQ(page.Sum("vllm:request_success_total", "finished_reason=\"abort\""), 1);
  EXPECT_EQ(page.Sum("vllm:e2e_request_latency_seconds_count"), 0);
  EXPECT_EQ(page.Sum("vllm:generation_tokens_total"), 1);
  EXPECT_EQ(page.Sum("loramux:adapter_requests_total", "adapter_name=\"base\""), 1);
}

TEST(ServerMetrics, SequenceThatEndsAtOnce) {
  ServerMetrics metrics(kTopAdapters, "base", 4096);
  SequenceMetrics sequence(metrics, "", "", 0);
  GenerationEvent end = Token(5 * kSecond, FinishReason::kStop);
  end.token.reset();
  sequence.Take(end);
  sequence.End(FinishReason::kStop);
  const MetricsPage page = PageOf(metrics);
  EXPECT_EQ(page.Sum("vllm:prompt_tokens_total"), 30);
  EXPECT_EQ(page.Sum("vllm:e2e_request_latency_seconds_count"), 1);
  EXPECT_EQ(page.Sum("vllm:time_to_first_token_seconds_count"), 0);
  EXPECT_EQ(page.Sum("vllm:request_decode_time_seconds_count"), 0);
}

TEST(ServerMetrics, BucketsAreThoseOfVllm) {
  ServerMetrics metrics(kTopAdapters, "base", 300);
  const MetricsPage page = PageOf(metrics);
  for (const char* le : {"0.001", "0.08", "0.75", "2560", "+Inf"}) {
    EXPECT_EQ(page.Count("vllm:time_to_first_token_seconds_bucket", "le=\"" + std::string(le) + "\""), 1) << le;
  }
  EXPECT_EQ(page.Count("vllm:time_to_first_token_seconds_bucket"), 23);
  EXPECT_EQ(page.Count("vllm:inter_token_latency_seconds_bucket"), 20);
  EXPECT_EQ(page.Count("vllm:e2e_request_latency_seconds_bucket"), 22);
  EXPECT_EQ(page.Count("vllm:request_prompt_tokens_bucket"), 9);  // 1 2 5 10 20 50 100 200 +Inf
}

// ---- The busiest adapters ----

TEST(AdapterUsage, BusiestHaveSeriesAndTheRestIsSummedUp) {
  AdapterUsage usage(2);
  for (int round = 0; round < 10; ++round) {
    for (const auto& [name, requests] : {std::pair("a", 5), std::pair("b", 1), std::pair("c", 3), std::pair("d", 1)}) {
      for (int i = 0; i < requests; ++i) usage.Add(name, {1, 10, 2}, round * kSecond);
    }
  }
  const auto series = usage.Collect();
  ASSERT_EQ(series.size(), 3u);
  EXPECT_EQ(series[0].adapter, "a");
  EXPECT_EQ(series[0].counts.requests, 50);
  EXPECT_EQ(series[0].counts.prompt_tokens, 500);
  EXPECT_EQ(series[1].adapter, "c");
  EXPECT_EQ(series[2].adapter, kOtherAdapters);
}

TEST(AdapterUsage, SeriesOnlyGrowWhileTheyExist) {
  AdapterUsage usage(3);
  std::map<std::string, std::int64_t> last;
  for (int i = 0; i < 5000; ++i) {
    usage.Add("adapter-" + std::to_string((i * i) % 17 + i / 1000), {1, 1, 1}, i * kSecond);
    std::map<std::string, std::int64_t> now;  // a series that is not in `last` started at zero
    for (const auto& series : usage.Collect()) now[series.adapter] = series.counts.requests;
    ASSERT_LE(now.size(), 4u);
    for (const auto& [name, count] : now) {
      ASSERT_GE(count, last[name]) << name;
    }
    last = std::move(now);
  }
}

TEST(AdapterUsage, ForgetsWhomItCannotRemember) {
  AdapterUsage usage(50);
  for (int i = 0; i < 40000; ++i) usage.Add("adapter-" + std::to_string(i), {1, 1, 1}, i * kNsPerMs);
  EXPECT_LE(usage.remembered(), AdapterUsage::kMaxRemembered);
  const auto series = usage.Collect();
  EXPECT_EQ(series.size(), 51u);
  std::int64_t requests = 0;
  for (const auto& one : series) requests += one.counts.requests;
  EXPECT_EQ(requests, 40000);
}

// ---- The page ----

TEST(MetricsService, HasEverySeriesThatClientsExpect) {
  WorldView world;
  world.Add(Version(1, "a"), Place::kDevice);
  OsClock clock;
  AdapterRegistry registry(ModelConfig{}, {"base"}, {});
  ServerMetrics metrics(kTopAdapters, "base", 4096);
  const auto grammars = GrammarCompiler::Refusing();
  const auto spans = SpanExporter::None();
  const MetricsService service(
      metrics, [&](auto) { return std::make_shared<EngineSnapshot>(world.snapshot); }, registry, clock, *grammars,
      *spans);
  const MetricsPage page(service.Page());
  const std::map<std::string, std::vector<std::string>> expected = {
      {"gauge",
       {"vllm:num_requests_waiting", "vllm:num_requests_waiting_by_reason", "vllm:num_requests_running",
        "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "vllm:cache_config_info", "vllm:lora_requests_info",
        "vllm:lora_adapter_loaded", "vllm:max_gpu_lora_adapters", "vllm:num_gpu_loaded_lora_adapters",
        "vllm:num_cpu_loaded_lora_adapters", "process_resident_memory_bytes", "process_virtual_memory_bytes",
        "process_open_fds", "process_max_fds", "process_start_time_seconds"}},
      {"histogram",
       {"vllm:lora_adapter_load_seconds", "vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds",
        "vllm:request_time_per_output_token_seconds", "vllm:e2e_request_latency_seconds",
        "vllm:request_queue_time_seconds", "vllm:request_prefill_time_seconds", "vllm:request_decode_time_seconds",
        "vllm:request_inference_time_seconds", "vllm:request_prompt_tokens", "vllm:request_generation_tokens"}},
      {"counter",
       {"vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:request_success_total",
        "vllm:num_preemptions_total", "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total",
        "vllm:prompt_tokens_cached_total", "process_cpu_seconds_total"}}};
  for (const auto& [type, names] : expected) {
    for (const std::string& name : names) {
      ASSERT_TRUE(page.types.contains(name)) << name;
      EXPECT_EQ(page.types.at(name), type) << name;
      EXPECT_GE(page.Count(type == "histogram" ? name + "_count" : name), 1) << name;
    }
  }
  EXPECT_THAT(page.duplicates, IsEmpty());
}

TEST(MetricsService, ProcessIsMeasured) {
  OsClock clock;
  AdapterRegistry registry(ModelConfig{}, {"base"}, {});
  ServerMetrics metrics(kTopAdapters, "base", 4096);
  const MetricsPage page(
      MetricsService(metrics, {}, registry, clock, *GrammarCompiler::Refusing(), *SpanExporter::None()).Page());
  EXPECT_GT(page.Sum("process_resident_memory_bytes"), 1 << 20);
  EXPECT_GE(page.Sum("process_virtual_memory_bytes"), page.Sum("process_resident_memory_bytes"));
  EXPECT_GE(page.Sum("process_open_fds"), 3);
  EXPECT_GT(page.Sum("process_max_fds"), page.Sum("process_open_fds"));
  EXPECT_LE(page.Sum("process_start_time_seconds"), static_cast<double>(clock.UnixSeconds()) + 1);
  EXPECT_GT(page.Sum("process_start_time_seconds"), static_cast<double>(clock.UnixSeconds()) - 86400);
}

}  // namespace
}  // namespace loramux::metrics_test
