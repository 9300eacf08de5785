#include "server/api/openai/chat_message.h"

#include <string>
#include <utility>

namespace loramux {
namespace {

using Kind = OutputEvent::Kind;

Json CallJson(const OutputEvent& start) {
  return {{"id", start.id}, {"type", "function"}, {"function", {{"name", start.text}, {"arguments", ""}}}};
}

// The reasoning under both of its names: vLLM's, and that of DeepSeek and SGLang.
void AddReasoning(std::string_view text, Json& message) {
  message["reasoning"] = text;
  message["reasoning_content"] = text;
}

Json CallDelta(std::int32_t index, Json call) {
  Json entry = {{"index", index}};
  entry.update(call);
  return {{"tool_calls", Json::array({std::move(entry)})}};
}

// Gathers the events of a whole answer.
struct Answer {
  void Take(const OutputEvent& event) {
    switch (event.kind) {
      case Kind::kContent:
        content += event.text;
        break;
      case Kind::kReasoning:
        reasoning += event.text;
        break;
      case Kind::kCallStart:
        calls.push_back(CallJson(event));
        arguments.clear();
        break;
      case Kind::kArguments:
        arguments += event.text;
        break;
      case Kind::kCallEnd:
        calls.back()["function"]["arguments"] = std::move(arguments);
        break;
      case Kind::kCallBroken:
        calls.erase(calls.size() - 1);
        content += event.text;
        break;
    }
  }

  std::string content, reasoning, arguments;
  Json calls = Json::array();
};

Json DeltaOf(const OutputEvent& event) {
  Json delta = Json::object();
  if (event.kind == Kind::kContent) delta["content"] = event.text;
  if (event.kind == Kind::kCallBroken) delta["content"] = event.text.substr(event.sent);
  if (event.kind == Kind::kReasoning) AddReasoning(event.text, delta);
  if (event.kind == Kind::kCallStart) delta = CallDelta(event.call, CallJson(event));
  if (event.kind == Kind::kArguments) delta = CallDelta(event.call, {{"function", {{"arguments", event.text}}}});
  return delta;
}

}  // namespace

Json MessageOf(std::span<const OutputEvent> events) {
  Answer answer;
  for (const OutputEvent& event : events) answer.Take(event);
  const bool silent = answer.content.empty() && (!answer.calls.empty() || !answer.reasoning.empty());
  Json message = {{"role", "assistant"}, {"content", silent ? Json() : Json(std::move(answer.content))}};
  message["refusal"] = nullptr;
  if (!answer.reasoning.empty()) AddReasoning(answer.reasoning, message);
  if (!answer.calls.empty()) message["tool_calls"] = std::move(answer.calls);
  return message;
}

std::vector<Json> DeltasOf(std::span<const OutputEvent> events) {
  std::vector<Json> deltas;
  for (const OutputEvent& event : events) {
    const bool rest = event.kind == Kind::kCallBroken && event.sent < event.text.size();
    if (event.kind == Kind::kCallEnd || (event.kind == Kind::kCallBroken && !rest)) continue;
    deltas.push_back(DeltaOf(event));
  }
  return deltas;
}

}  // namespace loramux
