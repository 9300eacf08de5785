#include "schedule/plan/step_draft.h"

namespace loramux {

void StepDraft::Reset(TimeNs now, bool pauses) {
  may_pause = pauses;
  room.Reset(now, plan.moves, MoveReason::kRoom, MoveReason::kWaits);
  budget = view.options.max_batch_tokens;
  memory_short = kept_waits = loads_wait = loads_pause = awaits_load = false;
  blocked = nullptr;
}

bool StepDraft::IsAdmitted(const Request* request) const {
  return std::any_of(plan.admissions.begin(), plan.admissions.end(),
                     [request](const PlannedAdmission& admission) { return admission.request == request; });
}

void StepDraft::AddChunk(Request* request, std::int64_t uncomputed, std::int64_t tokens, std::int64_t new_pages) {
  PlannedChunk& chunk = plan.chunks.emplace_back();
  chunk.request = request;
  chunk.num_tokens = static_cast<std::int32_t>(tokens);
  chunk.new_pages = static_cast<std::int32_t>(new_pages);
  chunk.samples = tokens == uncomputed;
  chunk.by_base = uncomputed > 1 && PositionOf(*request, uncomputed) < request->base_tokens;
  plan.num_tokens += tokens;
  if (tokens > 1 || tokens != request->uncomputed()) plan.prefill_tokens += tokens;
  budget -= tokens;
}

void StepDraft::AddAdmission(const PlannedAdmission& admission, std::int64_t new_pages) {
  Request* request = admission.request;
  plan.admissions.push_back(admission);
  batch_time.Add(view, *request);
  const std::int64_t uncomputed =
      request->uncomputed() - prefixes.Depth(admission.tail) * view.options.page_tokens - admission.in_page.tokens;
  AddChunk(request, uncomputed, ChunkTokens(*request, uncomputed), new_pages);
  plan.chunks.back().admits = true;
}

void StepDraft::AddFetch(Request* request, NodeId tail, std::int64_t pages, bool ahead) {
  room.history().Fetch(tail);
  plan.moves.push_back({.item = tail,
                        .from = Tier::kHost,
                        .to = Tier::kDevice,
                        .why = ahead ? MoveReason::kAhead : MoveReason::kWaits,
                        .pages = pages,
                        .requester = request->id});
  room.host().Fetch(pages);
  room.Take(pages);
}

}  // namespace loramux
