#include "costs/pace.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "base/check.h"
#include "base/message.h"

namespace loramux {
namespace {

constexpr double kLastChange = 4e9;  // fits TimeNs

bool Before(const Pace::Change& a, const Pace::Change& b) { return a.at < b.at; }
bool IsFactor(double factor) { return factor >= Pace::kMinFactor && factor <= Pace::kMaxFactor; }

bool ParseNumber(std::string_view text, double& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

bool ParseChange(std::string_view line, Pace::Change& change) {
  const std::size_t comma = line.find(',');
  double seconds = 0;
  if (comma == std::string_view::npos || !ParseNumber(line.substr(0, comma), seconds) ||
      !ParseNumber(line.substr(comma + 1), change.factor)) {
    return false;
  }
  if (!(seconds >= 0 && seconds <= kLastChange)) return false;
  change.at = static_cast<TimeNs>(seconds * static_cast<double>(kNsPerSecond));
  return IsFactor(change.factor);
}

}  // namespace

Pace::Pace(std::vector<Change> changes, TimeNs period) : changes_(std::move(changes)), period_(period) {
  CHECK(std::is_sorted(changes_.begin(), changes_.end(), Before));
  CHECK(changes_.empty() || changes_.front().at >= 0);
  CHECK(period_ == 0 || changes_.empty() || changes_.back().at < period_);
  for (const Change& change : changes_) CHECK(IsFactor(change.factor));
}

double Pace::At(TimeNs now) const {
  if (period_ > 0) now %= period_;
  const auto next = std::upper_bound(changes_.begin(), changes_.end(), Change{.at = now}, Before);
  return next == changes_.begin() ? 1 : std::prev(next)->factor;
}

Result<Pace> ReadPace(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::vector<Pace::Change> changes;
  std::string line;
  for (std::size_t number = 1; std::getline(file, line); ++number) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (number == 1 || line.empty()) continue;  // the header
    Pace::Change change;
    if (!ParseChange(line, change) || (!changes.empty() && Before(change, changes.back()))) {
      return InvalidArgument(
          fmt::format("{}:{}: expected seconds,factor with ascending seconds and a factor from {:g} to {:g}, found {}",
                      path.string(), number, Pace::kMinFactor, Pace::kMaxFactor, Quote(line)),
          "--pace");
    }
    changes.push_back(change);
  }
  if (file.bad() || changes.empty()) {
    return InvalidArgument(path.string() + ": expected a header and lines of seconds,factor, found none", "--pace");
  }
  return Pace(std::move(changes));
}

}  // namespace loramux
