// Turns a stream of token ids into a stream of text: emits a piece only when it is certain (never half a UTF-8
// character), and finds stop strings that span tokens.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace loramux {

// Incremental decoding of one sequence. The concatenation of all pieces equals Decode of all ids, whatever the
// tokenizer's decoder does at word boundaries and with bytes that are no UTF-8. Every piece is valid UTF-8. Cost per
// token is constant: the decoder's steps run as state machines (bindings/src/detokenize.rs), nothing is decoded twice.
// A tokenizer with `<0x61>` byte tokens makes nothing of a run of them until the run has ended, because a later byte
// can still turn all of it into U+FFFD. Not thread-safe; movable; keeps what it needs of the tokenizer alive.
class IncrementalDetokenizer {
 public:
  IncrementalDetokenizer(const Tokenizer& tokenizer, bool skip_special_tokens);
  IncrementalDetokenizer(IncrementalDetokenizer&&) noexcept;
  IncrementalDetokenizer& operator=(IncrementalDetokenizer&&) noexcept;
  ~IncrementalDetokenizer();

  // Text that became certain with this token; often empty within a multi-byte character. An id outside the vocabulary
  // is an error and changes nothing.
  Result<std::string> Push(TokenId id);
  // The rest at the end of the sequence: an incomplete character comes out as U+FFFD. Nothing may be pushed after it.
  Result<std::string> Finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Looks for stop strings in a stream of text and holds back only as much as could still become one. What it does
// depends on the text alone, never on how it was cut into pieces. Cost per byte is bounded by the number of stop
// strings, whatever their length. Not thread-safe.
class StopStringMatcher {
 public:
  // Empty stop strings are ignored. `include_stop` keeps the match in the output.
  StopStringMatcher(std::vector<std::string> stops, bool include_stop);
  struct Output {
    std::string text;      // safe to send
    bool stopped = false;  // a stop string was found; nothing follows
    std::string matched;   // which one
  };
  // The match that is complete first wins (so no later text has to be awaited); among those complete at the same byte
  // the longest. REQUIRES: no earlier Push has stopped.
  Output Push(std::string_view text);
  // What was held back, at the end of the sequence.
  std::string Finish();

 private:
  // One stop string with its Knuth-Morris-Pratt table.
  struct Stop {
    std::string text;
    std::vector<std::size_t> border;  // border[n]: the longest proper prefix of text[0, n) that is its suffix too
    std::size_t matched = 0;          // so many bytes of `text` are the end of what was pushed
  };
  std::vector<Stop> stops_;
  bool include_stop_;
  std::string held_;
};

}  // namespace loramux
