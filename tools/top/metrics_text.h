// Reads the text format of metrics (Prometheus, 0.0.4), as `GET /metrics` gives it.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace loramux {

// One series and its value.
struct MetricSample {
  std::string name;
  std::map<std::string, std::string> labels;
  double value = 0;
};

// The value of a label; empty: the series has none of this name.
const std::string& LabelOf(const MetricSample& sample, const std::string& label);

// All series of one scrape.
class MetricSet {
 public:
  // Takes at most 200,000 series. Lines that are none (comments, and what is not understood) are left out.
  static MetricSet Parse(std::string_view text);

  // The series of a name, in the text's order.
  const std::vector<MetricSample>& Of(const std::string& name) const;
  // The sum of the series with this name, and with this value of a label where one is given. 0: there are none.
  double Sum(const std::string& name, const std::string& label = {}, const std::string& value = {}) const;
  bool empty() const { return series_.empty(); }

 private:
  std::map<std::string, std::vector<MetricSample>> series_;
};

// The value below which a share of a histogram's observations lie, linear within a bucket; of those that `now` has and
// `before` (may be null) has not. nullopt: there are none. `share`: 0 to 1. Above the last bound: that bound.
std::optional<double> HistogramQuantile(const MetricSet& now, const MetricSet* before, const std::string& name,
                                        double share);

}  // namespace loramux
