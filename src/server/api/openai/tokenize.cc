#include "server/api/openai/tokenize.h"

#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "server/api/openai/tokenize_request.h"
#include "server/completion/adapter_text.h"

namespace loramux {
namespace {

std::vector<std::string> TokenStrings(const Tokenizer& tokenizer, const std::vector<TokenId>& tokens) {
  std::vector<std::string> strings;
  strings.reserve(tokens.size());
  for (const TokenId id : tokens) strings.push_back(tokenizer.IdToToken(id));
  return strings;
}

Result<std::string> TextOf(const DetokenizeRequest& request, const Tokenizer& tokenizer) {
  for (std::size_t i = 0; i < request.tokens.size(); ++i) {
    if (request.tokens[i] < tokenizer.VocabSize()) continue;
    const std::string name = fmt::format("tokens[{}]", i);
    return InvalidArgument(fmt::format("`{}`: expected a token of the model's tokenizer, at most {}, found {}", name,
                                       tokenizer.VocabSize() - 1, request.tokens[i]),
                           name);
  }
  const auto text = tokenizer.Decode(request.tokens, request.skip_special_tokens);
  if (!text.ok()) return Error{text.error().code, text.error().message, "tokens"};
  return DetokenizeResponse(*text);
}

}  // namespace

Result<TextQuestion> Tokenize(const ServingContext& context, const TextLimits& limits, std::string_view body) {
  ASSIGN_OR_RETURN(TokenizeRequest parsed, ParseTokenizeRequest(body, LimitsOfTextRequest(context, limits)));
  TextQuestion question{.model = parsed.model};
  question.answer = [&context, &limits,
                     request = std::move(parsed)](const AdapterVersion* version) -> Result<std::string> {
    const bool special = request.add_special_tokens;
    auto tokens = request.chat ? EncodeChat(context, limits, version, *request.chat, special)
                               : EncodeText(context, limits, version, request.prompt, "prompt", special);
    if (!tokens.ok()) return std::move(tokens).error();
    std::optional<std::vector<std::string>> strings;
    if (request.return_token_strs) strings = TokenStrings(TokenizerOf(*context.tokenizer, version), *tokens);
    return TokenizeResponse(*tokens, limits.max_model_len, strings);
  };
  return question;
}

Result<TextQuestion> Detokenize(const ServingContext& context, const TextLimits& limits, std::string_view body) {
  ASSIGN_OR_RETURN(DetokenizeRequest parsed, ParseDetokenizeRequest(body, LimitsOfTextRequest(context, limits)));
  TextQuestion question{.model = parsed.model};
  question.answer = [&context, request = std::move(parsed)](const AdapterVersion* version) {
    return TextOf(request, TokenizerOf(*context.tokenizer, version));
  };
  return question;
}

}  // namespace loramux
