// What an answer consists of, whether or not it was read as more than content.
#pragma once

#include <vector>

#include "server/completion/choice_output.h"
#include "server/output/output_parser.h"

namespace loramux {

// Returns the new events of an answer; its text as one event of content if it was not read as more.
inline std::vector<OutputEvent> EventsOf(const ChoiceOutput& output) {
  if (output.events) return *output.events;
  return {{.kind = OutputEvent::Kind::kContent, .text = output.text, .tokens = output.logprobs.size()}};
}

}  // namespace loramux
