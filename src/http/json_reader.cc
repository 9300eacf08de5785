#include "http/json_reader.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <unordered_map>

#include "base/json_text.h"

namespace loramux {
namespace {

constexpr std::size_t kMaxQuotedBytes = 40;
constexpr std::size_t kMaxDetailBytes = 160;
constexpr std::size_t kValuesPerLook = 4096;  // between two looks whether the client is gone
constexpr std::size_t kEarlyKeys = 64;        // an object with as many is checked before its end

// Cuts the text to `max_bytes` at a character boundary.
std::string Shorten(std::string_view text, std::size_t max_bytes) {
  if (text.size() <= max_bytes) return std::string(text);
  std::size_t end = max_bytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return std::string(text.substr(0, end)) + "...";
}

Error Malformed(const JsonLimits& limits, std::string detail) {
  return InvalidArgument(std::string(limits.subject) + " is not valid JSON: expected one JSON object, found " +
                         std::move(detail));
}

// Builds the document from parser events. It looks no key up while building, so objects with many keys do not cost
// quadratic time.
class DocumentBuilder {
 public:
  explicit DocumentBuilder(const JsonLimits& limits) : limits_(limits) {}

  bool null() { return Add(nullptr); }
  bool boolean(bool value) { return Add(value); }
  bool number_integer(Json::number_integer_t value) { return Add(value); }
  bool number_unsigned(Json::number_unsigned_t value) { return Add(value); }
  bool number_float(Json::number_float_t value, const std::string&) { return Add(value); }
  bool string(std::string& value) { return Add(std::move(value)); }
  bool binary(Json::binary_t&) { return false; }
  bool start_object(std::size_t) { return Open(Json::object()); }
  bool start_array(std::size_t) { return Open(Json::array()); }
  bool end_array() { return Close(); }
  bool end_object() { return (limits_.last_key_wins ? DropDuplicates() : CheckDuplicates()) && Close(); }

  bool key(std::string& name) {
    Base& fields = ObjectBase(*open_.back());
    fields.emplace_back(std::move(name), Json());
    // Early, and at sizes that double: the whole object may be large.
    return limits_.last_key_wins || fields.size() < kEarlyKeys || !std::has_single_bit(fields.size()) ||
           CheckDuplicates();
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& exception) {
    std::string_view what = exception.what();
    if (const auto end = what.find("] "); end != std::string_view::npos) what.remove_prefix(end + 2);
    const std::string detail = limits_.quote ? " (" + Shorten(what, kMaxDetailBytes) + ")" : "";
    return Stop(Malformed(limits_, "an error at byte " + std::to_string(position) + detail));
  }

  std::optional<Error>& error() { return error_; }
  Json TakeRoot() { return std::move(root_); }

 private:
  using Base = Json::object_t::Container;
  static Base& ObjectBase(Json& object) { return object.get_ref<Json::object_t&>(); }

  bool Stop(Error error) {
    error_ = std::move(error);
    return false;
  }

  bool Add(Json value) { return Place(std::move(value)) != nullptr; }

  // Appends the value at the current position of the document. Null after an error.
  Json* Place(Json value) {
    if (++values_ > limits_.max_values) {
      Stop(InvalidArgument(std::string(limits_.subject) + " is too complex: expected at most " +
                           std::to_string(limits_.max_values) + " JSON values, found more"));
      return nullptr;
    }
    if (values_ % kValuesPerLook == 0 && limits_.gone != nullptr && *limits_.gone) {
      Stop(ClientIsGone());
      return nullptr;
    }
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& parent = *open_.back();
    if (parent.is_array()) {
      auto& items = parent.get_ref<Json::array_t&>();
      items.push_back(std::move(value));
      return &items.back();
    }
    Json& slot = ObjectBase(parent).back().second;
    slot = std::move(value);
    return &slot;
  }

  bool Open(Json container) {
    if (open_.size() >= static_cast<std::size_t>(limits_.max_depth)) {
      return Stop(InvalidArgument(std::string(limits_.subject) + " is nested too deeply: expected at most " +
                                  std::to_string(limits_.max_depth) + " levels, found more"));
    }
    Json* placed = Place(std::move(container));
    if (placed == nullptr) return false;
    open_.push_back(placed);
    return true;
  }

  bool Close() {
    open_.pop_back();
    return true;
  }

  bool CheckDuplicates() {
    const Base& fields = ObjectBase(*open_.back());
    if (fields.size() < 2) return true;
    std::vector<std::string_view> names;
    names.reserve(fields.size());
    for (const auto& [name, value] : fields) names.push_back(name);
    std::sort(names.begin(), names.end());
    const auto twin = std::adjacent_find(names.begin(), names.end());
    if (twin == names.end()) return true;
    const std::string name = Shorten(*twin, kMaxQuotedBytes);
    return Stop(InvalidArgument("`" + name + "`: expected each key once in an object, found it twice", name));
  }

  // Leaves each key where it stands first, with the value that it has last.
  bool DropDuplicates() {
    Base& fields = ObjectBase(*open_.back());
    std::unordered_map<std::string_view, std::size_t> places;
    Base kept;
    for (auto& [name, value] : fields) {
      const auto [place, is_new] = places.try_emplace(name, kept.size());
      if (is_new) {
        kept.emplace_back(name, std::move(value));
      } else {
        kept[place->second].second = std::move(value);
      }
    }
    fields.swap(kept);
    return true;
  }

  const JsonLimits& limits_;
  std::size_t values_ = 0;
  Json root_;
  std::vector<Json*> open_;  // stays valid: a parent does not grow while its last child is open
  std::optional<Error> error_;
};

// Returns where the string ends whose characters begin at `from`: at its quote, or at the end of the text.
std::size_t EndOfString(std::string_view text, std::size_t from) {
  for (std::size_t begin = from;;) {
    const std::size_t quote = std::min(text.find('"', begin), text.size());
    std::size_t slashes = 0;
    while (slashes < quote - begin && text[quote - slashes - 1] == '\\') ++slashes;
    if (slashes % 2 == 0 || quote == text.size()) return quote;
    begin = quote + 1;  // it was escaped
  }
}

// Returns the length of the text's first string of more than `max` characters; nullopt if it has none. Takes linear
// time. Text that is not JSON gives some result, which the parser's error then hides or replaces.
std::optional<std::size_t> LongString(std::string_view text, std::size_t max) {
  if (text.size() <= max) return std::nullopt;
  for (auto open = text.find('"'); open != std::string_view::npos;) {
    const std::size_t end = EndOfString(text, open + 1);
    if (end - open - 1 > max) return end - open - 1;
    open = text.find('"', end + 1);
  }
  return std::nullopt;
}

}  // namespace

Error ClientIsGone() { return Unavailable("The client closed the connection before the answer."); }

Result<Json> ParseJson(std::string_view text, const JsonLimits& limits) {
  if (const auto problem = JsonNulProblem(text)) return Malformed(limits, *problem);
  if (const auto length = LongString(text, limits.max_string)) {
    return InvalidArgument(std::string(limits.subject) + ": expected strings of at most " +
                           std::to_string(limits.max_string) + " characters, found one of " + std::to_string(*length) +
                           limits.why_strings_are_short);
  }
  DocumentBuilder builder(limits);
  try {
    if (Json::sax_parse(text.begin(), text.end(), &builder)) return builder.TakeRoot();
  } catch (const std::exception& exception) {
    return Malformed(limits, limits.quote ? Shorten(exception.what(), kMaxDetailBytes) : "something else");
  }
  return builder.error() ? std::move(*builder.error()) : Malformed(limits, "something else");
}

Result<Json> ParseModelObject(std::string_view text) {
  if (text.empty()) return Json::object();
  ASSIGN_OR_RETURN(Json json, ParseJson(text, {.subject = "The object", .last_key_wins = true}));
  if (!json.is_object()) return InvalidArgument("expected a JSON object, found " + DescribeJson(json));
  return json;
}

Result<Json> ParseRequestBody(std::string_view body, const JsonLimits& limits) {
  ASSIGN_OR_RETURN(Json json, ParseJson(body, limits));
  if (!json.is_object()) {
    return InvalidArgument("The request body: expected a JSON object, found " + DescribeJson(json));
  }
  return json;
}

std::string DumpJson(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string DescribeJson(const Json& value) {
  if (value.is_array()) return "an array of " + std::to_string(value.size());
  if (value.is_object()) return "an object";
  if (value.is_string()) return DumpJson(Shorten(value.get_ref<const std::string&>(), kMaxQuotedBytes));
  return DumpJson(value);
}

std::optional<std::int64_t> AsInteger(const Json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<std::uint64_t>();
    if (number > static_cast<std::uint64_t>(INT64_MAX)) return std::nullopt;
    return static_cast<std::int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (!value.is_number_float()) return std::nullopt;
  const double number = value.get<double>();
  // only integers that a double represents exactly
  if (std::trunc(number) != number || std::abs(number) > 0x1p53) return std::nullopt;
  return static_cast<std::int64_t>(number);
}

FieldReader::FieldReader(const Json& object, std::string where) : where_(std::move(where)) {
  CHECK(object.is_object());
  for (const auto& [name, value] : object.get_ref<const Json::object_t&>()) fields_.emplace_back(name, &value);
  std::sort(fields_.begin(), fields_.end());
}

const Json* FieldReader::Find(std::string_view name) const {
  const auto found = std::lower_bound(fields_.begin(), fields_.end(), name,
                                      [](const auto& field, std::string_view wanted) { return field.first < wanted; });
  if (found == fields_.end() || found->first != name || found->second->is_null()) return nullptr;
  return found->second;
}

void FieldReader::Fail(ErrorCode code, std::string_view name, std::string message) {
  if (error_) return;
  error_ = Error{code, "`" + FullName(name) + "`: " + std::move(message), FullName(name)};
}

void FieldReader::Expect(std::string_view name, std::string_view expected, const Json* found) {
  Fail(ErrorCode::kInvalidArgument, name,
       "expected " + std::string(expected) + ", found " + (found == nullptr ? "nothing" : DescribeJson(*found)));
}

bool FieldReader::Boolean(std::string_view name, bool& value) {
  const Json* field = Find(name);
  if (field == nullptr) return false;
  if (!field->is_boolean()) {
    Expect(name, "true or false", field);
    return false;
  }
  value = field->get<bool>();
  return true;
}

bool FieldReader::Integer(std::string_view name, std::int64_t min, std::int64_t max, std::int64_t& value) {
  const Json* field = Find(name);
  if (field == nullptr) return false;
  const auto number = AsInteger(*field);
  if (!number || *number < min || *number > max) {
    Expect(name, "an integer from " + std::to_string(min) + " to " + std::to_string(max), field);
    return false;
  }
  value = *number;
  return true;
}

bool FieldReader::Number(std::string_view name, double min, double max, bool open_min, float& value) {
  const Json* field = Find(name);
  if (field == nullptr) return false;
  const double number = field->is_number() ? field->get<double>() : NAN;
  if (!(number >= min && number <= max) || (open_min && static_cast<float>(number) <= static_cast<float>(min))) {
    Expect(name, std::string("a number ") + (open_min ? "above " : "from ") + DumpJson(min) + " to " + DumpJson(max),
           field);
    return false;
  }
  value = static_cast<float>(number);
  return true;
}

bool FieldReader::String(std::string_view name, std::string& value) {
  const Json* field = Find(name);
  if (field == nullptr) return false;
  if (!field->is_string()) {
    Expect(name, "a string", field);
    return false;
  }
  value = field->get_ref<const std::string&>();
  return true;
}

bool FieldReader::Integers(std::string_view name, std::int64_t min, std::int64_t max, std::size_t max_count,
                           std::vector<std::int32_t>& values) {
  const Json* list = Array(name);
  if (list == nullptr) return false;
  if (list->size() > max_count) {
    Expect(name, "at most " + std::to_string(max_count) + " integers", list);
    return false;
  }
  std::vector<std::int32_t> numbers;
  numbers.reserve(list->size());
  for (const Json& item : *list) {
    const auto number = AsInteger(item);
    if (!number || *number < min || *number > max) {
      Expect(std::string(name) + "[" + std::to_string(numbers.size()) + "]",
             "an integer from " + std::to_string(min) + " to " + std::to_string(max), &item);
      return false;
    }
    numbers.push_back(static_cast<std::int32_t>(*number));
  }
  values = std::move(numbers);
  return true;
}

const Json* FieldReader::Array(std::string_view name) {
  const Json* field = Find(name);
  if (field == nullptr || field->is_array()) return field;
  Expect(name, "an array", field);
  return nullptr;
}

const Json* FieldReader::Object(std::string_view name) {
  const Json* field = Find(name);
  if (field == nullptr || field->is_object()) return field;
  Expect(name, "an object", field);
  return nullptr;
}

}  // namespace loramux
