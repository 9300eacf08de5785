#include "record/replayed_parts.h"

#include <utility>

#include "base/check.h"

namespace loramux {

void ReplayedTransfer::Expect(std::vector<RecordedCompletion> completions, std::vector<RecordedLayers> layers) {
  completions_ = std::move(completions);
  layers_ = std::move(layers);
  next_ = 0;
}

void ReplayedTransfer::Submit(TransferJob job) {
  const double bytes = static_cast<double>(job.to.pages.size() * job.page_bytes);
  if (job.to.tier == Tier::kDevice) bytes_to_device_ += bytes;
  if (job.from.tier == Tier::kDevice) bytes_to_host_ += bytes;
  moving_[job.id] = std::move(job.progress);
}

std::optional<TransferCompletion> ReplayedTransfer::Poll() {
  if (diverged_) return std::nullopt;
  if (next_ == completions_.size()) {
    PublishLayers();
    return std::nullopt;
  }
  const RecordedCompletion& recorded = completions_[next_];
  const auto job = moving_.find(recorded.transfer);
  const bool cancelled = recorded.outcome == TransferOutcome::kCancelled;
  diverged_ = job == moving_.end() || (cancelled && (job->second == nullptr || !job->second->cancelled()));
  if (diverged_) return std::nullopt;
  ++next_;
  const std::shared_ptr<LayerProgress> progress = std::move(job->second);
  moving_.erase(job);
  const bool good = recorded.outcome == TransferOutcome::kGood;
  if (progress != nullptr) good ? progress->Publish(progress->layers()) : progress->Fail();
  TransferCompletion completion{recorded.transfer, std::nullopt, cancelled};
  if (recorded.outcome == TransferOutcome::kFailed) completion.error = IoError("the transfer failed, as recorded");
  return completion;
}

void ReplayedTransfer::PublishLayers() {
  for (const RecordedLayers& recorded : layers_) {
    const auto job = moving_.find(recorded.transfer);
    if (job == moving_.end() || job->second == nullptr || recorded.layers > job->second->layers()) {
      diverged_ = true;
      return;
    }
    LayerProgress& progress = *job->second;
    recorded.layers < progress.arrived() ? progress.Fail() : progress.Publish(recorded.layers);
  }
  layers_.clear();
}

void ReplayedExecutor::Expect(TimeNs waited, std::span<const RecordedToken> tokens) {
  waited_ = waited;
  tokens_.clear();
  for (const RecordedToken& token : tokens) tokens_[token.id].push_back(token.token);
}

void ReplayedExecutor::Submit(StepBatch batch) {
  CHECK(!batch_.has_value());
  batch_ = std::move(batch);
}

bool ReplayedExecutor::Poll(StepResult& result) {
  if (!batch_.has_value() || !waited_) return false;
  result.tokens.assign(batch_->samples.rows.size(), {.id = kNoToken});
  result.waited = *waited_;
  for (const StepSequence& sequence : batch_->sequences) {
    if (sequence.sample < 0) continue;
    const auto recorded = tokens_.find(sequence.id);
    SampledToken* row = &result.tokens[static_cast<std::size_t>(sequence.sample)];
    row->id = 0;
    if (recorded == tokens_.end()) continue;
    const std::size_t rows = static_cast<std::size_t>(sequence.logit_rows);
    for (const TokenId token : std::span(recorded->second).first(std::min(rows, recorded->second.size()))) {
      row++->id = token;
    }
  }
  result.scores.assign(batch_->scores.size(), {});  // what they say changes no plan
  result.pooled.assign(batch_->pools.ranges.size(), 0);
  result.batch = std::move(*batch_);
  batch_.reset();
  waited_.reset();
  return true;
}

}  // namespace loramux
