#include "server/api/responses/responses_dialect.h"

#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "http/error_status.h"
#include "server/api/answer_events.h"
#include "server/api/openai/openai_request.h"
#include "server/api/openai/openai_response.h"
#include "server/api/responses/responses_request.h"
#include "server/api/translation.h"

namespace loramux {
namespace {

using Kind = OutputEvent::Kind;

Json ResponseUsage(const Usage& usage) {
  return {{"input_tokens", usage.prompt_tokens},
          {"input_tokens_details", {{"cached_tokens", usage.cached_tokens}}},
          {"output_tokens", usage.completion_tokens},
          {"output_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens}}},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
}

// One item of the output: a message, the reasoning before it, or a call of a tool.
struct ResponseItem {
  Kind kind = Kind::kContent;  // kContent, kReasoning or kCallStart
  std::string id;
  std::string text;  // the text; the arguments of a call
  Json logprobs = Json::array();
  std::string call_id, name;           // only of a call
  const char* status = "in_progress";  // state of the item: it grows until it is "completed" or "incomplete"

  Json Part() const {
    if (kind == Kind::kReasoning) return {{"type", "reasoning_text"}, {"text", text}};
    return {{"type", "output_text"}, {"text", text}, {"annotations", Json::array()}, {"logprobs", logprobs}};
  }

  // `begins`: as it is announced, without its text.
  Json Whole(bool begins = false) const {
    Json content = Json::array();
    if (!begins) content.push_back(Part());
    if (kind == Kind::kReasoning) {
      return {{"id", id},
              {"type", "reasoning"},
              {"summary", Json::array()},
              {"content", std::move(content)},
              {"status", status}};
    }
    if (kind == Kind::kContent) {
      return {
          {"id", id}, {"type", "message"}, {"status", status}, {"role", "assistant"}, {"content", std::move(content)}};
    }
    return {{"id", id},     {"type", "function_call"}, {"status", status}, {"call_id", call_id},
            {"name", name}, {"arguments", text}};
  }
};

class ResponseWriter final : public AnswerWriter {
 public:
  ResponseWriter(const DialectContext& context, std::string model, Json echoed)
      : id_("resp_" + context.number),
        number_(context.number),
        created_(context.created),
        model_(std::move(model)),
        echoed_(std::move(echoed)) {}

  const std::string& id() const override { return id_; }
  void SetModel(const ServedModel& model) override { model_ = model.name; }

  std::string Body(std::span<const ChoiceOutput> choices, const Usage& usage) override {
    Take(choices.front());
    Finish();
    return DumpJson(Response(EndStatus(), &usage));
  }

  std::string Delta(const ChoiceOutput& output, const Usage&) override {
    Begin();
    Take(output);
    return std::exchange(events_, {});
  }

  std::string End(const Usage& usage) override {
    Begin();
    Finish();
    Event(std::string("response.") + EndStatus(), {{"response", Response(EndStatus(), &usage)}});
    return std::exchange(events_, {});
  }

  std::string Failure(const Error& error) override {
    Begin();
    Json response = Response("failed", nullptr);
    const char* code = HttpStatus(error) == 429 ? "rate_limit_exceeded" : "server_error";
    response["error"] = {{"code", code}, {"message", error.message}};
    Event("response.failed", {{"response", std::move(response)}});
    return std::exchange(events_, {});
  }

  // The end of a stream repeats everything.
  std::size_t held_bytes() const override { return held_; }

 private:
  static constexpr std::size_t kLogprobBytes = 512;  // bytes of one entry as JSON, roughly

  void Take(const ChoiceOutput& output) {
    for (Json& entry : ChatLogprobList(output.logprobs)) logprobs_.push_back(std::move(entry));
    held_ += kLogprobBytes * output.logprobs.size();
    for (const OutputEvent& event : EventsOf(output)) Take(event, LogprobsOf(event));
    if (output.finish != FinishReason::kNone) finish_ = output.finish;
  }

  // Takes the log-probabilities of the event's tokens. Some tokens come before their event.
  Json LogprobsOf(const OutputEvent& event) {
    Json logprobs = Json::array();
    for (std::size_t i = std::min(event.tokens, logprobs_.size()); i > 0; --i) {
      logprobs.push_back(std::move(logprobs_.front()));
      logprobs_.pop_front();
    }
    return logprobs;
  }

  // Log-probabilities belong to the message; those of other items are left out.
  void Take(const OutputEvent& event, const Json& logprobs) {
    held_ += event.text.size();
    switch (event.kind) {
      case Kind::kContent:
      case Kind::kReasoning:
        return Add(event.kind, event.text, logprobs);
      case Kind::kCallStart:
        Open(event.kind);
        items_.back().call_id = event.id;
        items_.back().name = event.text;
        return Announce();
      case Kind::kArguments:
        items_.back().text += event.text;
        return Event("response.function_call_arguments.delta", Place({{"delta", event.text}}));
      case Kind::kCallEnd:
        return Close("completed");
      case Kind::kCallBroken:
        return Break(event);
    }
  }

  // The call ends unfinished. What a client has not seen of it is text; a whole answer has all of it as text.
  void Break(const OutputEvent& event) {
    if (open_) Close("incomplete");
    const bool streamed = begun_;
    if (!streamed) items_.pop_back();
    Add(Kind::kContent, streamed ? std::string_view(event.text).substr(event.sent) : event.text, Json::array());
  }

  void Add(Kind kind, std::string_view text, const Json& logprobs) {
    if (text.empty() && logprobs.empty()) return;
    if (!open_ || items_.back().kind != kind) {
      Open(kind);
      Announce();
    }
    ResponseItem& item = items_.back();
    item.text += text;
    Json delta = {{"delta", text}};
    if (kind == Kind::kReasoning) return Event("response.reasoning_text.delta", Placed(std::move(delta)));
    for (const Json& entry : logprobs) item.logprobs.push_back(entry);
    delta["logprobs"] = logprobs;
    Event("response.output_text.delta", Placed(std::move(delta)));
  }

  void Open(Kind kind) {
    if (open_) Close("completed");
    open_ = true;
    const char* prefix = kind == Kind::kContent ? "msg" : kind == Kind::kReasoning ? "rs" : "fc";
    items_.push_back({kind, fmt::format("{}_{}{}", prefix, number_, items_.size()), {}, Json::array(), {}, {}});
  }

  void Announce() {
    const ResponseItem& item = items_.back();
    Event("response.output_item.added", {{"output_index", items_.size() - 1}, {"item", item.Whole(/*begins=*/true)}});
    if (item.kind != Kind::kCallStart) Event("response.content_part.added", Placed({{"part", item.Part()}}));
  }

  void Close(const char* status) {
    open_ = false;
    ResponseItem& item = items_.back();
    item.status = status;
    if (item.kind == Kind::kCallStart) {
      Event("response.function_call_arguments.done", Place({{"name", item.name}, {"arguments", item.text}}));
    } else {
      Json done = {{"text", item.text}};
      if (item.kind == Kind::kContent) done["logprobs"] = item.logprobs;
      Event(item.kind == Kind::kContent ? "response.output_text.done" : "response.reasoning_text.done",
            Placed(std::move(done)));
      Event("response.content_part.done", Placed({{"part", item.Part()}}));
    }
    Event("response.output_item.done", {{"output_index", items_.size() - 1}, {"item", item.Whole()}});
  }

  // An answer without a text has an empty one, unless it calls tools.
  void Finish() {
    if (items_.empty()) {
      Open(Kind::kContent);
      Announce();
    }
    if (open_) Close(EndStatus());
  }

  const char* EndStatus() const { return finish_ == FinishReason::kLength ? "incomplete" : "completed"; }

  // `usage` null: the response runs, or failed.
  Json Response(const char* status, const Usage* usage) const {
    Json response = {{"id", id_},
                     {"object", "response"},
                     {"created_at", created_},
                     {"status", status},
                     {"background", false},
                     {"error", nullptr},
                     {"incomplete_details", nullptr},
                     {"model", model_},
                     {"output", Json::array()}};
    if (finish_ == FinishReason::kLength) response["incomplete_details"] = {{"reason", "max_output_tokens"}};
    for (std::size_t i = 0; usage != nullptr && i < items_.size(); ++i) {
      response["output"].push_back(items_[i].Whole());
    }
    response["usage"] = usage == nullptr ? Json() : ResponseUsage(*usage);
    response.update(echoed_);
    return response;
  }

  // Adds the place of the last item in the response, or that of its text.
  Json Place(Json fields) const {
    fields.update({{"item_id", items_.back().id}, {"output_index", items_.size() - 1}});
    return fields;
  }
  Json Placed(Json fields) const {
    fields = Place(std::move(fields));
    fields["content_index"] = 0;
    return fields;
  }

  // Adds an event, if the answer is a stream.
  void Event(const std::string& type, const Json& fields) {
    if (!begun_) return;
    Json event = {{"type", type}, {"sequence_number", next_number_++}};
    event.update(fields);
    events_ += NamedEvent(type, event);
  }

  void Begin() {
    if (std::exchange(begun_, true)) return;
    for (const char* type : {"response.created", "response.in_progress"}) {
      Event(type, {{"response", Response("in_progress", nullptr)}});
    }
  }

  const std::string id_, number_;
  const std::int64_t created_;
  std::string model_;
  const Json echoed_;
  std::vector<ResponseItem> items_;
  std::deque<Json> logprobs_;  // log-probabilities of tokens without an event
  bool open_ = false;          // the last item still grows
  FinishReason finish_ = FinishReason::kNone;
  std::size_t held_ = 0;
  bool begun_ = false;  // the answer is a stream, and it has begun
  std::string events_;  // not taken yet
  std::int64_t next_number_ = 0;
};
class Responses final : public Dialect {
 public:
  Result<DialectRequest> Parse(std::string_view body, const DialectContext& context) const override {
    ASSIGN_OR_RETURN(Json json, ParseBody(body, BodyLimits(context.limits), context.limits));
    ASSIGN_OR_RETURN(ResponsesChat translated, ChatOfResponses(std::move(json)));
    auto request = ParseChatJson(std::move(translated.chat), context.limits);
    if (!request.ok()) return InOwnNames(std::move(request).error());
    request->left_out_tools = std::move(translated.left_out_tools);
    auto writer = std::make_unique<ResponseWriter>(context, request->model, std::move(translated.echoed));
    return DialectRequest{std::move(*request), std::move(writer)};
  }

  std::span<const FieldName> names() const override { return ResponsesNames(); }
};

}  // namespace

const Dialect& ResponsesDialect() {
  static const Responses dialect;
  return dialect;
}

}  // namespace loramux
