#include "record/run_result.h"

#include <algorithm>

namespace loramux {

void RunResult::Hear(std::size_t request, const GenerationEvent& event) {
  if (!event.token.has_value()) return;
  RequestRecord& record = requests[request];
  if (record.first_token < 0) {
    record.first_token = event.now;
    record.first_scheduled = event.first_scheduled;
    record.cached_tokens = event.cached_prompt_tokens;
  } else {
    between_tokens.Add(event.now - record.last_token);
  }
  record.last_token = event.now;
  ++record.output_tokens;
}

void RunResult::FindEnd() {
  for (const RequestRecord& record : requests) end = std::max(end, record.last_token);
}

}  // namespace loramux
