// Uses predictions of the output length from outside the engine (the proxy model, or a workload that knows it).
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "schedule/predict/length_predictor.h"

namespace loramux {

// The predictor "hint". Without a hint it asks `history`, which learns from all requests.
class HintPredictor final : public LengthPredictor {
 public:
  // Does not own `history`, which must outlive it.
  explicit HintPredictor(LengthPredictor* history) : history_(history) {}
  std::string_view name() const override { return "hint"; }
  std::int32_t Predict(const LengthQuery& query) override {
    return query.hint > 0 ? std::clamp(query.hint, 1, std::max(1, query.max_output_tokens)) : history_->Predict(query);
  }
  void Observe(const LengthQuery& query, std::int32_t output_tokens) override {
    history_->Observe(query, output_tokens);
  }

 private:
  LengthPredictor* const history_;
};

}  // namespace loramux
