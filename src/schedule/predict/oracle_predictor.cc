#include "schedule/predict/oracle_predictor.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "base/prng.h"

namespace loramux {
namespace {

std::int32_t MiddleOf(std::int32_t bucket) {
  const auto& ends = OraclePredictor::kBucketEnds;
  if (bucket == OraclePredictor::kBuckets - 1) return ends.back() * 3 / 2;
  const auto at = static_cast<std::size_t>(bucket);
  return ((at == 0 ? 0 : ends[at - 1]) + ends[at]) / 2;
}

}  // namespace

std::int32_t OraclePredictor::BucketOf(std::int32_t tokens) {
  return static_cast<std::int32_t>(std::lower_bound(kBucketEnds.begin(), kBucketEnds.end(), tokens) -
                                   kBucketEnds.begin());
}

OraclePredictor::OraclePredictor(double accuracy, std::uint64_t seed, std::int32_t longest)
    : accuracy_(accuracy), seed_(seed), longest_(longest > 0 ? longest : std::numeric_limits<std::int32_t>::max()) {
  CHECK(accuracy >= 0 && accuracy <= 1);
}

std::int32_t OraclePredictor::Predict(const LengthQuery& query) {
  if (query.hint <= 0) return query.max_output_tokens;
  const std::uint64_t lengths =
      static_cast<std::uint64_t>(query.prompt_tokens) << 32 ^ static_cast<std::uint64_t>(query.hint);
  const std::uint64_t draw = SplitMix64(SplitMix64(seed_ ^ query.adapter.value) ^ lengths);
  if (UnitDouble(draw) < accuracy_) return query.hint;
  // There is at least one other bucket for a wrong prediction.
  const std::int32_t own = BucketOf(query.hint), buckets = std::max({2, own + 1, BucketOf(longest_) + 1});
  const auto other = static_cast<std::int32_t>(SplitMix64(draw) % static_cast<std::uint64_t>(buckets - 1));
  return std::min(MiddleOf(other + (other >= own)), std::max(longest_, query.hint + 1));
}

}  // namespace loramux
