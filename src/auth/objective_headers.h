// Headers with the times that a client wants, in llm-d's words; their older names mean the same.
#pragma once

#include <array>
#include <functional>
#include <string_view>

#include "base/clock.h"
#include "base/result.h"

namespace loramux {

using ObjectiveHeaderNames = std::array<std::string_view, 2>;
// Until the first token, and between two tokens.
inline constexpr ObjectiveHeaderNames kTtftHeaders = {"x-llm-d-slo-ttft-ms", "x-slo-ttft-ms"};
inline constexpr ObjectiveHeaderNames kTpotHeaders = {"x-llm-d-slo-tpot-ms", "x-slo-tpot-ms"};

// Returns the time that the first of these headers names; 0: the request has none of them. `header` returns the value
// of a header by its name in lower case, empty if there is none. Error (kInvalidArgument): it is no number of
// milliseconds from 1 to 86,400,000.
Result<TimeNs> ObjectiveIn(const std::function<std::string_view(std::string_view)>& header,
                           const ObjectiveHeaderNames& names);

}  // namespace loramux
