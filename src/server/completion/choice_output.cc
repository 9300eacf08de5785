#include "server/completion/choice_output.h"

#include <algorithm>
#include <limits>

namespace loramux {
namespace {

constexpr float kLeastLogprob = -9999.0f;  // JSON has no -infinity; vLLM writes this value

}  // namespace

double LogprobNumber(float logprob) { return std::clamp(logprob, kLeastLogprob, std::numeric_limits<float>::max()); }

std::string LogprobEntry::Name() const { return by_id ? "token_id:" + std::to_string(id) : token; }

std::int64_t LogprobEntry::Characters() const {
  const std::string& counted = bytes.empty() ? token : bytes;
  return std::count_if(counted.begin(), counted.end(), [](unsigned char c) { return (c & 0xC0) != 0x80; });
}

}  // namespace loramux
