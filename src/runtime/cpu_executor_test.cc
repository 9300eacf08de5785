// The contract of Submit and Poll, on the demo model: batches are taken by value, steps run in order, and several may
// be in flight.
#include "runtime/cpu_executor.h"

#include <filesystem>
#include <thread>

#include <gtest/gtest.h>

#include "engine/step_batch_builder.h"
#include "memory/page_geometry.h"

namespace loramux::cpu_executor_test {
namespace {

const std::filesystem::path kDemo = std::filesystem::path(LORAMUX_SOURCE_DIR) / "demo";

struct World {
  std::unique_ptr<Model> model = std::move(Model::Load(kDemo / "model", {})).value();
  PageGeometry geometry = ChoosePageGeometry(model->config(), model->weights().lm_head.dtype(), 16);
  std::unique_ptr<PagePool> device = std::move(PagePool::Create("device", 64 * geometry.page_bytes,  //
                                                                geometry.page_bytes))
                                         .value();
  std::unique_ptr<CpuExecutor> executor;
  StepBatchBuilder builder;
  std::vector<std::uint32_t> pages = {5, 9, 2, 30};
  SamplingParams greedy;

  World() {
    greedy.temperature = 0;
    const CpuExecutorOptions options{.threads = 2, .max_batch_tokens = 64, .max_running = 8, .max_positions = 64};
    executor = std::make_unique<CpuExecutor>(options, model.get(), geometry.kv, device.get(), [] {});
  }
  // The step that computes `tokens` from `position` on.
  StepBatch Step(std::span<const TokenId> tokens, std::int64_t position, bool sample) {
    SequencePart part;
    part.id = RequestId{1};
    part.tokens = tokens;
    part.position = position;
    part.pages = pages;
    part.page_tokens = 16;
    part.sampling = sample ? &greedy : nullptr;
    part.prompt_tokens = 40;
    builder.Add(part);
    return builder.Take();
  }
  StepResult Wait() {
    StepResult result;
    while (!executor->Poll(result)) std::this_thread::yield();
    return result;
  }
};

std::vector<TokenId> Prompt() {
  std::vector<TokenId> prompt;
  for (int i = 0; i < 40; ++i) prompt.push_back(3 + i * 29 % 200);
  return prompt;
}

// Five steps without a Poll: each reads what the earlier ones wrote, and the results come in order.
TEST(CpuExecutor, SeveralStepsMayBeInFlight) {
  const std::vector<TokenId> prompt = Prompt();
  World one_by_one, at_once;
  std::vector<TokenId> expected;
  for (std::size_t first = 0; first < 40; first += 8) {
    one_by_one.executor->Submit(
        one_by_one.Step(std::span(prompt).subspan(first, 8), static_cast<std::int64_t>(first), true));
    const StepResult result = one_by_one.Wait();
    ASSERT_EQ(result.tokens.size(), 1u);
    expected.push_back(result.tokens[0].id);
  }
  for (std::size_t first = 0; first < 40; first += 8) {
    std::vector<TokenId> tokens(prompt.begin() + static_cast<std::ptrdiff_t>(first),
                                prompt.begin() + static_cast<std::ptrdiff_t>(first) + 8);
    at_once.executor->Submit(at_once.Step(tokens, static_cast<std::int64_t>(first), true));
    std::fill(tokens.begin(), tokens.end(), -1);  // the executor has its own copy
  }
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const StepResult result = at_once.Wait();
    ASSERT_EQ(result.tokens.size(), 1u);
    EXPECT_EQ(result.tokens[0].id, expected[i]) << "step " << i;
    ASSERT_EQ(result.batch.sequences.size(), 1u) << "the batch must come back";
    EXPECT_EQ(result.batch.sequences[0].position, static_cast<std::int64_t>(i) * 8);
  }
  StepResult none;
  EXPECT_FALSE(at_once.executor->Poll(none));
}

TEST(CpuExecutor, EndsWithStepsThatWereNotPolled) {
  World w;
  const std::vector<TokenId> prompt = Prompt();
  for (int i = 0; i < 3; ++i) w.executor->Submit(w.Step(std::span(prompt).first(16), 0, false));
  w.executor.reset();
}

}  // namespace
}  // namespace loramux::cpu_executor_test
