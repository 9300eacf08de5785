// Limits on the use of the server by one adapter or one API key, and the file that sets them.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>

#include "base/result.h"
#include "http/json_reader.h"

namespace loramux {

// Limits of one adapter or API key. In every field 0 means no limit.
struct QuotaLimits {
  double requests_per_second = 0;
  double burst = 0;              // requests that may arrive at once; 0: one second's worth, at least one
  double tokens_per_second = 0;  // prompt and output tokens, charged as they are served: a caller in debt must wait
  std::int64_t concurrency = 0;  // sequences being served or waiting (a request with "n": 4 has four)
  std::int64_t queued = 0;       // sequences that wait for their first token

  // The effective burst.
  double Burst() const { return burst > 0 ? burst : requests_per_second < 1 ? 1 : requests_per_second; }
  bool operator==(const QuotaLimits&) const = default;
};

// Reads {"requests_per_second", "burst", "tokens_per_second", "concurrency", "queued"}; absent fields keep the value of
// `defaults`. Errors name the field, after `where`; unknown fields are errors.
Result<QuotaLimits> ReadQuota(const Json& object, const std::string& where, QuotaLimits defaults);

// True if `pattern` matches `name`. "sql" matches that name, "acme-*" every name that begins with "acme-", "*" every
// name.
bool MatchesName(std::string_view pattern, std::string_view name);

// Error unless every field of the object is one of `known`, so that misspelt fields do not pass silently.
Status CheckKnownFields(const Json& object, const std::string& where, std::initializer_list<std::string_view> known);

// Limits by adapter name. Immutable.
class QuotaTable {
 public:
  // A table without entries: `defaults` apply to every name.
  explicit QuotaTable(QuotaLimits defaults = {}) : defaults_(defaults) {}
  // Parses {"adapters": {"sql": {...}, "acme-*": {...}}}. Fields that an entry leaves out are as in `defaults`.
  static Result<QuotaTable> Parse(std::string_view text, QuotaLimits defaults);
  // Reads a file of that format. Errors name the file.
  static Result<QuotaTable> Load(const std::string& path, QuotaLimits defaults);

  // Returns the entry with exactly that name, else the entry with the longest matching pattern, else the defaults.
  const QuotaLimits& For(std::string_view name) const;

 private:
  QuotaLimits defaults_;
  std::map<std::string, QuotaLimits, std::less<>> exact_;
  std::map<std::string, QuotaLimits, std::less<>> prefixes_;  // without the '*'
};

}  // namespace loramux
