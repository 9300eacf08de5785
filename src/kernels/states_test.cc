#include "kernels/states.h"

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/kernel_test_support.h"
#include "kernels/state_steps_for_test.h"

namespace loramux::states_test {
namespace {

class StatesTest : public KernelTest {};
LORAMUX_INSTANTIATE_KERNEL_TEST(StatesTest);

void ExpectClose(const std::vector<float>& actual, const std::vector<float>& expected, float tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) ASSERT_NEAR(actual[i], expected[i], tolerance) << i;
}

// Runs `op(context, place, sequences, y)` over all rows at once by the reference, and in steps of many sizes by the
// variant under test: close to each other, and the same bits in whatever steps.
template <typename Op>
void CheckSteps(const KernelContext& context, const KernelContext& reference, std::int64_t state_floats,
                std::int64_t width, const Op& op) {
  constexpr std::int64_t kFirst = 17;
  const std::vector<float> none(static_cast<std::size_t>(kAllStateTestTokens * width));
  std::vector<float> expected = none, whole;
  StatePagesForTest of_reference(kFirst, state_floats, kStateTestSequences);
  InStepsForTest(of_reference, kAllStateTestTokens,
                 [&](const auto& sequences) { op(reference, of_reference.place(), sequences, expected.data()); });
  for (const std::int64_t chunk : {kAllStateTestTokens, std::int64_t{1}, std::int64_t{2}, std::int64_t{5}}) {
    SCOPED_TRACE(chunk);
    StatePagesForTest pages(kFirst, state_floats, kStateTestSequences);
    std::vector<float> actual = none;
    InStepsForTest(pages, chunk, [&](const auto& sequences) { op(context, pages.place(), sequences, actual.data()); });
    ASSERT_NO_FATAL_FAILURE(ExpectClose(actual, expected, 2e-6f));
    if (whole.empty()) whole = actual;
    ASSERT_TRUE(BitwiseEqual(actual.data(), whole.data(), kAllStateTestTokens * width));
  }
}

TEST_P(StatesTest, CausalConvHasTheSameBitsInWhateverSteps) {
  Prng prng(1);
  for (const std::int64_t channels : {1, 20, 300}) {
    for (const std::int64_t width : {2, 4}) {
      const auto x = RandomFloats(kAllStateTestTokens * channels, prng), weights = RandomFloats(width * channels, prng);
      const auto bias = RandomFloats(channels, prng);
      for (const float* const added : {static_cast<const float*>(nullptr), bias.data()}) {
        CheckSteps(
            context(), reference(), (width - 1) * channels, channels,
            [&](const KernelContext& c, const StatePlace& place, std::span<const StateSequence> sequences, float* y) {
              const ConstRows rows = {x.data(), channels};
              CausalConv(c, {channels, width, weights.data(), place, sequences, rows, {y, channels}, added});
            });
      }
    }
  }
}

TEST_P(StatesTest, CausalConvSeesTheRowsBefore) {
  StatePagesForTest pages(0, 6, 1);
  const std::vector<float> x = {1, 10, 2, 20, 3, 30, 4, 40};           // two channels
  const std::vector<float> weights = {1, 0, 0, 0, 0, 0.5f, 0.25f, 0};  // three rows before, one before, itself
  std::vector<float> y(8);
  const StateSequence sequence = {0, 4, true, pages.table(0)};
  CausalConv(context(), {.channels = 2,
                         .width = 4,
                         .weights = weights.data(),
                         .place = pages.place(),
                         .sequences = std::span(&sequence, 1),
                         .x = {x.data(), 2},
                         .y = {y.data(), 2}});
  const float sums[] = {0.25f, 0, 0.5f, 5, 0.75f, 10, 2, 15};
  for (std::size_t i = 0; i < y.size(); ++i) EXPECT_NEAR(y[i], sums[i] / (1 + std::exp(-sums[i])), 1e-5f) << i;
  const float bias[] = {0.5f, -3};
  CausalConv(context(), {.channels = 2,
                         .width = 4,
                         .weights = weights.data(),
                         .place = pages.place(),
                         .sequences = std::span(&sequence, 1),
                         .x = {x.data(), 2},
                         .y = {y.data(), 2},
                         .bias = bias});
  EXPECT_NEAR(y[0], 0.75f / (1 + std::exp(-0.75f)), 1e-5f);
  EXPECT_NEAR(y[3], 2.0f / (1 + std::exp(-2.0f)), 1e-5f);
}

TEST_P(StatesTest, DeltaRuleHasTheSameBitsInWhateverSteps) {
  Prng prng(2);
  for (const DeltaShape& shape :
       {DeltaShape{1, 1, 8, 4}, DeltaShape{2, 4, 8, 12}, DeltaShape{1, 3, 33, 70}, DeltaShape{2, 2, 64, 128}}) {
    const std::int64_t channels = shape.Channels(), heads = shape.value_heads, width = shape.Values();
    const auto x = RandomFloats(kAllStateTestTokens * channels, prng), bias = RandomFloats(heads, prng);
    auto gates = RandomFloats(kAllStateTestTokens * 2 * heads, prng), rate = RandomFloats(heads, prng);
    for (float& value : rate) value = -0.3f - 0.2f * value;
    gates[static_cast<std::size_t>(heads)] = 30;  // beyond which softplus is its argument
    std::vector<float> workspace(static_cast<std::size_t>(3 * DeltaWorkspaceFloats(shape)));
    const auto op = [&](const KernelContext& c, const StatePlace& place, std::span<const StateSequence> sequences,
                        float* y) {
      DeltaRule(c, {.shape = shape,
                    .rate = rate.data(),
                    .bias = bias.data(),
                    .place = place,
                    .sequences = sequences,
                    .x = {x.data(), channels},
                    .gates = {gates.data(), 2 * heads},
                    .out = {y, width},
                    .workspace = workspace.data()});
    };
    CheckSteps(context(), reference(), heads * shape.HeadFloats(), width, op);
  }
}

// A value comes back by its key, until it has decayed or the key has another one.
TEST_P(StatesTest, DeltaRuleRemembers) {
  const DeltaShape shape = {1, 1, 2, 1};
  StatePagesForTest pages(0, 2, 1);
  const float rate = -1, bias = 0;
  const float none = -100, always = 100;
  // q, k, v by row; b, a by row. The keys are orthogonal; nothing decays where a is far below 0.
  const std::vector<float> x = {1, 0, 1, 0, 5, 1, 0, 0, 1, 7, 1, 0, 1, 0, 3, 0, 1, 0, 1, 0};
  const std::vector<float> gates = {always, none, always, none, always, none, none, 0};
  std::vector<float> y(4), workspace(static_cast<std::size_t>(3 * DeltaWorkspaceFloats(shape)));
  const StateSequence sequence = {0, 4, true, pages.table(0)};
  DeltaRule(context(), {.shape = shape,
                        .rate = &rate,
                        .bias = &bias,
                        .place = pages.place(),
                        .sequences = std::span(&sequence, 1),
                        .x = {x.data(), 5},
                        .gates = {gates.data(), 2},
                        .out = {y.data(), 1},
                        .workspace = workspace.data()});
  const float root = std::sqrt(0.5f);  // 1 / sqrt(key_dim)
  EXPECT_NEAR(y[0], 5 * root, 1e-4f);
  EXPECT_NEAR(y[1], 5 * root, 1e-4f);
  EXPECT_NEAR(y[2], 3 * root, 1e-4f);
  EXPECT_NEAR(y[3], 7 * root / 2, 1e-4f);  // exp(-log(2)), and beta 0
}

TEST_P(StatesTest, SelectiveScanHasTheSameBitsInWhateverSteps) {
  Prng prng(5);
  for (const DeltaShape& shape :
       {DeltaShape{1, 1, 8, 4}, DeltaShape{2, 4, 7, 12}, DeltaShape{1, 3, 33, 70}, DeltaShape{2, 2, 128, 64}}) {
    const std::int64_t channels = shape.Channels(), heads = shape.value_heads, width = shape.Values();
    const auto bias = RandomFloats(heads, prng), skip = RandomFloats(heads, prng);
    auto x = RandomFloats(kAllStateTestTokens * channels, prng), rate = RandomFloats(heads, prng);
    auto steps = RandomFloats(kAllStateTestTokens * heads, prng);
    for (float& value : x) value *= 0.6f;
    for (float& value : rate) value = -0.6f - 0.4f * value;
    steps[0] = 30;                                // beyond which softplus is its argument
    steps[static_cast<std::size_t>(heads)] = -9;  // which the lower limit raises
    std::vector<float> workspace(static_cast<std::size_t>(3 * DeltaWorkspaceFloats(shape)));
    const auto op = [&](const KernelContext& c, const StatePlace& place, std::span<const StateSequence> sequences,
                        float* y) {
      SelectiveScan(c, {.shape = shape,
                        .rate = rate.data(),
                        .bias = bias.data(),
                        .skip = skip.data(),
                        .least_step = 0.01f,
                        .most_step = 0.9f,
                        .place = place,
                        .sequences = sequences,
                        .x = {x.data(), channels},
                        .steps = {steps.data(), heads},
                        .out = {y, width},
                        .workspace = workspace.data()});
    };
    CheckSteps(context(), reference(), heads * shape.HeadFloats(), width, op);
  }
}

// Two heads of two values in two groups, by hand: each group has a B and a C of its own.
TEST_P(StatesTest, SelectiveScanByHand) {
  const DeltaShape shape = {2, 2, 1, 2};
  StatePagesForTest pages(0, 4, 1);
  const std::vector<float> rate = {-1, -2}, bias = {0, 1}, skip = {10, 0.5f};
  // By row: x of both heads, B of both groups, C of both groups.
  const std::vector<float> x = {1, 2, 3, 4, 5, 7, 0.5f, 2, 6, 8, 1, 1, 2, 3, 4, 0.25f};
  const std::vector<float> steps = {0, -1, 50, 1};
  std::vector<float> y(8), workspace(static_cast<std::size_t>(3 * DeltaWorkspaceFloats(shape)));
  const StateSequence sequence = {0, 2, true, pages.table(0)};
  const auto run = [&](float least, float most) {
    SelectiveScan(context(), {.shape = shape,
                              .rate = rate.data(),
                              .bias = bias.data(),
                              .skip = skip.data(),
                              .least_step = least,
                              .most_step = most,
                              .place = pages.place(),
                              .sequences = std::span(&sequence, 1),
                              .x = {x.data(), 8},
                              .steps = {steps.data(), 2},
                              .out = {y.data(), 4},
                              .workspace = workspace.data()});
  };
  run(0, std::numeric_limits<float>::infinity());
  const float half = std::log(2.0f), wide = std::log1p(std::exp(2.0f));
  EXPECT_NEAR(y[0], half * 5 * 0.5f * 1 + 10, 1e-5f);
  EXPECT_NEAR(y[1], half * 5 * 0.5f * 2 + 20, 1e-5f);
  EXPECT_NEAR(y[2], half * 7 * 2 * 3 + 1.5f, 1e-4f);
  EXPECT_NEAR(y[4], 50 * 2 * 4 * 6 + 60, 1e-2f);  // nothing is left of the first token
  EXPECT_NEAR(y[6], (std::exp(-2 * wide) * half * 7 * 3 + wide * 3 * 1) * 0.25f + 0.5f, 1e-4f);
  run(1, 2);
  EXPECT_NEAR(y[2], 1 * 7 * 2 * 3 + 1.5f, 1e-4f);
  EXPECT_NEAR(y[4], (std::exp(-2.0f) * 5 + 2 * 2 * 6) * 4 + 60, 1e-4f);
}

TEST_P(StatesTest, GatedRmsNorm) {
  Prng prng(3);
  for (const std::int64_t dim : {1, 12, 16, 128}) {
    const std::int64_t heads = 3, rows = 50, width = heads * dim;
    auto z = RandomFloats(rows * width, prng);
    for (float& value : z) value *= 5;
    const auto weight = RandomFloats(dim, prng), x = RandomFloats(rows * width, prng);
    const auto run = [&](const KernelContext& c) {
      std::vector<float> y = x;
      GatedRmsNorm(c, {rows, heads, dim, weight.data(), 0.01f, {z.data(), width}, {y.data(), width}});
      return y;
    };
    const std::vector<float> actual = run(context());
    ExpectClose(actual, run(reference()), 4e-6f);
    float squares = 0;
    for (std::int64_t i = 0; i < dim; ++i) squares += x[static_cast<std::size_t>(i)] * x[static_cast<std::size_t>(i)];
    const float gate = z[0] / (1 + std::exp(-z[0]));
    EXPECT_NEAR(actual[0], x[0] / std::sqrt(squares / static_cast<float>(dim) + 0.01f) * weight[0] * gate, 4e-6f);
  }
}

TEST_P(StatesTest, GatedRmsNormOfWhatIsGated) {
  Prng prng(6);
  for (const std::int64_t dim : {1, 12, 16, 128}) {
    const std::int64_t heads = 3, rows = 50, width = heads * dim;
    const auto z = RandomFloats(rows * width, prng), weight = RandomFloats(width, prng);
    const auto x = RandomFloats(rows * width, prng);
    const auto run = [&](const KernelContext& c) {
      std::vector<float> y = x;
      GatedRmsNorm(c, {rows, heads, dim, weight.data(), 0.01f, {z.data(), width}, {y.data(), width}, true, dim});
      return y;
    };
    const std::vector<float> actual = run(context());
    ExpectClose(actual, run(reference()), 4e-6f);
    const auto gated = [&](std::int64_t i) {  // element of the last head of the first row
      const auto at = static_cast<std::size_t>(2 * dim + i);
      return x[at] * z[at] / (1 + std::exp(-z[at]));
    };
    float squares = 0;
    for (std::int64_t i = 0; i < dim; ++i) squares += gated(i) * gated(i);
    const auto last = static_cast<std::size_t>(width - 1);
    EXPECT_NEAR(actual[last], gated(dim - 1) / std::sqrt(squares / static_cast<float>(dim) + 0.01f) * weight[last],
                4e-6f);
  }
}

TEST_P(StatesTest, MulSigmoid) {
  Prng prng(4);
  for (const std::int64_t n : {1, 16, 33, 2000}) {
    const auto gate = RandomFloats(30 * n, prng), x = RandomFloats(30 * n, prng);
    std::vector<float> y = x;
    MulSigmoid(context(), {{gate.data(), n}, {y.data(), n}, 30, n});
    for (std::size_t i = 0; i < y.size(); ++i) ASSERT_NEAR(y[i], x[i] / (1 + std::exp(-gate[i])), 1e-6f);
  }
}

TEST_P(StatesTest, SplitGates) {
  std::vector<float> x, y(2 * 6, -1);
  for (int i = 0; i < 2 * 13; ++i) x.push_back(static_cast<float>(i));
  SplitGates(context(), {.x = {x.data(), 13}, .y = {y.data(), 6}, .rows = 2, .heads = 3, .head_dim = 2});
  EXPECT_EQ(std::vector<float>(x.begin() + 6, x.begin() + 13), (std::vector<float>{0, 1, 4, 5, 8, 9, 12}));
  EXPECT_EQ(std::vector<float>(x.begin() + 19, x.end()), (std::vector<float>{13, 14, 17, 18, 21, 22, 25}));
  EXPECT_EQ(y, (std::vector<float>{2, 3, 6, 7, 10, 11, 15, 16, 19, 20, 23, 24}));
}

}  // namespace
}  // namespace loramux::states_test
