// Fuzzes the translations: for any body each dialect must return, its errors must be valid, and the writer of an
// accepted request must write valid bodies and events.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "auth/error_body.h"
#include "base/check.h"
#include "base/fuzz_limits.h"
#include "http/error_status.h"
#include "http/json_reader.h"
#include "server/api/messages/messages_dialect.h"
#include "server/api/openai/embeddings_dialect.h"
#include "server/api/responses/responses_dialect.h"
#include "server/api/tgi/tgi_dialect.h"
#include "server/api/tokens/tokens_dialect.h"

namespace loramux {
namespace {

void CheckError(const Dialect& dialect, const Error& error) {
  CHECK(!error.message.empty());
  CHECK_LT(error.message.size(), 2000u);  // errors must not echo the client's data
  CHECK(ParseJson(dialect.ErrorBody(HttpStatus(error), error.message, error.param)).ok());
}

// Answers echo fields of the request, which may be nested as deep as a body.
void CheckJson(std::string_view text) {
  JsonLimits deeper;
  deeper.max_depth = 200;
  CHECK(ParseJson(text, deeper).ok());
}

void CheckEvents(std::string_view events) {
  while (!events.empty()) {
    const auto end = events.find("\n\n");
    CHECK(end != std::string_view::npos);
    const std::string_view event = events.substr(0, end);
    const auto data = event.find("data: ");
    CHECK(data != std::string_view::npos);
    CheckJson(event.substr(data + 6));
    events.remove_prefix(end + 2);
  }
}

ChoiceOutput Output(std::string_view text, FinishReason finish) {
  ChoiceOutput output;
  output.text = text;
  output.logprobs = {{{1, "a", -1}, {{3, "b", -2}}, false, text.size() / 2},
                     {{.id = 2, .token = "c", .logprob = -1, .special = true}, {}, false, text.size()}};
  output.finish = finish;
  output.token_ids = {{1, 2}};
  output.prompt_token_ids = std::make_shared<const std::vector<TokenId>>(1, 5);
  output.embedding = {static_cast<float>(text.size()), -0.5f, 1e-40f};
  if (finish == FinishReason::kStop) output.stop_token = 3;
  if (text.size() % 2 == 0) return output;
  using Kind = OutputEvent::Kind;  // as a model with tools and reasoning
  const std::string piece(text);
  output.events = {{Kind::kReasoning, 0, piece},
                   {Kind::kCallStart, 0, piece, 0, "call"},
                   {Kind::kArguments, 0, piece},
                   {Kind::kCallEnd, 0, ""},
                   {Kind::kContent, 0, piece},
                   {Kind::kCallStart, 1, piece, 0, "call"},
                   {Kind::kCallBroken, 1, piece, piece.size() / 2}};
  return output;
}

void CheckWriter(const DialectRequest& parsed, std::string_view text) {
  CHECK(parsed.writer != nullptr && !parsed.writer->id().empty());
  if (!parsed.request.stream) {
    const ChoiceOutput choices[] = {Output(text, FinishReason::kLength)};
    return CheckJson(parsed.writer->Body(choices, {}));
  }
  CheckEvents(parsed.writer->Delta(Output(text, FinishReason::kNone), {}));
  CheckEvents(parsed.writer->Delta(Output(text, FinishReason::kStop), {}));
  CheckEvents(parsed.writer->End({}));
  CheckEvents(parsed.writer->Failure(Internal("broke")));
}

void Check(const Dialect& dialect, std::string_view body) {
  const DialectContext context{.limits = {.vocab_size = 1000, .max_tokens = 200, .max_string = 2000},
                               .number = "07",
                               .created = 1,
                               .base_model = "base"};
  const auto parsed = dialect.Parse(body, context);
  if (!parsed.ok()) return CheckError(dialect, parsed.error());
  CHECK(!parsed->request.model.empty());
  CHECK(parsed->request.n >= 1 && parsed->request.n <= kMaxChoicesPerPrompt);
  CheckWriter(*parsed, body.substr(0, 40));
}

}  // namespace
}  // namespace loramux

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const loramux::FuzzLimits cost;
  using namespace loramux;
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  Check(MessagesDialect(), body);
  Check(ResponsesDialect(), body);
  Check(TokensDialect(), body);
  for (const Dialect* dialect : {&EmbeddingsDialect(), &ClassifyDialect(), &ScoreDialect(), &RerankDialect()}) {
    Check(*dialect, body);
  }
  for (const TgiPath path : {TgiPath::kGenerate, TgiPath::kGenerateStream, TgiPath::kRoot}) {
    Check(TgiDialect(path), body);
  }
  const auto count = ParseMessagesCount(body, {.vocab_size = 1000, .max_tokens = 200, .max_string = 2000});
  if (!count.ok()) CheckError(MessagesDialect(), count.error());
  return 0;
}
