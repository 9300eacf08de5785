// The demo model under load: 200 concurrent requests over all adapters and the base model. There is so little memory
// that adapters are evicted and requests preempted all the time. Every answer must be the one that the request gets
// alone. The same test runs under ASan/UBSan and under TSan.
#include <algorithm>
#include <atomic>
#include <optional>

#include "base/prng.h"
#include "tests/demo_world.h"
#include "worth/cache_regime.h"

namespace loramux::demo::demo_load_test {
namespace {

// Two of three requests talk on after the answer, so that sequences grow by many pages while they run.
bool TalksOn(std::size_t i) { return i % 3 != 0; }
void LetSomeTalkOn(std::size_t i, GenerationRequest& request) {
  if (!TalksOn(i)) return;
  request.ignore_eos = true;
  request.max_tokens = 100;
}

// A request that talks on begins with the answer.
std::size_t Correct(const std::vector<Question>& questions, const std::vector<Answer>& answers) {
  std::size_t correct = 0;
  for (std::size_t i = 0; i < questions.size(); ++i) {
    correct += TalksOn(i) ? answers[i].text.starts_with(questions[i].answer) : answers[i].text == questions[i].answer;
  }
  return correct;
}

// A sanitizer slows everything down many times, so a part of the questions is enough.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::size_t kSlowdown = 8;
#else
constexpr std::size_t kSlowdown = 1;
#endif
// The part of so many that is asked: never none.
constexpr std::size_t Fewer(std::size_t n) { return std::max<std::size_t>(n / kSlowdown, 1); }

class DemoLoad : public testing::Test {
 protected:
  static std::size_t PerTask() { return 200 / (AdapterNames().size() + 1) / kSlowdown + 1; }  // at least 200 in all
};

TEST_F(DemoLoad, TightMemoryGivesTheSameAnswersAsAlone) {
  const std::vector<Question> questions = Questions(PerTask());
  ASSERT_GE(questions.size(), 200u / kSlowdown);
  World roomy(Roomy());
  const std::vector<Answer> alone = roomy.Ask(questions, /*one_by_one=*/true, LetSomeTalkOn);
  const std::size_t correct_alone = Correct(questions, alone);
  EXPECT_GE(correct_alone, questions.size() * 95 / 100);
  ExpectEmptyAndExact(roomy.runtime());

  World tight(Tight(roomy));
  const std::vector<Answer> together = tight.Ask(questions, /*one_by_one=*/false, LetSomeTalkOn);
  for (std::size_t i = 0; i < questions.size(); ++i) {
    ASSERT_EQ(together[i].error, "") << questions[i].adapter << ": " << questions[i].prompt;
    ASSERT_EQ(together[i].tokens, alone[i].tokens)
        << questions[i].adapter << ": '" << questions[i].prompt << "' alone: '" << alone[i].text << "' in the crowd: '"
        << together[i].text << "'";
  }
  const EngineStats stats = tight.runtime().engine().Stats();
  EXPECT_GT(stats.preemptions, 5 / static_cast<std::int64_t>(kSlowdown));
  EXPECT_GT(stats.adapters.device_evictions, 50 / static_cast<std::int64_t>(kSlowdown * 2));
  EXPECT_GT(stats.adapters.host_evictions, 0);
  RecordProperty("preemptions", std::to_string(stats.preemptions));
  RecordProperty("device_evictions", std::to_string(stats.adapters.device_evictions));
  std::printf("%zu of %zu correct alone and together; %lld preemptions, %lld evictions, %lld disk loads\n",
              correct_alone, questions.size(), static_cast<long long>(stats.preemptions),
              static_cast<long long>(stats.adapters.device_evictions),
              static_cast<long long>(stats.adapters.disk_loads));
  ExpectEmptyAndExact(tight.runtime());
}

// Sampled with a seed: the same tokens whatever else is in the batch, in whatever memory.
TEST_F(DemoLoad, ASeedGivesTheSameTokensInEveryCompany) {
  const std::vector<Question> questions = Questions(Fewer(7));
  const auto sampled = [](std::size_t i, GenerationRequest& request) {
    request.sampling.temperature = 1.5f;
    request.sampling.top_p = 0.95f;
    request.sampling.top_k = 40;
    request.sampling.repetition_penalty = 1.1f;
    request.sampling.seed = 1000 + i;
    request.ignore_eos = true;
    request.max_tokens = 24;
  };
  World roomy(Roomy());
  const std::vector<Answer> alone = roomy.Ask(questions, true, sampled);
  World tight(Tight(roomy));
  const std::vector<Answer> together = tight.Ask(questions, false, sampled);
  for (std::size_t i = 0; i < questions.size(); ++i) {
    ASSERT_EQ(alone[i].tokens.size(), 24u);
    ASSERT_EQ(together[i].tokens, alone[i].tokens) << questions[i].adapter << ": " << questions[i].prompt;
  }
}

void ExpectTheSameTokensFromTheCache(std::optional<DType> kv_dtype) {
  constexpr std::size_t kTurns = kSlowdown == 1 ? 4 : 3;
  const std::vector<Question> questions = Questions(kSlowdown == 1 ? 16 : 1);
  RuntimeOptions without = Roomy();
  without.kv_dtype = kv_dtype;
  World roomy(without);
  const auto expected = AskSessions(roomy, questions, kTurns);
  for (const bool tight : {true, false}) {
    RuntimeOptions options = tight ? Tight(roomy) : Roomy();
    options.spec.keep_history = true;
    options.kv_dtype = kv_dtype;
    if (tight) options.device_memory += 1000 * roomy.runtime().geometry().page_bytes / 4;  // a sixth of it all
    if (tight) options.host_memory += 4000 * roomy.runtime().geometry().page_bytes / 4;
    World cached(options);
    const auto answers = AskSessions(cached, questions, kTurns, &expected);
    for (std::size_t turn = 0; turn < kTurns; ++turn) {
      for (std::size_t i = 0; i < questions.size(); ++i) {
        ASSERT_EQ(answers[turn][i].tokens, expected[turn][i].tokens)
            << questions[i].adapter << ", session " << i << ", turn " << turn;
      }
    }
    const EngineStats stats = cached.runtime().engine().Stats();
    const auto share =
        static_cast<double>(stats.prefix.found_tokens) / static_cast<double>(stats.prefix.looked_up_tokens);
    std::printf(
        "%s: %.0f %% of the prompts' tokens from the cache, %lld times within a page; %lld pages evicted, %lld copied "
        "to the "
        "host tier, %lld back\n",
        tight ? "tight" : "roomy", 100 * share, static_cast<long long>(stats.prefix.copied_pages),
        static_cast<long long>(stats.history_evictions), static_cast<long long>(stats.kv_tiers.pages_backed_up),
        static_cast<long long>(stats.kv_tiers.pages_fetched));
    EXPECT_GT(share, tight || kSlowdown > 1 ? 0.1 : 0.5);
    EXPECT_GT(stats.history_evictions, tight && kSlowdown == 1 ? 100 : -1);
    EXPECT_GT(stats.kv_tiers.pages_fetched, tight && kSlowdown == 1 ? 100 : -1);
    ExpectEmptyAndExact(cached.runtime());
  }
}

// Pages from the cache give the same tokens as a computation without reuse. In the tight case most pages are in the
// host tier by the next turn.
TEST_F(DemoLoad, TurnsOfASessionGiveTheSameTokensFromTheCache) { ExpectTheSameTokensFromTheCache({}); }

TEST_F(DemoLoad, TurnsOfASessionGiveTheSameTokensFromPagesInEightBits) { ExpectTheSameTokensFromTheCache(DType::kI8); }

// With keys and values in eight bits, answers are as right as with those in the weights' type, and the same alone and
// in a crowd in tight memory.
TEST_F(DemoLoad, KeysAndValuesInEightBitsAnswerRight) {
  const std::vector<Question> questions = Questions(kSlowdown == 1 ? PerTask() / 2 : 3);
  RuntimeOptions in_eight_bits = Roomy();
  in_eight_bits.kv_dtype = DType::kI8;
  World roomy(in_eight_bits);
  const std::vector<Answer> alone = roomy.Ask(questions, /*one_by_one=*/true, LetSomeTalkOn);
  const std::size_t correct = Correct(questions, alone);
  EXPECT_GE(correct, questions.size() * 95 / 100);
  RuntimeOptions options = Tight(roomy);
  options.kv_dtype = DType::kI8;
  World tight(options);
  const std::vector<Answer> together = tight.Ask(questions, /*one_by_one=*/false, LetSomeTalkOn);
  for (std::size_t i = 0; i < questions.size(); ++i) {
    ASSERT_EQ(together[i].error, "") << questions[i].adapter << ": " << questions[i].prompt;
    ASSERT_EQ(together[i].tokens, alone[i].tokens) << questions[i].adapter << ": " << questions[i].prompt;
  }
  const EngineStats stats = tight.runtime().engine().Stats();
  EXPECT_GT(stats.preemptions, kSlowdown == 1 ? 0 : -1);
  std::printf("%zu of %zu correct alone and together; %lld preemptions\n", correct, questions.size(),
              static_cast<long long>(stats.preemptions));
  ExpectEmptyAndExact(tight.runtime());
}

// Every regime of the cache, in little memory, with transfers that fail. A request gets the right answer or the error
// of the load that failed.
TEST_F(DemoLoad, EveryRegimeAnswersRightThroughFailingTransfers) {
  constexpr std::size_t kTurns = 3;
  const std::vector<Question> questions = Questions(Fewer(4));
  World roomy(Roomy());
  const auto expected = AskSessions(roomy, questions, kTurns);
  std::int64_t failed_requests = 0, failed_moves = 0, found = 0;
  std::size_t number = 0;
  for (const CacheRegime& regime : CacheRegimes()) {
    if (number++ % kSlowdown != 0) continue;
    SCOPED_TRACE(regime.name);
    RuntimeOptions options = Tight(roomy);
    options.spec.cache = std::string(regime.name);
    const std::int64_t page_bytes = roomy.runtime().geometry().page_bytes / 4;
    options.device_memory = 5 * options.device_memory;  // so that each adapter fits a fifth of it
    options.host_memory += 800 * page_bytes;
    options.wrap_transfer = [&, seed = std::uint64_t{1}](std::unique_ptr<PageTransfer> real) mutable {
      return std::make_unique<FailingTransfer>(std::move(real), seed++);
    };
    World world(options);
    const auto answers = AskSessions(world, questions, kTurns, &expected);
    failed_requests += ExpectRightOrInjected(questions, answers, expected);
    const EngineStats stats = world.runtime().engine().Stats();
    failed_moves += stats.kv_tiers.failed_jobs;
    found += stats.prefix.found_tokens;
    ExpectEmptyAndExact(world.runtime());
  }
  std::printf("%lld requests failed with their adapter's load, %lld copies failed, %lld tokens from the cache\n",
              static_cast<long long>(failed_requests), static_cast<long long>(failed_moves),
              static_cast<long long>(found));
  EXPECT_GT(failed_requests, 0);
  EXPECT_GT(failed_moves, kSlowdown == 1 ? 0 : -1);  // a part of the load may need none
  EXPECT_GT(found, 0);
}

// An adapter leaves the device with its last request, and comes back over a slow link: each is cold again and again.
// First from disk, then from the host tier, where requests begin at once and the copy overtakes them in the middle.
TEST_F(DemoLoad, EveryAdapterIsCold) {
  const std::vector<Question> questions = Questions(Fewer(4));
  World roomy(Roomy());
  const std::vector<Answer> alone = roomy.Ask(questions, true, LetSomeTalkOn);
  for (const auto policy : {ColdStartPolicy::kAssist, ColdStartPolicy::kAuto}) {
    RuntimeOptions options = Roomy();
    options.spec.cache = "s-lora";
    options.spec.cold_start_policy = policy;
    options.transfer.bytes_per_second = 50e6;
    World cold(options);
    for (int round = 0; round < 3; ++round) {
      const std::vector<Answer> answers = cold.Ask(questions, /*one_by_one=*/round == 2, LetSomeTalkOn);
      for (std::size_t i = 0; i < questions.size(); ++i) {
        ASSERT_EQ(answers[i].error, "");
        ASSERT_EQ(answers[i].tokens, alone[i].tokens) << questions[i].adapter << ": " << questions[i].prompt;
      }
    }
    const EngineStats stats = cold.runtime().engine().Stats();
    const auto adapters = static_cast<std::int64_t>(AdapterNames().size());
    EXPECT_EQ(stats.adapters.disk_loads, adapters);
    EXPECT_GE(stats.adapters.device_loads, 2 * adapters);
    EXPECT_GE(stats.early_admissions, 2 * adapters);
    std::printf("%lld loads, %lld requests began before their adapter was there\n",
                static_cast<long long>(stats.adapters.device_loads), static_cast<long long>(stats.early_admissions));
    ExpectEmptyAndExact(cold.runtime());
  }
}

// Clients vanish at random moments. The other answers stay the same, and the pages become free.
TEST_F(DemoLoad, CancelledRequestsDoNoHarm) {
  const std::vector<Question> questions = Questions(Fewer(8));
  World roomy(Roomy());
  const std::vector<Answer> alone = roomy.Ask(questions, true);
  World tight(Tight(roomy));
  std::atomic<bool> stop{false};
  std::atomic<int> cancelled{0};
  std::thread vandal([&] {
    Prng prng(7);
    while (!stop.load() || cancelled.load() == 0) {  // at least one, however late this thread begins
      GenerationRequest request = tight.Request(questions[prng.NextBelow(questions.size())]);
      request.ignore_eos = true;
      request.max_tokens = 60;
      request.on_event = [&](const GenerationEvent& event) { cancelled += event.finish == FinishReason::kCancelled; };
      const auto id = tight.runtime().engine().Submit(std::move(request));
      if (id.ok() && prng.NextBelow(4) != 0) std::this_thread::sleep_for(std::chrono::milliseconds(prng.NextBelow(5)));
      if (id.ok()) tight.runtime().engine().Cancel(*id);
    }
  });
  const std::vector<Answer> together = tight.Ask(questions, false);
  stop.store(true);
  vandal.join();
  tight.runtime().Stop();
  EXPECT_GT(cancelled.load(), 0);
  for (std::size_t i = 0; i < questions.size(); ++i) ASSERT_EQ(together[i].tokens, alone[i].tokens);
  ExpectEmptyAndExact(tight.runtime());
}

}  // namespace
}  // namespace loramux::demo::demo_load_test
