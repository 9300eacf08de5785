#include "auth/objective_headers.h"

#include <charconv>
#include <string>

#include <fmt/format.h>

namespace loramux {
namespace {

constexpr double kMostMs = 86'400'000;
constexpr std::size_t kMostShown = 40;

}  // namespace

Result<TimeNs> ObjectiveIn(const std::function<std::string_view(std::string_view)>& header,
                           const ObjectiveHeaderNames& names) {
  for (const std::string_view name : names) {
    const std::string_view text = header(name);
    if (text.empty()) continue;
    double ms = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), ms);
    const bool whole = error == std::errc() && end == text.data() + text.size();
    if (!whole || !(ms >= 1 && ms <= kMostMs)) {
      return InvalidArgument(fmt::format("{}: expected a number of milliseconds from 1 to {:.0f}, found '{}'", name,
                                         kMostMs, text.substr(0, kMostShown)),
                             std::string(name));
    }
    return static_cast<TimeNs>(ms * static_cast<double>(kNsPerMs));
  }
  return TimeNs{0};
}

}  // namespace loramux
