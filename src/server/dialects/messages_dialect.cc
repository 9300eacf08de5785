#include "server/dialects/messages_dialect.h"

#include <algorithm>
#include <utility>

#include "server/dialects/messages_request.h"
#include "server/dialects/translation.h"

namespace loramux {
namespace {

const char* ErrorTypeOf(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    default:
      return status >= 500 ? "api_error" : "invalid_request_error";
  }
}

Json MessageError(int status, std::string_view message) {
  return {{"type", "error"}, {"error", {{"type", ErrorTypeOf(status)}, {"message", message}}}};
}

// Tokens of the cache are not among `input_tokens` here.
Json MessageUsage(const Usage& usage) {
  return {{"input_tokens", usage.prompt_tokens - usage.cached_tokens},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", usage.cached_tokens},
          {"output_tokens", usage.completion_tokens}};
}

// How an answer ended: `stop_reason` and `stop_sequence`.
Json EndJson(const ChoiceOutput& output) {
  const auto* text = std::get_if<std::string>(&output.stop_reason);
  if (text != nullptr) return {{"stop_reason", "stop_sequence"}, {"stop_sequence", *text}};
  const char* reason = output.finish == FinishReason::kLength ? "max_tokens" : "end_turn";
  return {{"stop_reason", reason}, {"stop_sequence", nullptr}};
}

class MessageWriter final : public AnswerWriter {
 public:
  MessageWriter(std::string id, std::string model) : id_(std::move(id)), model_(std::move(model)) {}

  const std::string& id() const override { return id_; }
  void SetModel(const std::string& model) override { model_ = model; }

  std::string Body(std::span<const ChoiceOutput> choices, const Usage& usage) override {
    const ChoiceOutput& choice = choices.front();
    Json message = Head();
    message["content"].push_back({{"type", "text"}, {"text", choice.text}});
    message.update(EndJson(choice));
    message["usage"] = MessageUsage(usage);
    return DumpJson(message);
  }

  std::string Delta(const ChoiceOutput& output, const Usage& usage) override {
    std::string events = std::exchange(begun_, true) ? std::string() : Start(usage);
    if (!output.text.empty()) events += Text(output.text);
    if (output.finish != FinishReason::kNone) end_ = EndJson(output);
    return events;
  }

  std::string End(const Usage& usage) override {
    std::string events;
    if (blocks_ == 0) events += Text("");
    events += NamedEvent("content_block_stop", {{"type", "content_block_stop"}, {"index", blocks_ - 1}});
    events += NamedEvent("message_delta", {{"type", "message_delta"}, {"delta", end_}, {"usage", MessageUsage(usage)}});
    return events + NamedEvent("message_stop", {{"type", "message_stop"}});
  }

  std::string Failure(const Error& error) override {
    return NamedEvent("error", MessageError(HttpStatus(error), error.message));
  }

  std::string_view KeepAlive() const override { return "event: ping\ndata: {\"type\":\"ping\"}\n\n"; }

 private:
  Json Head() const {
    return {{"id", id_},
            {"type", "message"},
            {"role", "assistant"},
            {"model", model_},
            {"content", Json::array()},
            {"stop_reason", nullptr},
            {"stop_sequence", nullptr}};
  }

  std::string Start(Usage usage) const {
    usage.completion_tokens = 0;  // the end has the number
    Json message = Head();
    message["usage"] = MessageUsage(usage);
    return NamedEvent("message_start", {{"type", "message_start"}, {"message", std::move(message)}});
  }

  std::string Text(std::string_view text) {
    std::string events;
    if (blocks_ == 0) {
      events = NamedEvent(
          "content_block_start",
          {{"type", "content_block_start"}, {"index", blocks_++}, {"content_block", {{"type", "text"}, {"text", ""}}}});
    }
    return events + NamedEvent("content_block_delta", {{"type", "content_block_delta"},
                                                       {"index", blocks_ - 1},
                                                       {"delta", {{"type", "text_delta"}, {"text", text}}}});
  }

  const std::string id_;
  std::string model_;
  bool begun_ = false;
  int blocks_ = 0;  // begun
  Json end_ = {{"stop_reason", nullptr}, {"stop_sequence", nullptr}};
};

class Messages final : public Dialect {
 public:
  Result<DialectRequest> Parse(std::string_view body, const DialectContext& context) const override {
    ASSIGN_OR_RETURN(Json json, ParseRequestBody(body, BodyLimits(context.limits)));
    ASSIGN_OR_RETURN(Json chat, ChatOfMessages(std::move(json), /*needs_length=*/true));
    RETURN_IF_ERROR(RefuseCalls(chat));
    auto request = ParseChatJson(std::move(chat), context.limits);
    if (!request.ok()) return InOwnNames(std::move(request).error());
    auto writer = std::make_unique<MessageWriter>("msg_" + context.number, request->model);
    return DialectRequest{std::move(*request), std::move(writer)};
  }

  std::string ErrorBody(int status, std::string_view message, std::string_view) const override {
    return DumpJson(MessageError(status, message));
  }

  std::span<const FieldName> names() const override { return MessagesNames(); }
};

}  // namespace

const Dialect& MessagesDialect() {
  static const Messages dialect;
  return dialect;
}

Result<OpenAiRequest> ParseMessagesCount(std::string_view body, const RequestLimits& limits) {
  ASSIGN_OR_RETURN(Json json, ParseRequestBody(body, BodyLimits(limits)));
  ASSIGN_OR_RETURN(Json chat, ChatOfMessages(std::move(json), /*needs_length=*/false));
  auto request = ParseChatJson(std::move(chat), limits);
  if (!request.ok()) return MessagesDialect().InOwnNames(std::move(request).error());
  return request;
}

std::string MessagesCountBody(std::int64_t input_tokens) { return DumpJson({{"input_tokens", input_tokens}}); }

}  // namespace loramux
