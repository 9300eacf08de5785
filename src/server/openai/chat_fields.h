// The request fields from which a chat prompt is built: messages, tools and the other template variables. Used by
// /v1/chat/completions and /tokenize.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>

#include "http/json_reader.h"
#include "server/output/tool_set.h"

namespace loramux {

// OpenAI's newer name of the role "system".
inline constexpr std::string_view kDeveloper = "developer";

// A chat prompt before its template is rendered.
struct ChatPrompt {
  // variables of the template, as JSON: {"messages", "tools", "documents", chat_template_kwargs...}
  std::string template_context;
  // Ends the prompt with the header of the assistant's answer.
  bool add_generation_prompt = true;
  // The model continues the last message instead of answering it.
  bool continue_final_message = false;
  std::string final_message;                  // content of the last message, if continue_final_message
  std::string final_part = {};                // the last of its text parts, if it has several
  bool fold_system = false;                   // system messages that the template has no place for join others
  bool has_developer = false;                 // a message has the role kDeveloper
  std::shared_ptr<const ToolSet> tools = {};  // the functions of `tools`; none: empty or null
};

// Reads the text of a part of a message: a plain string, or {"type", "text"} with a type of `types`, or {"type":
// "refusal", "refusal"} if that is one of them. `where` names the part in errors. False after an error.
bool ReadTextPart(const Json& part, FieldReader& fields, const std::string& where,
                  std::initializer_list<std::string_view> types, std::string& text);

// Reads the chat fields from `body` into `prompt`. `fields` must read the same `body`, and receives the errors. More
// than `max_messages` messages are an error. Moves the messages out of `body`, so call this last.
void ReadChatPrompt(Json& body, FieldReader& fields, std::int64_t max_messages, ChatPrompt& prompt);

}  // namespace loramux
