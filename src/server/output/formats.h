// The ways in which families of models write calls of tools and reasoning.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/output/call_parser.h"
#include "server/output/output_parser.h"
#include "server/output/reasoning.h"
#include "server/output/tool_set.h"

namespace loramux {

// The text around a call that is made of a name and arguments in JSON.
struct CallText {
  std::string_view before_name, before_arguments, after;
  std::string_view between;  // two calls
  bool brackets = false;     // around all calls
};

// One way to write calls.
struct ToolFormat {
  std::string_view name;  // value of --tool-call-parser
  // Tokens that the parser must see, although clients do not see special tokens.
  std::span<const std::string_view> tokens;
  const CallGrammar* grammar;
  bool short_ids = false;          // the chat templates want ids of nine letters and digits
  const CallText* text = nullptr;  // null: calls are more than text with JSON in it
};

// One way to write reasoning: between two tags, or in a channel of its own.
struct ReasoningFormat {
  std::string_view name;  // value of --reasoning-parser
  ReasoningTags tags;
  // Tokens that the parser must see. The first is that with which the first tag begins.
  std::span<const std::string_view> tokens;
  bool always_begins = false;  // the answer begins with reasoning, even where neither prompt nor model opens it
  bool channels = false;       // ChannelParser reads the answer, calls included
};

// Return the format of that name; null: there is none.
const ToolFormat* FindToolFormat(std::string_view name);
const ReasoningFormat* FindReasoningFormat(std::string_view name);
// Return all names, in the order of the documentation.
std::vector<std::string> ToolFormatNames();
std::vector<std::string> ReasoningFormatNames();
// All of them. Where a template speaks of several, the first is meant.
std::span<const ReasoningFormat> AllReasoningFormats();

// The grammars of the families; each in a file of its own.
extern const CallGrammar kGemmaCalls, kGraniteCalls, kHermesCalls, kLlamaCalls, kMistralCalls, kPhiCalls,
    kQwenCoderCalls;

}  // namespace loramux
