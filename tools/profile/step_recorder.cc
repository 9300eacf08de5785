#include "tools/profile/step_recorder.h"

#include "engine/step_load.h"

namespace loramux {

void StepRecorder::Submit(const ExecutorBatch& batch) {
  const TimeNs now = clock_.Now();
  inner_->Submit(batch);
  submitted_ = now;  // the batch is examined while it is computed
  const std::int32_t after_prefill = StepsAfterPrefill(current_.load);
  current_ = {
      .load = LoadOf(batch), .begin = now, .gap = ended_ > 0 ? now - ended_ : -1, .plain = batch.copies.empty()};
  current_.load.after_prefill = after_prefill;
}

bool StepRecorder::Poll(ExecutorResult& result) {
  if (!inner_->Poll(result)) return false;
  ended_ = clock_.Now();
  current_.seconds_ns = ended_ - submitted_;
  current_.plain &= result.waited == 0;
  steps_->push_back(current_);
  return true;
}

}  // namespace loramux
