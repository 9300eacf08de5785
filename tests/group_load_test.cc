// The demo model on several ranks, threads of this process: every answer is that of one process, whatever is evicted,
// preempted, reloaded, taken from the prefix cache or from the host tier. And what happens when a rank is lost.
#include <atomic>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/must.h"
#include "collective/thread_group.h"
#include "runtime/group_follower.h"
#include "tests/demo_world.h"

namespace loramux::demo::group_load_test {
namespace {

using ::testing::HasSubstr;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::size_t kSlowdown = 8;
#else
constexpr std::size_t kSlowdown = 1;
#endif
constexpr std::size_t Fewer(std::size_t n) { return std::max<std::size_t>(n / kSlowdown, 1); }

// The ranks beside rank 0, which a World leads by its options.
class Followers {
 public:
  Followers(RuntimeOptions& options, std::int64_t ranks, TimeNs wait_limit = 60 * kNsPerSecond)
      : ends_(Shared(MakeThreadGroup(ranks, wait_limit))), outcomes_(static_cast<std::size_t>(ranks), Ok{}) {
    options.weights.part = {0, ranks};
    options.group = ends_[0];
    options.threads = 1;
    for (std::int64_t rank = 1; rank < ranks; ++rank) {
      threads_.emplace_back([this, rank, weights = options.weights]() mutable {
        const auto index = static_cast<std::size_t>(rank);
        weights.part.rank = rank;
        auto model = Must(PlacedModel::Load(ModelDirectory(), nullptr, weights, {}));
        weight_bytes_ += model->weight_bytes();
        outcomes_[index] = FollowGroup(*ends_[index], *model, 1);
      });
    }
  }
  ~Followers() { Join(); }

  // Waits for their end, and returns how each ended.
  const std::vector<Status>& Join() {
    for (std::thread& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
    return outcomes_;
  }
  Collectives& end(std::size_t rank) { return *ends_[rank]; }
  std::int64_t weight_bytes() const { return weight_bytes_; }

 private:
  static std::vector<std::shared_ptr<Collectives>> Shared(std::vector<std::unique_ptr<Collectives>> ends) {
    return {std::make_move_iterator(ends.begin()), std::make_move_iterator(ends.end())};
  }
  std::vector<std::shared_ptr<Collectives>> ends_;
  std::vector<Status> outcomes_;
  std::atomic<std::int64_t> weight_bytes_ = 0;
  std::vector<std::thread> threads_;
};

void ExpectSameAnswers(const std::vector<Question>& questions, const std::vector<Answer>& found,
                       const std::vector<Answer>& expected) {
  for (std::size_t i = 0; i < questions.size(); ++i) {
    ASSERT_EQ(found[i].error, "") << questions[i].adapter << ": " << questions[i].prompt;
    ASSERT_EQ(found[i].tokens, expected[i].tokens) << questions[i].adapter << ": " << questions[i].prompt;
    for (std::size_t t = 0; t < expected[i].sampled.size(); ++t) {
      ASSERT_EQ(found[i].sampled[t].logprob, expected[i].sampled[t].logprob) << "token " << t;
    }
  }
}

void WithLogprobs(std::size_t i, GenerationRequest& request) {
  request.sampling.top_logprobs = 2;
  request.ignore_eos = i % 3 != 0;
  if (request.ignore_eos) request.max_tokens = 40;
}

class GroupLoad : public testing::TestWithParam<std::int64_t> {};

TEST_P(GroupLoad, TightMemoryGivesTheAnswersOfOneProcess) {
  const std::vector<Question> questions = Questions(Fewer(8));
  std::vector<Answer> alone;
  RuntimeOptions tight;
  std::int64_t whole_bytes = 0;
  {
    RuntimeOptions options = Roomy();
    options.page_tokens = 4;  // as Tight: attention's sums depend on the size of pages
    World roomy(options);
    alone = roomy.Ask(questions, /*one_by_one=*/true, WithLogprobs);
    tight = Tight(roomy);
    whole_bytes = roomy.runtime().weight_bytes();
  }
  // Of an adapter, A is whole on each rank; of keys and values, and of B, there is only a part.
  tight.device_memory = tight.device_memory * 9 / 10;
  tight.host_memory = tight.host_memory * 2 / 3;
  Followers followers(tight, GetParam());
  World group(tight);
  ExpectSameAnswers(questions, group.Ask(questions, /*one_by_one=*/false, WithLogprobs), alone);
  const EngineStats stats = group.runtime().engine().Stats();
  std::printf("%lld preemptions, %lld evictions, %lld disk loads\n", static_cast<long long>(stats.preemptions),
              static_cast<long long>(stats.adapters.device_evictions),
              static_cast<long long>(stats.adapters.disk_loads));
  EXPECT_GT(stats.adapters.device_evictions, 0);
  // The ranks' parts together are the whole, but for norms and copies of heads.
  EXPECT_LT(group.runtime().weight_bytes(), whole_bytes * 7 / (5 * GetParam()));
  ExpectEmptyAndExact(group.runtime());
}

TEST_P(GroupLoad, SessionsFromThePrefixCacheAndTheHostTierGiveTheAnswersOfOneProcess) {
  constexpr std::size_t kTurns = 3;
  const std::vector<Question> questions = Questions(Fewer(4));
  std::vector<std::vector<Answer>> expected;
  RuntimeOptions options;
  {
    World roomy(Roomy());
    expected = AskSessions(roomy, questions, kTurns);
    options = Tight(roomy);
    options.device_memory += 100 * roomy.runtime().geometry().page_bytes;
    options.host_memory += 400 * roomy.runtime().geometry().page_bytes;
  }
  options.spec.keep_history = true;
  Followers followers(options, GetParam());
  World group(options);
  const auto answers = AskSessions(group, questions, kTurns, &expected);
  for (std::size_t turn = 0; turn < kTurns; ++turn) {
    for (std::size_t i = 0; i < questions.size(); ++i) {
      ASSERT_EQ(answers[turn][i].error, "");
      ASSERT_EQ(answers[turn][i].tokens, expected[turn][i].tokens) << questions[i].adapter << ", turn " << turn;
    }
  }
  EXPECT_GT(group.runtime().engine().Stats().prefix.found_tokens, 0);
  ExpectEmptyAndExact(group.runtime());
}

INSTANTIATE_TEST_SUITE_P(Ranks, GroupLoad, ::testing::Values(2, 6));

// Pages have as many positions as in one process, where no flag says how many.
TEST(Group, LogProbabilitiesAreThoseOfOneProcess) {
  const std::vector<Question> questions = Questions(2);
  RuntimeOptions options;
  std::vector<Answer> alone;
  std::int64_t page_tokens = 0;
  {
    World one(options);
    alone = one.Ask(questions, true, WithLogprobs);
    page_tokens = one.runtime().geometry().kv.page_tokens;
  }
  Followers followers(options, 2);
  World group(options);
  EXPECT_EQ(group.runtime().geometry().kv.page_tokens, page_tokens);
  ExpectSameAnswers(questions, group.Ask(questions, false, WithLogprobs), alone);
}

TEST(Group, AdaptersAndCacheInEightBitsGiveTheAnswersOfOneProcess) {
  const std::vector<Question> questions = Questions(1);
  RuntimeOptions options = Roomy();
  options.kv_dtype = DType::kI8;
  options.lora_dtype = DType::kI8;
  std::vector<Answer> alone;
  {
    World one(options);
    alone = one.Ask(questions, true, WithLogprobs);
  }
  Followers followers(options, 2);
  World group(options);
  ExpectSameAnswers(questions, group.Ask(questions, false, WithLogprobs), alone);
}

TEST(Group, FailedTransfersFailTheirRequestsAlone) {
  const std::vector<Question> questions = Questions(Fewer(4));
  std::vector<std::vector<Answer>> alone(1);
  RuntimeOptions tight;
  {
    World roomy(Roomy());
    alone[0] = roomy.Ask(questions, true);
    tight = Tight(roomy);
  }
  tight.wrap_transfer = [](std::unique_ptr<PageTransfer> real) -> std::unique_ptr<PageTransfer> {
    return std::make_unique<FailingTransfer>(std::move(real), 7);
  };
  Followers followers(tight, 2);
  World group(tight);
  std::vector<std::vector<Answer>> found(1);
  found[0] = group.Ask(questions, false);
  ExpectRightOrInjected(questions, found, alone);
  ExpectEmptyAndExact(group.runtime());
}

TEST(Group, ALostRankEndsAllRequestsAndIsNamed) {
  RuntimeOptions options = Roomy();
  Followers followers(options, 2, 2 * kNsPerSecond);
  World group(options);
  const std::vector<Question> questions = Questions(2);
  std::thread loses([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    followers.end(1).Fail(Unavailable("this rank is gone"));
  });
  const auto answers = group.Ask(questions, false, [](std::size_t, GenerationRequest& request) {
    request.ignore_eos = true;
    request.max_tokens = 600;
  });
  loses.join();
  for (const Answer& answer : answers) {
    EXPECT_EQ(answer.finish, FinishReason::kError);
    EXPECT_THAT(answer.error, HasSubstr("rank 1 of 2 is lost"));
  }
  EXPECT_FALSE(group.runtime().engine().Health().ok());
  EXPECT_THAT(group.runtime().GroupFailure()->message, HasSubstr("rank 1 of 2 is lost"));
  EXPECT_FALSE(followers.Join()[1].ok());
}

TEST(Group, ARankThatIsLostWhileNothingRunsIsNoticed) {
  RuntimeOptions options = Roomy();
  Followers followers(options, 2, kNsPerSecond);
  World group(options);
  followers.end(1).Fail(Unavailable("this rank is gone"));
  for (int i = 0; i < 1000 && !group.runtime().GroupFailure(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ASSERT_TRUE(group.runtime().GroupFailure());
  const auto answers = group.Ask(Questions(1), true);
  EXPECT_THAT(answers.front().error, HasSubstr("rank 1 of 2 is lost"));
}

TEST(Group, FollowersEndWithRankZero) {
  RuntimeOptions options = Roomy();
  Followers followers(options, 2);
  {
    World group(options);
    const auto answers = group.Ask(Questions(1), false);
    EXPECT_EQ(answers.front().error, "");
  }
  EXPECT_TRUE(followers.Join()[1].ok());
}

TEST(Group, RanksThatDifferAreToldHow) {
  auto ends = MakeThreadGroup(3, kNsPerSecond);
  std::vector<Status> found(3, Ok{});
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      found[rank] = AgreeOnFacts(*ends[rank], {{"version", "1"}, {"model", rank == 2 ? "b" : "a"}});
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Status& status : found) {
    ASSERT_FALSE(status.ok());
    EXPECT_THAT(status.error().message, HasSubstr("rank 2 of 3 differs in model: rank 0 has a, found b"));
  }
}

TEST(Group, APartThatDoesNotDivideIsRefused) {
  const auto refused = PlacedModel::Load(ModelDirectory(), nullptr, {.part = {0, 4}}, {});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().message,
            "--tensor-parallel-size: 4 ranks cannot share this llama model: its attention heads (num_attention_heads) "
            "are 6; expected one of 1, 2, 6");
}

}  // namespace
}  // namespace loramux::demo::group_load_test
