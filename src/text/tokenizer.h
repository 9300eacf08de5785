// Tokenizer and chat template of a model directory: Hugging Face `tokenizers` and `minijinja` behind a small C
// interface (src/text/bindings). No exception and no Rust panic crosses that interface.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"

namespace loramux {

// Immutable after loading; every method is thread-safe.
class Tokenizer {
 public:
  // Reads DIR/tokenizer.json.
  static Result<Tokenizer> Load(const std::filesystem::path& directory);
  // Parses the text of a tokenizer.json. `label` names the source in errors.
  static Result<Tokenizer> Parse(std::string_view json, const std::string& label);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Encodes `text`. Error: it is not valid UTF-8.
  Result<std::vector<TokenId>> Encode(std::string_view text, bool add_special_tokens) const;
  // Encodes two texts as one, as the tokenizer's own post-processor joins them. With more than `max_tokens` tokens, the
  // longer text loses its end first, as in Hugging Face's truncation; 0: nothing is cut. Error: as Encode.
  Result<std::vector<TokenId>> EncodePair(std::string_view first, std::string_view second, bool add_special_tokens,
                                          std::size_t max_tokens) const;
  // Decodes `ids`. Error: an id outside the vocabulary.
  Result<std::string> Decode(std::span<const TokenId> ids, bool skip_special_tokens) const;
  // One more than the largest id, including added tokens. Every id is below it; some ids below it may be unused.
  std::int64_t VocabSize() const;
  // The most bytes of text that one token can stand for. nullopt: there is no such bound, because the tokenizer drops
  // text (white space, say) or joins any amount of it in one token.
  std::optional<std::size_t> MaxTokenBytes() const;
  // The stored form of one token ("Ġthe", "<|eos|>"); empty if there is no such id.
  std::string IdToToken(TokenId id) const;
  // -1 if there is no such token.
  TokenId TokenToId(std::string_view token) const;
  // True if the id is an added token marked special.
  bool IsSpecial(TokenId id) const;

 private:
  friend class GrammarCompiler;
  friend class IncrementalDetokenizer;
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace loramux
