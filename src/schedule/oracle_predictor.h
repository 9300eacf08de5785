// A predictor that is told the truth and gets some of it wrong: for simulations, where the effect of a predictor's
// accuracy is asked for (Chameleon 5.4.2).
#pragma once

#include <array>
#include <cstdint>

#include "schedule/length_predictor.h"

namespace loramux {

// Right guesses are the hint (LengthQuery::hint) itself. Wrong ones are the middle of another bucket, each as likely,
// of those that the workload's answers fall into: a classifier that was trained on it knows no others. Stateless: a
// guess depends on the seed and the query alone, so it is the same under every order of the queue.
class OraclePredictor final : public LengthPredictor {
 public:
  // Where buckets end, in tokens; the last has no end.
  static constexpr std::array<std::int32_t, 6> kBucketEnds = {32, 64, 128, 256, 512, 1024};
  static constexpr std::int32_t kBuckets = static_cast<std::int32_t>(kBucketEnds.size()) + 1;
  static std::int32_t BucketOf(std::int32_t tokens);

  // `longest` answer of the workload, in tokens; 0: not known, all buckets. REQUIRES: 0 <= accuracy <= 1.
  OraclePredictor(double accuracy, std::uint64_t seed, std::int32_t longest = 0);
  std::string_view name() const override { return "oracle"; }
  // Without a hint: max_output_tokens. A wrong guess may exceed max_output_tokens: where that is what ends a simulated
  // request, it must not tell the order of the queue the truth.
  std::int32_t Predict(const LengthQuery& query) override;
  void Observe(const LengthQuery&, std::int32_t) override {}

 private:
  const double accuracy_;
  const std::uint64_t seed_;
  const std::int32_t longest_;
};

}  // namespace loramux
