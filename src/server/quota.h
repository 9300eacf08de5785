// What one adapter, or one API key, may take of the server, and the file that says so for each.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>

#include "base/result.h"
#include "server/json_reader.h"

namespace loramux {

// 0 means no limit, everywhere.
struct QuotaLimits {
  double requests_per_second = 0;
  double burst = 0;              // requests that may come at once; 0: one second's worth, at least one
  double tokens_per_second = 0;  // of prompts and answers, paid as they are served: who is in debt must wait
  std::int64_t concurrency = 0;  // sequences (a request with "n": 4 has four) being served, waiting ones included
  std::int64_t queued = 0;       // sequences that wait for their first token

  double Burst() const { return burst > 0 ? burst : requests_per_second < 1 ? 1 : requests_per_second; }
  bool operator==(const QuotaLimits&) const = default;
};

// Reads {"requests_per_second", "burst", "tokens_per_second", "concurrency", "queued"} over `defaults`. Errors name the
// field, after `where`; unknown fields are errors.
Result<QuotaLimits> ReadQuota(const Json& object, const std::string& where, QuotaLimits defaults);

// "sql" is that name, "acme-*" every name that begins with "acme-", "*" every name.
bool MatchesName(std::string_view pattern, std::string_view name);

// Error unless every field of the object is one of `known`; typing errors would be silent otherwise.
Status CheckKnownFields(const Json& object, const std::string& where, std::initializer_list<std::string_view> known);

// Limits by adapter name. Immutable.
class QuotaTable {
 public:
  explicit QuotaTable(QuotaLimits defaults = {}) : defaults_(defaults) {}
  // {"adapters": {"sql": {...}, "acme-*": {...}}}; what an entry leaves out is as in `defaults`.
  static Result<QuotaTable> Parse(std::string_view text, QuotaLimits defaults);
  // Reads a file of that form; errors name it.
  static Result<QuotaTable> Load(const std::string& path, QuotaLimits defaults);

  // The entry with that very name, or else with the longest pattern that matches, or else the defaults.
  const QuotaLimits& For(std::string_view name) const;

 private:
  QuotaLimits defaults_;
  std::map<std::string, QuotaLimits, std::less<>> exact_;
  std::map<std::string, QuotaLimits, std::less<>> prefixes_;  // without the '*'
};

}  // namespace loramux
