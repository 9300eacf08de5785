#include "tools/top/metrics_text.h"

#include <cmath>
#include <limits>

#include "tools/doctor/system_files.h"

namespace loramux {
namespace {

constexpr std::size_t kMaxSeries = 200'000;

std::optional<double> NumberOf(std::string_view text) {
  const std::string word(Trimmed(text).substr(0, 64));
  if (word == "+Inf" || word == "Inf") return std::numeric_limits<double>::infinity();
  char* end = nullptr;
  const double value = std::strtod(word.c_str(), &end);  // the program never sets another locale than C
  if (word.empty() || end != word.c_str() + word.size() || std::isnan(value)) return std::nullopt;
  return value;
}

// Takes a quoted value off the front: \\, \" and \n are escaped. nullopt: it does not end.
std::optional<std::string> TakeQuoted(std::string_view& text) {
  if (!text.starts_with('"')) return std::nullopt;
  std::string value;
  for (std::size_t i = 1; i < text.size(); ++i) {
    if (text[i] == '"') {
      text.remove_prefix(i + 1);
      return value;
    }
    if (text[i] == '\\' && i + 1 < text.size()) {
      ++i;
      value += text[i] == 'n' ? '\n' : text[i];
    } else {
      value += text[i];
    }
  }
  return std::nullopt;
}

// Takes {a="b",c="d"} off the front.
bool TakeLabels(std::string_view& text, std::map<std::string, std::string>& labels) {
  text.remove_prefix(1);
  while (true) {
    text = Trimmed(text);
    if (text.starts_with('}')) {
      text.remove_prefix(1);
      return true;
    }
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos) return false;
    const std::string name(Trimmed(text.substr(0, equals)));
    text.remove_prefix(equals + 1);
    std::optional<std::string> value = TakeQuoted(text);
    if (!value) return false;
    labels[name] = std::move(*value);
    if (text.starts_with(',')) text.remove_prefix(1);
  }
}

std::optional<MetricSample> SampleOf(std::string_view line) {
  if (line.empty() || line.starts_with('#')) return std::nullopt;
  MetricSample sample;
  const std::size_t end = line.find_first_of("{ \t");
  if (end == std::string_view::npos) return std::nullopt;
  sample.name = std::string(line.substr(0, end));
  line.remove_prefix(end);
  if (line.starts_with('{') && !TakeLabels(line, sample.labels)) return std::nullopt;
  const auto words = Pieces(Trimmed(line), ' ');  // a time stamp may follow the value
  const std::optional<double> value = NumberOf(words.front());
  if (!value) return std::nullopt;
  sample.value = *value;
  return sample;
}

// Observations up to each bound, by the bound.
std::map<double, double> Buckets(const MetricSet& set, const std::string& name) {
  std::map<double, double> buckets;
  for (const MetricSample& sample : set.Of(name + "_bucket")) {
    if (const auto bound = NumberOf(LabelOf(sample, "le"))) buckets[*bound] += sample.value;
  }
  return buckets;
}

}  // namespace

const std::string& LabelOf(const MetricSample& sample, const std::string& label) {
  static const std::string kNone;
  const auto found = sample.labels.find(label);
  return found == sample.labels.end() ? kNone : found->second;
}

MetricSet MetricSet::Parse(std::string_view text) {
  MetricSet set;
  std::size_t series = 0;
  while (!text.empty() && series < kMaxSeries) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    if (std::optional<MetricSample> sample = SampleOf(Trimmed(text.substr(0, end)))) {
      ++series;
      set.series_[sample->name].push_back(std::move(*sample));
    }
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return set;
}

const std::vector<MetricSample>& MetricSet::Of(const std::string& name) const {
  static const std::vector<MetricSample> kNone;
  const auto found = series_.find(name);
  return found == series_.end() ? kNone : found->second;
}

double MetricSet::Sum(const std::string& name, const std::string& label, const std::string& value) const {
  double sum = 0;
  for (const MetricSample& sample : Of(name)) {
    if (label.empty() || LabelOf(sample, label) == value) sum += sample.value;
  }
  return sum;
}

std::optional<double> HistogramQuantile(const MetricSet& now, const MetricSet* before, const std::string& name,
                                        double share) {
  std::map<double, double> buckets = Buckets(now, name);
  if (before != nullptr) {
    for (const auto& [bound, count] : Buckets(*before, name)) {
      if (const auto found = buckets.find(bound); found != buckets.end()) found->second -= count;
    }
  }
  if (buckets.empty() || buckets.rbegin()->second <= 0) return std::nullopt;
  const double wanted = share * buckets.rbegin()->second;
  double low = 0, below = 0;
  for (const auto& [bound, count] : buckets) {
    if (count >= wanted && count > below) {
      if (std::isinf(bound)) return low;
      return low + (bound - low) * (wanted - below) / (count - below);
    }
    if (!std::isinf(bound)) low = bound;
    below = std::max(below, count);
  }
  return low;
}

}  // namespace loramux
