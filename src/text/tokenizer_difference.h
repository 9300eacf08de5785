// How the tokenizer that was saved with an adapter differs from its base model's.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace loramux {

// What differs, as far as a prompt or an answer can show it. All empty: they agree.
struct TokenizerDifference {
  // A token with different ids, as in "'<s>' has the id 2, and 1 in the base model's": another vocabulary.
  std::string conflict;
  // Tokens that only one of them has, by id. Texts without them are read alike.
  std::vector<std::string> only_own, only_base;
  // A text that they split in different ways, or begin with different special tokens.
  std::string split;

  // Whether they read or write texts in different ways, with the same ids where they agree.
  bool IsRead() const { return conflict.empty() && !(only_own.empty() && only_base.empty() && split.empty()); }
};

// Compares all tokens, and how a few texts are split. Takes up to a second for a large vocabulary. Thread-safe.
TokenizerDifference CompareTokenizers(const Tokenizer& base, const Tokenizer& own);

// The same where the adapter's folder has no tokenizer.json, but names its added tokens in added_tokens.json or
// tokenizer_config.json (`added_tokens_decoder`). Errors: those of the files.
Result<TokenizerDifference> CompareAddedTokens(const Tokenizer& base, const std::filesystem::path& directory,
                                               const ReadTextPath& read);

}  // namespace loramux
