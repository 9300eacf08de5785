#include "profile/transfer_recorder.h"

#include <algorithm>

namespace loramux {

void TransferRecorder::Submit(TransferJob job) {
  open_[job.id] = {.transfer = {.kind = job.kind(), .kv = job.adapter == nullptr, .bytes = PayloadBytes(job)},
                   .submitted = clock_.Now(),
                   .queue = job.queue()};
  inner_->Submit(std::move(job));
}

std::optional<TransferCompletion> TransferRecorder::Poll() {
  std::optional<TransferCompletion> completion = inner_->Poll();
  if (!completion) return completion;
  const TimeNs now = clock_.Now();
  const auto ended = open_.extract(completion->id);
  if (ended.empty()) return completion;
  Open& open = ended.mapped();
  if (!completion->error && !completion->cancelled) {
    open.transfer.seconds_ns = now - std::max(ended_[open.queue], open.submitted);
    transfers_->push_back(open.transfer);
  }
  ended_[open.queue] = now;
  return completion;
}

}  // namespace loramux
