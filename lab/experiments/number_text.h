// Numbers within text: the figures of several seeds as one text.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace loramux {

// A text cut at its numbers: words[0] number[0] words[1] ... words[n].
struct NumberText {
  std::vector<std::string> words, numbers;  // words: one more than numbers
};
// A number is digits with a sign, decimals and an exponent ("1.694e+04"); digits behind a letter are words ("P99").
NumberText CutAtNumbers(std::string_view text);

// Returns the first text with the median of each number, in the form of the first; where one number alone differs, the
// smallest and the largest follow it, where several do, "(medians)" follows the text. Texts whose words differ cannot
// be combined: the first text and "(first seed)". REQUIRES: a text.
std::string MediansOfTexts(const std::vector<std::string>& texts);

}  // namespace loramux
