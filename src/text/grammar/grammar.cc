#include "text/grammar/grammar.h"

#include <atomic>
#include <utility>
#include <vector>

#include "text/grammar/grammar_handles.h"

namespace loramux {
namespace grammar_internal {

// The state of one sequence. The first of two threads computes a mask: one of MaskThreads, or the one that needs it.
class Matcher final : public TokenConstraint, public std::enable_shared_from_this<Matcher> {
 public:
  Matcher(MatcherHandle handle, std::size_t vocab_size, std::weak_ptr<MaskThreads> threads)
      : handle_(std::move(handle)), threads_(std::move(threads)), mask_((vocab_size + 31) / 32) {}

  // Begins to compute the first mask. REQUIRES: called once, before anything else.
  void Begin() { Post(); }

  void Advance(TokenId token) override {
    Allowed();
    if (failed_) return;
    next_ = token;
    Post();
  }

  std::span<const std::uint32_t> Allowed() override {
    if (Claim()) {
      Compute();
    } else {
      state_.wait(State::kRunning, std::memory_order_acquire);
    }
    return failed_ ? std::span<const std::uint32_t>() : std::span<const std::uint32_t>(mask_);
  }

  const Error* failure() const override { return failed_ ? &error_ : nullptr; }

 private:
  enum class State { kReady, kPosted, kRunning };

  void Post() {
    state_.store(State::kPosted, std::memory_order_release);
    const auto threads = threads_.lock();
    if (threads == nullptr) return;  // then the thread that needs the mask computes it
    threads->Post([self = shared_from_this()] {
      if (self->Claim()) self->Compute();
    });
  }

  bool Claim() {
    State expected = State::kPosted;
    return state_.compare_exchange_strong(expected, State::kRunning, std::memory_order_acq_rel);
  }

  void Compute() {
    text_internal::Buffer message;
    auto status = LORAMUX_TEXT_OK;
    if (next_ >= 0) status = loramux_matcher_accept(handle_.get(), next_, message.out());
    if (status == LORAMUX_TEXT_OK) {
      status = loramux_matcher_mask(handle_.get(), mask_.data(), mask_.size(), message.out());
    }
    if (status != LORAMUX_TEXT_OK) {
      failed_ = true;
      error_ = InvalidArgument("the answer cannot go on in its grammar: " + message.ToString());
    }
    state_.store(State::kReady, std::memory_order_release);
    state_.notify_all();
  }

  const MatcherHandle handle_;
  const std::weak_ptr<MaskThreads> threads_;
  std::atomic<State> state_{State::kReady};
  TokenId next_ = -1;  // to be accepted before the mask is computed; -1: none
  std::vector<std::uint32_t> mask_;
  bool failed_ = false;
  Error error_;
};

class Compiled {
 public:
  Compiled(GrammarHandle handle, std::size_t vocab_size, std::weak_ptr<MaskThreads> threads)
      : handle_(std::move(handle)), vocab_size_(vocab_size), threads_(std::move(threads)) {}

  Result<std::shared_ptr<TokenConstraint>> Begin() const {
    loramux_matcher* raw = nullptr;
    text_internal::Buffer error;
    const auto status = loramux_matcher_new(handle_.get(), &raw, error.out());
    if (status != LORAMUX_TEXT_OK) return text_internal::ToError(status, error, "");
    auto matcher = std::make_shared<Matcher>(MatcherHandle(raw), vocab_size_, threads_);
    matcher->Begin();
    return std::shared_ptr<TokenConstraint>(std::move(matcher));
  }

  std::size_t bytes() const { return loramux_grammar_bytes(handle_.get()); }

 private:
  const GrammarHandle handle_;
  const std::size_t vocab_size_;
  const std::weak_ptr<MaskThreads> threads_;
};

}  // namespace grammar_internal

Grammar::Grammar(std::unique_ptr<grammar_internal::Compiled> compiled) : compiled_(std::move(compiled)) {}
Grammar::~Grammar() = default;

Result<std::shared_ptr<const Grammar>> Grammar::Compile(const grammar_internal::Environment& environment,
                                                        GrammarKind kind, const std::string& text,
                                                        std::chrono::milliseconds most,
                                                        const std::shared_ptr<MaskThreads>& threads) {
  loramux_grammar* raw = nullptr;
  text_internal::Buffer error;
  const auto status =
      loramux_grammar_compile(environment.handle(), static_cast<loramux_grammar_kind>(kind), text_internal::Bytes(text),
                              text.size(), static_cast<std::uint64_t>(most.count()), &raw, error.out());
  if (status != LORAMUX_TEXT_OK) return text_internal::ToError(status, error, "");
  auto compiled = std::make_unique<grammar_internal::Compiled>(grammar_internal::GrammarHandle(raw),
                                                               environment.vocab_size(), threads);
  return std::shared_ptr<const Grammar>(new Grammar(std::move(compiled)));
}

Result<std::shared_ptr<TokenConstraint>> Grammar::Begin() const { return compiled_->Begin(); }

std::size_t Grammar::bytes() const { return compiled_->bytes(); }

}  // namespace loramux
