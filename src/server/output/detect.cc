#include "server/output/detect.h"

#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace loramux {
namespace {

constexpr std::string_view kQuestion = "loramux-question", kThought = "loramux-thought", kAnswer = "loramux-answer",
                           kTool = "loramux_tool", kValue = "loramux-value";

const Json kUserMessage = {{"role", "user"}, {"content", kQuestion}};

const Json kTools = [] {
  const Json schema = {{"type", "object"}, {"properties", {{"key", {{"type", "string"}, {"description", "d"}}}}}};
  return Json::array(
      {{{"type", "function"}, {"function", {{"name", kTool}, {"description", "d"}, {"parameters", schema}}}}});
}();

std::string Rendered(const ChatTemplate& chat_template, const Json& context, bool add_generation_prompt) {
  const ChatTemplate::Options options{.add_generation_prompt = add_generation_prompt,
                                      .content = chat_template.content_format()};
  auto text = chat_template.Render(DumpJson(context), options);
  return text.ok() ? std::move(*text) : std::string();
}

// What the template writes for an answer that calls a tool; empty if it refuses.
std::string RenderedCall(const ChatTemplate& chat_template, const Json& content) {
  const Json call = {
      {"id", "abcdefghi"}, {"type", "function"}, {"function", {{"name", kTool}, {"arguments", {{"key", kValue}}}}}};
  const Json answer = {{"role", "assistant"}, {"content", content}, {"tool_calls", Json::array({call})}};
  const Json context = {{"messages", Json::array({kUserMessage, answer})}, {"tools", kTools}};
  const std::string text = Rendered(chat_template, context, false);
  const auto question = text.rfind(kQuestion);
  return question == std::string::npos ? std::string() : text.substr(question);
}

const ToolFormat* FormatOfCall(std::string_view text) {
  const auto value = text.find(kValue);
  if (value == std::string_view::npos) return nullptr;
  const std::string_view before = text.substr(0, value);
  const auto has = [before](std::string_view part) { return before.find(part) != std::string_view::npos; };
  if (has("<function=") && has("<parameter=")) return FindToolFormat("qwen3_coder");
  if (has("<|tool_call>call:")) return FindToolFormat("gemma4");
  if (has("[TOOL_CALLS]")) return FindToolFormat("mistral");
  if (!has("\"name\"")) return nullptr;
  if (has("<tool_call>") && has("\"arguments\"")) return FindToolFormat("hermes");
  return has("\"parameters\"") ? FindToolFormat("llama3_json") : nullptr;
}

// For a template that writes no calls: the format that it asks the model for when it offers tools.
const ToolFormat* FormatOfOffer(const ChatTemplate& chat_template) {
  const Json context = {{"messages", Json::array({kUserMessage})}, {"tools", kTools}};
  const std::string text = Rendered(chat_template, context, true);
  if (text.find(kTool) == std::string::npos) return nullptr;
  if (text.find("functools[") != std::string::npos) return FindToolFormat("phi4_mini_json");
  if (text.find("<|tool|>") != std::string::npos) return FindToolFormat("phi4_mini_json");
  return text.find("<|tool_call|>") == std::string::npos ? nullptr : FindToolFormat("granite");
}

const ToolFormat* DetectTools(const ChatTemplate& chat_template) {
  for (const Json& content : {Json(""), Json(nullptr)}) {
    if (const ToolFormat* format = FormatOfCall(RenderedCall(chat_template, content))) return format;
  }
  return FormatOfOffer(chat_template);
}

// A template for reasoning drops it from earlier answers, or speaks of its tags in the prompt of an answer to come: it
// opens or closes reasoning there, or asks for it. Some do so only where a switch says it.
bool Reasons(const ChatTemplate& chat_template, const ReasoningTags& tags) {
  for (const Json& variables :
       {Json::object(), Json{{"enable_thinking", false}}, Json{{"enable_thinking", true}}, Json{{"thinking", true}}}) {
    Json context = {{"messages", Json::array({kUserMessage})}};
    context.update(variables);
    const std::string text = Rendered(chat_template, context, true);
    if (text.find(tags.open) != std::string::npos || text.find(tags.close) != std::string::npos) return true;
  }
  const std::string answer = fmt::format("{}\n{}\n{}\n\n{}", tags.open, kThought, tags.close, kAnswer);
  const Json messages = Json::array({kUserMessage, {{"role", "assistant"}, {"content", answer}}, kUserMessage});
  const std::string text = Rendered(chat_template, {{"messages", messages}}, true);
  return text.find(kAnswer) != std::string::npos && text.find(kThought) == std::string::npos;
}

bool HasChannels(const ChatTemplate& chat_template) {
  const Json answer = {{"role", "assistant"}, {"content", kAnswer}};
  const Json context = {{"messages", Json::array({kUserMessage, answer, kUserMessage})}};
  return Rendered(chat_template, context, true).find(fmt::format("<|channel|>final<|message|>{}", kAnswer)) !=
         std::string::npos;
}

const ReasoningFormat* DetectReasoning(const ChatTemplate& chat_template) {
  for (const ReasoningFormat& format : AllReasoningFormats()) {
    if (format.channels ? HasChannels(chat_template) : Reasons(chat_template, format.tags)) return &format;
  }
  return nullptr;
}

Error UnknownParser(std::string_view flag, std::string_view found, const std::vector<std::string>& names) {
  return InvalidArgument(fmt::format("{}: expected auto, none, {}, found \"{}\"", flag, fmt::join(names, ", "), found));
}

}  // namespace

Result<OutputFormats> ChooseFormats(const ChatTemplate& chat_template, std::string_view tool_call_parser,
                                    std::string_view reasoning_parser) {
  OutputFormats formats;
  formats.tools = FindToolFormat(tool_call_parser);
  formats.reasoning = FindReasoningFormat(reasoning_parser);
  if (formats.tools == nullptr && tool_call_parser != "auto" && tool_call_parser != "none") {
    return UnknownParser("--tool-call-parser", tool_call_parser, ToolFormatNames());
  }
  if (formats.reasoning == nullptr && reasoning_parser != "auto" && reasoning_parser != "none") {
    return UnknownParser("--reasoning-parser", reasoning_parser, ReasoningFormatNames());
  }
  if (tool_call_parser == "auto") formats.tools = DetectTools(chat_template);
  if (reasoning_parser == "auto") formats.reasoning = DetectReasoning(chat_template);
  return formats;
}

ThinkState ThinkStateOfPrompt(std::string_view prompt, const ReasoningTags& tags) {
  prompt = prompt.substr(0, prompt.find_last_not_of(" \t\r\n") + 1);  // the sum is 0 for npos
  if (prompt.ends_with(tags.open)) return ThinkState::kOpen;
  return prompt.ends_with(tags.close) ? ThinkState::kClosed : ThinkState::kNone;
}

ThinkState ThinkStateOfMessage(std::string_view message, const ReasoningTags& tags) {
  const auto open = message.rfind(tags.open), close = message.rfind(tags.close);
  if (close != std::string_view::npos && (open == std::string_view::npos || close > open)) return ThinkState::kClosed;
  return open == std::string_view::npos ? ThinkState::kNone : ThinkState::kOpen;
}

}  // namespace loramux
