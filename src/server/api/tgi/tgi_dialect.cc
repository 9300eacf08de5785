#include "server/api/tgi/tgi_dialect.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "auth/error_body.h"
#include "http/error_status.h"
#include "server/api/openai/openai_request.h"
#include "server/api/openai/openai_response.h"
#include "server/api/translation.h"

namespace loramux {
namespace {

// TGI's names of the kinds of errors; clients raise by them.
const char* TgiErrorType(int status) {
  if (status == 429 || status == 503) return "overloaded";
  return status >= 500 ? "generation" : "validation";
}

Json TgiError(int status, std::string_view message) {
  return {{"error", message}, {"error_type", TgiErrorType(status)}};
}

const char* TgiFinish(const ChoiceOutput& choice) {
  if (choice.finish == FinishReason::kLength) return "length";
  return std::holds_alternative<std::string>(choice.stop_reason) ? "stop_sequence" : "eos_token";
}

// The text that came with token `i`; the last one has the rest. Together they are the whole text.
std::string_view PieceOf(const ChoiceOutput& choice, std::size_t i) {
  const std::string_view text = choice.text;
  const std::size_t begin = i == 0 ? 0 : std::min(choice.logprobs[i - 1].text_end, text.size());
  const bool last = i + 1 == choice.logprobs.size();
  const std::size_t end = last ? text.size() : std::min(choice.logprobs[i].text_end, text.size());
  return text.substr(begin, end - begin);
}

Json TokenJson(const TokenLogprobText& token, std::string_view text) {
  return {{"id", token.chosen.id},
          {"text", text},
          {"logprob", LogprobNumber(token.chosen.logprob)},
          {"special", token.chosen.special}};
}

// The token that ended the answer. It has no log-probability, because the engine keeps it back.
Json StopTokenJson(const ChoiceOutput& choice) {
  return {{"id", std::max(choice.stop_token, 0)},
          {"text", choice.stop_token_text},
          {"logprob", nullptr},
          {"special", true}};
}

// All tokens of a whole answer from `first` on, the one that ended it last.
Json TokenList(const ChoiceOutput& choice, std::size_t first) {
  Json tokens = Json::array();
  for (std::size_t i = first; i < choice.logprobs.size(); ++i) {
    tokens.push_back(TokenJson(choice.logprobs[i], PieceOf(choice, i)));
  }
  if (choice.stop_token >= 0) tokens.push_back(StopTokenJson(choice));
  return tokens;
}

// The tokens of the prompt, which are the first `count`.
Json PrefillList(const ChoiceOutput& choice, std::size_t count) {
  Json tokens = Json::array();
  for (const TokenLogprobText& token : std::span(choice.logprobs).first(count)) {
    tokens.push_back({{"id", token.chosen.id},
                      {"text", token.chosen.token},
                      {"logprob", token.unknown ? Json() : Json(LogprobNumber(token.chosen.logprob))}});
  }
  return tokens;
}

// The likeliest tokens in the place of one token.
Json TopTokens(const TokenLogprobText& token) {
  Json top = Json::array();
  for (const LogprobEntry& entry : token.top) {
    top.push_back({{"id", entry.id},
                   {"text", entry.token},
                   {"logprob", LogprobNumber(entry.logprob)},
                   {"special", entry.special}});
  }
  return top;
}

double MeanLogprob(const ChoiceOutput& choice, std::size_t first) {
  const auto tokens = std::span(choice.logprobs).subspan(first);
  double sum = 0;
  for (const TokenLogprobText& token : tokens) sum += LogprobNumber(token.chosen.logprob);
  return tokens.empty() ? 0 : sum / static_cast<double>(tokens.size());
}

// How a TGI request wants its answer.
struct TgiForm {
  bool array = false;           // a whole answer is an array of one
  bool details = false;         // with the tokens
  bool prompt_details = false;  // TgiCompletion
  bool top_tokens = false;      // with the likeliest tokens in the place of each
  std::string prefix;           // before the text
  std::optional<std::uint64_t> seed;
};

class TgiWriter final : public AnswerWriter {
 public:
  TgiWriter(std::string id, TgiForm form) : id_(std::move(id)), form_(std::move(form)) {}

  const std::string& id() const override { return id_; }
  void SetModel(const ServedModel&) override {}  // answers do not name it

  // The best choice is the one whose tokens are likeliest on average.
  std::string Body(std::span<const ChoiceOutput> choices, const Usage& usage) override {
    if (form_.prompt_details) prompt_tokens_ = static_cast<std::size_t>(usage.prompt_tokens);
    const auto best = std::max_element(choices.begin(), choices.end(), [this](const auto& a, const auto& b) {
      return MeanLogprob(a, PromptTokens(a)) < MeanLogprob(b, PromptTokens(b));
    });
    Json answer = {{"generated_text", form_.prefix + TextOf(*best)}};
    if (form_.details) {
      Json& details = answer["details"] = Details(*best);
      if (choices.size() > 1) details["best_of_sequences"] = Others(choices, *best);
    }
    return DumpJson(form_.array ? Json::array({std::move(answer)}) : answer);
  }

  std::string Delta(const ChoiceOutput& output, const Usage& usage) override {
    text_ += output.text;
    std::string events;
    const std::size_t count = output.logprobs.size();
    const bool ends = output.finish != FinishReason::kNone;
    const bool stop_token = ends && (output.stop_token >= 0 || count == 0);
    for (std::size_t i = 0; i < count; ++i) {
      const bool last = ends && !stop_token && i + 1 == count;
      const Json top = form_.top_tokens ? TopTokens(output.logprobs[i]) : Json();
      events += Event(TokenJson(output.logprobs[i], PieceOf(output, i)), top, last ? &output : nullptr, usage);
    }
    if (count > 0) last_id_ = output.logprobs.back().chosen.id;
    if (stop_token) {
      // Text that was held back in case a stop string began in it. Clients join the texts of tokens that are not
      // special.
      if (count == 0 && !output.text.empty()) events += Event(HeldBackJson(output.text), {}, nullptr, usage);
      events += Event(StopTokenJson(output), {}, &output, usage);
    }
    return events;
  }

  std::string End(const Usage&) override { return {}; }

  std::string Failure(const Error& error) override {
    return "data: " + DumpJson(TgiError(HttpStatus(error), error.message)) + "\n\n";
  }

  std::size_t held_bytes() const override { return text_.size(); }

 private:
  Json Seed() const { return form_.seed ? Json(*form_.seed) : Json(); }

  // How many of the choice's tokens are the prompt's.
  std::size_t PromptTokens(const ChoiceOutput& choice) const {
    return std::min(prompt_tokens_, choice.logprobs.size());
  }

  // The text after the prompt.
  std::string TextOf(const ChoiceOutput& choice) const {
    const std::size_t prompt = PromptTokens(choice);
    if (prompt == 0) return choice.text;
    return choice.text.substr(std::min(choice.logprobs[prompt - 1].text_end, choice.text.size()));
  }

  Json Details(const ChoiceOutput& choice) const {
    const std::size_t prompt = PromptTokens(choice);
    Json tokens = TokenList(choice, prompt);
    Json details = {{"finish_reason", TgiFinish(choice)},
                    {"generated_tokens", tokens.size()},
                    {"seed", Seed()},
                    {"prefill", PrefillList(choice, prompt)},
                    {"tokens", std::move(tokens)}};
    if (!form_.top_tokens) return details;
    Json& top = details["top_tokens"] = Json::array();
    for (const TokenLogprobText& token : std::span(choice.logprobs).subspan(prompt)) top.push_back(TopTokens(token));
    if (choice.stop_token >= 0) top.push_back(Json::array());  // the engine keeps no alternatives to it
    return details;
  }

  Json Others(std::span<const ChoiceOutput> choices, const ChoiceOutput& best) const {
    Json others = Json::array();
    for (const ChoiceOutput& choice : choices) {
      if (&choice == &best) continue;
      Json other = {{"generated_text", form_.prefix + TextOf(choice)}};
      other.update(Details(choice));
      others.push_back(std::move(other));
    }
    return others;
  }

  Json HeldBackJson(std::string_view text) {
    --tokens_;  // it is the rest of a token that was counted
    return {{"id", last_id_}, {"text", text}, {"logprob", nullptr}, {"special", false}};
  }

  // `top`: null if it is not wanted. `end`: the choice, with its last token; null before.
  std::string Event(Json token, const Json& top, const ChoiceOutput* end, const Usage& usage) {
    Json event = {{"index", ++tokens_}, {"token", std::move(token)}, {"generated_text", nullptr}, {"details", nullptr}};
    if (form_.top_tokens) event["top_tokens"] = top.is_null() ? Json::array() : top;
    if (end != nullptr) {
      event["generated_text"] = form_.prefix + text_;
      event["details"] = {{"finish_reason", TgiFinish(*end)},
                          {"generated_tokens", tokens_},
                          {"seed", Seed()},
                          {"input_length", usage.prompt_tokens}};
    }
    return "data: " + DumpJson(event) + "\n\n";
  }

  const std::string id_;
  const TgiForm form_;
  std::string text_;  // the whole text of a stream, for its end
  std::int64_t tokens_ = 0;
  TokenId last_id_ = 0;
  std::size_t prompt_tokens_ = 0;  // tokens that the answer begins with
};

class Tgi final : public Dialect {
 public:
  explicit Tgi(TgiPath path) : path_(path) {}

  Result<DialectRequest> Parse(std::string_view body, const DialectContext& context) const override {
    ASSIGN_OR_RETURN(Json json, ParseBody(body, BodyLimits(context.limits), context.limits));
    ASSIGN_OR_RETURN(TgiCompletion translated, CompletionOfTgi(std::move(json), path_, context.base_model));
    auto request = ParseCompletionJson(translated.completion, context.limits);
    if (!request.ok()) return InOwnNames(std::move(request).error());
    request->to_model_length = request->likeliest_choice = true;
    TgiForm form{.array = path_ == TgiPath::kRoot,
                 .details = translated.details,
                 .prompt_details = translated.prompt_details,
                 .top_tokens = request->sampling.top_logprobs > 0,
                 .prefix = std::move(translated.prefix),
                 .seed = request->seed};
    auto writer = std::make_unique<TgiWriter>("tgi-" + context.number, std::move(form));
    return DialectRequest{std::move(*request), std::move(writer)};
  }

  std::string ErrorBody(int status, std::string_view message, std::string_view) const override {
    return DumpJson(TgiError(status, message));
  }

  std::span<const FieldName> names() const override { return TgiNames(); }

 private:
  const TgiPath path_;
};

}  // namespace

const Dialect& TgiDialect(TgiPath path) {
  static const Tgi generate(TgiPath::kGenerate), stream(TgiPath::kGenerateStream), root(TgiPath::kRoot);
  if (path == TgiPath::kGenerate) return generate;
  return path == TgiPath::kGenerateStream ? stream : root;
}

std::string TgiInfoBody(const TgiInfo& info) {
  return DumpJson({{"model_id", info.model_id},
                   {"model_sha", nullptr},
                   {"model_pipeline_tag", "text-generation"},
                   {"max_best_of", kMaxChoicesPerPrompt},
                   {"max_stop_sequences", kMaxStops},
                   {"max_input_tokens", std::max<std::int64_t>(1, info.max_model_len - 1)},
                   {"max_total_tokens", info.max_model_len},
                   {"router", "loramux"},
                   {"version", info.version},
                   {"sha", nullptr},
                   {"docker_label", nullptr}});
}

}  // namespace loramux
