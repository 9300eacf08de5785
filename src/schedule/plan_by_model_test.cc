#include "schedule/plan_by_model.h"

#include <memory>

#include <gtest/gtest.h>

namespace loramux::plan_by_model_test {
namespace {

TEST(PlanByModelTest, PlansKnowTheModelAndItsRidgeUntilThereIsNone) {
  const auto model = std::make_shared<PerformanceModel>();
  model->per_prefill_token = 1e-4;
  model->dense_floor = 20.5e-3;
  SystemSpec scheduler;
  QueueOrderOptions queue;
  PlanByModel(model, scheduler, queue);
  EXPECT_EQ(scheduler.ridge_tokens, 205);
  EXPECT_EQ(scheduler.costs, model);
  EXPECT_EQ(queue.lanes.costs, model);
  PlanByModel(nullptr, scheduler, queue);
  EXPECT_EQ(scheduler.ridge_tokens, 0);
  EXPECT_EQ(scheduler.costs, nullptr);
  EXPECT_EQ(queue.lanes.costs, nullptr);
}

}  // namespace
}  // namespace loramux::plan_by_model_test
