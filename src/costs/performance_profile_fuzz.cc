// Fuzzes ParsePerformanceProfile and the predictions of the models that it returns.
#include <cmath>
#include <string_view>

#include "base/check.h"
#include "base/fuzz_limits.h"
#include "costs/performance_profile.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const loramux::FuzzLimits cost;
  using namespace loramux;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto profile = ParsePerformanceProfile(text, "FILE");
  if (!profile.ok()) {
    CHECK_LT(profile.error().message.size(), 8192u);
    return 0;
  }
  const StepLoad decode{.decode_sequences = 7, .decode_context = 900, .after_prefill = 3}, prefill{.prefill_tokens = 3};
  const StepLoad mixed{.prefill_tokens = 500,
                       .decode_sequences = 100,
                       .prefill_attention = 100'000,
                       .decode_context = 50'000,
                       .adapter_tokens = 300,
                       .rank_sum = 900,
                       .max_rank = 64,
                       .distinct_adapters = 20,
                       .token_ranks = 9'000,
                       .prefill_sequences = 4};
  for (const LoraCostShape shape : {LoraCostShape::kBgmv, LoraCostShape::kMbgmv}) {
    for (const StepLoad& load : {decode, prefill, mixed}) {
      const double seconds = profile->ModelOf(shape).SecondsOf(load);
      CHECK(std::isfinite(seconds) && seconds >= 0);
    }
    for (const FactorTable table : kFactorTables) CHECK_LE((profile->ModelOf(shape).*table).size(), kMaxFactors);
  }
  // A profile that was read can be written and read again.
  CHECK(ParsePerformanceProfile(PerformanceProfileAsJson(*profile), "FILE").ok());
  return 0;
}
