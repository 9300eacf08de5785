#include "profile/transfer_recorder.h"

#include <algorithm>

namespace loramux {

void TransferRecorder::Submit(TransferJob job) {
  open_[job.id] = {.transfer = {.kind = job.kind(), .kv = job.adapter == nullptr, .bytes = PayloadBytes(job)},
                   .submitted = clock_.Now()};
  inner_->Submit(std::move(job));
}

std::optional<TransferCompletion> TransferRecorder::Poll() {
  std::optional<TransferCompletion> completion = inner_->Poll();
  if (!completion) return completion;
  const TimeNs now = clock_.Now();
  const auto ended = open_.extract(completion->id);
  if (!ended.empty() && !completion->error && !completion->cancelled) {
    ObservedTransfer& transfer = ended.mapped().transfer;
    transfer.seconds_ns = now - std::max(ended_, ended.mapped().submitted);
    transfers_->push_back(transfer);
  }
  ended_ = now;
  return completion;
}

}  // namespace loramux
