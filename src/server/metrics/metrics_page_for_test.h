// Parses a page in Prometheus' text format, for tests.
#pragma once

#include <cstdlib>
#include <map>
#include <set>
#include <sstream>
#include <string>

namespace loramux {

// The content of one page.
struct MetricsPage {
  std::map<std::string, double> values;      // by name and labels as written: vllm:x{a="b"}
  std::map<std::string, std::string> types;  // by family
  std::set<std::string> duplicates;          // series that occur twice

  explicit MetricsPage(const std::string& text) {
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) {
      if (line.starts_with("# TYPE ")) {
        std::istringstream words(line.substr(7));
        std::string name, type;
        words >> name >> type;
        if (!types.emplace(name, type).second) duplicates.insert(name);
      } else if (!line.empty() && line[0] != '#') {
        const auto space = line.rfind(' ');
        const std::string series = line.substr(0, space);
        if (!values.emplace(series, std::strtod(line.c_str() + space, nullptr)).second) duplicates.insert(series);
      }
    }
  }

  // Returns the sum of all series with that name (without suffixes) and with the text `label` in their labels.
  double Sum(const std::string& name, const std::string& label = "") const {
    double sum = 0;
    for (const auto& [series, value] : values) {
      if (Named(series, name) && series.find(label) != std::string::npos) sum += value;
    }
    return sum;
  }
  // Returns the number of the series that Sum adds up.
  int Count(const std::string& name, const std::string& label = "") const {
    int count = 0;
    for (const auto& [series, value] : values) count += Named(series, name) && series.find(label) != std::string::npos;
    return count;
  }
  // Returns the only series with that name; empty if there is none, or more than one.
  std::string Only(const std::string& name) const {
    std::string found;
    for (const auto& [series, value] : values) {
      if (!Named(series, name)) continue;
      if (!found.empty()) return {};
      found = series;
    }
    return found;
  }

 private:
  static bool Named(const std::string& series, const std::string& name) {
    return series == name || series.starts_with(name + "{");
  }
};

}  // namespace loramux
