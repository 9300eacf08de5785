#include "server/api/openai/openai_dialect.h"

#include <optional>
#include <utility>
#include <vector>

#include "server/api/openai/openai_request.h"
#include "server/api/openai/openai_response.h"

namespace loramux {
namespace {

class OpenAiWriter final : public AnswerWriter {
 public:
  OpenAiWriter(ResponseHead head, const CompletionRequest& request)
      : head_(std::move(head)), include_usage_(request.include_usage), continuous_usage_(request.continuous_usage) {}

  const std::string& id() const override { return head_.id; }

  void SetModel(const ServedModel& model) override { head_.served = model; }

  std::string Body(std::span<const ChoiceOutput> choices, const Usage& usage) override {
    return CompletionBody(head_, choices, usage);
  }

  std::string Delta(const ChoiceOutput& output, const Usage& usage) override {
    const Usage* shown = continuous_usage_ ? &usage : nullptr;
    std::string role;
    if (head_.endpoint == Endpoint::kChat && IsFirst(output.index)) role = Events().Role(output, shown);
    return role + Events().Delta(output, shown);
  }

  std::string End(const Usage& usage) override {
    return (include_usage_ ? Events().FinalUsage(usage) : std::string()) + std::string(kDoneEvent);
  }

  std::string Failure(const Error& error) override { return ErrorEvent(error) + std::string(kDoneEvent); }

 private:
  EventWriter& Events() {
    if (!events_) events_.emplace(head_, include_usage_);
    return *events_;
  }

  // True once for each choice.
  bool IsFirst(std::int32_t index) {
    const auto at = static_cast<std::size_t>(index);
    if (at >= begun_.size()) begun_.resize(at + 1);
    const bool first = !begun_[at];
    begun_[at] = true;
    return first;
  }

  ResponseHead head_;
  const bool include_usage_, continuous_usage_;
  std::optional<EventWriter> events_;  // nullopt until the stream begins
  std::vector<bool> begun_;            // by choice
};

class OpenAiEndpoint final : public Dialect {
 public:
  explicit OpenAiEndpoint(Endpoint endpoint) : endpoint_(endpoint) {}

  Result<DialectRequest> Parse(std::string_view body, const DialectContext& context) const override {
    auto parsed = chat() ? ParseChatRequest(body, context.limits) : ParseCompletionRequest(body, context.limits);
    if (!parsed.ok()) return std::move(parsed).error();
    ResponseHead head{endpoint_, (chat() ? "chatcmpl-" : "cmpl-") + context.number, context.created, {parsed->model}};
    auto writer = std::make_unique<OpenAiWriter>(std::move(head), *parsed);
    return DialectRequest{std::move(*parsed), std::move(writer)};
  }

  bool many_prompts() const override { return !chat(); }
  bool tells_aborts() const override { return true; }

 private:
  bool chat() const { return endpoint_ == Endpoint::kChat; }

  const Endpoint endpoint_;
};

}  // namespace

const Dialect& OpenAiDialect(Endpoint endpoint) {
  static const OpenAiEndpoint chat(Endpoint::kChat), completion(Endpoint::kCompletion);
  return endpoint == Endpoint::kChat ? chat : completion;
}

}  // namespace loramux
