// Sorting what is nearly sorted.
#pragma once

#include <algorithm>
#include <iterator>
#include <vector>

namespace loramux {

// Merges neighbouring ascending runs until one is left: n steps if `values` are sorted, n log2(runs) if not. Stable.
// The buffer's contents do not matter; nothing is allocated once both have the capacity.
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
