#include "simulate/simulated_clients.h"

#include "base/check.h"
#include "base/prng.h"
#include "simulate/simulated_executor.h"

namespace loramux {
namespace {

std::uint64_t SamplingSeed(std::uint64_t seed, std::size_t request) { return SplitMix64(seed ^ request); }

}  // namespace

SimulatedClients::SimulatedClients(const Workload& workload, std::uint64_t seed) : workload_(workload), seed_(seed) {
  result_.requests.resize(workload.requests.size());
  for (std::size_t i = 0; i < workload.requests.size(); ++i) {
    if (!workload.requests[i].follows) first_turns_.push_back(i);
  }
}

TokenId SimulatedClients::AnsweredToken(std::uint64_t seed, std::size_t request, std::size_t n) {
  return SimulatedExecutor::TokenAt(SamplingSeed(seed, request), n);
}

GenerationRequest SimulatedClients::Ask(std::size_t index, TimeNs at) {
  const WorkloadRequest& asked = workload_.requests[index];
  GenerationRequest request;
  if (asked.follows) {
    request.prompt = std::move(histories_.extract(index).mapped());
  } else {
    CHECK_EQ(next_first_turn(), static_cast<std::int64_t>(index));
    ++asked_first_;
    request.prompt.reserve(static_cast<std::size_t>(asked.input_tokens));
  }
  workload_.AppendPrompt(index, request.prompt);
  RequestRecord& record = result_.requests[index];
  record.arrival = at;
  record.adapter = asked.adapter;
  record.prompt_tokens = static_cast<std::int32_t>(request.prompt.size());
  if (asked.next >= 0) histories_[static_cast<std::size_t>(asked.next)] = request.prompt;
  request.max_tokens = asked.output_tokens;
  request.ignore_eos = true;
  request.length_hint = asked.output_tokens;
  request.sampling.seed = SamplingSeed(seed_, index);
  if (asked.tenant >= 0) request.tenant = "tenant-" + std::to_string(asked.tenant);
  if (asked.prefix_domain >= 0) request.prefix_domain = "domain-" + std::to_string(asked.prefix_domain);
  request.priority = asked.priority;
  if (asked.deadline > 0) request.deadline = at + asked.deadline;
  return request;
}

std::int64_t SimulatedClients::Hear(std::size_t index, const GenerationEvent& event) {
  const std::int32_t next = workload_.requests[index].next;
  result_.Hear(index, event);
  if (event.token.has_value() && next >= 0) histories_.at(static_cast<std::size_t>(next)).push_back(event.token->id);
  if (event.finish == FinishReason::kNone) return -1;
  if (event.finish == FinishReason::kCancelled) {
    Drop(index);
    return -1;
  }
  if (event.finish == FinishReason::kError) {
    Refuse(index, event.error->message);
    return -1;
  }
  CHECK(event.finish == FinishReason::kLength);
  CHECK_EQ(result_.requests[index].output_tokens, workload_.requests[index].output_tokens);
  return next;
}

void SimulatedClients::Refuse(std::size_t index, const std::string& message) {
  result_.requests[index].refused = true;
  result_.refusals.emplace_back(index, message);
  DropSession(index);
}

void SimulatedClients::Drop(std::size_t index) {
  result_.requests[index].cancelled = true;
  DropSession(index);
}

void SimulatedClients::DropSession(std::size_t index) {
  for (std::int32_t next = workload_.requests[index].next; next >= 0;
       next = workload_.requests[static_cast<std::size_t>(next)].next) {
    histories_.erase(static_cast<std::size_t>(next));
    result_.requests[static_cast<std::size_t>(next)].refused = true;
  }
}

}  // namespace loramux
