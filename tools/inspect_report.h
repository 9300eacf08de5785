// The lines that `loramux inspect` prints.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/bytes.h"

namespace loramux {

// One line of the report: `key` and `value` for JSON, `label` and `text` for people.
struct ReportLine {
  std::string key;
  nlohmann::ordered_json value;
  std::string label;
  std::string text;
};
using Report = std::vector<ReportLine>;

inline void Add(Report& report, std::string key, std::string label, nlohmann::ordered_json value, std::string text) {
  report.push_back({std::move(key), std::move(value), std::move(label), std::move(text)});
}
inline void AddText(Report& report, std::string key, std::string label, const std::string& text) {
  Add(report, std::move(key), std::move(label), text, text);
}
inline void AddCount(Report& report, std::string key, std::string label, std::int64_t count) {
  Add(report, std::move(key), std::move(label), count, std::to_string(count));
}
inline void AddBytes(Report& report, std::string key, std::string label, std::int64_t bytes) {
  Add(report, std::move(key), std::move(label), bytes, FormatBytes(bytes));
}

}  // namespace loramux
