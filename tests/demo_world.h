// The shipped demo model, its adapters and its held-out questions, for end-to-end tests.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/prng.h"
#include "runtime/runtime.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace loramux::demo {

struct Question {
  std::string adapter;  // "base" for the base model
  std::string prompt, answer;
};

struct Answer {
  std::vector<TokenId> tokens;
  std::vector<SampledToken> sampled;  // the same, with log-probabilities
  std::string text;
  FinishReason finish = FinishReason::kNone;
  std::string error;
};

std::string ModelDirectory();
// Names of the adapters, in order.
std::vector<std::string> AdapterNames();
// `per_task` held-out questions of each adapter and of the base model, interleaved.
std::vector<Question> Questions(std::size_t per_task);

// A runtime with every demo adapter registered, plus the tokenizer and the chat template that make requests of
// questions.
class World {
 public:
  explicit World(RuntimeOptions options);
  ~World();
  Runtime& runtime() { return *runtime_; }
  GenerationRequest Request(const Question& question) const;
  std::string Decode(const std::vector<TokenId>& tokens) const;
  // Submits all requests at once from several threads, and waits for the last answer. `one_by_one` waits for each
  // answer before the next request. `adjust`, if given, changes request i before the first is submitted.
  std::vector<Answer> Ask(const std::vector<Question>& questions, bool one_by_one,
                          const std::function<void(std::size_t, GenerationRequest&)>& adjust = {});

 private:
  std::unique_ptr<Runtime> runtime_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<ChatTemplate> template_;
};

// Memory for everything, and no reuse of keys and values.
RuntimeOptions Roomy();
// Memory for the largest adapter of `roomy` and a few sequences only.
RuntimeOptions Tight(World& roomy);

// Stops the runtime, and expects that all memory is accounted for.
void ExpectEmptyAndExact(Runtime& runtime);

// Asks sessions of several turns. The prompt of a turn is the whole session so far, with the answers of `truth` if it
// is given. Returns the answers by turn.
std::vector<std::vector<Answer>> AskSessions(World& world, const std::vector<Question>& questions, std::size_t turns,
                                             const std::vector<std::vector<Answer>>* truth = nullptr);

// Answers under FailingTransfer: each is the expected one or the injected error. Returns how many are errors.
std::int64_t ExpectRightOrInjected(const std::vector<Question>& questions,
                                   const std::vector<std::vector<Answer>>& answers,
                                   const std::vector<std::vector<Answer>>& expected);

// One in eight jobs fails at once.
class FailingTransfer final : public PageTransfer {
 public:
  FailingTransfer(std::unique_ptr<PageTransfer> real, std::uint64_t seed) : real_(std::move(real)), prng_(seed) {}
  void Submit(TransferJob job) override {
    if (prng_.NextBelow(8) == 0) return failed_.push_back({job.id, IoError("injected")});
    real_->Submit(std::move(job));
  }
  std::optional<TransferCompletion> Poll() override {
    if (failed_.empty()) return real_->Poll();
    TransferCompletion completion = std::move(failed_.back());
    failed_.pop_back();
    return completion;
  }

 private:
  std::unique_ptr<PageTransfer> real_;
  Prng prng_;
  std::vector<TransferCompletion> failed_;
};

}  // namespace loramux::demo
