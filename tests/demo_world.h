// The shipped demo model, its adapters and its held-out questions, for end-to-end tests.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

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

}  // namespace loramux::demo
