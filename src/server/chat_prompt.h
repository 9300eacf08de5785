// From chat messages to the prompt's text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "server/chat_fields.h"
#include "text/chat_template.h"

namespace loramux {

// Renders the template over the messages. `chat_template` may be null: the model has none, and the error
// says what to do. Thread-safe.
Result<std::string> RenderChatPrompt(const ChatTemplate* chat_template, const ChatPrompt& prompt,
                                     std::int64_t unix_seconds);

// For continue_final_message: cuts `rendered` behind the last occurrence of the final message, so that the model goes
// on with it (what transformers does). Error if the template changed the message beyond recognition.
Result<std::string> CutAfterFinalMessage(std::string rendered, std::string_view final_message);

}  // namespace loramux
