#include "server/dialects/tgi_dialect.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "server/dialects/translation.h"

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
          {"special", token.special}};
}

// The token that ended the answer. It has no log-probability, because the engine keeps it back.
Json StopTokenJson(const ChoiceOutput& choice) {
  return {{"id", std::max(choice.stop_token, 0)},
          {"text", choice.stop_token_text},
          {"logprob", nullptr},
          {"special", true}};
}

// All tokens of a whole answer, the one that ended it last.
Json TokenList(const ChoiceOutput& choice) {
  Json tokens = Json::array();
  for (std::size_t i = 0; i < choice.logprobs.size(); ++i) {
    tokens.push_back(TokenJson(choice.logprobs[i], PieceOf(choice, i)));
  }
  if (choice.stop_token >= 0) tokens.push_back(StopTokenJson(choice));
  return tokens;
}

double MeanLogprob(const ChoiceOutput& choice) {
  double sum = 0;
  for (const TokenLogprobText& token : choice.logprobs) sum += LogprobNumber(token.chosen.logprob);
  return choice.logprobs.empty() ? 0 : sum / static_cast<double>(choice.logprobs.size());
}

// How a TGI request wants its answer.
struct TgiForm {
  bool array = false;    // a whole answer is an array of one
  bool details = false;  // with the tokens
  std::string prefix;    // before the text
  std::optional<std::uint64_t> seed;
};

class TgiWriter final : public AnswerWriter {
 public:
  TgiWriter(std::string id, TgiForm form) : id_(std::move(id)), form_(std::move(form)) {}

  const std::string& id() const override { return id_; }
  void SetModel(const std::string&) override {}  // answers do not name it

  // The best choice is the one whose tokens are likeliest on average.
  std::string Body(std::span<const ChoiceOutput> choices, const Usage&) override {
    const auto best = std::max_element(choices.begin(), choices.end(),
                                       [](const auto& a, const auto& b) { return MeanLogprob(a) < MeanLogprob(b); });
    Json answer = {{"generated_text", form_.prefix + best->text}};
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
      events += Event(TokenJson(output.logprobs[i], PieceOf(output, i)), last ? &output : nullptr, usage);
    }
    if (stop_token) events += Event(StopTokenJson(output), &output, usage);
    return events;
  }

  std::string End(const Usage&) override { return {}; }

  std::string Failure(const Error& error) override {
    return "data: " + DumpJson(TgiError(HttpStatus(error), error.message)) + "\n\n";
  }

  std::size_t held_bytes() const override { return text_.size(); }

 private:
  Json Seed() const { return form_.seed ? Json(*form_.seed) : Json(); }

  Json Details(const ChoiceOutput& choice) const {
    Json tokens = TokenList(choice);
    return {{"finish_reason", TgiFinish(choice)},
            {"generated_tokens", tokens.size()},
            {"seed", Seed()},
            {"prefill", Json::array()},
            {"tokens", std::move(tokens)}};
  }

  Json Others(std::span<const ChoiceOutput> choices, const ChoiceOutput& best) const {
    Json others = Json::array();
    for (const ChoiceOutput& choice : choices) {
      if (&choice == &best) continue;
      Json other = {{"generated_text", form_.prefix + choice.text}};
      other.update(Details(choice));
      others.push_back(std::move(other));
    }
    return others;
  }

  // `end`: the choice, with its last token; null before.
  std::string Event(Json token, const ChoiceOutput* end, const Usage& usage) {
    Json event = {{"index", ++tokens_}, {"token", std::move(token)}, {"generated_text", nullptr}, {"details", nullptr}};
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
  std::string text_;  // of a stream, for its end
  std::int64_t tokens_ = 0;
};

class Tgi final : public Dialect {
 public:
  explicit Tgi(TgiPath path) : path_(path) {}

  Result<DialectRequest> Parse(std::string_view body, const DialectContext& context) const override {
    ASSIGN_OR_RETURN(Json json, ParseRequestBody(body, BodyLimits(context.limits)));
    ASSIGN_OR_RETURN(TgiCompletion translated, CompletionOfTgi(std::move(json), path_, context.base_model));
    auto request = ParseCompletionJson(translated.completion, context.limits);
    if (!request.ok()) return InOwnNames(std::move(request).error());
    request->to_model_length = true;
    TgiForm form{path_ == TgiPath::kRoot, translated.details, std::move(translated.prefix), request->seed};
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
