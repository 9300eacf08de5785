#include "text/tokenizer_difference.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/message.h"

namespace loramux {
namespace {

using nlohmann::json;

// Letters, digits, white space, contractions, marks, several scripts: where pre-tokenizers and normalisers differ.
constexpr const char* kProbes[] = {
    "Hello world",
    " leading and trailing ",
    "I'm you'LL they've 12345 3.14 1,000",
    "line\nbreak\n\n\tindent  double   spaces\r\n",
    "def f(x):\n    return x_1 != [y]  # -->",
    "na\u00efve \u00c5ngstr\u00f6m \u212b stra\u00dfe",
    "\u65e5\u672c\u8a9e \u043f\u0440\u0438\u0432\u0435\u0442 \u0645\u0631\u062d\u0628\u0627 \U0001f600",
};

void Conflict(TokenizerDifference& difference, const std::string& token, TokenId own, TokenId base) {
  if (!difference.conflict.empty()) return;
  difference.conflict =
      Quote(token) + " has the id " + std::to_string(own) + ", and " + std::to_string(base) + " in the base model's";
}

void CompareToken(const Tokenizer& base, const std::string& token, TokenId id, TokenizerDifference& difference) {
  const TokenId there = base.TokenToId(token);
  if (there < 0) {
    difference.only_own.push_back(token);
  } else if (there != id) {
    Conflict(difference, token, id, there);
  }
}

// Calls visit(token, id) for each token of the tokenizer.
template <typename Visit>
void ForEachToken(const Tokenizer& tokenizer, const Visit& visit) {
  const auto count = static_cast<TokenId>(tokenizer.VocabSize());
  for (TokenId id = 0; id < count; ++id) {
    const std::string token = tokenizer.IdToToken(id);
    if (!token.empty()) visit(token, id);
  }
}

void CompareSplits(const Tokenizer& base, const Tokenizer& own, TokenizerDifference& difference) {
  for (const char* probe : kProbes) {
    for (const bool special : {false, true}) {
      const auto ours = own.Encode(probe, special), theirs = base.Encode(probe, special);
      if (ours.ok() == theirs.ok() && (!ours.ok() || *ours == *theirs)) continue;
      difference.split = probe;
      return;
    }
  }
}

// The file as a JSON object; null: there is none.
Result<json> ReadObject(const ReadTextPath& read, const std::filesystem::path& path) {
  auto text = read(path);
  if (!text.ok() && text.error().code == ErrorCode::kNotFound) return json();
  if (!text.ok()) return std::move(text).error();
  json object = json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return InvalidArgument(path.string() + ": expected a JSON object", path.string());
  return object;
}

}  // namespace

TokenizerDifference CompareTokenizers(const Tokenizer& base, const Tokenizer& own) {
  TokenizerDifference difference;
  ForEachToken(own, [&](const std::string& token, TokenId id) { CompareToken(base, token, id, difference); });
  ForEachToken(base, [&](const std::string& token, TokenId) {
    if (own.TokenToId(token) < 0) difference.only_base.push_back(token);
  });
  if (difference.conflict.empty()) CompareSplits(base, own, difference);
  return difference;
}

Result<TokenizerDifference> CompareAddedTokens(const Tokenizer& base, const std::filesystem::path& directory,
                                               const ReadTextPath& read) {
  ASSIGN_OR_RETURN(const json added, ReadObject(read, directory / "added_tokens.json"));
  ASSIGN_OR_RETURN(const json config, ReadObject(read, directory / "tokenizer_config.json"));
  TokenizerDifference difference;
  std::map<TokenId, std::string> tokens;
  for (const auto& [token, id] : added.items()) {
    if (id.is_number_integer()) tokens.emplace(id.get<TokenId>(), token);
  }
  const auto decoder = config.is_object() ? config.find("added_tokens_decoder") : config.end();
  if (decoder != config.end() && decoder->is_object()) {
    for (const auto& [key, token] : decoder->items()) {
      TokenId id = -1;
      std::from_chars(key.data(), key.data() + key.size(), id);
      const bool named = token.is_object() && token.contains("content") && token["content"].is_string();
      if (id >= 0 && named) tokens.emplace(id, token["content"].get<std::string>());
    }
  }
  for (const auto& [id, token] : tokens) CompareToken(base, token, id, difference);
  return difference;
}

}  // namespace loramux
