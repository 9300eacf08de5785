#include "adapter/class_numbers.h"

#include <cmath>
#include <cstring>

#include <gmock/gmock.h>

namespace loramux::class_numbers_test {
namespace {

using testing::ElementsAre;
using testing::FloatEq;
using testing::FloatNear;

TEST(ClassNumbers, AreTheProductOfEachRow) {
  std::vector<float> weights, hidden;
  for (int i = 0; i < 2 * 11; ++i) weights.push_back(static_cast<float>(i < 11 ? 1 : i % 3 - 1));
  for (int i = 0; i < 11; ++i) hidden.push_back(static_cast<float>(i) / 4);
  TensorEntry tensor{.name = "score.weight", .dtype = DType::kF32, .shape = {2, 11}};
  ClassHead head{.module = "score", .tensor = &tensor};
  head.weights.resize(weights.size() * sizeof(float));
  std::memcpy(head.weights.data(), weights.data(), head.weights.size());
  float expected = 0;
  for (int i = 0; i < 11; ++i) expected += static_cast<float>((i + 11) % 3 - 1) * static_cast<float>(i) / 4;
  EXPECT_THAT(ClassNumbers(head, hidden), ElementsAre(FloatEq(55.0f / 4), FloatEq(expected)));
  EXPECT_EQ(head.LabelOf(1), "LABEL_1");
}

TEST(ClassNumbers, BecomeWhatTheTaskSays) {
  const auto activated = [](ClassTask task, std::vector<float> numbers) {
    ActivateClasses(task, numbers);
    return numbers;
  };
  EXPECT_THAT(activated(ClassTask::kOneOf, {0, std::log(3.0f)}),
              ElementsAre(FloatNear(0.25f, 1e-6f), FloatNear(0.75f, 1e-6f)));
  EXPECT_THAT(activated(ClassTask::kOneOf, {1000, -1000}), ElementsAre(1, 0));  // nothing overflows
  EXPECT_THAT(activated(ClassTask::kOneOf, {std::log(3.0f)}), ElementsAre(FloatNear(0.75f, 1e-6f)));
  EXPECT_THAT(activated(ClassTask::kAnyOf, {0, std::log(3.0f)}), ElementsAre(0.5f, FloatNear(0.75f, 1e-6f)));
  EXPECT_THAT(activated(ClassTask::kRegression, {-2, 7}), ElementsAre(-2, 7));
  EXPECT_THAT(activated(ClassTask::kAnyOf, {-1e30f}), ElementsAre(0));
}

}  // namespace
}  // namespace loramux::class_numbers_test
