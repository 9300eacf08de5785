// The contract of Submit and Poll, on the demo model, on the CPU and on the emulated device: batches are taken by
// value, steps run in order, and several may be in flight.
#include "engine/executor.h"

#include <filesystem>
#include <thread>

#include <gtest/gtest.h>

#include "engine/step_batch_builder.h"
#include "gpu/emulated/emulated_device.h"
#include "memory/page_geometry.h"
#include "runtime/cpu_executor.h"
#include "runtime/gpu_executor.h"

namespace loramux::executor_test {
namespace {

const std::filesystem::path kDemo = std::filesystem::path(LORAMUX_SOURCE_DIR) / "demo";

struct World {
  std::unique_ptr<gpu::EmulatedDevice> device;  // null: the CPU
  std::unique_ptr<Model> model = std::move(Model::Load(kDemo / "model", {}, {})).value();
  std::unique_ptr<DeviceModel> device_model;
  PageGeometry geometry = ChoosePageGeometry(model->config(), model->weights().lm_head.dtype(), 16);
  std::unique_ptr<PagePool> pool;
  std::unique_ptr<Executor> executor;
  StepBatchBuilder builder;
  std::vector<std::uint32_t> pages = {5, 9, 2, 30};
  SamplingParams greedy;
  const AdapterResidency* adapter = nullptr;  // adapter of the steps

  explicit World(bool on_device) {
    greedy.temperature = 0;
    const std::int64_t bytes = 64 * geometry.page_bytes;
    if (!on_device) {
      pool = PagePool::Create("device", bytes, geometry.page_bytes).value();
      const CpuExecutorOptions options{.threads = 2, .max_batch_tokens = 64, .max_running = 8, .max_positions = 64};
      executor =
          std::make_unique<CpuExecutor>(options, model.get(), geometry.kv, TierMemory{.device = pool->View()}, [] {});
      return;
    }
    device = gpu::MakeEmulatedDevice({});
    device_model = DeviceModel::Upload(*model, *device).value();
    pool = PagePool::Create("device", device->Allocate("pages", bytes).value(), geometry.page_bytes).value();
    EXPECT_TRUE(
        device_model->Reserve({.max_tokens = 64, .max_sequences = 8, .max_logit_rows = 8, .max_positions = 64}).ok());
    executor = GpuExecutor::Create(*device, *device_model, geometry.kv, *pool, {}, {.max_copies = 1}, [] {}).value();
  }
  // The step that computes `tokens` from `position` on.
  StepBatch Step(std::span<const TokenId> tokens, std::int64_t position, bool sample) {
    StepSequence& part = builder.batch().Add(RequestId{1}, tokens, position, pages);
    part.prompt_tokens = 40;
    if (adapter != nullptr) builder.UseAdapter(part, *adapter);
    if (sample) builder.batch().Sample(part, greedy, {});
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

class ExecutorContract : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Devices, ExecutorContract, testing::Bool(),
                         [](const auto& info) { return info.param ? "Emulated" : "Cpu"; });

// Five steps without a Poll: each reads what the earlier ones wrote, and the results come in order.
TEST_P(ExecutorContract, SeveralStepsMayBeInFlight) {
  const std::vector<TokenId> prompt = Prompt();
  World one_by_one(GetParam()), at_once(GetParam());
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

TEST_P(ExecutorContract, EndsWithStepsThatWereNotPolled) {
  World w(GetParam());
  const std::vector<TokenId> prompt = Prompt();
  for (int i = 0; i < 3; ++i) w.executor->Submit(w.Step(std::span(prompt).first(16), 0, false));
  w.executor.reset();
}

// More pages than one launch copies; then a step that reads the copies.
TEST(GpuExecutor, CopiesPagesBeforeItComputes) {
  const std::vector<TokenId> prompt = Prompt();
  std::vector<TokenId> tokens;
  for (const bool copied : {false, true}) {
    World w(/*on_device=*/true);
    w.executor->Submit(w.Step(std::span(prompt).first(32), 0, false));
    w.Wait();
    if (copied) {
      w.builder.batch().copies.push_back({5, 20});
      w.builder.batch().copies.push_back({9, 21});
      w.pages = {20, 21, 2, 30};
    }
    w.executor->Submit(w.Step(std::span(prompt).subspan(32), 32, true));
    const StepResult result = w.Wait();
    ASSERT_FALSE(result.error.has_value()) << result.error->message;
    tokens.push_back(result.tokens.at(0).id);
  }
  EXPECT_EQ(tokens[0], tokens[1]);
}

// From the third step of one token on; with pages to copy before one of them. The tokens are the CPU's.
TEST(GpuExecutor, RepeatsRecordedSteps) {
  const std::vector<TokenId> prompt = Prompt();
  World cpu(/*on_device=*/false), w(/*on_device=*/true);
  for (World* world : {&cpu, &w}) {
    world->executor->Submit(world->Step(std::span(prompt).first(33), 0, true));
    world->Wait();
  }
  for (std::int64_t position = 33; position < 40; ++position) {
    if (position == 37) {
      w.builder.batch().copies.push_back({5, 20});
      w.pages[0] = 20;
    }
    std::vector<TokenId> tokens;
    for (World* world : {&cpu, &w}) {
      world->executor->Submit(
          world->Step(std::span(prompt).subspan(static_cast<std::size_t>(position), 1), position, true));
      const StepResult result = world->Wait();
      ASSERT_FALSE(result.error.has_value()) << result.error->message;
      EXPECT_EQ(result.replayed, world == &w && position >= 35) << position;
      tokens.push_back(result.tokens.at(0).id);
    }
    EXPECT_EQ(tokens[0], tokens[1]) << position;
  }
}

TEST(GpuExecutor, ALostDeviceIsTheErrorOfEveryStep) {
  World w(/*on_device=*/true);
  const std::vector<TokenId> prompt = Prompt();
  w.device->LoseAfter(20);
  for (int i = 0; i < 3; ++i) w.executor->Submit(w.Step(std::span(prompt).first(16), 0, true));
  for (int i = 0; i < 3; ++i) {
    const StepResult result = w.Wait();
    ASSERT_TRUE(result.error.has_value());
    EXPECT_EQ(result.error->code, ErrorCode::kUnavailable);
    EXPECT_EQ(result.batch.sequences.size(), 1u);
  }
}

// The table of an adapter does not fit: the step fails, and the next one that uses the adapter tries again.
TEST(GpuExecutor, AStepWithoutMemoryFailsAlone) {
  World w(/*on_device=*/true);
  AdapterRegistry registry(
      w.model->config(), {"base"},
      {.page_bytes = static_cast<std::size_t>(w.geometry.page_bytes), .base_dtype = w.device_model->dtype()});
  AdapterResidency adapter;
  adapter.version = registry.Register("rot13", kDemo / "adapters/rot13", 0).value();
  adapter.load_sequence = 1;
  std::vector<PageHandle> handles(static_cast<std::size_t>(adapter.version->layout.pages));
  ASSERT_TRUE(w.pool->Allocate(PageCategory::kAdapter, handles));
  adapter.device_pages = handles;
  const auto stream = w.device->CreateStream().value();
  for (const PageHandle handle : handles)
    stream->Fill(w.pool->Data(handle), 0, static_cast<std::size_t>(w.geometry.page_bytes));
  ASSERT_TRUE(stream->Synchronize().ok());
  w.adapter = &adapter;
  w.pages = {60, 61, 62, 63};
  const std::vector<TokenId> prompt = Prompt();
  w.device->FailAllocationAfter(0);
  w.executor->Submit(w.Step(std::span(prompt).first(16), 0, true));
  const StepResult failed = w.Wait();
  ASSERT_TRUE(failed.error.has_value());
  EXPECT_EQ(failed.error->code, ErrorCode::kResourceExhausted);
  w.executor->Submit(w.Step(std::span(prompt).first(16), 0, true));  // places nothing
  const StepResult next = w.Wait();
  EXPECT_FALSE(next.error.has_value()) << next.error->message;
  EXPECT_EQ(next.tokens.size(), 1u);
}

}  // namespace
}  // namespace loramux::executor_test
