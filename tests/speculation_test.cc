// Speculation on the demo: every answer has the tokens, and the log-probabilities, that it has without.
#include <gtest/gtest.h>

#include "tests/demo_world.h"

namespace loramux::demo {
namespace {

RuntimeOptions Speculating(RuntimeOptions options) {
  options.spec.speculation.method = Speculation::kNgram;
  return options;
}

// Greedy and drawn answers, with everything that changes which token follows.
void Vary(std::size_t i, GenerationRequest& request) {
  request.sampling.top_logprobs = i % 3 == 0 ? 4 : -1;
  if (i % 5 == 1) request.min_tokens = 12;
  if (i % 5 == 2) request.ignore_eos = true;
  if (i % 7 == 3) request.max_tokens = static_cast<std::int32_t>(1 + i % 20);
  if (i % 2 == 0) return;
  request.sampling.temperature = 0.7f;
  request.sampling.seed = 1000 + i;
  if (i % 4 == 1) request.sampling.top_p = 0.9f;
  if (i % 6 == 1) request.sampling.repetition_penalty = 1.1f;
  if (i % 6 == 3) request.sampling.frequency_penalty = 0.4f;
  if (i % 6 == 5) request.logit_bias = {{65, 2.0f}, {70, -3.0f}};
}

void ExpectSame(const std::vector<Question>& questions, const std::vector<Answer>& answers,
                const std::vector<Answer>& expected) {
  for (std::size_t i = 0; i < questions.size(); ++i) {
    SCOPED_TRACE(questions[i].adapter + ", question " + std::to_string(i));
    EXPECT_EQ(answers[i].error, "");
    EXPECT_EQ(answers[i].finish, expected[i].finish);
    ASSERT_EQ(answers[i].tokens, expected[i].tokens);
    for (std::size_t t = 0; t < answers[i].sampled.size(); ++t) {
      const SampledToken& token = answers[i].sampled[t];
      const SampledToken& other = expected[i].sampled[t];
      EXPECT_EQ(token.logprob, other.logprob) << "token " << t;
      ASSERT_EQ(token.top_logprobs.size(), other.top_logprobs.size());
      for (std::size_t k = 0; k < token.top_logprobs.size(); ++k) {
        EXPECT_EQ(token.top_logprobs[k].id, other.top_logprobs[k].id);
        EXPECT_EQ(token.top_logprobs[k].logprob, other.top_logprobs[k].logprob);
      }
    }
  }
}

TEST(Speculation, AnswersAreTheSame) {
  const std::vector<Question> questions = Questions(8);
  World plain(Roomy());
  const std::vector<Answer> expected = plain.Ask(questions, false, Vary);
  plain.runtime().Stop();

  RuntimeOptions options = Speculating(Roomy());
  options.spec.keep_history = true;  // so that adapters draft from their answers
  World world(options);
  EXPECT_TRUE(world.runtime().speculates());
  ExpectSame(questions, world.Ask(questions, false, Vary), expected);  // in batches of different adapters
  ExpectSame(questions, world.Ask(questions, true, Vary), expected);   // alone, with prefixes and answers of before
  ExpectEmptyAndExact(world.runtime());
  const EngineStats stats = world.runtime().engine().Stats();
  EXPECT_GT(stats.accepted_tokens, 500);
  EXPECT_GT(stats.drafted_tokens, stats.accepted_tokens);
  EXPECT_LT(stats.steps, stats.tokens_generated);
}

// Requests lose their pages and go on.
TEST(Speculation, AnswersAreTheSameWhereMemoryIsShort) {
  const std::vector<Question> questions = Questions(6);
  World roomy(Roomy());
  const RuntimeOptions tight = Tight(roomy);
  roomy.runtime().Stop();
  RuntimeOptions options = Roomy();
  options.page_tokens = tight.page_tokens;  // sums of attention go page by page
  World plain(options);
  const std::vector<Answer> expected = plain.Ask(questions, false, Vary);
  plain.runtime().Stop();
  World world(Speculating(tight));
  ExpectSame(questions, world.Ask(questions, false, Vary), expected);
  ExpectEmptyAndExact(world.runtime());
  EXPECT_GT(world.runtime().engine().Stats().accepted_tokens, 100);
  EXPECT_GT(world.runtime().engine().Stats().preemptions, 0);
}

TEST(Speculation, RequestsMayLeaveIt) {
  World world(Speculating(Roomy()));
  std::vector<Question> questions = Questions(2);
  world.Ask(questions, false, [](std::size_t, GenerationRequest& request) { request.speculates = false; });
  EXPECT_EQ(world.runtime().engine().Stats().drafts, 0);
  World never(Roomy());
  never.Ask(questions, false);
  EXPECT_EQ(never.runtime().engine().Stats().drafts, 0);
  EXPECT_FALSE(never.runtime().speculates());
}

}  // namespace
}  // namespace loramux::demo
