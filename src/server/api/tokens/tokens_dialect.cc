#include "server/api/tokens/tokens_dialect.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "server/api/openai/openai_request.h"
#include "server/api/openai/openai_response.h"
#include "server/api/tokens/tokens_request.h"

namespace loramux {
namespace {

// `rank`: 0 if it is not known.
Json TokenLogprobJson(const LogprobEntry& entry, std::size_t rank) {
  return {{"token", "token_id:" + std::to_string(entry.id)},
          {"token_id", entry.id},
          {"logprob", LogprobNumber(entry.logprob)},
          {"rank", rank == 0 ? Json() : Json(rank)}};
}

// As in vLLM, a token without alternatives is its own. `listed`: the alternatives are not the likeliest tokens.
Json TokenLogprobs(const TokenLogprobText& token, bool listed) {
  Json top = Json::array();
  std::size_t rank = 0;
  for (std::size_t i = 0; i < token.top.size(); ++i) {
    if (!listed && token.top[i].id == token.chosen.id) rank = i + 1;
    top.push_back(TokenLogprobJson(token.top[i], listed ? 0 : i + 1));
  }
  if (top.empty()) top.push_back(TokenLogprobJson(token.chosen, 0));
  Json json = TokenLogprobJson(token.chosen, rank);
  json["top_logprobs"] = std::move(top);
  return json;
}

// How a request wants its answer.
struct TokensForm {
  bool listed_logprobs = false;  // log-probabilities of `logprob_token_ids`
  bool returns_prompt = false;
  bool include_usage = false, continuous_usage = false;
};

class TokensWriter final : public AnswerWriter {
 public:
  TokensWriter(std::string id, std::string shown_id, std::int64_t created, TokensForm form)
      : id_(std::move(id)), shown_id_(std::move(shown_id)), created_(created), form_(form) {}

  const std::string& id() const override { return id_; }
  void SetModel(const ServedModel& model) override { model_ = model; }

  // Serialises one choice after the other, as CompletionBody does.
  std::string Body(std::span<const ChoiceOutput> choices, const Usage& usage) override {
    Usage all = usage;
    std::string body = "{\"request_id\":" + DumpJson(shown_id_) + ",\"model\":" + DumpJson(model_.name) +
                       WeightVersionField(model_) + ",\"created\":" + std::to_string(created_) + ",\"choices\":[";
    for (const ChoiceOutput& choice : choices) {
      if (&choice != &choices.front()) body += ',';
      body += DumpJson(ChoiceJson(choice));
      all.completion_tokens += choice.stop_token >= 0 ? 1 : 0;
    }
    const std::string& scores = choices.front().prompt_logprobs;  // there is one prompt
    body += "],\"usage\":" + DumpJson(UsageJson(all)) + ",\"prompt_logprobs\":" + (scores.empty() ? "null" : scores);
    if (form_.returns_prompt) body += ",\"prompt_token_ids\":" + DumpJson(*choices.front().prompt_token_ids);
    return body + ",\"kv_transfer_params\":null}";
  }

  std::string Delta(const ChoiceOutput& output, const Usage& usage) override {
    const bool ends = output.finish != FinishReason::kNone;
    if (!ends && output.token_ids->empty()) return {};
    const bool by_token = ends && output.stop_token >= 0;
    if (by_token) ++stop_tokens_;
    Usage shown = usage;
    shown.completion_tokens += by_token ? 1 : 0;
    Json event = {{"request_id", shown_id_},
                  {"choices", Json::array({ChoiceJson(output)})},
                  {"usage", form_.continuous_usage ? UsageJson(shown) : Json()}};
    if (form_.returns_prompt && output.prompt_token_ids != nullptr) {
      event["prompt_token_ids"] = *output.prompt_token_ids;
    }
    if (const std::string version = std::exchange(model_.weight_version, {}); !version.empty()) {
      event["weight_version"] = version;
    }
    return "data: " + DumpJson(event) + "\n\n";
  }

  std::string End(const Usage& usage) override {
    if (!form_.include_usage) return std::string(kDoneEvent);
    Usage all = usage;
    all.completion_tokens += stop_tokens_;
    const Json event = {{"request_id", shown_id_}, {"choices", Json::array()}, {"usage", UsageJson(all)}};
    return "data: " + DumpJson(event) + "\n\n" + std::string(kDoneEvent);
  }

  std::string Failure(const Error& error) override { return ErrorEvent(error) + std::string(kDoneEvent); }

 private:
  Json LogprobsJson(const ChoiceOutput& choice) const {
    if (!choice.wants_logprobs) return nullptr;
    Json content = Json::array();
    for (const TokenLogprobText& token : choice.logprobs) {
      content.push_back(TokenLogprobs(token, form_.listed_logprobs));
    }
    if (choice.stop_logprob) content.push_back(TokenLogprobs(*choice.stop_logprob, form_.listed_logprobs));
    return {{"content", std::move(content)}};
  }

  Json ChoiceJson(const ChoiceOutput& choice) const {
    Json json = {{"index", choice.index},
                 {"logprobs", LogprobsJson(choice)},
                 {"finish_reason", FinishJson(choice)},
                 {"stop_reason", StopReasonJson(choice.stop_reason)},
                 {"token_ids", *choice.token_ids},
                 {"routed_experts", nullptr}};
    AddVersionChanges(choice, json);
    return json;
  }

  const std::string id_, shown_id_;
  const std::int64_t created_;
  const TokensForm form_;
  ServedModel model_;             // in a stream without the version, once that was written
  std::int64_t stop_tokens_ = 0;  // choices of a stream that a token ended, which usage does not count
};

class Tokens final : public Dialect {
 public:
  Result<DialectRequest> Parse(std::string_view body, const DialectContext& context) const override {
    ASSIGN_OR_RETURN(Json json, ParseBody(body, BodyLimits(context.limits), context.limits));
    ASSIGN_OR_RETURN(const TokensCompletion translated, CompletionOfTokens(std::move(json), context.base_model));
    auto request = ParseCompletionJson(translated.completion, context.limits);
    if (!request.ok()) return InOwnNames(std::move(request).error());
    request->to_model_length = true;
    const TokensForm form{.listed_logprobs = !request->logprob_token_ids.empty(),
                          .returns_prompt = translated.returns_prompt,
                          .include_usage = request->include_usage,
                          .continuous_usage = request->continuous_usage};
    const std::string prefix = "generate-tokens-";
    const std::string& shown = translated.request_id.empty() ? context.number : translated.request_id;
    auto writer = std::make_unique<TokensWriter>(prefix + context.number, prefix + shown, context.created, form);
    return DialectRequest{std::move(*request), std::move(writer)};
  }

  // There is one, but ids take more characters than a text of as many tokens may have.
  bool many_prompts() const override { return true; }
  bool tells_aborts() const override { return true; }
  std::span<const FieldName> names() const override { return TokensNames(); }
};

}  // namespace

const Dialect& TokensDialect() {
  static const Tokens tokens;
  return tokens;
}

}  // namespace loramux
