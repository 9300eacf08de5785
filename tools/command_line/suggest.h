// "Did you mean": the known name that a mistyped one stands for.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace loramux {

// The number of insertions, deletions, replacements and swaps of neighbours that turn one word into the other. Takes
// time and memory proportional to the product of the lengths.
std::size_t EditDistance(std::string_view a, std::string_view b);

// The known name that `word` is most likely meant to be, or an empty string: the nearest one within a third of the
// word's length. Of several equally near ones the first. Words over 64 bytes have none.
std::string NearestName(std::string_view word, std::span<const std::string> known);

// " Did you mean NAME?", or nothing.
std::string DidYouMean(std::string_view word, std::span<const std::string> known);

}  // namespace loramux
