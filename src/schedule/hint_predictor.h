// Takes the word of somebody outside the engine (the proxy model, a workload that knows) for a request's output length.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "schedule/length_predictor.h"

namespace loramux {

// Where nobody said anything: what the history says, which learns from all requests.
class HintPredictor final : public LengthPredictor {
 public:
  // `history` must outlive it.
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
