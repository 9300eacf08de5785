// Finds out how a model writes calls and reasoning, from what its chat template writes for them.
#pragma once

#include <string_view>

#include "base/result.h"
#include "server/output/formats.h"
#include "text/chat_template.h"

namespace loramux {

// How a model writes calls and reasoning; null: not at all, as far as the server knows.
struct OutputFormats {
  const ToolFormat* tools = nullptr;
  const ReasoningFormat* reasoning = nullptr;
};

// Returns the formats that the operator chose: "auto" (what the template writes), "none", or a name. `chat_template`
// may be null: the model has none. Error: an unknown name; it lists the valid ones.
Result<OutputFormats> ChooseFormats(const ChatTemplate& chat_template, std::string_view tool_call_parser,
                                    std::string_view reasoning_parser);

// Where in its reasoning the model begins to write.
enum class ThinkState {
  kNone,    // the prompt says nothing about it
  kOpen,    // the prompt ends within the reasoning
  kClosed,  // the prompt ends behind the reasoning
};
// Returns it from a prompt that ends with the header of an answer: what ends with the first tag is open, with the
// second closed.
ThinkState ThinkStateOfPrompt(std::string_view prompt, const ReasoningTags& tags = {});
// Returns it from a message that the model continues.
ThinkState ThinkStateOfMessage(std::string_view message, const ReasoningTags& tags = {});

}  // namespace loramux
