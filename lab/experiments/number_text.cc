#include "lab/experiments/number_text.h"

#include <algorithm>
#include <cctype>
#include <charconv>

#include <fmt/format.h>

#include "base/check.h"
#include "lab/experiments/verdict.h"

namespace loramux {
namespace {

bool IsDigit(std::string_view text, std::size_t at) {
  return at < text.size() && std::isdigit(static_cast<unsigned char>(text[at])) != 0;
}

// The end of the digits, decimals and exponent that begin at `at`.
std::size_t EndOfNumber(std::string_view text, std::size_t at) {
  while (IsDigit(text, at)) ++at;
  if (at < text.size() && text[at] == '.' && IsDigit(text, at + 1)) {
    for (++at; IsDigit(text, at);) ++at;
  }
  if (at < text.size() && text[at] == 'e' && at + 1 < text.size() && (text[at + 1] == '+' || text[at + 1] == '-') &&
      IsDigit(text, at + 2)) {
    for (at += 2; IsDigit(text, at);) ++at;
  }
  return at;
}

double ValueOf(std::string_view number) {
  if (!number.empty() && number.front() == '+') number.remove_prefix(1);
  double value = 0;
  std::from_chars(number.data(), number.data() + number.size(), value);
  return value;
}

// The value with the decimals, or the exponent, of `like`.
std::string ShowLike(double value, std::string_view like, bool sign) {
  const std::size_t point = like.find('.');
  const std::size_t decimals = point == std::string_view::npos ? 0 : like.size() - point - 1;
  if (like.find('e') != std::string_view::npos) return fmt::format("{:.4g}", value);
  return sign ? fmt::format("{:+.{}f}", value, decimals) : fmt::format("{:.{}f}", value, decimals);
}

}  // namespace

NumberText CutAtNumbers(std::string_view text) {
  NumberText cut{.words = {""}, .numbers = {}};
  for (std::size_t at = 0; at < text.size();) {
    const bool signed_number = (text[at] == '+' || text[at] == '-') && IsDigit(text, at + 1);
    const bool begins = at == 0 || std::isalnum(static_cast<unsigned char>(text[at - 1])) == 0;
    if (begins && (signed_number || IsDigit(text, at))) {
      const std::size_t end = EndOfNumber(text, signed_number ? at + 1 : at);
      cut.numbers.emplace_back(text.substr(at, end - at));
      cut.words.emplace_back();
      at = end;
    } else {
      cut.words.back() += text[at++];
    }
  }
  return cut;
}

std::string MediansOfTexts(const std::vector<std::string>& texts) {
  CHECK_GT(texts.size(), 0u);
  std::vector<NumberText> cuts;
  for (const std::string& text : texts) cuts.push_back(CutAtNumbers(text));
  const NumberText& first = cuts.front();
  if (std::any_of(cuts.begin(), cuts.end(), [&](const NumberText& cut) { return cut.words != first.words; }))
    return texts.front() + " (first seed)";
  const auto differs = [&](std::size_t i) {
    return std::any_of(cuts.begin(), cuts.end(),
                       [&](const NumberText& cut) { return cut.numbers[i] != first.numbers[i]; });
  };
  std::size_t different = 0;
  for (std::size_t i = 0; i < first.numbers.size(); ++i) different += differs(i) ? 1 : 0;
  std::string text = first.words[0], spread;
  for (std::size_t i = 0; i < first.numbers.size(); ++i) {
    std::vector<double> values;
    bool sign = false;
    for (const NumberText& cut : cuts) {
      values.push_back(ValueOf(cut.numbers[i]));
      sign = sign || cut.numbers[i].front() == '+';
    }
    text += differs(i) ? ShowLike(MedianOf(values), first.numbers[i], sign) : first.numbers[i];
    const auto [least, most] = std::minmax_element(values.begin(), values.end());
    if (differs(i) && different == 1)
      spread =
          fmt::format(" ({} to {})", ShowLike(*least, first.numbers[i], sign), ShowLike(*most, first.numbers[i], sign));
    text += first.words[i + 1];
  }
  return text + (different > 1 ? " (medians)" : spread);
}

}  // namespace loramux
