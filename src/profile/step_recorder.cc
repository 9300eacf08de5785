#include "profile/step_recorder.h"

#include "engine/step_load.h"

namespace loramux {

void StepRecorder::Submit(StepBatch batch) {
  submitted_ = clock_.Now();
  current_.begin = submitted_;
  current_.gap = ended_ > 0 ? submitted_ - ended_ : -1;
  inner_->Submit(std::move(batch));
}

bool StepRecorder::Poll(StepResult& result) {
  if (!inner_->Poll(result)) return false;
  ended_ = clock_.Now();
  current_.seconds_ns = ended_ - submitted_;
  const std::int32_t after_prefill = StepsAfterPrefill(current_.load);
  current_.load = LoadOf(result.batch);
  current_.load.after_prefill = after_prefill;
  current_.plain = result.waited == 0 && result.batch.copies.empty();
  steps_->push_back(current_);
  return true;
}

}  // namespace loramux
