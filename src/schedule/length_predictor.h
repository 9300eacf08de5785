// How many tokens will a request generate? A seam: the order of the queue needs a guess when a request comes in.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/ids.h"

namespace loramux {

// What a predictor may know of a request.
struct LengthQuery {
  AdapterGeneration adapter = kBaseModel;
  std::string_view adapter_digest;  // of its content; empty: the base model
  std::int32_t prompt_tokens = 0;
  std::int32_t max_output_tokens = 0;  // what the client allows
  // what somebody outside the engine guessed (the proxy model, a workload that knows); 0: nobody
  std::int32_t hint = 0;
};

// Of requests that ended by themselves.
struct PredictionStats {
  std::int64_t right = 0, low = 0, high = 0;  // within a quarter of the true length; below; above
  std::int64_t error_tokens = 0;              // differences in all
};

// Called by the engine thread: quick, never waits. Deterministic.
class LengthPredictor {
 public:
  virtual ~LengthPredictor() = default;
  virtual std::string_view name() const = 0;
  // From 1 to query.max_output_tokens.
  virtual std::int32_t Predict(const LengthQuery& query) = 0;
  // A request of this kind ended by itself after so many tokens.
  virtual void Observe(const LengthQuery& query, std::int32_t output_tokens) = 0;
};

}  // namespace loramux
