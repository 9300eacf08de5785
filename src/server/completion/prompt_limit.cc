#include "server/completion/prompt_limit.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace loramux {
namespace {

constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();
// A shorter text is encoded at once. Pieces are as long: short enough for little memory, long enough that the tokens
// that a cut adds do not count.
constexpr std::size_t kPieceBytes = 32 * 1024;
// Tokens that one cut may add to the sum over pieces: those of a word that it divides.
constexpr std::int64_t kTokensPerCut = 64;
// A text of at most this many bytes per token of the limit is encoded at once: it is hardly longer than what fits.
constexpr std::size_t kUsualTokenBytes = 8;
// Bytes per token of the limit that a text may have of which only the end is wanted; all of it is encoded.
constexpr std::size_t kCutTokenBytes = 16;

Error TooManyBytes(std::size_t found, const PromptLimit& limit) {
  return InvalidArgument(
      fmt::format("This model's maximum context length is {} tokens, so a prompt has at most {} "
                  "bytes. However, you sent {} bytes. Please reduce the length.",
                  limit.tokens, limit.bytes, found));
}

Error TooManyTokens(const PromptLimit& limit, std::size_t bytes) {
  return InvalidArgument(
      fmt::format("This model's maximum context length is {} tokens. However, your prompt of {} "
                  "bytes has more. Please reduce the length.",
                  limit.tokens, bytes));
}

// Returns the length of the first piece: it ends after white space if there is any, and never within a character.
std::size_t PieceLength(std::string_view text) {
  if (text.size() <= kPieceBytes) return text.size();
  const auto space = text.substr(0, kPieceBytes).find_last_of(" \t\n\r");
  if (space != std::string_view::npos && space > 0) return space;
  std::size_t length = kPieceBytes;
  while (length > 1 && (static_cast<unsigned char>(text[length]) & 0xC0) == 0x80) --length;
  return length;
}

// Error if the pieces of the text have more tokens than the limit, whatever the cuts between them add.
Status CheckPieces(const Tokenizer& tokenizer, std::string_view text, const PromptLimit& limit) {
  std::int64_t least = 0;
  for (std::string_view rest = text; !rest.empty();) {
    const std::size_t length = PieceLength(rest);
    ASSIGN_OR_RETURN(const std::vector<TokenId> tokens, tokenizer.Encode(rest.substr(0, length), false));
    least += static_cast<std::int64_t>(tokens.size()) - kTokensPerCut;
    if (least > limit.tokens) return TooManyTokens(limit, text.size());
    rest.remove_prefix(length);
  }
  return Ok{};
}

// Error if a text that is longer than what usually fits has more tokens than the limit.
Status CheckLongText(const Tokenizer& tokenizer, std::string_view text, const PromptLimit& limit) {
  const auto count = static_cast<std::size_t>(std::max<std::int64_t>(0, limit.tokens));
  const std::size_t usual = BoundedProduct(count, kUsualTokenBytes);
  return text.size() > std::max(usual, kPieceBytes) ? CheckPieces(tokenizer, text, limit) : Ok{};
}

Result<std::vector<TokenId>> Within(const PromptLimit& limit, std::vector<TokenId> tokens) {
  if (static_cast<std::int64_t>(tokens.size()) <= limit.tokens) return tokens;
  return InvalidArgument(
      fmt::format("This model's maximum context length is {} tokens. However, your prompt has {}. "
                  "Please reduce the length.",
                  limit.tokens, tokens.size()));
}

// Returns a beginning of the text that has at least `count` tokens, whatever the cuts between its pieces add; or all of
// it.
Result<std::string_view> BeginningWith(const Tokenizer& tokenizer, std::string_view text, std::int64_t count) {
  std::int64_t least = 0;
  std::size_t length = 0;
  while (length < text.size() && least <= count) {
    const std::size_t piece = PieceLength(text.substr(length));
    ASSIGN_OR_RETURN(const std::vector<TokenId> tokens, tokenizer.Encode(text.substr(length, piece), false));
    least += static_cast<std::int64_t>(tokens.size()) - kTokensPerCut;
    length += piece;
  }
  return text.substr(0, length);
}

}  // namespace

PromptLimit PromptLimit::For(const Tokenizer& tokenizer, std::int64_t tokens) {
  const auto longest = tokenizer.MaxTokenBytes();
  const auto count = static_cast<std::size_t>(std::max<std::int64_t>(0, tokens));
  return {tokens, longest ? BoundedProduct(count, *longest) : kNoLimit};
}

std::size_t BoundedProduct(std::size_t bytes, std::size_t factor, std::size_t more) {
  std::size_t product = 0;
  if (__builtin_mul_overflow(bytes, factor, &product) || __builtin_add_overflow(product, more, &product)) {
    return kNoLimit;
  }
  return product;
}

Result<std::vector<TokenId>> EncodePrompt(const Tokenizer& tokenizer, std::string_view text, bool add_special_tokens,
                                          const PromptLimit& limit) {
  if (text.size() > limit.bytes) return TooManyBytes(text.size(), limit);
  RETURN_IF_ERROR(CheckLongText(tokenizer, text, limit));
  ASSIGN_OR_RETURN(std::vector<TokenId> tokens, tokenizer.Encode(text, add_special_tokens));
  return Within(limit, std::move(tokens));
}

// The tokenizer puts its special tokens before and after those of the text.
Result<std::vector<TokenId>> EncodeBeginning(const Tokenizer& tokenizer, std::string_view text, bool add_special_tokens,
                                             const PromptLimit& limit, std::int64_t most_tokens) {
  if (text.size() > limit.bytes) return TooManyBytes(text.size(), limit);
  if (text.size() > kPieceBytes) {
    ASSIGN_OR_RETURN(text, BeginningWith(tokenizer, text, most_tokens));
  }
  ASSIGN_OR_RETURN(std::vector<TokenId> tokens, tokenizer.Encode(text, add_special_tokens));
  const auto most = static_cast<std::size_t>(most_tokens);
  if (tokens.size() <= most) return tokens;
  ASSIGN_OR_RETURN(const std::vector<TokenId> plain, tokenizer.Encode(text, false));
  const auto found = std::search(tokens.begin(), tokens.end(), plain.begin(), plain.end());
  const std::size_t special = tokens.size() - plain.size();
  if (found == tokens.end() || special >= most) {
    tokens.resize(most);
    return tokens;
  }
  const auto kept = static_cast<std::ptrdiff_t>(most - special);
  tokens.erase(found + kept, found + static_cast<std::ptrdiff_t>(plain.size()));
  return tokens;
}

Result<std::vector<TokenId>> EncodeEndOfPrompt(const Tokenizer& tokenizer, std::string_view text,
                                               bool add_special_tokens, const PromptLimit& limit,
                                               std::int64_t most_tokens) {
  const auto count = static_cast<std::size_t>(std::max<std::int64_t>(0, limit.tokens));
  const std::size_t most = std::max(BoundedProduct(count, kCutTokenBytes), 2 * kPieceBytes);
  if (text.size() > most) {
    return InvalidArgument(
        fmt::format("A prompt that is cut has at most {} bytes ({} for each token of this model's length), found {}. "
                    "Please send its end alone.",
                    most, kCutTokenBytes, text.size()));
  }
  ASSIGN_OR_RETURN(std::vector<TokenId> tokens, tokenizer.Encode(text, add_special_tokens));
  if (static_cast<std::int64_t>(tokens.size()) <= most_tokens) return tokens;
  ASSIGN_OR_RETURN(const std::vector<TokenId> special, tokenizer.Encode("", add_special_tokens));
  const auto [end, unused] = std::mismatch(tokens.begin(), tokens.end(), special.begin(), special.end());
  const std::int64_t first = std::min<std::int64_t>(end - tokens.begin(), most_tokens);
  tokens.erase(tokens.begin() + first, tokens.end() - (most_tokens - first));
  return tokens;
}

Result<std::vector<TokenId>> EncodePairOfTexts(const Tokenizer& tokenizer, std::string_view first,
                                               std::string_view second, bool add_special_tokens,
                                               const PromptLimit& limit, std::int64_t most_tokens) {
  for (std::string_view* text : {&first, &second}) {
    if (text->size() > limit.bytes) return TooManyBytes(text->size(), limit);
    if (most_tokens == 0) {
      RETURN_IF_ERROR(CheckLongText(tokenizer, *text, limit));
    } else if (text->size() > kPieceBytes) {
      ASSIGN_OR_RETURN(*text, BeginningWith(tokenizer, *text, most_tokens));
    }
  }
  ASSIGN_OR_RETURN(std::vector<TokenId> tokens,
                   tokenizer.EncodePair(first, second, add_special_tokens, static_cast<std::size_t>(most_tokens)));
  return Within(limit, std::move(tokens));
}

}  // namespace loramux
