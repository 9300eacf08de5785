// Predicts how many tokens a request will generate. Queue orders use the prediction that is made when a request
// arrives.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/ids.h"

namespace loramux {

// The facts about a request that a predictor may use.
struct LengthQuery {
  AdapterGeneration adapter = kBaseModel;
  std::string_view adapter_digest;  // digest of the adapter's content; empty: the base model
  std::int32_t prompt_tokens = 0;
  std::int32_t max_output_tokens = 0;  // bound that the client set
  // Output tokens predicted outside the engine (by the proxy model, or by a workload that knows them). 0: no hint.
  std::int32_t hint = 0;
};

// Accuracy of the predictions, for requests that ended by themselves.
struct PredictionStats {
  std::int64_t right = 0, low = 0, high = 0;  // requests: error within a quarter of the true length; below; above
  std::int64_t error_tokens = 0;              // sum of absolute errors
};

// Predicts output lengths and learns from outputs. Called by the engine thread, so it must be quick and must not block.
// Deterministic.
class LengthPredictor {
 public:
  virtual ~LengthPredictor() = default;
  // Name of the predictor, such as "history".
  virtual std::string_view name() const = 0;
  // Predicted output tokens, from 1 to query.max_output_tokens; 0: no prediction.
  virtual std::int32_t Predict(const LengthQuery& query) = 0;
  // Notes that such a request ended by itself after `output_tokens`.
  virtual void Observe(const LengthQuery& query, std::int32_t output_tokens) = 0;
};

// The predictor "none": it knows nothing. Orders that need predictions see 0.
class NoPredictor final : public LengthPredictor {
 public:
  std::string_view name() const override { return "none"; }
  std::int32_t Predict(const LengthQuery&) override { return 0; }
  void Observe(const LengthQuery&, std::int32_t) override {}
};

}  // namespace loramux
