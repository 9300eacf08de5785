#include "kernels/experts.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "formats/routing_for_test.h"
#include "kernels/kernel_test_support.h"

namespace loramux::experts_test {
namespace {

class ExpertsTest : public KernelTest {};
LORAMUX_INSTANTIATE_KERNEL_TEST(ExpertsTest);

TEST_P(ExpertsTest, ChoosesAsTheContractSays) {
  using enum RouteForm::Score;
  const RouteForm forms[] = {
      {8, 2, kSoftmax, true},          {128, 8, kSoftmax, false},           {7, 7, kSoftmax, true},
      {1, 1, kSoftmax, false},         {64, 6, kSigmoid, true, 2.5f, 8, 3}, {12, 3, kSoftmax, true, 0.5f},
      {8, 2, kSigmoid, false, 1, 8, 4}};
  Prng prng(1);
  for (const RouteForm& form : forms) {
    constexpr std::int64_t kRows = 60;
    const std::int64_t stride = form.experts + 3, k = form.per_token;
    const auto logits = RandomFloats(kRows * stride, prng), bias = RandomFloats(form.experts, prng);
    Prng other(2);
    const auto scales = RandomFloats(form.experts, other);
    for (const float* const added : {static_cast<const float*>(nullptr), bias.data()}) {
      std::vector<std::int32_t> experts(static_cast<std::size_t>(kRows * k));
      std::vector<float> weights(experts.size());
      const float* const factors = added == nullptr ? nullptr : scales.data();
      RouteRows(context(), {{logits.data(), stride}, added, factors, kRows, form, experts.data(), weights.data()});
      for (std::int64_t i = 0; i < kRows; ++i) {
        const ChoiceForTest expected = ExpectedChoice(form, logits.data() + i * stride, added);
        for (std::int64_t c = 0; c < k; ++c) {
          const auto at = static_cast<std::size_t>(i * k + c), of = static_cast<std::size_t>(c);
          ASSERT_EQ(experts[at], expected.experts[of]) << i << " " << c;
          const float factor = factors == nullptr ? 1.0f : factors[experts[at]];
          const float right = factor * expected.weights[of];
          ASSERT_NEAR(weights[at], right, 1e-6f * (1 + std::abs(right))) << i << " " << c;
        }
      }
    }
  }
}

TEST_P(ExpertsTest, EqualScoresChooseTheFirst) {
  const std::vector<float> logits = {1, 3, 3, 1, 3, 2};
  std::vector<std::int32_t> experts(4);
  std::vector<float> weights(4);
  RouteRows(context(), {.logits = {logits.data(), 6},
                        .rows = 1,
                        .form = {.experts = 6, .per_token = 4},
                        .experts = experts.data(),
                        .weights = weights.data()});
  EXPECT_EQ(experts, (std::vector<std::int32_t>{1, 2, 4, 5}));
}

TEST_P(ExpertsTest, WhatIsNoNumberStaysWithinTheExperts) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();
  for (const std::vector<float>& logits :
       {std::vector<float>{kNan, kNan, kNan, kNan}, {-kInf, -kInf, -kInf, -kInf}, {kInf, kInf, 0, kNan}}) {
    std::vector<std::int32_t> experts(2, -1);
    std::vector<float> weights(2);
    RouteRows(context(), {.logits = {logits.data(), 4},
                          .rows = 1,
                          .form = {.experts = 4, .per_token = 2},
                          .experts = experts.data(),
                          .weights = weights.data()});
    ASSERT_NE(experts[0], experts[1]);
    for (const std::int32_t e : experts) ASSERT_TRUE(e >= 0 && e < 4) << e;
  }
}

// Random choices of `m` rows.
std::vector<std::int32_t> RandomChoices(const RouteForm& form, std::int64_t m, Prng& prng) {
  std::vector<std::int32_t> experts;
  for (std::int64_t i = 0; i < m; ++i) {
    std::vector<std::int32_t> all(static_cast<std::size_t>(form.experts));
    std::iota(all.begin(), all.end(), 0);
    for (std::int32_t c = 0; c < form.per_token; ++c) {
      const auto left = all.size() - static_cast<std::size_t>(c);
      std::swap(all[static_cast<std::size_t>(c)], all[static_cast<std::size_t>(c) + prng.Next() % left]);
      experts.push_back(all[static_cast<std::size_t>(c)]);
    }
  }
  return experts;
}

// What is computed of rows that the experts of each take is what each expert's product alone gives, whatever else is in
// the step.
TEST_P(ExpertsTest, ProductsAreThoseOfEachExpertAlone) {
  constexpr std::int64_t kIn = 96, kOut = 70;
  Prng prng(3);
  for (const DType dtype : kStoredTypes) {
    for (const RouteForm& form : {RouteForm{3, 2}, RouteForm{16, 3}}) {
      std::vector<PackedMatrix> w;
      std::vector<std::vector<float>> biases;
      for (std::int32_t e = 0; e < form.experts; ++e) {
        w.emplace_back(kOut, kIn, dtype);
        w.back().PackRows(0, kOut, RandomElements(dtype, kOut * kIn, prng).data());
        biases.push_back(RandomFloats(kOut, prng));
      }
      for (const std::int64_t m : {1, 2, 37}) {
        const std::vector<std::int32_t> experts = RandomChoices(form, m, prng);
        const auto x = RandomFloats(m * kIn, prng);
        ChosenRows chosen;
        chosen.Sort(form, m, experts.data());
        const auto pairs = static_cast<std::int64_t>(chosen.rows.size());
        std::vector<float> gathered(static_cast<std::size_t>(pairs * kIn)), y(static_cast<std::size_t>(pairs * kOut));
        GatherRows(context(), {{x.data(), kIn}, chosen.rows, {gathered.data(), kIn}, kIn});
        ExpertMatMul(context(), {chosen.begins, {gathered.data(), kIn}, w, biases, {y.data(), kOut}});
        for (std::int64_t pair = 0; pair < pairs; ++pair) {
          const auto e = static_cast<std::size_t>(experts[static_cast<std::size_t>(pair)]);
          const std::int64_t place = chosen.places[static_cast<std::size_t>(pair)];
          ASSERT_TRUE(place >= chosen.begins[e] && place < chosen.begins[e + 1]);
          std::vector<float> alone(kOut);
          const float* const row = x.data() + pair / form.per_token * kIn;
          MatMul(context(), {{row, kIn}, 1, w[e], biases[e].data(), {alone.data(), kOut}});
          ASSERT_TRUE(BitwiseEqual(alone.data(), y.data() + place * kOut, kOut)) << pair;
        }
      }
    }
  }
}

TEST_P(ExpertsTest, CombinesTheChosen) {
  constexpr std::int64_t kWidth = 33, kRows = 40;
  const RouteForm form = {6, 3};
  Prng prng(4);
  const std::vector<std::int32_t> experts = RandomChoices(form, kRows, prng);
  ChosenRows chosen;
  chosen.Sort(form, kRows, experts.data());
  const auto x = RandomFloats(kRows * 3 * kWidth, prng), before = RandomFloats(kRows * kWidth, prng);
  const auto weights = RandomFloats(kRows * 3, prng), gates = RandomFloats(kRows * 2, prng);
  for (const auto& [keeps, gated] : {std::pair{false, false}, std::pair{true, false}, std::pair{true, true}}) {
    std::vector<float> y = before;
    CombineChosen(context(), {.x = {x.data(), kWidth},
                              .places = chosen.places,
                              .weights = weights.data(),
                              .y = {y.data(), kWidth},
                              .rows = kRows,
                              .width = kWidth,
                              .form = {form.per_token, keeps, gated ? gates.data() : nullptr, 2}});
    for (std::int64_t i = 0; i < kRows; ++i) {
      for (std::int64_t t = 0; t < kWidth; ++t) {
        const auto at = static_cast<std::size_t>(i * kWidth + t);
        const double gate = 1 / (1 + std::exp(-static_cast<double>(gates[static_cast<std::size_t>(2 * i)])));
        double expected = keeps ? static_cast<double>(before[at]) * (gated ? gate : 1) : 0;
        for (std::size_t c = static_cast<std::size_t>(3 * i); c < static_cast<std::size_t>(3 * i + 3); ++c) {
          const auto from = static_cast<std::size_t>(chosen.places[c] * kWidth + t);
          expected += static_cast<double>(weights[c]) * static_cast<double>(x[from]);
        }
        ASSERT_NEAR(y[at], expected, 1e-6 * (1 + std::abs(expected))) << i << " " << t;
      }
    }
  }
}

}  // namespace
}  // namespace loramux::experts_test
