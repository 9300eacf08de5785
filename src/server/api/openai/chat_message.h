// The JSON of what an answer of a chat consists of: content, reasoning and calls of tools.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "http/json_reader.h"
#include "server/output/output_parser.h"

namespace loramux {

// Returns the message of a whole answer. The text of a broken call is content.
Json MessageOf(std::span<const OutputEvent> events);
// Returns the deltas of a stream for new events, in order: a call first with its id and name, then pieces of its
// arguments. Of a broken call only the part that was not sent yet is content.
std::vector<Json> DeltasOf(std::span<const OutputEvent> events);

}  // namespace loramux
