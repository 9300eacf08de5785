#include "server/completion/chat_prompt.h"

#include <cstring>

namespace loramux {
namespace {

constexpr std::string_view kWhiteSpace = " \t\n\r\f\v";

std::string_view StripLeft(std::string_view text) {
  const auto start = text.find_first_not_of(kWhiteSpace);
  return start == std::string_view::npos ? std::string_view() : text.substr(start);
}

std::string_view StripRight(std::string_view text) {
  return text.substr(0, text.find_last_not_of(kWhiteSpace) + 1);  // the sum is 0 for npos
}

// Returns where `part` begins last in `text`, or npos. Takes linear time, unlike rfind: memmem of the C library does,
// which finds the first place, so both are turned round.
std::size_t FindLast(std::string_view text, std::string_view part) {
  const std::string reversed(text.rbegin(), text.rend()), wanted(part.rbegin(), part.rend());
  const void* found = memmem(reversed.data(), reversed.size(), wanted.data(), wanted.size());
  if (found == nullptr) return std::string_view::npos;
  const auto offset = static_cast<std::size_t>(static_cast<const char*>(found) - reversed.data());
  return text.size() - offset - part.size();
}

// The prompt's context with developers as "system".
Result<std::string> WithoutDevelopers(const ChatPrompt& prompt) {
  constexpr int kDeepest = 128;  // the body's limit, and what stands around its parts here
  ASSIGN_OR_RETURN(Json context, ParseJson(prompt.template_context, {.max_depth = kDeepest}));
  for (Json& message : context["messages"]) {
    if (message["role"] == kDeveloper) message["role"] = "system";
  }
  return DumpJson(context);
}

}  // namespace

Result<std::string> CutAfterFinalMessage(std::string rendered, std::string_view final_message) {
  const std::string_view left_stripped = StripLeft(final_message);
  const std::string_view stripped = StripRight(left_stripped);
  const auto at = FindLast(rendered, stripped);
  if (at == std::string::npos) {
    return InvalidArgument(
        "`continue_final_message`: expected the chat template to print the last message as it is, "
        "found it changed",
        "continue_final_message");
  }
  // Keep the trailing white space, which is part of the message, unless the template dropped it.
  const bool kept = rendered.compare(at, left_stripped.size(), left_stripped) == 0;
  rendered.resize(at + (kept ? left_stripped : stripped).size());
  return rendered;
}

Result<std::string> RenderChatPrompt(const ChatTemplate& chat_template, const ChatPrompt& prompt,
                                     std::int64_t unix_seconds) {
  const ChatTemplate::Options options{.add_generation_prompt = prompt.add_generation_prompt,
                                      .unix_seconds = unix_seconds,
                                      .utc_offset = LocalOffset(unix_seconds),
                                      .content = chat_template.content_format(),
                                      .fold_system = prompt.fold_system};
  std::string renamed;
  const bool renames = prompt.has_developer && !chat_template.Mentions(kDeveloper);
  if (renames) {
    ASSIGN_OR_RETURN(renamed, WithoutDevelopers(prompt));
  }
  auto rendered = chat_template.Render(renames ? renamed : prompt.template_context, options);
  if (!rendered.ok()) return Error{rendered.error().code, rendered.error().message, "messages"};
  if (!prompt.continue_final_message) return rendered;
  // A template that joins the parts of a message in its own way prints the last one as it is.
  const bool whole = prompt.final_part.empty() || rendered->find(prompt.final_message) != std::string::npos;
  return CutAfterFinalMessage(std::move(*rendered), whole ? prompt.final_message : prompt.final_part);
}

}  // namespace loramux
