// Converts a stream of token ids to a stream of text. It emits a piece only when the piece is final (never half a UTF-8
// character), and finds stop strings that span tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace loramux {

// Incremental decoding of one sequence. The concatenation of all pieces equals Decode of all ids, whatever the
// tokenizer's decoder does at word boundaries and with invalid UTF-8. Every piece is valid UTF-8. The cost per token is
// constant: the decoder's steps run as state machines (bindings/src/detokenize.rs), and nothing is decoded twice.
//
// With `<0x61>` byte tokens, a run of such tokens yields no text until it has ended, because a later byte can still
// turn all of it into U+FFFD. Not thread-safe; movable; keeps the parts of the tokenizer that it needs alive.
class IncrementalDetokenizer {
 public:
  // `skip_special_tokens` omits the text of special tokens.
  IncrementalDetokenizer(const Tokenizer& tokenizer, bool skip_special_tokens);
  IncrementalDetokenizer(IncrementalDetokenizer&&) noexcept;
  IncrementalDetokenizer& operator=(IncrementalDetokenizer&&) noexcept;
  ~IncrementalDetokenizer();

  // Appends a token. Returns the text that became final with it; this is often empty within a multi-byte character.
  // Error: an id outside the vocabulary; it changes nothing.
  Result<std::string> Push(TokenId id);
  // Returns what Finish would return now, and changes nothing. Its cost grows with that text.
  Result<std::string> Held() const;
  // Returns the remaining text at the end of the sequence; an incomplete character becomes U+FFFD. No Push may follow.
  Result<std::string> Finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Finds stop strings in a stream of text. Holds back only as much text as could still become a stop string. The result
// depends on the text alone, not on how it was split into pieces. The cost per byte is bounded by the number of stop
// strings, whatever their length. Copies share the strings and their tables, so a request with many answers copies one
// matcher. Not thread-safe.
class StopStringMatcher {
 public:
  // Ignores empty stop strings. `include_stop` keeps the match in the output.
  explicit StopStringMatcher(std::vector<std::string> stops = {}, bool include_stop = false);
  // Stop strings may also contain special tokens of `tokenizer` that are no part of the text: PushSpecial tells of
  // them. Those in `shown` are part of it.
  StopStringMatcher(std::vector<std::string> stops, bool include_stop, const Tokenizer& tokenizer,
                    std::span<const TokenId> shown);
  // The result of one Push.
  struct Output {
    std::string text;      // safe to send
    bool stopped = false;  // a stop string was found; nothing follows
    std::string matched;   // the stop string found
  };
  // Appends text. The match that is complete first wins, so no later text must be awaited; of those complete at the
  // same byte, the longest wins. REQUIRES: no earlier Push has stopped.
  Output Push(std::string_view text);
  // Appends a special token that is no part of the text. Only stop strings that name it match it, and only as a whole.
  // `before` is text that comes before it and that Push gets later: until the detokenizer knows what follows.
  Output PushSpecial(TokenId id, std::string_view before);
  // True if a stop string names this special token.
  bool HasSpecial(TokenId id) const;
  // Returns the text held back, at the end of the sequence.
  std::string Finish();

 private:
  // One stop string, as symbols: bytes, and special tokens that are no part of the text. A stop string that names such
  // tokens is also here as plain text, which models may write too.
  struct Stop {
    std::string text;
    std::vector<std::int32_t> symbols;
    // border[n]: length of the longest proper prefix of symbols[0, n) that is also its suffix (Knuth-Morris-Pratt)
    std::vector<std::size_t> border;
    std::vector<std::size_t> bytes;  // bytes[n]: bytes of text in symbols[0, n)
    bool has_special = false;
  };

  void Prepare(std::vector<std::string> stops, const Tokenizer* tokenizer, std::span<const TokenId> shown);
  const Stop* Step(std::int32_t symbol);
  Output Complete(const Stop& stop);
  std::string Release();

  std::shared_ptr<const std::vector<Stop>> stops_;
  std::vector<std::size_t> matched_;  // for each stop: the last matched_[i] symbols pushed are its start
  bool include_stop_;
  std::string held_;
};

}  // namespace loramux
