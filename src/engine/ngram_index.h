// Finds where the last tokens of a text occurred before, in constant time: as a compressor does, by chains of the
// places with equal hashes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"

namespace loramux {

// An index of a text that grows at its end. The text is the caller's. Takes memory once the text has tokens to find.
class NgramIndex {
 public:
  // What agrees, and what follows it in the text; no token: nothing was found.
  struct Match {
    std::size_t tokens = 0;
    std::span<const TokenId> next;
  };

  // Takes in the tokens that `text` has beyond those that are known, but for the last. `least`: the fewest tokens to
  // find, always the same. REQUIRES: `text` begins with what is known.
  void Grow(std::span<const TokenId> text, std::size_t least);
  // Where the longest part of `end`'s end occurs in `text`, from `least` to `most` tokens; the latest of several, of
  // the last kMostPlaces. `end` may be that text. REQUIRES: `text` and `least` are those of the last Grow.
  Match Find(std::span<const TokenId> text, std::span<const TokenId> end, std::size_t least, std::size_t most) const;
  // Forgets the text.
  void Clear();

 private:
  static constexpr int kMostPlaces = 24;

  // By hash, the last place; by place, the one before with that hash. A place is the number of tokens before what
  // follows; 0: none.
  std::vector<std::int32_t> last_, before_;
};

}  // namespace loramux
