#include "schedule/plan_by_model.h"

#include <memory>

#include <gtest/gtest.h>

namespace loramux::plan_by_model_test {
namespace {

TEST(PlanByModelTest, PlansKnowTheModelAndItsRidgeUntilThereIsNone) {
  const auto model = std::make_shared<PerformanceModel>();
  model->per_prefill_token = 1e-4;
  model->dense_floor = 20.5e-3;
  SystemSpec spec;
  PlanByModel(model, spec);
  EXPECT_EQ(spec.ridge_tokens, 205);
  EXPECT_EQ(spec.costs, model);
  PlanByModel(nullptr, spec);
  EXPECT_EQ(spec.ridge_tokens, 0);
  EXPECT_EQ(spec.costs, nullptr);
}

}  // namespace
}  // namespace loramux::plan_by_model_test
