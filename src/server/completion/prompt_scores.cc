#include "server/completion/prompt_scores.h"

#include "http/json_reader.h"
#include "server/completion/choice_output.h"
#include "server/completion/choice_stream.h"

namespace loramux {
namespace {

Json Entry(const Tokenizer& tokenizer, TokenId id, float logprob, std::int32_t rank) {
  return {{"logprob", LogprobNumber(logprob)}, {"rank", rank}, {"decoded_token", TokenText(tokenizer, id)}};
}

Json Entries(const Tokenizer& tokenizer, const ScoredToken& token, std::int32_t alternatives) {
  Json entries = Json::object();
  entries[std::to_string(token.id)] = Entry(tokenizer, token.id, token.logprob, token.rank);
  std::int32_t rank = 0;
  for (const TokenLogprob& other : token.top_logprobs) {
    if (++rank > alternatives) break;
    if (other.id != token.id) entries[std::to_string(other.id)] = Entry(tokenizer, other.id, other.logprob, rank);
  }
  return entries;
}

}  // namespace

std::string PromptLogprobsJson(const Tokenizer& tokenizer, const PromptScores& prompt, std::int32_t alternatives) {
  std::string json = "[null";
  for (const ScoredToken& token : prompt.scores) json += "," + DumpJson(Entries(tokenizer, token, alternatives));
  return json + "]";
}

}  // namespace loramux
