// Turns chat messages into the text of a prompt.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "server/completion/completion_request.h"
#include "text/chat_template.h"

namespace loramux {

// Renders the template over the messages. Messages of the role "developer" become "system", unless the template
// mentions developers. `unix_seconds` is the time that the template sees. Thread-safe.
Result<std::string> RenderChatPrompt(const ChatTemplate& chat_template, const ChatPrompt& prompt,
                                     std::int64_t unix_seconds);

// For continue_final_message: cuts `rendered` after the last occurrence of the final message, so that the model
// continues it (as transformers does). Error: the template changed the message, so `rendered` does not contain it.
Result<std::string> CutAfterFinalMessage(std::string rendered, std::string_view final_message);

}  // namespace loramux
