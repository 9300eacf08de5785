// Reasoning between two tags, before the answer.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "server/output/output_parser.h"

namespace loramux {

// What stands around reasoning. Neither tag begins with the other.
struct ReasoningTags {
  std::string_view open = "<think>", close = "</think>";
};

// Splits the reasoning off; the text behind it goes to another parser. Line breaks beside the tags are dropped.
class ReasoningParser final : public OutputParser {
 public:
  enum class Start {
    kInside,   // the text begins with reasoning; a first tag before it is dropped
    kPerhaps,  // reasoning begins only with its tag, at the start of the text
  };
  ReasoningParser(Start start, std::unique_ptr<OutputParser> answer, ReasoningTags tags = {});

  void Push(std::string_view text, OutputEvents& events) override;
  void Finish(OutputEvents& events, bool cut) override;
  bool reasons() const override {
    return state_ == State::kReasoning || (state_ == State::kStart && start_ == Start::kInside);
  }

 private:
  enum class State { kStart, kReasoning, kGap, kAnswer };

  void StepStart(char c, OutputEvents& events);
  void StepReasoning(char c, OutputEvents& events);

  ReasoningTags tags_;
  Start start_;
  std::unique_ptr<OutputParser> answer_;
  State state_ = State::kStart;
  std::string held_;   // white space at the start, or what may become a tag
  std::string space_;  // line breaks of the reasoning that may be its last ones
  bool any_ = false;   // the reasoning has text
};

}  // namespace loramux
