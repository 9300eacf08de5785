// How the text of an answer is read: as content alone, or also as reasoning and calls of tools.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/completion/completion_request.h"
#include "server/output/detect.h"
#include "server/output/reasoning.h"
#include "text/grammar/free_prefix.h"
#include "text/tokenizer.h"

namespace loramux {

// The formats of the base model and of adapters that differ from it.
struct OutputFormatTable {
  // ..._by_template: the operator leaves it to what the chat template writes.
  struct Choice {
    OutputFormats formats;
    bool tools_by_template = true, reasoning_by_template = true;
  };
  Choice base;
  std::map<std::string, Choice, std::less<>> adapters;

  // `own`: what the adapter's own chat template writes; null: it has the base model's.
  OutputFormats Of(std::string_view adapter, const OutputFormats* own = nullptr) const;
};

// Reads the operator's choices: each is "auto", "none" or a name, for all models, or ADAPTER=NAME for one adapter; the
// later choice wins. Without one it is "auto": what the chat template writes. Error: an unknown name.
Result<OutputFormatTable> ReadOutputFormats(const ChatTemplate& chat_template,
                                            std::span<const std::string> tool_call_parsers,
                                            std::span<const std::string> reasoning_parsers);

// The reading of one request's answers.
struct AnswerPlan {
  const CallGrammar* calls = nullptr;  // null: no calls are looked for
  std::span<const std::string_view> call_tokens;
  bool short_ids = false;  // ids of calls are short
  bool named = false;      // the request named the function: calling it is no news, so the finish reason is "stop"
  std::shared_ptr<const ToolSet> offered;
  const ReasoningFormat* reasoning = nullptr;  // null: no reasoning is looked for
  ReasoningParser::Start start = ReasoningParser::Start::kPerhaps;
  std::optional<FreePrefix> prefix;  // the reasoning, if the answer must match a grammar, which it need not

  // False: all text is content.
  bool parses() const { return calls != nullptr || reasoning != nullptr; }
  // Returns a parser for one answer. REQUIRES: parses().
  std::unique_ptr<OutputParser> MakeParser() const;
  // Returns the tokens whose text the parser must see even if they are special.
  std::vector<std::string_view> Tokens() const;
  // Returns a new id for a call.
  std::string NewCallId() const;
};

// Plans the reading of a chat's answers, but for their reasoning. Where the model must call a tool, sets the request's
// `output`, which makes it do so.
AnswerPlan PlanCalls(const OutputFormats& formats, CompletionRequest& request);
// Adds the reasoning to the plan. `prompt` is the rendered prompt. An answer that must match a grammar has none if the
// tags of the reasoning are no tokens.
void PlanReasoning(const OutputFormats& formats, const CompletionRequest& request, const Tokenizer& tokenizer,
                   std::string_view prompt, AnswerPlan& plan);

}  // namespace loramux
