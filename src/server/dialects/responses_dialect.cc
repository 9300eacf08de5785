#include "server/dialects/responses_dialect.h"

#include <utility>
#include <vector>

#include "http/error_body.h"
#include "server/dialects/responses_request.h"
#include "server/dialects/translation.h"

namespace loramux {
namespace {

Json ResponseUsage(const Usage& usage) {
  return {{"input_tokens", usage.prompt_tokens},
          {"input_tokens_details", {{"cached_tokens", usage.cached_tokens}}},
          {"output_tokens", usage.completion_tokens},
          {"output_tokens_details", {{"reasoning_tokens", 0}}},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
}

Json TextPart(std::string_view text, Json logprobs) {
  return {{"type", "output_text"}, {"text", text}, {"annotations", Json::array()}, {"logprobs", std::move(logprobs)}};
}

// What a response looked like when its stream began and ended; the parts between are events of their own.
class ResponseWriter final : public AnswerWriter {
 public:
  ResponseWriter(const DialectContext& context, std::string model, Json echoed)
      : id_("resp_" + context.number),
        item_id_("msg_" + context.number),
        created_(context.created),
        model_(std::move(model)),
        echoed_(std::move(echoed)) {}

  const std::string& id() const override { return id_; }
  void SetModel(const std::string& model) override { model_ = model; }

  std::string Body(std::span<const ChoiceOutput> choices, const Usage& usage) override {
    Collect(choices.front());
    return DumpJson(Response(EndStatus(), &usage));
  }

  std::string Delta(const ChoiceOutput& output, const Usage&) override {
    std::string events = std::exchange(begun_, true) ? std::string() : Start();
    Collect(output);
    if (output.text.empty() && output.logprobs.empty()) return events;
    return events + Event("response.output_text.delta",
                          Place({{"delta", output.text}, {"logprobs", ChatLogprobList(output.logprobs)}}));
  }

  std::string End(const Usage& usage) override {
    const Json part = TextPart(text_, logprobs_);
    std::string events = Event("response.output_text.done", Place({{"text", text_}, {"logprobs", logprobs_}}));
    events += Event("response.content_part.done", Place({{"part", part}}));
    events += Event("response.output_item.done", {{"output_index", 0}, {"item", Item(EndStatus())}});
    return events + Event(std::string("response.") + EndStatus(), {{"response", Response(EndStatus(), &usage)}});
  }

  std::string Failure(const Error& error) override {
    std::string events = std::exchange(begun_, true) ? std::string() : Start();
    Json response = Response("failed", nullptr);
    const char* code = HttpStatus(error) == 429 ? "rate_limit_exceeded" : "server_error";
    response["error"] = {{"code", code}, {"message", error.message}};
    return events + Event("response.failed", {{"response", std::move(response)}});
  }

  // The end of a stream repeats the text.
  std::size_t held_bytes() const override { return text_.size() + kLogprobBytes * logprobs_.size(); }

 private:
  static constexpr std::size_t kLogprobBytes = 512;  // of one entry as JSON, roughly

  void Collect(const ChoiceOutput& output) {
    text_ += output.text;
    for (Json& entry : ChatLogprobList(output.logprobs)) logprobs_.push_back(std::move(entry));
    if (output.finish != FinishReason::kNone) finish_ = output.finish;
  }

  const char* EndStatus() const { return finish_ == FinishReason::kLength ? "incomplete" : "completed"; }

  Json Item(const char* status) const {
    const bool running = std::string_view(status) == "in_progress";
    Json content = Json::array();
    if (!running) content.push_back(TextPart(text_, logprobs_));
    return {{"id", item_id_},
            {"type", "message"},
            {"status", status},
            {"role", "assistant"},
            {"content", std::move(content)}};
  }

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
    if (usage != nullptr) response["output"].push_back(Item(status));
    response["usage"] = usage == nullptr ? Json() : ResponseUsage(*usage);
    response.update(echoed_);
    return response;
  }

  // Adds the place of the text in the response.
  Json Place(Json fields) const {
    fields.update({{"item_id", item_id_}, {"output_index", 0}, {"content_index", 0}});
    return fields;
  }

  std::string Event(const std::string& type, const Json& fields) {
    Json event = {{"type", type}, {"sequence_number", next_number_++}};
    event.update(fields);
    return NamedEvent(type, event);
  }

  std::string Start() {
    std::string events = Event("response.created", {{"response", Response("in_progress", nullptr)}});
    events += Event("response.in_progress", {{"response", Response("in_progress", nullptr)}});
    events += Event("response.output_item.added", {{"output_index", 0}, {"item", Item("in_progress")}});
    return events + Event("response.content_part.added", Place({{"part", TextPart("", Json::array())}}));
  }

  const std::string id_, item_id_;
  const std::int64_t created_;
  std::string model_;
  const Json echoed_;
  std::string text_;
  Json logprobs_ = Json::array();
  FinishReason finish_ = FinishReason::kNone;
  bool begun_ = false;
  std::int64_t next_number_ = 0;
};

class Responses final : public Dialect {
 public:
  Result<DialectRequest> Parse(std::string_view body, const DialectContext& context) const override {
    ASSIGN_OR_RETURN(Json json, ParseRequestBody(body, BodyLimits(context.limits)));
    ASSIGN_OR_RETURN(ResponsesChat translated, ChatOfResponses(std::move(json)));
    RETURN_IF_ERROR(RefuseCalls(translated.chat));
    auto request = ParseChatJson(std::move(translated.chat), context.limits);
    if (!request.ok()) return InOwnNames(std::move(request).error());
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
