// Sequences of several lengths that pass states in steps, for the tests of states on every backend.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "kernels/states.h"

namespace loramux {

// Pages of states, none of which is where the one before it is. They are full of NaN.
class StatePagesForTest {
 public:
  static constexpr std::int64_t kFloats = 48;  // floats of a page; states end within one

  StatePagesForTest(std::int64_t first, std::int64_t floats, std::int64_t sequences)
      : first_(first),
        pages_((first + floats + kFloats - 1) / kFloats),
        memory_(static_cast<std::size_t>(pages_ * sequences * kFloats), std::numeric_limits<float>::quiet_NaN()) {
    for (std::int64_t s = 0; s < sequences; ++s) {
      std::vector<std::uint32_t>& table = tables_.emplace_back();
      for (std::int64_t p = 0; p < pages_; ++p)
        table.push_back(static_cast<std::uint32_t>((pages_ - p) * sequences - 1 - s));
    }
  }
  StatePlace place() {
    return {{reinterpret_cast<std::byte*>(memory_.data()), kFloats * sizeof(float)}, kFloats, first_};
  }
  const std::uint32_t* table(std::size_t sequence) const { return tables_[sequence].data(); }
  std::int64_t first() const { return first_; }
  std::int64_t pages() const { return pages_; }  // pages of a sequence
  const std::vector<float>& memory() const { return memory_; }

 private:
  std::int64_t first_, pages_;
  std::vector<float> memory_;
  std::vector<std::vector<std::uint32_t>> tables_;
};

inline constexpr std::int64_t kStateTestTokens[] = {1, 9, 23};  // tokens of each sequence
inline constexpr auto kStateTestSequences = static_cast<std::int64_t>(std::size(kStateTestTokens));
inline constexpr std::int64_t kAllStateTestTokens = 33;

// Calls step(sequences) until all rows are computed: each sequence's next ones, `chunk` at most. Rows of a sequence are
// adjacent, as in one step of all.
template <typename Step>
void InStepsForTest(const StatePagesForTest& pages, std::int64_t chunk, const Step& step) {
  std::int64_t done[std::size(kStateTestTokens)] = {};
  for (bool more = true; more;) {
    more = false;
    std::vector<StateSequence> sequences;
    std::int64_t first = 0;
    for (std::size_t s = 0; s < std::size(kStateTestTokens); first += kStateTestTokens[s++]) {
      const std::int64_t rows = std::min(chunk, kStateTestTokens[s] - done[s]);
      if (rows == 0) continue;
      sequences.push_back({first + done[s], rows, done[s] == 0, pages.table(s)});
      done[s] += rows;
      more |= done[s] < kStateTestTokens[s];
    }
    if (!sequences.empty()) step(sequences);
  }
}

}  // namespace loramux
