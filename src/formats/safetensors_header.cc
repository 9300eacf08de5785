#include "formats/safetensors_header.h"

#include <limits>
#include <unordered_set>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "base/message.h"

namespace loramux {
namespace {

// More dimensions than any framework supports (torch: 64); bounds a hostile shape list.
constexpr std::size_t kMaxDimensions = 64;

// Receives the parser's events. Every event is allowed in one or two places only; the first misplaced event ends the
// parse with `error_` set.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderReader(std::size_t max_tensors) : max_tensors_(max_tensors) {}
  std::vector<HeaderEntry> TakeEntries() { return std::move(entries_); }
  const std::string& error() const { return error_; }

  bool start_object(std::size_t) override {
    switch (expect_) {
      case Expect::kHeader:
        return Next(Expect::kName);
      case Expect::kEntry:
        return Next(Expect::kField);
      case Expect::kMetadata:
        return Next(Expect::kMetadataKey);
      default:
        return Unexpected("an object");
    }
  }

  bool key(std::string& key) override {
    if (expect_ == Expect::kName) return TopLevelKey(key);
    if (expect_ == Expect::kField) return FieldKey(key);
    return Next(Expect::kMetadataValue);  // the only other state of an object
  }

  bool end_object() override {
    if (expect_ == Expect::kField) return FinishEntry();
    if (expect_ == Expect::kMetadataKey) return Next(Expect::kName);
    return Next(Expect::kNothing);
  }

  bool start_array(std::size_t) override {
    if (expect_ == Expect::kShape) return Next(Expect::kExtent);
    if (expect_ == Expect::kOffsets) return Next(Expect::kOffset);
    return Unexpected("an array");
  }

  bool end_array() override {
    if (expect_ == Expect::kOffset && num_offsets_ != 2) {
      return Fail("expected two data_offsets, found " + std::to_string(num_offsets_));
    }
    return Next(Expect::kField);
  }

  bool number_unsigned(std::uint64_t value) override {
    if (expect_ == Expect::kExtent) return Extent(value);
    if (expect_ == Expect::kOffset) return Offset(value);
    return Unexpected("a number");
  }

  bool string(std::string& value) override {
    if (expect_ == Expect::kMetadataValue) return Next(Expect::kMetadataKey);
    if (expect_ != Expect::kDType) return Unexpected("a string");
    const auto dtype = ParseDType(value);
    if (!dtype) return Fail("unknown dtype " + Quote(value));
    entries_.back().dtype = *dtype;
    return Next(Expect::kField);
  }

  bool number_integer(std::int64_t) override { return Unexpected("a negative number"); }
  bool number_float(double, const std::string&) override { return Unexpected("a number that is not a 64-bit integer"); }
  bool boolean(bool) override { return Unexpected("a boolean"); }
  // MLX writes `"__metadata__": null`.
  bool null() override { return expect_ == Expect::kMetadata ? Next(Expect::kName) : Unexpected("null"); }
  bool binary(nlohmann::json::binary_t&) override { return Unexpected("binary data"); }

  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& error) override {
    error_ = "not valid JSON: " + WithoutTag(error.what());
    return false;
  }

 private:
  enum class Expect {
    kHeader,
    kName,
    kEntry,
    kField,
    kDType,
    kShape,
    kExtent,
    kOffsets,
    kOffset,
    kMetadata,
    kMetadataKey,
    kMetadataValue,
    kNothing,
  };
  enum FieldBit : unsigned { kHasDType = 1, kHasShape = 2, kHasOffsets = 4, kHasAll = 7 };

  static const char* Expected(Expect expect) {
    switch (expect) {
      case Expect::kHeader:
        return "an object of tensors";
      case Expect::kEntry:
        return "an object with dtype, shape and data_offsets";
      case Expect::kDType:
        return "a dtype such as \"F32\"";
      case Expect::kShape:
        return "a list of extents";
      case Expect::kExtent:
        return "an extent >= 0";
      case Expect::kOffsets:
        return "two data_offsets";
      case Expect::kOffset:
        return "an offset >= 0";
      case Expect::kMetadata:
        return "__metadata__ to be an object of strings";
      case Expect::kMetadataValue:
        return "__metadata__ to hold strings only";
      default:
        return "nothing more";
    }
  }

  bool Next(Expect expect) {
    expect_ = expect;
    return true;
  }

  bool Fail(const std::string& what) {
    error_ = entries_.empty() ? what : "tensor " + Quote(entries_.back().name) + ": " + what;
    return false;
  }

  bool Unexpected(const char* found) {
    const bool in_metadata = expect_ == Expect::kMetadata || expect_ == Expect::kMetadataValue;
    const std::string what = std::string("expected ") + Expected(expect_) + ", found " + found;
    if (!in_metadata) return Fail(what);
    error_ = what;
    return false;
  }

  bool TopLevelKey(std::string& name) {
    if (!names_.insert(name).second) {
      error_ = "the name " + Quote(name) + " occurs twice";
      return false;
    }
    if (name == "__metadata__") return Next(Expect::kMetadata);
    if (entries_.size() == max_tensors_) {
      error_ = "expected at most " + WithSeparators(max_tensors_) + " tensors, found more";
      return false;
    }
    entries_.emplace_back().name = name;
    fields_ = 0;
    num_offsets_ = 0;
    return Next(Expect::kEntry);
  }

  bool FieldKey(const std::string& key) {
    if (key == "dtype") return Field(kHasDType, key, Expect::kDType);
    if (key == "shape") return Field(kHasShape, key, Expect::kShape);
    if (key == "data_offsets") return Field(kHasOffsets, key, Expect::kOffsets);
    return Fail("unknown field " + Quote(key));
  }

  bool Field(FieldBit bit, const std::string& key, Expect expect) {
    if ((fields_ & bit) != 0) return Fail("the field " + key + " occurs twice");
    fields_ |= bit;
    return Next(expect);
  }

  bool FinishEntry() {
    if ((fields_ & kHasDType) == 0) return Fail("dtype is missing");
    if ((fields_ & kHasShape) == 0) return Fail("shape is missing");
    if ((fields_ & kHasOffsets) == 0) return Fail("data_offsets are missing");
    return Next(Expect::kName);
  }

  bool Extent(std::uint64_t value) {
    std::vector<std::int64_t>& shape = entries_.back().shape;
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      return Fail("an extent of " + WithSeparators(value) + " does not fit in 63 bits");
    }
    if (shape.size() == kMaxDimensions) return Fail("more than " + std::to_string(kMaxDimensions) + " dimensions");
    shape.push_back(static_cast<std::int64_t>(value));
    return true;
  }

  bool Offset(std::uint64_t value) {
    if (num_offsets_ == 2) return Fail("expected two data_offsets, found more");
    (num_offsets_ == 0 ? entries_.back().begin : entries_.back().end) = value;
    ++num_offsets_;
    return true;
  }

  const std::size_t max_tensors_;
  Expect expect_ = Expect::kHeader;
  std::vector<HeaderEntry> entries_;
  std::unordered_set<std::string> names_;
  unsigned fields_ = 0;
  int num_offsets_ = 0;
  std::string error_;
};

}  // namespace

Result<std::vector<HeaderEntry>> ParseSafetensorsHeader(std::string_view json, const std::string& label,
                                                        std::size_t max_tensors) {
  if (const auto problem = JsonNulProblem(json)) {
    return InvalidArgument(label + ": bad safetensors header: found " + *problem);
  }
  HeaderReader reader(max_tensors);
  if (!nlohmann::json::sax_parse(json.begin(), json.end(), &reader)) {
    return InvalidArgument(label + ": bad safetensors header: " + reader.error());
  }
  return reader.TakeEntries();
}

}  // namespace loramux
