// Sorting of sequences that are nearly sorted.
#pragma once

#include <algorithm>
#include <iterator>
#include <vector>

namespace loramux {

// Sorts `values` by merging neighbouring ascending runs: n steps if they are sorted, else n log2(runs). Stable.
// `buffer` is scratch memory with arbitrary content. Nothing is allocated once both vectors have the capacity.
template <typename T, typename Before>
void MergeRuns(std::vector<T>& values, std::vector<T>& buffer, Before before) {
  while (std::is_sorted_until(values.begin(), values.end(), before) != values.end()) {
    buffer.clear();
    for (auto begin = values.begin(); begin != values.end();) {
      const auto middle = std::is_sorted_until(begin, values.end(), before);
      const auto end = std::is_sorted_until(middle, values.end(), before);
      std::merge(begin, middle, middle, end, std::back_inserter(buffer), before);
      begin = end;
    }
    values.swap(buffer);
  }
}

}  // namespace loramux
