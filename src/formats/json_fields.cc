#include "formats/json_fields.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "base/message.h"

namespace loramux {
namespace {

// Records the keys of members of the top-level object. A pass of its own: nlohmann's parser with a callback looks
// through the parent after every object in it, which is quadratic.
class KeyRecorder : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit KeyRecorder(MemberKeyOrder& order) : order_(order) {}

  bool key(std::string& key) override {
    if (depth_ == 1) {
      member_ = key;
      seen_.clear();
      order_.erase(key);  // if a key occurs twice, the last one counts
    } else if (depth_ == 2 && seen_.insert(key).second) {
      order_[member_].push_back(key);
    }
    return true;
  }
  bool start_object(std::size_t) override { return ++depth_ > 0; }
  bool start_array(std::size_t) override { return ++depth_ > 0; }
  bool end_object() override { return --depth_ >= 0; }
  bool end_array() override { return --depth_ >= 0; }
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(std::int64_t) override { return true; }
  bool number_unsigned(std::uint64_t) override { return true; }
  bool number_float(double, const std::string&) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(nlohmann::json::binary_t&) override { return true; }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception&) override { return false; }

 private:
  MemberKeyOrder& order_;
  int depth_ = 0;
  std::string member_;
  std::set<std::string> seen_;
};

// Shows a short list of plain values; describes any other list.
std::string DescribeList(const nlohmann::json& list) {
  constexpr std::size_t kMaxShown = 8;
  const bool plain =
      std::all_of(list.begin(), list.begin() + static_cast<std::ptrdiff_t>(std::min(list.size(), kMaxShown)),
                  [](const nlohmann::json& item) { return item.is_primitive(); });
  if (list.empty()) return "an empty list";
  if (!plain || list.size() > kMaxShown) return "a list of " + WithSeparators(list.size());
  std::string text(1, '[');
  for (const nlohmann::json& item : list) text.append(text.size() > 1 ? ", " : "").append(Describe(item));
  return text.append(1, ']');
}

}  // namespace

std::string WithoutInfinity(std::string_view text) {
  constexpr std::string_view kInfinity = "Infinity";
  std::string out;
  bool in_text = false;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '"') in_text = !in_text;
    if (!in_text && text.substr(at).starts_with(kInfinity)) {
      out += R"({"__float__": "Infinity"})";
      at += kInfinity.size() - 1;
      continue;
    }
    out += text[at];
    if (in_text && text[at] == '\\' && at + 1 < text.size()) out += text[++at];
  }
  return out;
}

Result<nlohmann::json> ParseJsonObject(std::string_view text, const std::string& label, MemberKeyOrder* order) {
  if (const auto problem = JsonTextProblem(text)) {
    return InvalidArgument(label + ": not valid JSON: found " + *problem);
  }
  try {
    nlohmann::json value = nlohmann::json::parse(text.begin(), text.end());
    if (!value.is_object()) return InvalidArgument(label + ": expected a JSON object, found " + Describe(value));
    if (order != nullptr) {
      KeyRecorder recorder(*order);
      nlohmann::json::sax_parse(text.begin(), text.end(), &recorder);
    }
    return value;
  } catch (const nlohmann::json::exception& error) {
    return InvalidArgument(label + ": not valid JSON: " + WithoutTag(error.what()));
  }
}

std::string Describe(const nlohmann::json& value) {
  switch (value.type()) {
    case nlohmann::json::value_t::null:
      return "null";
    case nlohmann::json::value_t::object:
      return value.empty() ? "an empty object" : "an object";
    case nlohmann::json::value_t::array:
      return DescribeList(value);
    case nlohmann::json::value_t::string:
      return std::string(1, '"').append(Printable(value.get_ref<const std::string&>())).append(1, '"');
    default:
      return value.dump();
  }
}

bool IsOff(const nlohmann::json& value) {
  if (value.is_null()) return true;
  if (value.is_boolean()) return !value.get<bool>();
  if (value.is_string()) return value.get_ref<const std::string&>().empty();
  return value.is_structured() && value.empty();
}

std::optional<double> FiniteNumber(const nlohmann::json& value) {
  if (!value.is_number()) return std::nullopt;
  const double number = value.get<double>();
  return std::isfinite(number) ? std::optional(number) : std::nullopt;
}

std::optional<std::int64_t> IntegerIn(const nlohmann::json& value, std::int64_t low, std::int64_t high) {
  if (!value.is_number_integer()) return std::nullopt;
  if (value.is_number_unsigned() &&
      value.get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    return std::nullopt;
  }
  const auto number = value.get<std::int64_t>();
  return number >= low && number <= high ? std::optional(number) : std::nullopt;
}

const nlohmann::json* JsonFields::Find(const char* key) const {
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

bool JsonFields::IsExplicitNull(const char* key) const {
  const auto found = object_.find(key);
  return found != object_.end() && found->is_null();
}

Error JsonFields::Bad(const char* key, const std::string& expected) const {
  const auto found = object_.find(key);
  if (found == object_.end()) return Missing(key, expected);
  return InvalidArgument(label_ + key + ": expected " + expected + ", found " + Describe(*found));
}

Error JsonFields::Missing(const char* key, const std::string& expected) const {
  return InvalidArgument(label_ + key + " is missing: expected " + expected);
}

Result<std::optional<std::int64_t>> JsonFields::Int(const char* key, std::int64_t low, std::int64_t high) const {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return std::optional<std::int64_t>();
  const auto number = IntegerIn(*value, low, high);
  if (!number) return Bad(key, "an integer from " + std::to_string(low) + " to " + std::to_string(high));
  return number;
}

Result<std::int64_t> JsonFields::RequiredInt(const char* key, std::int64_t low, std::int64_t high) const {
  ASSIGN_OR_RETURN(const auto number, Int(key, low, high));
  if (!number) return Bad(key, "an integer from " + std::to_string(low) + " to " + std::to_string(high));
  return *number;
}

Result<std::int64_t> JsonFields::IntOr(const char* key, std::int64_t low, std::int64_t high,
                                       std::int64_t fallback) const {
  ASSIGN_OR_RETURN(const auto number, Int(key, low, high));
  return number.value_or(fallback);
}

Result<std::optional<double>> JsonFields::Number(const char* key) const {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return std::optional<double>();
  const auto number = FiniteNumber(*value);
  if (!number) return Bad(key, "a finite number");
  return number;
}

Result<bool> JsonFields::BoolOr(const char* key, bool fallback) const {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) return Bad(key, "true or false");
  return value->get<bool>();
}

Result<std::optional<std::string>> JsonFields::String(const char* key) const {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return std::optional<std::string>();
  if (!value->is_string()) return Bad(key, "a string");
  return std::optional(value->get<std::string>());
}

}  // namespace loramux
