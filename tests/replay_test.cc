// Real runs of the demo model, recorded and replayed on the virtual clock: all plans must be equal. A file that is no
// such recording must be recognised, and must never end the process.
#include "record/replay.h"

#include <atomic>
#include <filesystem>
#include <future>
#include <set>
#include <thread>
#include <unistd.h>

#include "base/prng.h"
#include "formats/file.h"
#include "tests/demo_world.h"

namespace loramux::demo::replay_test {
namespace {

namespace fs = std::filesystem;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::size_t kSlowdown = 4;
#else
constexpr std::size_t kSlowdown = 1;
#endif

struct Regime {
  const char* name;
  std::string cache, queue, prefetch, predictor;
  FairnessPolicy fairness = FairnessPolicy::kVtc;
  double link_bytes_per_second = 0;  // with a slow link steps use layers while later ones arrive
  bool by_profile = false;
  CountCached count_cached = CountCached::kEverywhere;
  bool overlaps = false;  // steps wait for layers of loads that begin with them, and have two adapters each
  HostCopies host_copies = HostCopies::kLoaded;
  Speculation speculation = Speculation::kNone;
};

// Costs as a profile might have them, with figures that have no short decimal form.
std::shared_ptr<const PerformanceModel> SomeCosts() {
  return std::make_shared<const PerformanceModel>(
      PerformanceModel{.step = 7.1e-5,
                       .per_prefill_token = 2.3e-5 / 3,
                       .per_decode_sequence = 2.7e-5,
                       .per_prefill_attention = 5.5e-8 / 7,
                       .per_decode_context = 1.8e-7,
                       .token_tile = 12,
                       .per_token_tile = 1.5e-4,
                       .per_adapter_token_rank = 2e-7 / 3,
                       .per_rank = 6.3e-7,
                       .decode_factors = {{1, 1.1}, {4.3, 1.0 / 3}, {17, 1.01}},
                       .prefill_factors = {{30.1, 1.13}},
                       .mixed_factors = {{7, 0.93}},
                       .after_prefill = 9.8e-5,
                       .after_prefill_per_sequence = 2.1e-5,
                       .disk = {2e-4, 3.3e8},
                       .host_to_device = {3e-5 / 7, 7.2e9},
                       .device_to_host = {3e-5, 7.1e9}});
}

struct Sizes {
  std::int64_t largest_adapter = 0, page_bytes = 0;  // in pages of 4 positions
};
Sizes MeasureSizes() {
  RuntimeOptions options;
  options.page_tokens = 4;
  options.device_memory = std::int64_t{64} << 20;
  World world(options);
  Sizes sizes{.page_bytes = world.runtime().geometry().page_bytes};
  for (const auto& version : world.runtime().registry().List()) {
    sizes.largest_adapter = std::max(sizes.largest_adapter, version->layout.pages);
  }
  return sizes;
}

// Memory for two of the largest adapters and a few sequences. Where adapters may use a fifth of it, two fit the fifth.
RuntimeOptions OptionsOf(const Regime& regime, FlightRecorder* recorder) {
  static const Sizes sizes = MeasureSizes();
  const std::int64_t pages = regime.cache == "vllm" ? 11 * sizes.largest_adapter : 2 * sizes.largest_adapter + 120;
  RuntimeOptions options;
  options.page_tokens = 4;
  options.device_memory = pages * sizes.page_bytes;
  options.host_memory = (2 * sizes.largest_adapter + 80) * sizes.page_bytes;
  options.spec.cache = regime.cache;
  options.spec.adapter_prefetch = FindAdapterPrefetch(regime.prefetch).value();
  options.spec.queue = regime.queue;
  options.spec.count_cached = regime.count_cached;
  options.spec.length_predictor = regime.predictor;
  options.spec.max_running = 16;
  options.spec.max_batch_tokens = 96;
  options.spec.prefill_chunk = 24;
  options.spec.load_on_arrival = true;
  options.spec.host_copies = regime.host_copies;
  options.spec.speculation.method = regime.speculation;
  options.spec.fairness.policy = regime.fairness;
  options.spec.fairness.weights = {{"heavy", 3}, {"light", 0.5}};
  options.transfer.bytes_per_second = regime.link_bytes_per_second;
  options.threads = 2;
  options.recorder = recorder;
  if (regime.overlaps) {
    options.spec.cold_start = ColdStart::kOverlap;
    options.spec.prefetch_lookahead = 3;
    options.spec.max_distinct_adapters = 2;
    options.spec.adapter_bound = AdapterBound::kStep;
    options.spec.skip_beyond_distinct = true;
  }
  if (regime.by_profile) options.spec.costs = SomeCosts();
  return options;
}

// Conversations: the prompt of a turn is the whole conversation and a new question. Requests differ in priority, and
// some have a deadline, a length hint or a tenant.
void Converse(World& world, std::size_t sessions, int turns) {
  const std::vector<Question> questions = Questions(sessions);
  std::vector<std::vector<TokenId>> said(sessions);
  for (int turn = 0; turn < turns; ++turn) {
    const std::vector<Question> asked(questions.begin(), questions.begin() + static_cast<std::ptrdiff_t>(sessions));
    std::vector<std::vector<TokenId>> prompts(sessions);
    const std::vector<Answer> answers = world.Ask(asked, false, [&](std::size_t i, GenerationRequest& request) {
      request.prompt.insert(request.prompt.begin(), said[i].begin(), said[i].end());
      prompts[i] = request.prompt;
      request.max_tokens = 24;
      request.ignore_eos = i % 3 == 0;
      request.priority = static_cast<std::int32_t>(i % 5) - 2;
      request.length_hint = static_cast<std::int32_t>(i % 4) * 8;
      if (i % 4 == 1) request.deadline = world.runtime().clock().Now() + 50 * kNsPerMs;
      if (i % 4 == 2) request.tenant = i % 8 == 2 ? "heavy" : "light";
      if (i % 3 == 1) request.prefix_domain = i % 2 == 0 ? "one" : "two";
      if (i % 5 == 3) {  // an embedding; the conversation goes on with the next question
        request.pooling = i % 2 == 0 ? Pooling::kLast : Pooling::kMean;
        request.max_tokens = 0;
      }
    });
    for (std::size_t i = 0; i < sessions; ++i) {
      ASSERT_EQ(answers[i].error, "");
      said[i] = prompts[i];
      said[i].insert(said[i].end(), answers[i].tokens.begin(), answers[i].tokens.end());
    }
  }
}

// Most of the requests are cancelled: before they begin, at their first token, or later.
void AskAndLeave(World& world, std::vector<GenerationRequest> requests) {
  std::vector<std::promise<void>> ended(requests.size());
  for (std::size_t i = 0; i < requests.size(); ++i) {
    GenerationRequest& request = requests[i];
    request.max_tokens = 40;
    request.ignore_eos = true;
    Engine* engine = &world.runtime().engine();
    request.on_event = [engine, i, promise = &ended[i]](const GenerationEvent& event) {
      if (event.token.has_value() && i % 3 != 0 && event.generated_tokens == static_cast<std::int32_t>(i % 7) + 1)
        engine->Cancel(event.id);
      if (event.finish != FinishReason::kNone) promise->set_value();
    };
    const auto id = engine->Submit(std::move(request));
    if (!id.ok()) {  // its adapter generation is gone, or the memory that it needs was just pinned
      ended[i].set_value();
      continue;
    }
    if (i % 6 == 0) engine->Cancel(*id);
  }
  for (auto& promise : ended) promise.get_future().wait();
}

Status Pin(World& world, const std::string& name, bool pinned) {
  std::promise<Status> done;
  const auto version = world.runtime().registry().Resolve(name);
  if (!version.ok()) return version.error();
  world.runtime().engine().SetPinned(*version, pinned, [&](Status status) { done.set_value(std::move(status)); });
  return done.get_future().get();
}

// Removes a name and registers it again with the same content, while requests run.
void ChangeAdapters(World& world) {
  AdapterRegistry& registry = world.runtime().registry();
  const std::string name = AdapterNames().front();
  const fs::path path = (*registry.Resolve(name))->path;
  ASSERT_TRUE(registry.Remove(name).ok());
  ASSERT_TRUE(registry.Register(name, path, 0).ok());
}

// Holds the requests that run and those that come, several times.
void HoldAndLetGo(World& world) {
  for (const Hold hold : {Hold::kAll, Hold::kNone, Hold::kNew, Hold::kNone, Hold::kAll, Hold::kNew, Hold::kNone}) {
    world.runtime().engine().SetHold(hold);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

// Drops what is cached, so that requests compute again what they would have found. Between steps, and while requests
// run.
void DropHistory(World& world) {
  std::promise<bool> done;
  world.runtime().engine().DropHistory([&](const Result<std::int64_t>& pages) { done.set_value(pages.ok()); });
  EXPECT_TRUE(done.get_future().get());
}

// A client that leaves while its request is held: its id is one that no recording has.
void LeaveWhileHeld(World& world) {
  Engine& engine = world.runtime().engine();
  engine.SetHold(Hold::kNew);
  GenerationRequest request = world.Request(Questions(1).front());
  std::promise<FinishReason> ended;
  request.on_event = [&](const GenerationEvent& event) { ended.set_value(event.finish); };
  engine.Cancel(*engine.Submit(std::move(request)));
  EXPECT_EQ(ended.get_future().get(), FinishReason::kCancelled);
  engine.SetHold(Hold::kNone);
}

// Loads an adapter anew, with the weights of others, while requests run, wait and are held on it: they move, twice, or
// are aborted. One stays.
void ReloadInPlace(World& world, bool aborts) {
  AdapterRegistry& registry = world.runtime().registry();
  Engine& engine = world.runtime().engine();
  const std::vector<std::string> names = AdapterNames();
  const std::string& name = names[1];
  std::vector<std::shared_ptr<const AdapterVersion>> versions = {*registry.Resolve(name)};
  for (const std::string& other : {names[2], names[3]})
    versions.push_back(*registry.Prepare(name, (*registry.Resolve(other))->path, 0));
  std::vector<Question> questions = Questions(24 / kSlowdown);
  std::erase_if(questions, [&](const Question& question) { return question.adapter != name; });
  std::vector<std::promise<FinishReason>> ended(questions.size());
  std::promise<void> runs;
  const auto ask = [&](std::size_t i) {
    GenerationRequest request = world.Request(questions[i]);
    request.adapter = versions.front()->generation;
    request.max_tokens = 60;
    request.ignore_eos = true;
    request.keeps_version = i == 1;
    if (i == 2) request.prompt_logprobs = 1;
    request.on_event = [&, i](const GenerationEvent& event) {
      if (i == 0 && event.generated_tokens == 6 && event.token.has_value()) runs.set_value();
      if (event.finish != FinishReason::kNone) ended[i].set_value(event.finish);
    };
    EXPECT_TRUE(engine.Submit(std::move(request)).ok());
  };
  for (std::size_t i = 0; i + 1 < questions.size(); ++i) ask(i);
  runs.get_future().wait();
  engine.SetHold(Hold::kNew);
  ask(questions.size() - 1);
  for (std::size_t i = 1; i < versions.size(); ++i) {
    ASSERT_TRUE(registry.Publish(versions[i], /*replace=*/true).ok());
    engine.Retarget(*versions[i - 1], aborts ? nullptr : versions[i]);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  engine.SetHold(Hold::kNone);
  for (std::size_t i = 0; i < ended.size(); ++i)
    EXPECT_EQ(ended[i].get_future().get(), aborts && i != 1 ? FinishReason::kAborted : FinishReason::kLength) << i;
}

struct Recorded {
  std::string bytes;
  EngineStats stats;  // counts of the real engine, at its end
};

Recorded Record(const Regime& regime) {
  const fs::path path = fs::temp_directory_path() / ("replay_test_" + std::to_string(getpid()) + "_" + regime.name);
  Recorded recorded;
  {
    auto recorder = std::move(FlightRecorder::Create(&OsFileSystem(), path)).value();
    World world(OptionsOf(regime, recorder.get()));
    const std::string first = AdapterNames().front(), last = AdapterNames().back();
    // No request uses the first generation of this name, so the recording's numbers have a gap.
    ChangeAdapters(world);
    Converse(world, 24 / kSlowdown, 3);
    DropHistory(world);
    EXPECT_TRUE(Pin(world, last, true).ok());
    std::vector<GenerationRequest> requests;  // the names are resolved before they go
    for (const Question& question : Questions(4 / kSlowdown)) requests.push_back(world.Request(question));
    std::thread leaving([&] { AskAndLeave(world, std::move(requests)); });
    ChangeAdapters(world);
    DropHistory(world);
    (void)Pin(world, first, true);  // there may be no room
    leaving.join();
    EXPECT_TRUE(Pin(world, last, false).ok());
    std::thread holding([&] { HoldAndLetGo(world); });
    Converse(world, 12 / kSlowdown, 2);
    holding.join();
    LeaveWhileHeld(world);
    ReloadInPlace(world, /*aborts=*/false);
    ReloadInPlace(world, /*aborts=*/true);
    std::this_thread::sleep_for(std::chrono::milliseconds(250));  // for moves and loads ahead, if there are any
    ChangeAdapters(world);
    Converse(world, 8, 1);
    world.Ask(Questions(2), /*one_by_one=*/true);  // a request alone begins while layers arrive
    world.runtime().Stop();
    recorder->Close();
    EXPECT_FALSE(recorder->failed());
    recorded.stats = world.runtime().engine().Stats();
  }
  recorded.bytes = std::move(ReadTextFile(path, std::size_t{1} << 30)).value();
  fs::remove(path);
  return recorded;
}

Result<ReplayReport> ReplayBytes(std::string bytes, bool allow_truncated = false, std::int64_t check_every = 0) {
  ASSIGN_OR_RETURN(RecordingReader reader, RecordingReader::Open(std::move(bytes)));
  return Replay(reader, allow_truncated, check_every);
}

class ReplayOfARealRun : public testing::TestWithParam<Regime> {};

TEST_P(ReplayOfARealRun, MakesTheSamePlans) {
  const Recorded recorded = Record(GetParam());
  const auto replay = ReplayBytes(recorded.bytes, /*allow_truncated=*/false, /*check_every=*/50);
  ASSERT_TRUE(replay.ok()) << replay.error().message;
  EXPECT_EQ(replay->difference, "");
  EXPECT_EQ(replay->equal_plans, replay->plans);
  EXPECT_GT(replay->plans, 100);
  EXPECT_GT(replay->ended, 0);
  EXPECT_GT(replay->cancelled, 0);
  const EngineStats& real = recorded.stats;
  const EngineStats& again = replay->run.stats;
  // All that happened, to the last page.
  EXPECT_EQ(again.steps, real.steps);
  EXPECT_EQ(again.tokens_generated, real.tokens_generated);
  EXPECT_EQ(again.tokens_prefilled, real.tokens_prefilled);
  EXPECT_EQ(again.finished, real.finished);
  EXPECT_EQ(again.preemptions, real.preemptions);
  EXPECT_GT(real.retargeted.moved, 2);
  EXPECT_GT(real.retargeted.aborted, 0);
  EXPECT_GT(again.retargeted.moved, 0);
  EXPECT_EQ(again.device.allocations, real.device.allocations);
  EXPECT_EQ(again.host.allocations, real.host.allocations);
  EXPECT_EQ(again.prefix.found_tokens, real.prefix.found_tokens);
  EXPECT_EQ(again.adapters.device_loads, real.adapters.device_loads);
  EXPECT_EQ(again.adapters.load_time_total, real.adapters.load_time_total);
  EXPECT_EQ(again.early_admissions, real.early_admissions);
  EXPECT_EQ(again.step_wait_total, real.step_wait_total);
  EXPECT_EQ(again.kv_tiers.pages_fetched, real.kv_tiers.pages_fetched);
  EXPECT_EQ(again.history_evictions, real.history_evictions);
  EXPECT_EQ(again.drafted_tokens, real.drafted_tokens);
  EXPECT_EQ(again.accepted_tokens, real.accepted_tokens);
  EXPECT_EQ(real.accepted_tokens > 50, GetParam().speculation == Speculation::kNgram);
  std::printf(
      "%s: %lld plans, %lld steps, %zu bytes; %lld preemptions, %lld loads, %lld early, %lld found tokens, %lld pages "
      "fetched\n",
      GetParam().name, static_cast<long long>(replay->plans), static_cast<long long>(replay->steps),
      recorded.bytes.size(), static_cast<long long>(real.preemptions),
      static_cast<long long>(real.adapters.device_loads), static_cast<long long>(real.early_admissions),
      static_cast<long long>(real.prefix.found_tokens), static_cast<long long>(real.kv_tiers.pages_fetched));
}

constexpr double kSlowLink = 60e6;
INSTANTIATE_TEST_SUITE_P(
    Regimes, ReplayOfARealRun,
    testing::Values(Regime{"loramux_mlq", "loramux", "mlq", "none", "history", FairnessPolicy::kVtc, kSlowLink},
                    Regime{"loramux_mlq_work", "loramux", "mlq", "none", "history", FairnessPolicy::kVtc, kSlowLink,
                           false, CountCached::kNowhere},
                    Regime{"loramux_mlq_fast_links", "loramux", "mlq", "histogram", "history"},
                    Regime{"chameleon_mlq", "chameleon", "mlq", "histogram", "proxy", FairnessPolicy::kNone, kSlowLink},
                    Regime{"vllm_residency", "vllm", "residency", "none", "none", FairnessPolicy::kNone, kSlowLink},
                    Regime{"vllm_lora", "vllm", "residency", "none", "none", FairnessPolicy::kNone, kSlowLink, false,
                           CountCached::kEverywhere, true, HostCopies::kAlways},
                    Regime{"lru_fifo", "lru", "fifo", "none", "history", FairnessPolicy::kNone, kSlowLink},
                    Regime{"fastlibra_sjf", "fastlibra", "sjf", "none", "history", FairnessPolicy::kVtc, kSlowLink,
                           false, CountCached::kEverywhere, false, HostCopies::kRegistered},
                    Regime{"lru_fifo_speculation", "lru", "fifo", "none", "history", FairnessPolicy::kVtc, kSlowLink,
                           false, CountCached::kEverywhere, false, HostCopies::kLoaded, Speculation::kNgram},
                    Regime{"loramux_mlq_profile", "loramux", "mlq", "none", "history", FairnessPolicy::kVtc, kSlowLink,
                           true}),
    [](const auto& info) { return std::string(info.param.name); });

// ---------------------------------------------------------------- Files that are no recording of a server

class NotARun : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    bytes_ = new std::string(
        Record({"tampered", "loramux", "mlq", "none", "history", FairnessPolicy::kVtc, kSlowLink}).bytes);
  }
  static void TearDownTestSuite() { delete bytes_; }

  static RecordedSetup RecordedWith() { return RecordingReader::Open(*bytes_)->setup(); }
  static std::vector<RecordedStep> Steps() {
    RecordingReader reader = std::move(RecordingReader::Open(*bytes_)).value();
    std::vector<RecordedStep> steps;
    while (auto step = *reader.Next()) steps.push_back(std::move(*step));
    return steps;
  }
  // A recording that is complete in form, whatever its steps say.
  static std::string Encode(std::vector<RecordedStep> steps, const RecordedSetup& setup = RecordedWith()) {
    for (std::size_t i = 0; i < steps.size(); ++i) steps[i].number = i;
    RecordingEncoder encoder;
    std::string bytes = encoder.Head(setup);
    constexpr std::size_t kPerBlock = 100;
    for (std::size_t i = 0; i < steps.size(); i += kPerBlock) {
      bytes += encoder.Steps(std::span(steps).subspan(i, std::min(kPerBlock, steps.size() - i)));
    }
    return bytes + encoder.End(RecordingEnd::kStopped);
  }
  // The replay refuses the steps or finds a difference.
  static bool IsFound(const std::vector<RecordedStep>& steps) {
    const auto replay = ReplayBytes(Encode(steps));
    return !replay.ok() || !replay->difference.empty();
  }

  static std::string* bytes_;
};
std::string* NotARun::bytes_ = nullptr;

TEST_F(NotARun, WrittenAgainItIsTheSame) {
  const auto steps = Steps();
  EXPECT_FALSE(IsFound(steps));
  RecordingReader reader = std::move(RecordingReader::Open(Encode(steps))).value();
  for (const RecordedStep& step : steps) EXPECT_TRUE(*reader.Next() == std::optional(step));
  EXPECT_EQ(*reader.Next(), std::nullopt);
}

// The recording holds the costs that plans use: other costs, or none, would give other plans.
TEST(ReplayByProfile, TheRecordingHasWhatPlansGoBy) {
  const std::string bytes =
      Record({"by_profile", "loramux", "mlq", "none", "history", FairnessPolicy::kVtc, 0, true}).bytes;
  const RecordedSetup setup = RecordingReader::Open(bytes)->setup();
  ASSERT_NE(setup.spec.costs, nullptr);
  const auto costs = SomeCosts();
  Prng prng(1);
  for (int i = 0; i < 200; ++i) {
    const auto below = [&](std::uint64_t n) { return static_cast<std::int64_t>(prng.NextBelow(n)); };
    const StepLoad load{.prefill_tokens = below(2) * below(300),
                        .decode_sequences = below(40),
                        .prefill_attention = below(9000),
                        .decode_context = below(9000),
                        .rank_sum = below(200),
                        .token_ranks = below(900),
                        .after_prefill = below(2) == 0};
    EXPECT_EQ(setup.spec.costs->SecondsOf(load), costs->SecondsOf(load));
  }
  EXPECT_EQ(setup.spec.costs->disk.bytes_per_second, costs->disk.bytes_per_second);
  EXPECT_EQ(setup.spec.costs->host_to_device.latency, costs->host_to_device.latency);
}

TEST_F(NotARun, AMovedArrivalIsFound) {
  int moved = 0;
  const auto steps = Steps();
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (steps[i].arrivals.empty()) continue;
    // The target is the next step that plans something and has no arrivals.
    std::size_t to = i + 1;
    while (to < steps.size() && !(steps[to].plan && steps[to].plan->chunks > 0 && steps[to].arrivals.empty())) ++to;
    const bool planned_between = steps[i].plan.has_value() && steps[i].plan->chunks > 0;
    if (to >= steps.size() || !planned_between || !steps[i].adapters.empty()) continue;
    auto tampered = steps;
    tampered[to].arrivals = std::move(tampered[i].arrivals);
    tampered[i].arrivals.clear();
    const auto replay = ReplayBytes(Encode(tampered));
    const bool seats = replay.ok() && replay->difference.empty();
    // The move of a request that had to wait in any case may make no difference. Most moves do.
    moved += !seats;
    if (moved >= 5) break;
  }
  EXPECT_GE(moved, 3);
}

TEST_F(NotARun, AMissingStepIsFound) {
  const auto steps = Steps();
  std::set<std::uint64_t> admitted;
  for (const RecordedStep& step : steps) {
    if (step.plan) admitted.insert(step.plan->admissions.begin(), step.plan->admissions.end());
  }
  std::vector<std::size_t> matter;
  for (std::size_t i = 5; i < steps.size(); ++i) {
    // Without a step that only decodes, and with new numbers, the recording is that of another possible run, in which
    // requests stop a token earlier. Only the numbers of the steps show it (see below).
    const auto& plan = steps[i].plan;
    const bool begins = plan && (plan->prefill_tokens > 0 || !plan->admissions.empty() || !plan->loads.empty());
    // A request that was aborted before it was admitted might as well not have come.
    const bool arrives = std::ranges::any_of(
        steps[i].arrivals, [&](const RecordedArrival& arrival) { return admitted.contains(arrival.id.value); });
    if (begins || arrives) matter.push_back(i);
  }
  ASSERT_GE(matter.size(), 20U);  // each request that was asked alone has at least one
  const std::size_t stride = std::max<std::size_t>(1, matter.size() / 40);
  for (std::size_t k = 0; k < matter.size(); k += stride) {
    auto tampered = steps;
    tampered.erase(tampered.begin() + static_cast<std::ptrdiff_t>(matter[k]));
    EXPECT_TRUE(IsFound(tampered)) << "step " << matter[k];
  }
  // The numbers show that a step is missing, even one that makes no difference.
  std::vector<RecordedStep> gap(steps.begin(), steps.begin() + 10);
  gap.erase(gap.begin() + 4);
  RecordingEncoder encoder;
  std::string bytes = encoder.Head(RecordedWith());
  bytes += encoder.Steps(gap);
  bytes += encoder.End(RecordingEnd::kStopped);
  const auto replay = ReplayBytes(bytes);
  ASSERT_FALSE(replay.ok());
  EXPECT_NE(replay.error().message.find("step"), std::string::npos);
}

// The recording needs every kind of input: without it, the plans differ.
TEST_F(NotARun, AForgottenInputIsFound) {
  const auto steps = Steps();
  const auto found_without = [&](const std::function<void(RecordedStep&)>& forget) {
    auto forgetful = steps;
    for (RecordedStep& step : forgetful) forget(step);
    return IsFound(forgetful);
  };
  EXPECT_TRUE(found_without([](RecordedStep& step) { step.arrivals.clear(); }));
  EXPECT_TRUE(found_without([](RecordedStep& step) { step.completions.clear(); }));
  EXPECT_TRUE(found_without([](RecordedStep& step) { step.cancellations.clear(); }));
  EXPECT_TRUE(found_without([](RecordedStep& step) { step.computed.reset(); }));
  EXPECT_TRUE(found_without([](RecordedStep& step) { step.hold.reset(); }));
  EXPECT_TRUE(found_without([](RecordedStep& step) { step.retargets.clear(); }));
  EXPECT_TRUE(found_without([](RecordedStep& step) { step.renamings.clear(); }));
  EXPECT_TRUE(found_without([](RecordedStep& step) { step.tokens.clear(); }));
  if (ReplayBytes(*bytes_)->run.stats.early_admissions > 0) {
    EXPECT_TRUE(found_without([](RecordedStep& step) { step.layers.clear(); }));
  }
}

TEST_F(NotARun, AnotherPlanIsShown) {
  auto steps = Steps();
  const auto planned = std::find_if(steps.begin() + 20, steps.end(),
                                    [](const RecordedStep& step) { return step.plan && step.plan->chunks > 0; });
  ASSERT_NE(planned, steps.end());
  ++planned->plan->tokens;
  const auto replay = ReplayBytes(Encode(steps));
  ASSERT_TRUE(replay.ok());
  EXPECT_EQ(replay->equal_plans + 1, replay->plans);
  EXPECT_NE(replay->difference.find("recorded: "), std::string::npos);
  EXPECT_NE(replay->difference.find("replayed: "), std::string::npos);
}

TEST_F(NotARun, TruncatedIsRefusedUnlessAskedFor) {
  Prng prng(3);
  for (int i = 0; i < 60; ++i) {
    const std::string cut = bytes_->substr(0, prng.NextBelow(bytes_->size()));
    EXPECT_FALSE(ReplayBytes(cut).ok());
    const auto partial = ReplayBytes(cut, /*allow_truncated=*/true);
    if (partial.ok()) {
      EXPECT_EQ(partial->difference, "");
      EXPECT_TRUE(partial->truncated);
    }
  }
  const auto most = ReplayBytes(bytes_->substr(0, bytes_->size() - 1), /*allow_truncated=*/true);
  ASSERT_TRUE(most.ok());
  EXPECT_GT(most->plans, 100);
}

TEST_F(NotARun, DamagedBytesAreRefused) {
  Prng prng(4);
  for (int i = 0; i < 400; ++i) {
    std::string bytes = *bytes_;
    for (std::uint64_t n = 1 + prng.NextBelow(4); n > 0; --n) {
      char& byte = bytes[prng.NextBelow(i % 2 == 0 ? bytes.size() : std::min<std::size_t>(bytes.size(), 4096))];
      byte = static_cast<char>(byte ^ static_cast<char>(1 + prng.NextBelow(255)));
    }
    if (bytes == *bytes_) continue;
    EXPECT_FALSE(ReplayBytes(std::move(bytes)).ok()) << i;
  }
  EXPECT_FALSE(ReplayBytes("").ok());
  EXPECT_FALSE(ReplayBytes(*bytes_ + "more").ok());
}

// The same steps, given to an engine with other options.
TEST_F(NotARun, AnotherServerMakesOtherPlans) {
  const auto steps = Steps();
  const auto found = [&](const RecordedSetup& setup) {
    const auto replay = ReplayBytes(Encode(steps, setup));
    return !replay.ok() || !replay->difference.empty();
  };
  EXPECT_FALSE(found(RecordedWith()));
  RecordedSetup larger = RecordedWith();
  ++larger.device_pages;
  EXPECT_TRUE(found(larger));
  RecordedSetup first_come = RecordedWith();
  first_come.spec.max_running = 3;
  EXPECT_TRUE(found(first_come));
  Prng prng(8);
  const auto regimes = CacheRegimes();
  const auto orders = QueueOrderNames();
  for (int i = 0; i < 100; ++i) {  // no combination may end the process
    SCOPED_TRACE(i);
    RecordedSetup other = RecordedWith();
    const CacheRegime& regime = regimes[prng.NextBelow(regimes.size())];
    other.spec.cache = regime.name;
    other.spec.adapter_share = 0;  // the regime's
    other.spec.keep_history = prng.NextBelow(4) > 0;
    ASSERT_TRUE(Complete(other.spec, other.max_model_len).ok());
    other.spec.queue = orders[prng.NextBelow(orders.size())];
    other.moves_kv = other.spec.keep_history && prng.NextBelow(4) > 0;
    if (prng.NextBelow(3) == 0) other.device_pages = 1 + static_cast<std::int64_t>(prng.NextBelow(400));
    if (prng.NextBelow(3) == 0) other.host_pages = 1 + static_cast<std::int64_t>(prng.NextBelow(100));
    if (!other.moves_kv && prng.NextBelow(3) == 0) other.host_pages = 0;
    if (prng.NextBelow(3) == 0) other.spec.page_tokens = 1 + static_cast<std::int64_t>(prng.NextBelow(64));
    if (prng.NextBelow(3) == 0) other.spec.max_batch_tokens = 1 + static_cast<std::int64_t>(prng.NextBelow(64));
    if (prng.NextBelow(3) == 0) other.spec.max_distinct_adapters = static_cast<std::int64_t>(prng.NextBelow(3));
    other.spec.adapter_prefetch = prng.NextBelow(2) == 0 ? AdapterPrefetch::kNone : AdapterPrefetch::kHistogram;
    (void)found(other);
  }
}

// Changes steps as an attacker could with the right checksums. Whatever the steps say, the process goes on.
void Vandalise(Prng& prng, std::vector<RecordedStep>& steps) {
  const auto any = [&]() -> RecordedStep& { return steps[prng.NextBelow(steps.size())]; };
  const auto number = [&]() -> std::uint64_t {
    const std::uint64_t choice = prng.NextBelow(4);
    return choice == 0   ? 0
           : choice == 1 ? prng.NextBelow(64)
           : choice == 2 ? prng.NextBelow(std::uint64_t{1} << 31)
                         : prng.Next();
  };
  RecordedStep& a = any();
  RecordedStep& b = any();
  const auto transfer = [&] {
    const std::uint64_t of = prng.NextBelow(2) == 0 ? kHistoryBit : 0;
    return of | number();
  };
  const auto generation = [&] { return AdapterGeneration{1 + static_cast<std::uint32_t>(prng.NextBelow(20))}; };
  switch (prng.NextBelow(23)) {
    case 0:
      std::swap(a.arrivals, b.arrivals);
      break;
    case 1:
      std::swap(a.completions, b.completions);
      break;
    case 2:
      std::swap(a.layers, b.layers);
      break;
    case 3:
      std::swap(a.tokens, b.tokens);
      break;
    case 4:
      a.completions.push_back({transfer(), static_cast<TransferOutcome>(prng.NextBelow(3))});
      break;
    case 5:
      a.layers.push_back({transfer(), static_cast<std::int32_t>(prng.NextBelow(9))});
      break;
    case 6:
      a.computed = static_cast<TimeNs>(number() >> 3);
      break;
    case 7:
      a.computed.reset();
      break;
    case 8:
      a.collected = !a.collected;
      break;
    case 9:
      a.cancellations.push_back(number());
      break;
    case 10:
      a.retired.push_back(static_cast<std::uint32_t>(prng.NextBelow(20)));
      break;
    case 11:
      a.pins.push_back({AdapterGeneration{static_cast<std::uint32_t>(prng.NextBelow(20))}, prng.NextBelow(2) == 0});
      break;
    case 12:
      a.cancel_all = true;
      break;
    case 13:
      a.ending = true;
      break;
    case 14:
      for (RecordedArrival& arrival : a.arrivals) arrival.max_total_tokens = static_cast<std::int32_t>(number());
      break;
    case 15:
      for (RecordedArrival& arrival : a.arrivals) {
        arrival.deadline = static_cast<TimeNs>(number() >> 2) * (prng.NextBelow(2) == 0 ? 1 : -1);
        arrival.priority = static_cast<std::int32_t>(number());
        arrival.length_hint = static_cast<std::int32_t>(number());
        arrival.tenant = static_cast<std::uint32_t>(number());
        arrival.prefix_domain = static_cast<std::uint32_t>(number());
      }
      break;
    case 16:
      for (RecordedAdapter& adapter : a.adapters) {
        adapter.pages = static_cast<std::int64_t>(number() & 0xffffffffu);
        adapter.layers = static_cast<std::int32_t>(prng.NextBelow(9));
      }
      break;
    case 17:
      for (RecordedToken& token : a.tokens)
        token.token = prng.NextBelow(2) == 0 ? kStopToken : static_cast<TokenId>(prng.NextBelow(99));
      break;
    case 19:
      a.retargets.push_back({generation(), kBaseModel});
      break;
    case 20:
      if (const AdapterGeneration old = generation(); true) a.retargets.push_back({old, {old.value + 1}});
      break;
    case 21:
      std::swap(a.renamings, b.renamings);
      for (RecordedArrival& arrival : a.arrivals) arrival.keeps_version = !arrival.keeps_version;
      break;
    case 18:  // delays all later steps
      if (const TimeNs jump = static_cast<TimeNs>(number() >> 3); true) {
        for (RecordedStep* step = &a; step != steps.data() + steps.size(); ++step)
          step->now = std::min(step->now + jump, TimeNs{1} << 61);
      }
      break;
    default:
      for (RecordedCompletion& completion : a.completions)
        completion.outcome = static_cast<TransferOutcome>(prng.NextBelow(3));
  }
}

TEST_F(NotARun, NothingThatTheStepsSayEndsTheProcess) {
  const auto steps = Steps();
  std::size_t found = 0, all = 600 / kSlowdown;
  for (std::uint64_t seed = 1; seed <= all; ++seed) {
    SCOPED_TRACE(seed);
    Prng prng(seed);
    auto tampered = steps;
    for (std::uint64_t n = 1 + prng.NextBelow(3); n > 0; --n) Vandalise(prng, tampered);
    found += IsFound(tampered);
  }
  EXPECT_GT(found, all / 4);  // an input that comes a step earlier or later may change nothing
}

}  // namespace
}  // namespace loramux::demo::replay_test
