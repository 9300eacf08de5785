// The demo model on the emulated device, under load: all adapters at once, memory for a few of them only, every regime
// of the cache with transfers that fail, requests and adapters that come and go, and a device that is lost. The
// emulated device is slow, so everything is as small as it may be.
#include <atomic>
#include <thread>

#include "gpu/emulated/emulated_device.h"
#include "tests/demo_world.h"
#include "worth/cache_regime.h"

namespace loramux::demo::device_load_test {
namespace {

// Answers are compared token by token over batches of different sizes, which only a batch-invariant device promises.
std::shared_ptr<gpu::EmulatedDevice> Emulated(bool batch_invariant = true) {
  return gpu::MakeEmulatedDevice({.seed = 3, .pause_one_in = 64, .batch_invariant = batch_invariant});
}

// Requests wait for their adapters: what the processor computes in the meantime has other bits where the device's
// tensor cores sum in an order of their own.
RuntimeOptions On(std::shared_ptr<Device> device, RuntimeOptions options) {
  options.device = std::move(device);
  options.spec.cold_start_policy = ColdStartPolicy::kWait;
  return options;
}

// All adapters at once give the answers that the CPU gives.
TEST(DeviceLoad, AllAdaptersAnswerRightTogether) {
  const std::vector<Question> questions = Questions(1);
  World cpu(Roomy());
  const std::vector<Answer> expected = cpu.Ask(questions, /*one_by_one=*/false);
  World world(On(Emulated(/*batch_invariant=*/false), Roomy()));
  const std::vector<Answer> answers = world.Ask(questions, /*one_by_one=*/false);
  for (std::size_t i = 0; i < questions.size(); ++i) {
    EXPECT_EQ(answers[i].error, "");
    EXPECT_EQ(answers[i].text, expected[i].text) << questions[i].adapter << ": " << questions[i].prompt;
  }
  const EngineStats stats = world.runtime().engine().Stats();
  EXPECT_GE(stats.adapters.device_loads, static_cast<std::int64_t>(AdapterNames().size()));
  EXPECT_GT(stats.replayed_steps, 0);
  ExpectEmptyAndExact(world.runtime());
}

// Five of six requests talk on after the answer, so that sequences grow by many pages while they run.
void LetSomeTalkOn(std::size_t i, GenerationRequest& request) {
  if (i % 6 == 0) return;
  request.ignore_eos = true;
  request.max_tokens = 48;
}

void ExpectSameTokens(const std::vector<Question>& questions, const std::vector<Answer>& answers,
                      const std::vector<Answer>& expected) {
  for (std::size_t i = 0; i < questions.size(); ++i) {
    ASSERT_EQ(answers[i].error, "") << questions[i].adapter << ": " << questions[i].prompt;
    ASSERT_EQ(answers[i].tokens, expected[i].tokens) << questions[i].adapter << ": " << questions[i].prompt;
  }
}

// Adapters, keys and values go back and forth between device, host and disk, requests are preempted, and each answer is
// the one that the request gets alone, token by token.
TEST(DeviceLoad, TightMemoryGivesTheSameAnswersAsAlone) {
  const std::vector<Question> questions = Questions(2);
  World roomy(On(Emulated(), Roomy()));
  const std::vector<Answer> alone = roomy.Ask(questions, /*one_by_one=*/true, LetSomeTalkOn);
  World tight(On(Emulated(), Tight(roomy)));
  const std::vector<Answer> together = tight.Ask(questions, /*one_by_one=*/false, LetSomeTalkOn);
  ExpectSameTokens(questions, together, alone);
  const EngineStats stats = tight.runtime().engine().Stats();
  EXPECT_GT(stats.preemptions, 0);
  EXPECT_GT(stats.adapters.device_evictions, 10);
  std::printf("%lld preemptions, %lld evictions, %lld disk loads, %lld early\n",
              static_cast<long long>(stats.preemptions), static_cast<long long>(stats.adapters.device_evictions),
              static_cast<long long>(stats.adapters.disk_loads), static_cast<long long>(stats.early_admissions));
  ExpectEmptyAndExact(tight.runtime());
}

// Adapters leave the device with their last request and come back from the host tier, and the processor computes what
// is not there yet. Their rows are f32, which both sides sum in one order.
RuntimeOptions Cold(std::shared_ptr<Device> device, std::atomic<std::int64_t>& answers) {
  RuntimeOptions options = On(std::move(device), Roomy());
  options.spec.cache = "s-lora";
  options.lora_dtype = DType::kF32;
  options.spec.cold_start_policy = ColdStartPolicy::kAssist;
  options.assist.before_answer = [&answers](int, std::uint32_t) { ++answers; };
  return options;
}

TEST(DeviceLoad, EveryAdapterIsCold) {
  const std::vector<Question> questions = Questions(1);
  std::atomic<std::int64_t> answers{0};
  RuntimeOptions waiting = Cold(Emulated(), answers);
  waiting.spec.cold_start_policy = ColdStartPolicy::kWait;
  World roomy(waiting);
  const std::vector<Answer> alone = roomy.Ask(questions, /*one_by_one=*/false);
  EXPECT_EQ(answers, 0);
  World cold(Cold(Emulated(), answers));
  // On a busy machine every load of a round may have ended before its step came to it.
  for (int round = 0; round < 2 || (answers == 0 && round < 12); ++round) {
    ExpectSameTokens(questions, cold.Ask(questions, /*one_by_one=*/false), alone);
  }
  const EngineStats stats = cold.runtime().engine().Stats();
  EXPECT_GT(stats.adapters.device_loads, static_cast<std::int64_t>(AdapterNames().size()));
  EXPECT_GT(answers, 0);
  std::printf("%lld loads, %lld early, %lld answers of the processor\n",
              static_cast<long long>(stats.adapters.device_loads), static_cast<long long>(stats.early_admissions),
              static_cast<long long>(answers));
  ExpectEmptyAndExact(cold.runtime());
}

// One worker of two is lost until the end: the requests that it had in hand fail, and no others. Later ones are served.
TEST(DeviceLoad, ALostWorkerFailsItsRequestsAlone) {
  const std::vector<Question> questions = Questions(1);
  std::atomic<std::int64_t> answers{0};
  World roomy(Cold(Emulated(), answers));
  const std::vector<Answer> expected = roomy.Ask(questions, /*one_by_one=*/false);
  std::atomic<bool> lose{false}, let_go{false};
  RuntimeOptions options = Cold(Emulated(), answers);
  options.assist.cores = 2;
  options.assist.timeout = 300 * kNsPerMs;
  options.assist.before_answer = [&](int, std::uint32_t) {
    if (!lose.exchange(false)) return;
    while (!let_go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  World world(options);
  world.Ask(questions, /*one_by_one=*/false);  // now all are in the host tier
  lose = true;
  std::size_t failed = 0;
  for (int round = 0; round < 5 && failed == 0; ++round) {  // until the processor has something to compute
    const std::vector<Answer> got = world.Ask(questions, /*one_by_one=*/false);
    for (std::size_t i = 0; i < questions.size(); ++i) {
      failed += !got[i].error.empty();
      if (got[i].error.empty()) EXPECT_EQ(got[i].tokens, expected[i].tokens) << questions[i].adapter;
      if (!got[i].error.empty()) EXPECT_NE(got[i].error.find("gave no answer in time"), std::string::npos);
    }
    EXPECT_LT(failed, questions.size());
  }
  EXPECT_GT(failed, 0u);
  EXPECT_FALSE(lose);
  let_go = true;
  ExpectSameTokens(questions, world.Ask(questions, /*one_by_one=*/false), expected);
  EXPECT_TRUE(world.runtime().engine().Health().ok());
  ExpectEmptyAndExact(world.runtime());
}

// Keys and values that went to the host tier come back for the same prompts.
TEST(DeviceLoad, HistoryComesBackFromTheHostTier) {
  std::vector<Question> questions;  // without adapters, which may take all the memory
  for (const Question& question : Questions(12)) {
    if (question.adapter == "base") questions.push_back(question);
  }
  World roomy(On(Emulated(), Roomy()));
  const std::vector<Answer> expected = roomy.Ask(questions, /*one_by_one=*/false, LetSomeTalkOn);
  RuntimeOptions options = On(Emulated(), Tight(roomy));
  options.device_memory = 80 * roomy.runtime().geometry().page_bytes / 4;  // four requests at a time
  World tight(options);
  for (int round = 0; round < 3; ++round) {
    ExpectSameTokens(questions, tight.Ask(questions, /*one_by_one=*/false, LetSomeTalkOn), expected);
  }
  const EngineStats stats = tight.runtime().engine().Stats();
  EXPECT_GT(stats.prefix.found_tokens, 0);
  EXPECT_GT(stats.kv_tiers.pages_backed_up, 0);
  EXPECT_GT(stats.kv_tiers.pages_fetched, 0);
  std::printf("%lld pages to the host tier, %lld back; %lld early\n",
              static_cast<long long>(stats.kv_tiers.pages_backed_up),
              static_cast<long long>(stats.kv_tiers.pages_fetched), static_cast<long long>(stats.early_admissions));
  ExpectEmptyAndExact(tight.runtime());
}

// Sessions under every regime of the cache, with transfers that fail. A request gets the right answer or the error of
// the load that failed.
TEST(DeviceLoad, EveryRegimeAnswersRightThroughFailingTransfers) {
  constexpr std::size_t kTurns = 2;
  const std::vector<Question> questions = Questions(1);
  World roomy(On(Emulated(), Roomy()));
  const auto expected = AskSessions(roomy, questions, kTurns);
  std::int64_t failed_requests = 0, fetched = 0, found = 0;
  for (const CacheRegime& regime : CacheRegimes()) {
    SCOPED_TRACE(regime.name);
    RuntimeOptions options = On(Emulated(), Tight(roomy));
    options.spec.cache = std::string(regime.name);
    options.device_memory = 5 * options.device_memory;  // so that each adapter fits a fifth of it
    options.host_memory += 200 * roomy.runtime().geometry().page_bytes;
    options.wrap_transfer = [&, seed = std::uint64_t{1}](std::unique_ptr<PageTransfer> real) mutable {
      return std::make_unique<FailingTransfer>(std::move(real), seed++);
    };
    World world(options);
    const auto answers = AskSessions(world, questions, kTurns, &expected);
    failed_requests += ExpectRightOrInjected(questions, answers, expected);
    const EngineStats stats = world.runtime().engine().Stats();
    fetched += stats.kv_tiers.pages_fetched;
    found += stats.prefix.found_tokens;
    ExpectEmptyAndExact(world.runtime());
  }
  std::printf("%lld requests failed with their adapter's load; %lld tokens from the cache, %lld pages from the host\n",
              static_cast<long long>(failed_requests), static_cast<long long>(found), static_cast<long long>(fetched));
  EXPECT_GT(failed_requests, 0);
  EXPECT_GT(found, 0);
}

// Clients vanish, and adapters are pinned, reloaded and unloaded while they run, some of them before they are on the
// device. A request keeps the generation that it began with.
TEST(DeviceLoad, RequestsAndAdaptersComeAndGo) {
  const std::vector<Question> questions = Questions(1);
  std::atomic<std::int64_t> of_processor{0};
  World roomy(Cold(Emulated(), of_processor));
  const std::vector<Answer> expected = roomy.Ask(questions, /*one_by_one=*/false, LetSomeTalkOn);
  RuntimeOptions options = On(Emulated(), Tight(roomy));
  options.lora_dtype = DType::kF32;
  options.spec.cold_start_policy = ColdStartPolicy::kAssist;
  options.device_memory *= 2;
  World world(options);
  std::atomic<bool> stop{false};
  std::atomic<int> cancelled{0};
  AdapterRegistry& registry = world.runtime().registry();
  const std::filesystem::path folder = std::filesystem::path(LORAMUX_SOURCE_DIR) / "demo/adapters";
  const std::filesystem::path path = folder / AdapterNames().front(), other = folder / AdapterNames().back();
  std::thread vandal([&] {
    Prng prng(7);
    for (int round = 0; !stop.load() || cancelled.load() == 0; ++round) {
      GenerationRequest request = world.Request(questions[prng.NextBelow(questions.size())]);
      request.ignore_eos = true;
      request.max_tokens = 60;
      request.on_event = [&](const GenerationEvent& event) { cancelled += event.finish == FinishReason::kCancelled; };
      const auto id = world.runtime().engine().Submit(std::move(request));
      std::this_thread::sleep_for(std::chrono::milliseconds(prng.NextBelow(30)));
      if (id.ok()) world.runtime().engine().Cancel(*id);
      // A name of the vandal's own: loaded, pinned, asked, and unloaded while it runs.
      const auto version = registry.Register("passing", round % 2 == 0 ? path : other, 0);
      ASSERT_TRUE(version.ok()) << version.error().message;
      GenerationRequest passing = world.Request({"passing", "x", ""});
      passing.max_tokens = 5;
      passing.on_event = [](const GenerationEvent&) {};
      static_cast<void>(world.runtime().engine().Submit(std::move(passing)));
      world.runtime().engine().SetPinned(*version, round % 3 == 0, [](const Status&) {});
      std::this_thread::sleep_for(std::chrono::milliseconds(prng.NextBelow(30)));
      ASSERT_TRUE(registry.Remove("passing").ok());
    }
  });
  for (int round = 0; round < 2; ++round) {
    const std::vector<Answer> answers = world.Ask(questions, /*one_by_one=*/false, LetSomeTalkOn);
    ExpectSameTokens(questions, answers, expected);
  }
  stop.store(true);
  vandal.join();
  EXPECT_GT(cancelled.load(), 0);
  ExpectEmptyAndExact(world.runtime());
}

// A running request keeps its adapter's content when the name gets another one.
TEST(DeviceLoad, AReloadUnderDecodeChangesLaterRequestsOnly) {
  const std::vector<std::string> names = AdapterNames();
  const std::string name = names.front(), other = names.back();
  const std::filesystem::path folder = std::filesystem::path(LORAMUX_SOURCE_DIR) / "demo/adapters";
  World world(On(Emulated(), Roomy()));
  const auto ask = [&](const std::string& adapter, const std::function<void()>& meanwhile) {
    std::atomic<int> tokens{0};
    std::atomic<bool> ended{false};
    std::vector<TokenId> answer;
    GenerationRequest request = world.Request({adapter, "hello world", ""});
    request.ignore_eos = true;
    request.max_tokens = 40;
    request.on_event = [&](const GenerationEvent& event) {
      if (event.token.has_value()) answer.push_back(event.token->id);
      ++tokens;
      if (event.finish != FinishReason::kNone) ended = true;
    };
    EXPECT_TRUE(world.runtime().engine().Submit(std::move(request)).ok());
    while (tokens < 5) std::this_thread::yield();
    if (meanwhile) meanwhile();
    while (!ended) std::this_thread::yield();
    return answer;
  };
  const auto before = ask(name, {}), others = ask(other, {});
  ASSERT_NE(before, others);
  AdapterRegistry& registry = world.runtime().registry();
  const auto under_reload = ask(name, [&] {
    ASSERT_TRUE(registry.Remove(name).ok());
    ASSERT_TRUE(registry.Register(name, folder / other, 0).ok());
  });
  EXPECT_EQ(under_reload, before);
  EXPECT_EQ(ask(name, {}), others);
  ExpectEmptyAndExact(world.runtime());
}

// ---------------------------------------------------------------- Failures

// The device is lost at some launch, or at some copy: every request ends with the reason, later ones are refused with
// it, and all memory is accounted for.
TEST(DeviceLoad, ALostDeviceEndsTheRequestsAndNotTheAccounts) {
  const std::vector<Question> questions = Questions(1);
  World sizes(Roomy());
  for (const int launches : {0, 30, 500, 1500}) {
    for (const bool copy : {false, true}) {
      SCOPED_TRACE(launches);
      const auto device = Emulated();
      World world(On(device, Tight(sizes)));
      if (copy)
        device->FailCopyAfter(launches / 4);
      else
        device->LoseAfter(launches);
      const std::vector<Answer> answers = world.Ask(questions, /*one_by_one=*/false);
      std::size_t failed = 0;
      const Status health = world.runtime().engine().Health();
      for (const Answer& answer : answers) {
        failed += !answer.error.empty();
        EXPECT_TRUE(answer.error.empty() ? answer.finish == FinishReason::kStop
                                         : answer.finish == FinishReason::kError);
      }
      EXPECT_GT(failed, 0u);
      const std::vector<Answer> later = world.Ask({questions.back()}, true);  // asks the base model
      EXPECT_NE(later[0].error, "");
      EXPECT_FALSE(world.runtime().engine().Health().ok());
      EXPECT_EQ(world.runtime().engine().Health().error().code, ErrorCode::kUnavailable);
      ExpectEmptyAndExact(world.runtime());
    }
  }
}

// An allocation that fails while requests run fails them at most, and the next ones are served.
TEST(DeviceLoad, AFailedAllocationPasses) {
  const std::vector<Question> questions = Questions(1);
  const auto device = Emulated();
  World world(On(device, Roomy()));
  device->FailAllocationAfter(0);
  const std::vector<Answer> first = world.Ask(questions, /*one_by_one=*/false);
  const std::vector<Answer> second = world.Ask(questions, /*one_by_one=*/false);
  std::size_t failed = 0;
  for (std::size_t i = 0; i < questions.size(); ++i) {
    failed += !first[i].error.empty();
    EXPECT_EQ(second[i].error, "");
    if (first[i].error.empty()) EXPECT_EQ(first[i].tokens, second[i].tokens);
  }
  EXPECT_LT(failed, questions.size());
  EXPECT_TRUE(world.runtime().engine().Health().ok());
  ExpectEmptyAndExact(world.runtime());
}

// Wherever the start fails for lack of memory, it says so.
TEST(DeviceLoad, AStartWithoutMemorySaysWhatFits) {
  for (int allocations = 0; allocations < 40; ++allocations) {
    const auto device = Emulated();
    device->FailAllocationAfter(allocations);
    RuntimeOptions options = On(device, Roomy());
    options.base_names = {"base"};
    const auto runtime = Runtime::Load(ModelDirectory(), options, {});
    if (runtime.ok()) break;
    EXPECT_EQ(runtime.error().code, ErrorCode::kResourceExhausted);
    EXPECT_NE(runtime.error().message.find("injected failure"), std::string::npos) << runtime.error().message;
    ASSERT_LT(allocations, 39) << "the start takes memory in too many pieces";
  }
  RuntimeOptions options = On(gpu::MakeEmulatedDevice({.memory = std::int64_t{64} << 20}), Roomy());
  options.base_names = {"base"};
  const auto large = Runtime::Load(ModelDirectory(), options, {});
  ASSERT_FALSE(large.ok());
  EXPECT_NE(large.error().message.find("--device-memory: the device emulated has"), std::string::npos)
      << large.error().message;
  options.device = gpu::MakeEmulatedDevice({.memory = std::int64_t{3} << 20});
  const auto weights = Runtime::Load(ModelDirectory(), options, {});
  ASSERT_FALSE(weights.ok());
  EXPECT_EQ(weights.error().code, ErrorCode::kResourceExhausted);
  options.device = gpu::MakeEmulatedDevice({.memory = std::int64_t{512} << 20});
  options.device_memory = 0;
  const auto automatic = Runtime::Load(ModelDirectory(), options, {});
  ASSERT_TRUE(automatic.ok()) << automatic.error().message;
  const PoolStats pool = (*automatic)->engine().Stats().device;
  EXPECT_GT(pool.capacity_pages * pool.page_bytes, std::int64_t{128} << 20);
  EXPECT_LT(pool.capacity_pages * pool.page_bytes, std::int64_t{256} << 20);
}

}  // namespace
}  // namespace loramux::demo::device_load_test
