#include "auth/quota.h"

#include <algorithm>
#include <initializer_list>

#include "formats/file.h"

namespace loramux {
namespace {

constexpr double kMaxRate = 1e9;
constexpr std::int64_t kMaxCount = std::int64_t{1} << 40;
constexpr std::size_t kMaxLimitsFileBytes = std::size_t{16} << 20;

void ReadRate(FieldReader& fields, std::string_view name, double& value) {
  auto rate = static_cast<float>(value);
  if (fields.Number(name, 0, kMaxRate, false, rate)) value = fields.Find(name)->get<double>();
}

}  // namespace

Status CheckKnownFields(const Json& object, const std::string& where, std::initializer_list<std::string_view> known) {
  for (const auto& [name, value] : object.items()) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    std::string list;
    for (const std::string_view each : known) list += (list.empty() ? "" : ", ") + std::string(each);
    return InvalidArgument("`" + where + name.substr(0, 64) + "`: unknown field; expected one of " + list,
                           where + name);
  }
  return Ok{};
}

Result<QuotaLimits> ReadQuota(const Json& object, const std::string& where, QuotaLimits limits) {
  if (!object.is_object()) return InvalidArgument("`" + where + "`: expected an object, found " + DescribeJson(object));
  RETURN_IF_ERROR(CheckKnownFields(object, where + ".",
                                   {"requests_per_second", "burst", "tokens_per_second", "concurrency", "queued"}));
  FieldReader fields(object, where + ".");
  ReadRate(fields, "requests_per_second", limits.requests_per_second);
  ReadRate(fields, "burst", limits.burst);
  ReadRate(fields, "tokens_per_second", limits.tokens_per_second);
  fields.Integer("concurrency", 0, kMaxCount, limits.concurrency);
  fields.Integer("queued", 0, kMaxCount, limits.queued);
  if (!fields.ok()) return fields.error();
  return limits;
}

bool MatchesName(std::string_view pattern, std::string_view name) {
  if (!pattern.ends_with('*')) return pattern == name;
  return name.starts_with(pattern.substr(0, pattern.size() - 1));
}

Result<QuotaTable> QuotaTable::Parse(std::string_view text, QuotaLimits defaults) {
  JsonLimits limits;
  limits.subject = "The file of limits";
  ASSIGN_OR_RETURN(const Json json, ParseJson(text, limits));
  if (!json.is_object())
    return InvalidArgument("expected an object {\"adapters\": {...}}, found " + DescribeJson(json));
  RETURN_IF_ERROR(CheckKnownFields(json, "", {"adapters"}));
  FieldReader fields(json, "");
  const Json* adapters = fields.Object("adapters");
  if (!fields.ok()) return fields.error();
  QuotaTable table(defaults);
  if (adapters == nullptr) return table;
  for (const auto& [name, value] : adapters->items()) {
    ASSIGN_OR_RETURN(const QuotaLimits quota, ReadQuota(value, "adapters." + name.substr(0, 256), defaults));
    const bool pattern = name.ends_with('*');
    (pattern ? table.prefixes_ : table.exact_)[pattern ? name.substr(0, name.size() - 1) : name] = quota;
  }
  return table;
}

Result<QuotaTable> QuotaTable::Load(const std::string& path, QuotaLimits defaults) {
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxLimitsFileBytes));
  auto table = Parse(text, defaults);
  if (!table.ok()) return InvalidArgument("the limits in '" + path + "': " + table.error().message, path);
  return table;
}

const QuotaLimits& QuotaTable::For(std::string_view name) const {
  if (const auto exact = exact_.find(name); exact != exact_.end()) return exact->second;
  for (std::size_t length = name.size() + 1; !prefixes_.empty() && length-- > 0;) {
    const auto found = prefixes_.find(name.substr(0, length));
    if (found != prefixes_.end()) return found->second;
  }
  return defaults_;
}

}  // namespace loramux
