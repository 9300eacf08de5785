// Llama 3.x: the whole answer is {"name": ..., "parameters": {...}}, with or without <|python_tag|> before it; several
// calls are separated by ";". Behind the tag it may also be name.call(key="value"), for the tools that the model was
// trained with, or Python code, for the code interpreter.
#include <array>

#include "server/output/formats.h"
#include "server/output/json_call.h"
#include "server/output/python_call.h"

namespace loramux {
namespace {

constexpr std::size_t kMaxPythonCallBytes = 64 * 1024;
// Names under which requests offer a tool that runs code. The model was trained with the first one.
constexpr std::array<std::string_view, 3> kInterpreters = {"code_interpreter", "ipython", "python"};

// Python behind the tag, which lasts until the end of the answer.
class PythonTagBody final : public CallBody {
 public:
  explicit PythonTagBody(std::shared_ptr<const ToolSet> tools) : tools_(std::move(tools)) {}

  State Step(char c, CallWriter& calls) override {
    if (json_ == nullptr && text_.empty()) {
      if (IsJsonSpace(c)) return State::kMore;
      if (c == '{') json_ = std::make_unique<JsonCallBody>(JsonCallBody::Keys::kAny);
    }
    if (json_ != nullptr) return json_->Step(c, calls);
    text_ += c;
    return text_.size() <= kMaxPythonCallBytes ? State::kMore : State::kBroken;
  }

  bool Finish(CallWriter& calls, bool) override {
    if (json_ != nullptr) return false;
    if (const auto call = ParsePythonCall(text_)) return Emit(call->function, call->arguments, calls);
    for (const std::string_view name : kInterpreters) {
      if (!tools_->Has(name) || text_.empty()) continue;
      std::string code = "{\"code\": \"";
      AppendEscaped(code, text_);
      return Emit(name, code + "\"}", calls);
    }
    return false;
  }

 private:
  static bool Emit(std::string_view function, std::string_view arguments, CallWriter& calls) {
    calls.Start(function);
    calls.Arguments(arguments);
    calls.End();
    return true;
  }

  std::shared_ptr<const ToolSet> tools_;
  std::unique_ptr<JsonCallBody> json_;
  std::string text_;
};

std::unique_ptr<CallBody> OpenLlamaTag(const std::shared_ptr<const ToolSet>& tools) {
  return std::make_unique<PythonTagBody>(tools);
}

std::unique_ptr<CallBody> OpenLlamaObject(const std::shared_ptr<const ToolSet>&) {
  return std::make_unique<JsonCallBody>(JsonCallBody::Keys::kExact);
}

constexpr CallMarker kLlamaMarkers[] = {{"<|python_tag|>", OpenLlamaTag}};

}  // namespace

constinit const CallGrammar kLlamaCalls = {kLlamaMarkers, OpenLlamaObject, '{', ";"};

}  // namespace loramux
