#include "server/api/messages/messages_dialect.h"

#include <utility>
#include <vector>

#include "auth/error_body.h"
#include "http/error_status.h"
#include "server/api/answer_events.h"
#include "server/api/messages/messages_request.h"
#include "server/api/openai/openai_request.h"
#include "server/api/openai/openai_response.h"
#include "server/api/translation.h"

namespace loramux {
namespace {

using Kind = OutputEvent::Kind;

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
  const char* natural = output.has_calls ? "tool_use" : "end_turn";
  const char* reason = output.finish == FinishReason::kLength ? "max_tokens" : natural;
  return {{"stop_reason", reason}, {"stop_sequence", nullptr}};
}

// A content block: text, thinking, or a call of a tool.
struct MessageBlock {
  Kind kind = Kind::kContent;  // kContent, kReasoning or kCallStart
  std::string text;            // the text; the input of a call, as JSON
  std::string call_id, name;   // only of a call

  // `begins`: as it is announced, without its text.
  Json Whole(bool begins = false) const {
    if (kind == Kind::kContent) return {{"type", "text"}, {"text", begins ? std::string() : text}};
    if (kind == Kind::kReasoning) {
      return {{"type", "thinking"}, {"thinking", begins ? std::string() : text}, {"signature", ""}};
    }
    const auto input = begins ? Result<Json>(Json::object()) : ParseModelObject(text);
    if (!input.ok()) return {{"type", "text"}, {"text", text}};  // such as a number beyond double
    return {{"type", "tool_use"}, {"id", call_id}, {"name", name}, {"input", *input}};
  }

  Json Delta(std::string_view piece) const {
    if (kind == Kind::kContent) return {{"type", "text_delta"}, {"text", piece}};
    if (kind == Kind::kReasoning) return {{"type", "thinking_delta"}, {"thinking", piece}};
    return {{"type", "input_json_delta"}, {"partial_json", piece}};
  }
};

class MessageWriter final : public AnswerWriter {
 public:
  MessageWriter(std::string id, std::string model) : id_(std::move(id)), model_(std::move(model)) {}

  const std::string& id() const override { return id_; }
  void SetModel(const ServedModel& model) override { model_ = model.name; }

  std::string Body(std::span<const ChoiceOutput> choices, const Usage& usage) override {
    keeps_ = true;
    Take(choices.front());
    Finish();
    Json message = Head();
    for (const MessageBlock& block : blocks_) message["content"].push_back(block.Whole());
    message.update(end_);
    message["usage"] = MessageUsage(usage);
    return DumpJson(message);
  }

  std::string Delta(const ChoiceOutput& output, const Usage& usage) override {
    if (!std::exchange(begun_, true)) Start(usage);
    Take(output);
    return std::exchange(events_, {});
  }

  std::string End(const Usage& usage) override {
    Finish();
    Event("message_delta", {{"delta", end_}, {"usage", MessageUsage(usage)}});
    Event("message_stop", Json::object());
    return std::exchange(events_, {});
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

  void Start(Usage usage) {
    usage.completion_tokens = 0;  // the end has the number
    Json message = Head();
    message["usage"] = MessageUsage(usage);
    Event("message_start", {{"message", std::move(message)}});
  }

  void Take(const ChoiceOutput& output) {
    for (const OutputEvent& event : EventsOf(output)) Take(event);
    if (output.finish != FinishReason::kNone) end_ = EndJson(output);
  }

  void Take(const OutputEvent& event) {
    switch (event.kind) {
      case Kind::kContent:
      case Kind::kReasoning:
        return Add(event.kind, event.text);
      case Kind::kCallStart:
        return Open({event.kind, {}, event.id, event.text});
      case Kind::kArguments:
        return Append(event.text);
      case Kind::kCallEnd:
        return Close();
      case Kind::kCallBroken:
        return Break(event);
    }
  }

  // What a client has not seen of the call is text; in a whole answer all of it is.
  void Break(const OutputEvent& event) {
    Close();
    if (keeps_) blocks_.pop_back();
    Add(Kind::kContent, keeps_ ? std::string_view(event.text) : std::string_view(event.text).substr(event.sent));
  }

  void Add(Kind kind, std::string_view text) {
    if (text.empty()) return;
    if (!open_ || blocks_.back().kind != kind) Open({kind, {}, {}, {}});
    Append(text);
  }

  void Append(std::string_view text) {
    if (keeps_) blocks_.back().text += text;
    Event("content_block_delta", {{"index", blocks_.size() - 1}, {"delta", blocks_.back().Delta(text)}});
  }

  void Open(MessageBlock block) {
    Close();
    open_ = true;
    blocks_.push_back(std::move(block));
    Event("content_block_start",
          {{"index", blocks_.size() - 1}, {"content_block", blocks_.back().Whole(/*begins=*/true)}});
  }

  void Close() {
    if (std::exchange(open_, false)) Event("content_block_stop", {{"index", blocks_.size() - 1}});
  }

  // An answer has a block at least.
  void Finish() {
    if (blocks_.empty()) Open({Kind::kContent, {}, {}, {}});
    Close();
  }

  // Adds an event, if the answer is a stream.
  void Event(const std::string& type, const Json& fields) {
    if (!begun_) return;
    Json event = {{"type", type}};
    event.update(fields);
    events_ += NamedEvent(type, event);
  }

  const std::string id_;
  std::string model_;
  std::vector<MessageBlock> blocks_;  // blocks of a stream, without their texts
  bool keeps_ = false;                // the answer is whole
  bool open_ = false;                 // the last block still grows
  bool begun_ = false;                // the answer is a stream, and it has begun
  std::string events_;                // not taken yet
  Json end_ = {{"stop_reason", nullptr}, {"stop_sequence", nullptr}};
};

class Messages final : public Dialect {
 public:
  Result<DialectRequest> Parse(std::string_view body, const DialectContext& context) const override {
    ASSIGN_OR_RETURN(Json json, ParseBody(body, BodyLimits(context.limits), context.limits));
    ASSIGN_OR_RETURN(Json chat, ChatOfMessages(std::move(json), /*needs_length=*/true));
    auto request = ParseChatJson(std::move(chat), context.limits);
    if (!request.ok()) return InOwnNames(std::move(request).error());
    request->chat.fold_system = true;
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

Result<CompletionRequest> ParseMessagesCount(std::string_view body, const RequestLimits& limits) {
  ASSIGN_OR_RETURN(Json json, ParseRequestBody(body, BodyLimits(limits)));
  ASSIGN_OR_RETURN(Json chat, ChatOfMessages(std::move(json), /*needs_length=*/false));
  auto request = ParseChatJson(std::move(chat), limits);
  if (!request.ok()) return MessagesDialect().InOwnNames(std::move(request).error());
  request->chat.fold_system = true;
  return request;
}

std::string MessagesCountBody(std::int64_t input_tokens) { return DumpJson({{"input_tokens", input_tokens}}); }

}  // namespace loramux
