// The fields of a request that make a chat prompt: messages, tools and what the template is told besides. The same for
// /v1/chat/completions and /tokenize.
#pragma once

#include <string>

#include "server/json_reader.h"

namespace loramux {

struct ChatPrompt {
  std::string template_context;  // what the template sees: {"messages", "tools", "documents", chat_template_kwargs...}
  bool add_generation_prompt = true;
  bool continue_final_message = false;
  std::string final_message;  // content of the last message, if it is continued
};

// Errors are left in `fields`, which reads `body`. Takes the messages out of `body`: call it last.
void ReadChatPrompt(Json& body, FieldReader& fields, ChatPrompt& prompt);

}  // namespace loramux
