#include "cluster/server_snapshot.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <span>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "base/message.h"
#include "cluster/prefix_blocks.h"

namespace loramux {
namespace {

// Limits of what is read. No sum or product of a snapshot's numbers that a policy forms can overflow 64 bits.
constexpr std::int64_t kMaxRequests = std::int64_t{1} << 30, kMaxTokens = std::int64_t{1} << 40;
constexpr std::int64_t kMaxPages = std::int64_t{1} << 31, kMaxPageBytes = std::int64_t{1} << 30;
constexpr std::int64_t kMaxPageTokens = std::int64_t{1} << 20, kMaxAdapterBytes = std::int64_t{1} << 44;
constexpr std::int64_t kMaxRank = 65536;
constexpr std::size_t kMaxNameBytes = 1024, kMaxIdBytes = 128;
constexpr std::size_t kMaxAdapters = 65536, kMaxLanes = 1024;

constexpr std::array<std::pair<AdapterPlace, std::string_view>, 4> kPlaces = {{{AdapterPlace::kDevice, "device"},
                                                                               {AdapterPlace::kArriving, "arriving"},
                                                                               {AdapterPlace::kHost, "host"},
                                                                               {AdapterPlace::kDisk, "disk"}}};

constexpr std::string_view kBase64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

// Base64 with padding of the numbers' bytes, the least significant first.
template <typename Number>
std::string NumbersAsBase64(const std::vector<Number>& numbers) {
  std::string text;
  text.reserve((numbers.size() * sizeof(Number) + 2) / 3 * 4);
  std::uint32_t bits = 0;
  int bytes = 0;
  const auto flush = [&] {
    for (int i = 0; i < 4; ++i) text.push_back(i <= bytes ? kBase64[(bits >> (18 - 6 * i)) & 63] : '=');
    bits = 0;
    bytes = 0;
  };
  for (const Number number : numbers) {
    for (std::size_t i = 0; i < sizeof(Number); ++i) {
      bits |= static_cast<std::uint32_t>((number >> (8 * i)) & 255) << (16 - 8 * bytes);
      if (++bytes == 3) flush();
    }
  }
  if (bytes > 0) flush();
  return text;
}

// The six bits of each character; 64: it is none of kBase64.
constexpr std::array<std::uint8_t, 256> kBitsOfCharacter = [] {
  std::array<std::uint8_t, 256> bits{};
  bits.fill(64);
  for (std::size_t i = 0; i < kBase64.size(); ++i) {
    bits[static_cast<unsigned char>(kBase64[i])] = static_cast<std::uint8_t>(i);
  }
  return bits;
}();

// The reverse; nullopt: the text is not what NumbersAsBase64 writes.
template <typename Number>
std::optional<std::vector<Number>> NumbersOfBase64(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  std::size_t padding = 0;
  while (padding < 2 && padding < text.size() && text[text.size() - 1 - padding] == '=') ++padding;
  const std::size_t bytes = text.size() / 4 * 3 - padding;
  if (bytes % sizeof(Number) != 0) return std::nullopt;
  std::vector<Number> numbers(bytes / sizeof(Number));
  std::uint64_t bits = 0;
  int held = 0;
  std::size_t done = 0;
  for (const char character : text.substr(0, text.size() - padding)) {
    const std::uint8_t six = kBitsOfCharacter[static_cast<unsigned char>(character)];
    if (six > 63) return std::nullopt;
    bits = bits << 6 | six;
    held += 6;
    if (held < 8) continue;
    held -= 8;
    numbers[done / sizeof(Number)] |= static_cast<Number>((bits >> held) & 255) << (8 * (done % sizeof(Number)));
    ++done;
  }
  if ((bits & ((std::uint64_t{1} << held) - 1)) != 0) return std::nullopt;  // what follows the last byte
  return numbers;
}

// A value as the parser meets it.
struct JsonValue {
  enum class Kind : std::uint8_t { kNull, kFlag, kInteger, kNumber, kText, kArray, kObject };
  Kind kind = Kind::kNull;
  bool flag = false;
  std::int64_t integer = 0;
  std::string* text = nullptr;
};

std::string DescribeValue(const JsonValue& value) {
  switch (value.kind) {
    case JsonValue::Kind::kNull:
      return "null";
    case JsonValue::Kind::kFlag:
      return value.flag ? "true" : "false";
    case JsonValue::Kind::kInteger:
      return std::to_string(value.integer);
    case JsonValue::Kind::kNumber:
      return "a number with a fraction or of more than 63 bits";
    case JsonValue::Kind::kText:
      return Quote(*value.text);
    case JsonValue::Kind::kArray:
      return "an array";
    case JsonValue::Kind::kObject:
      break;
  }
  return "an object";
}

// One field of an object of type T. `set` takes the value, or returns false if it is not what is expected.
template <typename T>
struct FieldOf {
  const char* name;
  const char* expected;
  bool (*set)(T&, JsonValue&);
  bool optional = false;  // it may be missing: older servers do not write it
};

template <auto kMember, std::int64_t kHigh, std::int64_t kLow = 0, typename T>
bool SetCount(T& object, JsonValue& value) {
  if (value.kind != JsonValue::Kind::kInteger || value.integer < kLow || value.integer > kHigh) return false;
  object.*kMember = static_cast<std::remove_reference_t<decltype(object.*kMember)>>(value.integer);
  return true;
}

template <auto kMember, typename T>
bool SetFlag(T& object, JsonValue& value) {
  if (value.kind != JsonValue::Kind::kFlag) return false;
  object.*kMember = value.flag;
  return true;
}

template <auto kMember, std::size_t kLeast, typename T>
bool SetName(T& object, JsonValue& value) {
  if (value.kind != JsonValue::Kind::kText) return false;
  if (value.text->size() < kLeast || value.text->size() > kMaxNameBytes) return false;
  object.*kMember = std::move(*value.text);
  return true;
}

// An id goes into headers and queries, so it has no character that means something there.
bool IsIdCharacter(char character) {
  return (character >= '0' && character <= '9') || (character >= 'a' && character <= 'z') ||
         (character >= 'A' && character <= 'Z') || character == '-' || character == '_' || character == '.';
}

template <auto kMember, std::size_t kLeast, typename T>
bool SetId(T& object, JsonValue& value) {
  if (value.kind != JsonValue::Kind::kText) return false;
  const std::string& text = *value.text;
  if (text.size() < kLeast || text.size() > kMaxIdBytes) return false;
  if (!std::all_of(text.begin(), text.end(), IsIdCharacter)) return false;
  object.*kMember = std::move(*value.text);
  return true;
}

bool SetPlace(SnapshotAdapter& adapter, JsonValue& value) {
  if (value.kind != JsonValue::Kind::kText) return false;
  for (const auto& [place, name] : kPlaces) {
    if (*value.text != name) continue;
    adapter.place = place;
    return true;
  }
  return false;
}

// Ascending numbers.
template <typename Number, std::vector<Number> ServerSnapshot::*kMember, std::size_t kMost>
bool SetNumbers(ServerSnapshot& snapshot, JsonValue& value) {
  constexpr std::size_t kMostText = (kMost * sizeof(Number) + 2) / 3 * 4;
  if (value.kind != JsonValue::Kind::kText || value.text->size() > kMostText) return false;
  auto numbers = NumbersOfBase64<Number>(*value.text);
  const auto descends = [](Number a, Number b) { return a >= b; };
  if (!numbers || std::adjacent_find(numbers->begin(), numbers->end(), descends) != numbers->end()) return false;
  snapshot.*kMember = std::move(*numbers);
  return true;
}

bool IsArray(ServerSnapshot&, JsonValue& value) { return value.kind == JsonValue::Kind::kArray; }

constexpr const char* kRequestsText = "a whole number from 0 to 2^30";
constexpr const char* kTokensText = "a whole number from 0 to 2^40";
constexpr const char* kPagesText = "a whole number from 0 to 2^31";
constexpr const char* kNameText = "a string of at most 1024 bytes";
constexpr const char* kFullNameText = "a string of 1 to 1024 bytes";
constexpr const char* kLanesName = "lane_waiting";
constexpr const char* kAdaptersName = "adapters";

template <auto kMember>
constexpr auto kRequests = SetCount<kMember, kMaxRequests, 0, ServerSnapshot>;
template <auto kMember>
constexpr auto kTokens = SetCount<kMember, kMaxTokens, 0, ServerSnapshot>;
template <auto kMember>
constexpr auto kPages = SetCount<kMember, kMaxPages, 0, ServerSnapshot>;

constexpr FieldOf<ServerSnapshot> kSnapshotFields[] = {
    {"instance", "1 to 128 letters, digits, '-', '_' and '.'", SetId<&ServerSnapshot::instance, 1>},
    {"version", "a whole number from 1 to 2^63 - 1",
     SetCount<&ServerSnapshot::version, std::numeric_limits<std::int64_t>::max(), 1>},
    {"draining", "true or false", SetFlag<&ServerSnapshot::draining>},
    {"profile", kNameText, SetName<&ServerSnapshot::profile, 0>},
    {"base_model", kNameText, SetName<&ServerSnapshot::base_model, 0>},
    {"running", kRequestsText, kRequests<&ServerSnapshot::running>},
    {"waiting", kRequestsText, kRequests<&ServerSnapshot::waiting>},
    {"waiting_prompt_tokens", kTokensText, kTokens<&ServerSnapshot::waiting_prompt_tokens>},
    {"running_prompt_tokens", kTokensText, kTokens<&ServerSnapshot::running_prompt_tokens>},
    {"running_context", kTokensText, kTokens<&ServerSnapshot::running_context>},
    {"max_running", kRequestsText, kRequests<&ServerSnapshot::max_running>},
    {"max_batch_tokens", kTokensText, kTokens<&ServerSnapshot::max_batch_tokens>},
    {kLanesName, "an array", IsArray},
    {"page_tokens", "a whole number from 0 to 2^20", SetCount<&ServerSnapshot::page_tokens, kMaxPageTokens>},
    {"page_bytes", "a whole number from 0 to 2^30", SetCount<&ServerSnapshot::page_bytes, kMaxPageBytes>},
    {"device_pages", kPagesText, kPages<&ServerSnapshot::device_pages>},
    {"free_pages", kPagesText, kPages<&ServerSnapshot::free_pages>},
    {"history_pages", kPagesText, kPages<&ServerSnapshot::history_pages>},
    {"idle_adapter_pages", kPagesText, kPages<&ServerSnapshot::idle_adapter_pages>},
    {kAdaptersName, "an array", IsArray},
    {"prefixes", "base64 of at most 2^18 ascending 32-bit numbers",
     SetNumbers<std::uint32_t, &ServerSnapshot::prefixes, kMaxLedgerBlocks>},
    {"offered_version", "a whole number from 0 to 2^63 - 1",
     SetCount<&ServerSnapshot::offered_version, std::numeric_limits<std::int64_t>::max()>, /*optional=*/true},
    {"offered", "base64 of at most 2^16 ascending 64-bit numbers",
     SetNumbers<std::uint64_t, &ServerSnapshot::offered, kMaxOffered>, /*optional=*/true},
};

constexpr FieldOf<SnapshotAdapter> kAdapterFields[] = {
    {"name", kFullNameText, SetName<&SnapshotAdapter::name, 1>},
    {"digest", "at most 128 letters, digits, '-', '_' and '.'", SetId<&SnapshotAdapter::digest, 0>},
    {"place", "\"device\", \"arriving\", \"host\" or \"disk\"", SetPlace},
    {"rank", "a whole number from 0 to 65536", SetCount<&SnapshotAdapter::rank, kMaxRank>},
    {"bytes", "a whole number from 0 to 2^44", SetCount<&SnapshotAdapter::bytes, kMaxAdapterBytes>},
    {"running", kRequestsText, SetCount<&SnapshotAdapter::running, kMaxRequests>},
    {"waiting", kRequestsText, SetCount<&SnapshotAdapter::waiting, kMaxRequests>},
};

// Which fields of an object were met, and the one that comes next.
template <typename T>
class FieldList {
 public:
  explicit FieldList(std::span<const FieldOf<T>> fields) : fields_(fields) {}

  void Begin() { seen_ = 0; }
  // Returns an error text for a field that was met already; empty: none. `known` is false for an unknown one.
  std::string Next(std::string_view name, bool& known) {
    known = false;
    for (std::size_t i = 0; i < fields_.size(); ++i) {
      if (name != fields_[i].name) continue;
      known = true;
      next_ = i;
      if ((seen_ >> i & 1) != 0) return std::string(name) + " is there twice";
      seen_ |= std::uint32_t{1} << i;
    }
    return {};
  }
  const FieldOf<T>& next() const { return fields_[next_]; }
  // Returns a field that was not met and must be there; null: none.
  const FieldOf<T>* Missing() const {
    for (std::size_t i = 0; i < fields_.size(); ++i) {
      if ((seen_ >> i & 1) == 0 && !fields_[i].optional) return &fields_[i];
    }
    return nullptr;
  }

 private:
  std::span<const FieldOf<T>> fields_;
  std::uint32_t seen_ = 0;
  std::size_t next_ = 0;
};

// Builds a snapshot while the parser reads: what is unknown costs no memory, and a wrong value ends the parsing.
class SnapshotReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  Result<ServerSnapshot> Take() && {
    if (!error_.empty()) return InvalidArgument("snapshot: " + error_);
    if (in_ != In::kEnd) return InvalidArgument("snapshot: not valid JSON: the text ends early");
    return std::move(snapshot_);
  }

  bool null() override { return Scalar({}); }
  bool boolean(bool flag) override { return Scalar({.kind = JsonValue::Kind::kFlag, .flag = flag}); }
  bool number_integer(std::int64_t number) override {
    return Scalar({.kind = JsonValue::Kind::kInteger, .integer = number});
  }
  bool number_unsigned(std::uint64_t number) override {
    if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      return Scalar({.kind = JsonValue::Kind::kNumber});
    }
    return number_integer(static_cast<std::int64_t>(number));
  }
  bool number_float(double, const std::string&) override { return Scalar({.kind = JsonValue::Kind::kNumber}); }
  bool string(std::string& text) override { return Scalar({.kind = JsonValue::Kind::kText, .text = &text}); }
  bool binary(nlohmann::json::binary_t&) override { return Fail("binary data is no JSON"); }

  bool key(std::string& name) override {
    if (ignored_depth_ > 0) return true;
    bool known = false;
    std::string problem = in_ == In::kAdapter ? adapter_fields_.Next(name, known) : snapshot_fields_.Next(name, known);
    ignore_next_ = !known;
    return problem.empty() || Fail(Prefix() + problem);
  }
  bool start_object(std::size_t) override {
    if (Ignores()) return ++ignored_depth_ > 0;
    if (in_ == In::kStart) {
      in_ = In::kSnapshot;
      return true;
    }
    if (in_ != In::kAdapters) return Refuse({.kind = JsonValue::Kind::kObject});
    if (snapshot_.adapters.size() >= kMaxAdapters) return Fail("adapters: expected at most 65536, found more");
    snapshot_.adapters.emplace_back();
    adapter_fields_.Begin();
    in_ = In::kAdapter;
    return true;
  }
  bool end_object() override {
    if (ignored_depth_ > 0) return --ignored_depth_ >= 0;
    if (in_ == In::kAdapter) return EndAdapter();
    in_ = In::kEnd;
    const auto* missing = snapshot_fields_.Missing();
    return missing == nullptr || Fail(std::string(missing->name) + " is missing: expected " + missing->expected);
  }
  bool start_array(std::size_t) override {
    if (Ignores()) return ++ignored_depth_ > 0;
    JsonValue array{.kind = JsonValue::Kind::kArray};
    if (in_ != In::kSnapshot || !snapshot_fields_.next().set(snapshot_, array)) return Refuse(array);
    in_ = snapshot_fields_.next().name == kLanesName ? In::kLanes : In::kAdapters;
    return true;
  }
  bool end_array() override {
    if (ignored_depth_ > 0) return --ignored_depth_ >= 0;
    in_ = In::kSnapshot;
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception& error) override {
    return Fail("not valid JSON: " + Printable(WithoutTag(error.what())));
  }

 private:
  enum class In : std::uint8_t { kStart, kSnapshot, kLanes, kAdapters, kAdapter, kEnd };

  bool Fail(std::string problem) {
    if (error_.empty()) error_ = std::move(problem);
    return false;
  }
  // How messages name the object that is read: "" or "adapters[3].".
  std::string Prefix() const {
    if (in_ != In::kAdapter) return {};
    return "adapters[" + std::to_string(snapshot_.adapters.size() - 1) + "].";
  }
  bool Expected(const std::string& where, std::string_view expected, const JsonValue& found) {
    return Fail(where + ": expected " + std::string(expected) + ", found " + DescribeValue(found));
  }
  // Whether the value that begins belongs to an unknown field.
  bool Ignores() { return std::exchange(ignore_next_, false) || ignored_depth_ > 0; }

  bool Scalar(JsonValue value) {
    if (Ignores()) return true;
    if (in_ == In::kSnapshot && snapshot_fields_.next().set(snapshot_, value)) return true;
    if (in_ == In::kAdapter && adapter_fields_.next().set(snapshot_.adapters.back(), value)) return true;
    if (in_ != In::kLanes || value.kind != JsonValue::Kind::kInteger) return Refuse(value);
    if (value.integer < 0 || value.integer > kMaxRequests) return Refuse(value);
    if (snapshot_.lane_waiting.size() >= kMaxLanes)
      return Fail("lane_waiting: expected at most 1024 lanes, found more");
    snapshot_.lane_waiting.push_back(value.integer);
    return true;
  }
  // The value does not belong where it is.
  bool Refuse(const JsonValue& value) {
    switch (in_) {
      case In::kSnapshot:
        return Expected(snapshot_fields_.next().name, snapshot_fields_.next().expected, value);
      case In::kAdapter:
        return Expected(Prefix() + adapter_fields_.next().name, adapter_fields_.next().expected, value);
      case In::kLanes:
        return Expected("lane_waiting[" + std::to_string(snapshot_.lane_waiting.size()) + "]", kRequestsText, value);
      case In::kAdapters:
        return Expected("adapters[" + std::to_string(snapshot_.adapters.size()) + "]", "an object", value);
      case In::kStart:
      case In::kEnd:
        break;
    }
    return Fail("expected a JSON object, found " + DescribeValue(value));
  }
  bool EndAdapter() {
    const auto& adapters = snapshot_.adapters;
    if (const auto* missing = adapter_fields_.Missing()) {
      return Fail(Prefix() + missing->name + " is missing: expected " + missing->expected);
    }
    if (adapters.size() > 1 && adapters[adapters.size() - 2].name >= adapters.back().name) {
      return Fail(Prefix() + "name: expected names in ascending order, found " + Quote(adapters.back().name) +
                  " after " + Quote(adapters[adapters.size() - 2].name));
    }
    in_ = In::kAdapters;
    return true;
  }

  ServerSnapshot snapshot_;
  FieldList<ServerSnapshot> snapshot_fields_{kSnapshotFields};
  FieldList<SnapshotAdapter> adapter_fields_{kAdapterFields};
  In in_ = In::kStart;
  bool ignore_next_ = false;
  int ignored_depth_ = 0;  // arrays and objects that are open within an unknown field
  std::string error_;
};

std::string_view PlaceName(AdapterPlace place) { return kPlaces[static_cast<std::size_t>(place)].second; }

nlohmann::ordered_json AsJson(const SnapshotAdapter& adapter) {
  return {{"name", adapter.name},      {"digest", adapter.digest}, {"place", PlaceName(adapter.place)},
          {"rank", adapter.rank},      {"bytes", adapter.bytes},   {"running", adapter.running},
          {"waiting", adapter.waiting}};
}

}  // namespace

const SnapshotAdapter* ServerSnapshot::Find(std::string_view name) const {
  const auto found =
      std::lower_bound(adapters.begin(), adapters.end(), name,
                       [](const SnapshotAdapter& adapter, std::string_view key) { return adapter.name < key; });
  return found != adapters.end() && found->name == name ? &*found : nullptr;
}

bool ServerSnapshot::HasPrefix(std::uint32_t fingerprint) const {
  return std::binary_search(prefixes.begin(), prefixes.end(), fingerprint);
}

std::string ServerSnapshotAsJson(const ServerSnapshot& snapshot) {
  nlohmann::ordered_json adapters = nlohmann::ordered_json::array();
  for (const SnapshotAdapter& adapter : snapshot.adapters) adapters.push_back(AsJson(adapter));
  nlohmann::ordered_json json = {
      {"instance", snapshot.instance},
      {"version", snapshot.version},
      {"draining", snapshot.draining},
      {"profile", snapshot.profile},
      {"base_model", snapshot.base_model},
      {"running", snapshot.running},
      {"waiting", snapshot.waiting},
      {"waiting_prompt_tokens", snapshot.waiting_prompt_tokens},
      {"running_prompt_tokens", snapshot.running_prompt_tokens},
      {"running_context", snapshot.running_context},
      {"max_running", snapshot.max_running},
      {"max_batch_tokens", snapshot.max_batch_tokens},
      {kLanesName, snapshot.lane_waiting},
      {"page_tokens", snapshot.page_tokens},
      {"page_bytes", snapshot.page_bytes},
      {"device_pages", snapshot.device_pages},
      {"free_pages", snapshot.free_pages},
      {"history_pages", snapshot.history_pages},
      {"idle_adapter_pages", snapshot.idle_adapter_pages},
      {kAdaptersName, std::move(adapters)},
      {"prefixes", NumbersAsBase64(snapshot.prefixes)},
  };
  if (snapshot.offered_version != 0) json["offered_version"] = snapshot.offered_version;
  if (!snapshot.offered.empty()) json["offered"] = NumbersAsBase64(snapshot.offered);
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

Result<ServerSnapshot> ParseServerSnapshot(std::string_view json) {
  if (json.size() > kMaxSnapshotBytes) {
    return InvalidArgument("snapshot: expected at most " + WithSeparators(kMaxSnapshotBytes) + " bytes, found " +
                           WithSeparators(json.size()));
  }
  if (const auto problem = JsonTextProblem(json)) {
    return InvalidArgument("snapshot: not valid JSON: found " + *problem);
  }
  SnapshotReader reader;
  nlohmann::json::sax_parse(json.begin(), json.end(), &reader);
  return std::move(reader).Take();
}

}  // namespace loramux
