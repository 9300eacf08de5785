// A predictor of adjustable accuracy for simulations: it is told the true length and errs in a fraction of its
// predictions (Chameleon 5.4.2).
#pragma once

#include <array>
#include <cstdint>

#include "schedule/predict/length_predictor.h"

namespace loramux {

// The predictor "oracle". A right prediction is LengthQuery::hint, which holds the true length. A wrong one is the
// middle of another bucket; all other buckets in which the workload has answers are equally likely, because a
// classifier that was trained on the workload knows no others. Stateless: a prediction depends on the seed and the
// query alone, so it is the same under every queue order.
class OraclePredictor final : public LengthPredictor {
 public:
  // The largest length in each bucket, in tokens; the last bucket has no end.
  static constexpr std::array<std::int32_t, 6> kBucketEnds = {32, 64, 128, 256, 512, 1024};
  static constexpr std::int32_t kBuckets = static_cast<std::int32_t>(kBucketEnds.size()) + 1;
  // The bucket of a length, below kBuckets.
  static std::int32_t BucketOf(std::int32_t tokens);

  // `accuracy`: fraction of right predictions. `longest`: the longest answer of the workload in tokens, which bounds
  // the buckets; 0: not known. REQUIRES: 0 <= accuracy <= 1.
  OraclePredictor(double accuracy, std::uint64_t seed, std::int32_t longest = 0);
  std::string_view name() const override { return "oracle"; }
  // Without a hint it predicts max_output_tokens. A wrong prediction may exceed max_output_tokens: where
  // max_output_tokens is the true length of a simulated request, a bound by it would reveal that length.
  std::int32_t Predict(const LengthQuery& query) override;
  void Observe(const LengthQuery&, std::int32_t) override {}

 private:
  const double accuracy_;
  const std::uint64_t seed_;
  const std::int32_t longest_;
};

}  // namespace loramux
