#include "profile/engine_load.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/prng.h"
#include "workload/distributions.h"

namespace loramux {
namespace {

std::int32_t DrawLength(Prng& prng, double mean, double cv, std::int32_t longest) {
  return std::clamp(static_cast<std::int32_t>(std::lround(DrawLogNormal(prng, mean, cv))), 2, longest);
}

}  // namespace

std::vector<EngineRequest> DrawRequests(const EngineLoad& load) {
  CHECK(load.rate > 0 && load.seconds > 0 && load.vocab > 0);
  Prng prng(load.seed);
  const WeightedChoice popularity(PowerLaw(std::max<std::size_t>(1, load.adapters), load.zipf));
  std::vector<EngineRequest> requests;
  for (double arrivals = DrawExponential(prng, 1); arrivals < load.rate * load.seconds;
       arrivals += DrawExponential(prng, 1)) {
    EngineRequest& request = requests.emplace_back();
    request.due = static_cast<TimeNs>(arrivals / load.rate * kNsPerSecond);
    request.adapter = popularity.At(prng.NextDouble());
    request.prompt.resize(static_cast<std::size_t>(DrawLength(prng, load.input_mean, load.cv, load.max_input)));
    for (TokenId& token : request.prompt)
      token = static_cast<TokenId>(prng.NextBelow(static_cast<std::uint64_t>(load.vocab)));
    request.output_tokens = DrawLength(prng, load.output_mean, load.cv, load.max_output);
  }
  return requests;
}

}  // namespace loramux
