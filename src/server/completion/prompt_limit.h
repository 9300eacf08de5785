// How long the text of a prompt can be, so that a text that is too long is refused before much work is done for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "text/tokenizer.h"

namespace loramux {

// Limits of one prompt. The defaults limit nothing.
struct PromptLimit {
  std::int64_t tokens = std::numeric_limits<std::int64_t>::max();  // most tokens of a sequence
  // A text with more bytes has more tokens, whatever it says. As large as possible if the tokenizer has no such bound.
  std::size_t bytes = std::numeric_limits<std::size_t>::max();

  // The limit for sequences of `tokens` tokens.
  static PromptLimit For(const Tokenizer& tokenizer, std::int64_t tokens);
};

// Most characters that JSON needs for one byte of text: "\u0041".
inline constexpr std::size_t kJsonCharactersPerByte = 6;

// Returns `bytes` * `factor` + `more`, or the largest std::size_t if that is less.
std::size_t BoundedProduct(std::size_t bytes, std::size_t factor, std::size_t more = 0);

// Encodes the text of a prompt. Error: it has more tokens than the limit. Such a text is not tokenized to its end: a
// text beyond limit.bytes not at all, a shorter one in pieces, until those pieces have too many tokens.
Result<std::vector<TokenId>> EncodePrompt(const Tokenizer& tokenizer, std::string_view text, bool add_special_tokens,
                                          const PromptLimit& limit);

// Encodes the end of a text: its last tokens, so many that there are at most `most_tokens` with the special tokens at
// its start, which stay as in Hugging Face's truncation. Reads all of it. Error: the text is so much longer than the
// limit that its client hardly means to send it. REQUIRES: 0 < most_tokens.
Result<std::vector<TokenId>> EncodeEndOfPrompt(const Tokenizer& tokenizer, std::string_view text,
                                               bool add_special_tokens, const PromptLimit& limit,
                                               std::int64_t most_tokens);

// Encodes the beginning of a text: its first tokens, so many that there are at most `most_tokens` with the special
// tokens around them. Reads hardly more of the text than it needs. Error: the text has more bytes than the limit.
// REQUIRES: 0 < most_tokens <= limit.tokens.
Result<std::vector<TokenId>> EncodeBeginning(const Tokenizer& tokenizer, std::string_view text, bool add_special_tokens,
                                             const PromptLimit& limit, std::int64_t most_tokens);

// Encodes two texts as one prompt, as the tokenizer joins them. `most_tokens`: of which the longer text loses its end
// first; 0: as many as `limit` allows, and more are an error. REQUIRES: most_tokens <= limit.tokens.
Result<std::vector<TokenId>> EncodePairOfTexts(const Tokenizer& tokenizer, std::string_view first,
                                               std::string_view second, bool add_special_tokens,
                                               const PromptLimit& limit, std::int64_t most_tokens);

}  // namespace loramux
