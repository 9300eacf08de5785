#include "server/generation/generation_inbox.h"

namespace loramux {
namespace {

// Without the log-probabilities of the prompt and its embedding: they come once, and their number has a limit of its
// own (kMaxPromptScores, kMaxAnswerBytes). The bound is about clients that do not keep up.
std::size_t BytesOf(const GenerationEvent& event) {
  const std::size_t top = event.token ? event.token->top_logprobs.size() * sizeof(TokenLogprob) : 0;
  return sizeof(GenerationEvent) + top;
}

}  // namespace

GenerationInbox::GenerationInbox(std::size_t max_bytes, std::function<void()> wake)
    : max_bytes_(max_bytes), wake_(std::move(wake)) {}

void GenerationInbox::Push(GenerationEvent event) {
  const std::lock_guard lock(mutex_);
  if (!wake_ || overflowed_) return;
  const bool first = events_.empty();
  bytes_ += BytesOf(event);
  if (bytes_ > max_bytes_) {
    overflowed_ = true;
    return wake_();
  }
  events_.push_back(std::move(event));
  if (first) wake_();
}

std::vector<GenerationEvent> GenerationInbox::Take() {
  const std::lock_guard lock(mutex_);
  bytes_ = 0;
  return std::exchange(events_, {});
}

bool GenerationInbox::overflowed() const {
  const std::lock_guard lock(mutex_);
  return overflowed_;
}

void GenerationInbox::Close() {
  const std::lock_guard lock(mutex_);
  wake_ = nullptr;
  events_.clear();
}

}  // namespace loramux
