// gpt-oss: an answer is one or more messages, each with a header that names its channel.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "server/output/output_parser.h"
#include "server/output/tool_set.h"

namespace loramux {

// Reads <|channel|>NAME<|message|>text<|end|><|start|>assistant<|channel|>... The channel "analysis" is reasoning, a
// message to=functions.NAME is a call, and the others are content, as is text without a header. A call is passed on
// when it is complete. Headers, and tokens between messages, are no text: an incomplete header is dropped.
class ChannelParser final : public OutputParser {
 public:
  // `tools` null: calls are content.
  explicit ChannelParser(std::shared_ptr<const ToolSet> tools) : tools_(std::move(tools)) {}

  void Push(std::string_view text, OutputEvents& events) override;
  void Finish(OutputEvents& events, bool cut) override;
  bool reasons() const override;

 private:
  enum class State { kStart, kHeader, kReasoning, kContent, kCall };

  void StepStart(char c, OutputEvents& events);
  void StepHeader(char c, OutputEvents& events);
  void StepBody(char c, OutputEvents& events);
  void BeginMessage();
  void Body(std::string_view text, OutputEvents& events);
  void EndCall(OutputEvents& events);

  std::shared_ptr<const ToolSet> tools_;
  State state_ = State::kStart;
  std::string held_;      // header, or what may become a token that ends a message
  std::string function_;  // name of the call
  std::string arguments_;
  std::int32_t calls_ = 0;
};

}  // namespace loramux
