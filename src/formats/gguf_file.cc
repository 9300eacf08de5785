#include "formats/gguf_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/message.h"

namespace loramux {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF data is little-endian and used in place");

constexpr std::uint64_t kMaxKeys = 1 << 16;
constexpr std::uint64_t kMaxTensors = 1 << 20;
constexpr std::uint64_t kMaxNameBytes = 4096;
constexpr std::uint64_t kMaxExtents = 4;
constexpr std::uint64_t kMaxAlignment = 1 << 20;
constexpr std::uint64_t kDefaultAlignment = 32;
constexpr std::string_view kAlignmentKey = "general.alignment";

// Types of values.
enum ValueType : std::uint32_t {
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kFloat32,
  kBool,
  kString,
  kArray,
  kUint64,
  kInt64,
  kFloat64,
  kValueTypes
};
constexpr std::array<std::size_t, kValueTypes> kValueBytes = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

constexpr const char* kFour = "Q4_K";
constexpr GgufType kTypes[] = {
    {0, "F32", 1, 4, nullptr},       {1, "F16", 1, 2, nullptr},       {2, "Q4_0", 32, 18, nullptr},
    {3, "Q4_1", 32, 20, nullptr},    {6, "Q5_0", 32, 22, nullptr},    {7, "Q5_1", 32, 24, nullptr},
    {8, "Q8_0", 32, 34, nullptr},    {9, "Q8_1", 32, 36, "Q8_0"},     {10, "Q2_K", 256, 84, kFour},
    {11, "Q3_K", 256, 110, kFour},   {12, "Q4_K", 256, 144, nullptr}, {13, "Q5_K", 256, 176, nullptr},
    {14, "Q6_K", 256, 210, nullptr}, {15, "Q8_K", 256, 292, "Q8_0"},  {16, "IQ2_XXS", 256, 66, kFour},
    {17, "IQ2_XS", 256, 74, kFour},  {18, "IQ3_XXS", 256, 98, kFour}, {19, "IQ1_S", 256, 50, kFour},
    {20, "IQ4_NL", 32, 18, kFour},   {21, "IQ3_S", 256, 110, kFour},  {22, "IQ2_S", 256, 82, kFour},
    {23, "IQ4_XS", 256, 136, kFour}, {24, "I8", 1, 1, "Q8_0"},        {25, "I16", 1, 2, "F32"},
    {26, "I32", 1, 4, "F32"},        {27, "I64", 1, 8, "F32"},        {28, "F64", 1, 8, "F32"},
    {29, "IQ1_M", 256, 56, kFour},   {30, "BF16", 1, 2, nullptr},     {34, "TQ1_0", 256, 54, kFour},
    {35, "TQ2_0", 256, 66, kFour},   {39, "MXFP4", 32, 17, nullptr},
};

double NumberAt(std::uint32_t type, const std::byte* at) {
  const auto load = [at](auto value) {
    std::memcpy(&value, at, sizeof(value));
    return static_cast<double>(value);
  };
  switch (type) {
    case kUint8:
      return load(std::uint8_t{});
    case kInt8:
      return load(std::int8_t{});
    case kUint16:
      return load(std::uint16_t{});
    case kInt16:
      return load(std::int16_t{});
    case kUint32:
      return load(std::uint32_t{});
    case kInt32:
      return load(std::int32_t{});
    case kFloat32:
      return load(float{});
    case kUint64:
      return load(std::uint64_t{});
    case kInt64:
      return load(std::int64_t{});
    case kFloat64:
      return load(double{});
    default:
      return *at != std::byte{0} ? 1 : 0;
  }
}

// The number with the fewest digits that is this float32: what a configuration had before it was rounded.
double AsWritten(float value) {
  char text[64];
  const auto written = std::to_chars(text, text + sizeof(text), value);
  double number = value;
  std::from_chars(text, written.ptr, number);
  return number;
}

}  // namespace

const GgufType* FindGgufType(std::uint32_t id) {
  const auto* const found =
      std::find_if(std::begin(kTypes), std::end(kTypes), [id](const GgufType& type) { return type.id == id; });
  return found == std::end(kTypes) ? nullptr : found;
}

bool IsGgufPath(const std::filesystem::path& path) { return path.extension() == ".gguf"; }

std::vector<std::string_view> GgufArray::Texts() const {
  CHECK(element_ == Element::kText);
  std::vector<std::string_view> texts;
  texts.reserve(count_);
  std::size_t at = 0;
  for (std::uint64_t i = 0; i < count_; ++i) {
    std::uint64_t length = 0;
    std::memcpy(&length, bytes_.data() + at, sizeof(length));
    at += sizeof(length);
    texts.emplace_back(reinterpret_cast<const char*>(bytes_.data()) + at, static_cast<std::size_t>(length));
    at += static_cast<std::size_t>(length);
  }
  return texts;
}

std::vector<double> GgufArray::Numbers() const {
  CHECK(element_ == Element::kNumber);
  std::vector<double> numbers;
  numbers.reserve(count_);
  for (std::uint64_t i = 0; i < count_; ++i) {
    numbers.push_back(NumberAt(type_, bytes_.data() + i * kValueBytes[type_]));
  }
  return numbers;
}

std::string DescribeGguf(const GgufValue& value) {
  if (const auto* number = std::get_if<std::int64_t>(&value)) return std::to_string(*number);
  if (const auto* number = std::get_if<float>(&value)) return std::to_string(*number);
  if (const auto* number = std::get_if<double>(&value)) return std::to_string(*number);
  if (const auto* truth = std::get_if<bool>(&value)) return *truth ? "true" : "false";
  if (const auto* text = std::get_if<std::string_view>(&value)) return Quote(*text);
  return "an array of " + WithSeparators(std::get<GgufArray>(value).size());
}

// Reads a file from front to back. What it reads is checked against the bytes that are left.
class GgufFile::Reader {
 public:
  Reader(std::span<const std::byte> bytes, std::uint64_t file_bytes, GgufFile& out)
      : bytes_(bytes), file_bytes_(file_bytes), out_(out) {}

  Status Read() {
    RETURN_IF_ERROR(ReadHeader());
    for (std::uint64_t i = 0; i < num_keys_; ++i) RETURN_IF_ERROR(ReadKey());
    RETURN_IF_ERROR(ReadAlignment());
    for (std::uint64_t i = 0; i < num_tensors_; ++i) RETURN_IF_ERROR(ReadTensor());
    return PlaceTensors();
  }

 private:
  Error Fail(const std::string& what) const { return InvalidArgument(out_.label_ + ": " + what, out_.label_); }
  Error Truncated(const std::string& what) const {
    if (bytes_.size() < file_bytes_) {
      return Fail(what + ": expected it within the first " + WithSeparators(bytes_.size()) + " bytes");
    }
    return Fail(what + ": the file ends at byte " + WithSeparators(bytes_.size()) + ", in the midst of it");
  }
  std::uint64_t left() const { return bytes_.size() - at_; }

  template <typename T>
  Result<T> Take(const std::string& what) {
    T value = {};
    if (left() < sizeof(T)) return Truncated(what);
    std::memcpy(&value, bytes_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }

  Result<std::string_view> TakeText(const std::string& what, std::uint64_t most) {
    ASSIGN_OR_RETURN(const auto length, Take<std::uint64_t>(what));
    if (length > most) {
      return Fail(what + ": expected a text of at most " + WithSeparators(most) + " bytes, found one of " +
                  WithSeparators(length));
    }
    if (length > left()) return Truncated(what);
    const std::string_view text(reinterpret_cast<const char*>(bytes_.data()) + at_, static_cast<std::size_t>(length));
    at_ += static_cast<std::size_t>(length);
    return text;
  }

  Status ReadHeader() {
    ASSIGN_OR_RETURN(const auto magic, Take<std::uint32_t>("the magic number"));
    if (magic != 0x46554747) return Fail("expected a GGUF file, which begins with 'GGUF'; this one does not");
    ASSIGN_OR_RETURN(const auto version, Take<std::uint32_t>("the version"));
    if (version != 0 && (version & 0xffff) == 0) {
      return Unsupported(out_.label_ + ": a big-endian GGUF file; loramux reads little-endian ones", out_.label_);
    }
    if (version != 2 && version != 3) {
      return Unsupported(out_.label_ + ": GGUF version " + std::to_string(version) +
                             " is not supported, only 2 and 3; convert the model again",
                         out_.label_);
    }
    ASSIGN_OR_RETURN(num_tensors_, Take<std::uint64_t>("the number of tensors"));
    ASSIGN_OR_RETURN(num_keys_, Take<std::uint64_t>("the number of metadata keys"));
    if (num_tensors_ <= kMaxTensors && num_keys_ <= kMaxKeys) return Ok{};
    return Fail("expected at most " + WithSeparators(kMaxTensors) + " tensors and " + WithSeparators(kMaxKeys) +
                " metadata keys, found " + WithSeparators(num_tensors_) + " and " + WithSeparators(num_keys_));
  }

  Status ReadKey() {
    ASSIGN_OR_RETURN(const std::string_view name, TakeText("a metadata key", kMaxNameBytes));
    const std::string key(name), what = "metadata " + Quote(key);
    ASSIGN_OR_RETURN(const auto type, Take<std::uint32_t>(what));
    ASSIGN_OR_RETURN(GgufValue value, TakeValue(type, what));
    if (!out_.values_.emplace(key, value).second) return Fail(what + " appears twice");
    out_.keys_.push_back(key);
    return Ok{};
  }

  Result<GgufValue> TakeValue(std::uint32_t type, const std::string& what) {
    if (type == kArray) return TakeArray(what);
    if (type == kString) {
      ASSIGN_OR_RETURN(const std::string_view text, TakeText(what, std::numeric_limits<std::uint64_t>::max()));
      return GgufValue(text);
    }
    if (type >= kValueTypes) return Fail(what + ": unknown type " + std::to_string(type));
    if (left() < kValueBytes[type]) return Truncated(what);
    const std::byte* const at = bytes_.data() + at_;
    at_ += kValueBytes[type];
    if (type == kFloat32) return GgufValue(static_cast<float>(NumberAt(type, at)));
    if (type == kFloat64) return GgufValue(NumberAt(type, at));
    if (type == kBool) return GgufValue(*at != std::byte{0});
    if (type != kUint64 && type != kInt64) return GgufValue(static_cast<std::int64_t>(NumberAt(type, at)));
    std::int64_t number = 0;
    std::memcpy(&number, at, sizeof(number));
    if (type == kUint64 && number < 0) return Fail(what + ": expected a number below 2^63");
    return GgufValue(number);
  }

  Result<GgufValue> TakeArray(const std::string& what) {
    ASSIGN_OR_RETURN(const auto type, Take<std::uint32_t>(what));
    ASSIGN_OR_RETURN(const auto count, Take<std::uint64_t>(what));
    if (type == kArray) return Fail(what + ": arrays of arrays are not supported");
    if (type >= kValueTypes) return Fail(what + ": an array of the unknown type " + std::to_string(type));
    const std::size_t begin = at_;
    if (type == kString) {
      if (count > left() / sizeof(std::uint64_t)) return Truncated(what);
      for (std::uint64_t i = 0; i < count; ++i) {
        if (const auto text = TakeText(what, left()); !text.ok()) return text.error();
      }
      return GgufValue(GgufArray(GgufArray::Element::kText, type, count, bytes_.subspan(begin, at_ - begin)));
    }
    if (count > left() / kValueBytes[type]) return Truncated(what);
    at_ += static_cast<std::size_t>(count) * kValueBytes[type];
    return GgufValue(GgufArray(GgufArray::Element::kNumber, type, count, bytes_.subspan(begin, at_ - begin)));
  }

  Status ReadAlignment() {
    ASSIGN_OR_RETURN(const auto given, out_.Int(std::string(kAlignmentKey), 1, kMaxAlignment));
    alignment_ = static_cast<std::uint64_t>(given.value_or(kDefaultAlignment));
    if (std::has_single_bit(alignment_)) return Ok{};
    return out_.Bad(std::string(kAlignmentKey), "a power of two");
  }

  Status ReadTensor() {
    ASSIGN_OR_RETURN(const std::string_view name, TakeText("the name of a tensor", kMaxNameBytes));
    GgufTensor tensor;
    tensor.name = name;
    const std::string what = "tensor " + Quote(name);
    ASSIGN_OR_RETURN(const auto extents, Take<std::uint32_t>(what));
    if (extents == 0 || extents > kMaxExtents) {
      return Fail(what + ": expected 1 to 4 extents, found " + std::to_string(extents));
    }
    for (std::uint32_t i = 0; i < extents; ++i) {
      ASSIGN_OR_RETURN(const auto extent, Take<std::int64_t>(what));
      if (extent <= 0) return Fail(what + ": expected extents above 0, found " + std::to_string(extent));
      tensor.shape.insert(tensor.shape.begin(), extent);  // the file has the innermost first
    }
    ASSIGN_OR_RETURN(const auto type, Take<std::uint32_t>(what));
    tensor.type = FindGgufType(type);
    if (tensor.type == nullptr) {
      return Unsupported(out_.label_ + ": " + what + " has the type " + std::to_string(type) + ", which is unknown",
                         tensor.name);
    }
    ASSIGN_OR_RETURN(const auto offset, Take<std::uint64_t>(what));
    if (offset % alignment_ != 0) {
      return Fail(what + ": expected a multiple of " + std::to_string(alignment_) + " as its offset, found " +
                  WithSeparators(offset));
    }
    offsets_.push_back(offset);
    if (!out_.index_.emplace(tensor.name, out_.tensors_.size()).second) return Fail(what + " appears twice");
    out_.tensors_.push_back(std::move(tensor));
    return Ok{};
  }

  // The bytes of a tensor. Error: its rows are no whole blocks, or the number does not fit.
  Result<std::uint64_t> BytesOf(const GgufTensor& tensor) const {
    const std::int64_t columns = tensor.shape.back();
    const std::string what =
        "tensor " + Quote(tensor.name) + " of type " + tensor.type->name + " and shape " + ShapeToString(tensor.shape);
    if (columns % tensor.type->block != 0) {
      return Fail(what + ": expected rows of a multiple of " + std::to_string(tensor.type->block) + " elements");
    }
    std::int64_t bytes = tensor.type->block_bytes, elements = 1;
    bool fits = !__builtin_mul_overflow(bytes, columns / tensor.type->block, &bytes);
    for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
      fits = fits && !__builtin_mul_overflow(elements, tensor.shape[i], &elements);
      if (i + 1 < tensor.shape.size()) fits = fits && !__builtin_mul_overflow(bytes, tensor.shape[i], &bytes);
    }
    if (!fits) return Fail(what + " does not fit in 63 bits");
    return static_cast<std::uint64_t>(bytes);
  }

  Status PlaceTensors() {
    const std::uint64_t start = (at_ + alignment_ - 1) / alignment_ * alignment_;
    const std::uint64_t size = start > file_bytes_ ? 0 : file_bytes_ - start;
    for (std::size_t i = 0; i < offsets_.size(); ++i) {
      GgufTensor& tensor = out_.tensors_[i];
      ASSIGN_OR_RETURN(const std::uint64_t bytes, BytesOf(tensor));
      if (offsets_[i] > size || bytes > size - offsets_[i]) {
        return Fail("tensor " + Quote(tensor.name) + " of " + WithSeparators(bytes) + " bytes at " +
                    WithSeparators(offsets_[i]) + " lies outside the " + WithSeparators(size) +
                    " bytes of data; is the file complete?");
      }
      tensor.offset = start + offsets_[i];
      tensor.bytes = bytes;
      if (bytes_.size() < file_bytes_) continue;
      tensor.data = bytes_.subspan(static_cast<std::size_t>(tensor.offset), static_cast<std::size_t>(bytes));
    }
    return CheckApart();
  }

  Status CheckApart() const {
    std::vector<std::size_t> order(offsets_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return offsets_[a] < offsets_[b]; });
    for (std::size_t i = 1; i < order.size(); ++i) {
      const GgufTensor& before = out_.tensors_[order[i - 1]];
      if (offsets_[order[i - 1]] + before.bytes <= offsets_[order[i]]) continue;
      return Fail("tensors " + Quote(before.name) + " and " + Quote(out_.tensors_[order[i]].name) + " overlap");
    }
    return Ok{};
  }

  std::span<const std::byte> bytes_;
  const std::uint64_t file_bytes_;  // more than bytes_ has, if the data were not read
  GgufFile& out_;
  std::size_t at_ = 0;
  std::uint64_t num_tensors_ = 0, num_keys_ = 0, alignment_ = kDefaultAlignment;
  std::vector<std::uint64_t> offsets_;  // offset of each tensor in the data section, in bytes
};

Result<GgufFile> GgufFile::Parse(std::span<const std::byte> bytes, const std::string& label) {
  return ParseHead(bytes, bytes.size(), label);
}

Result<GgufFile> GgufFile::ParseHead(std::span<const std::byte> head, std::uint64_t file_bytes,
                                     const std::string& label) {
  GgufFile file(label);
  RETURN_IF_ERROR(Reader(head, file_bytes, file).Read());
  ASSIGN_OR_RETURN(const auto parts, file.Int("split.count", 0, std::numeric_limits<std::int64_t>::max()));
  if (parts.value_or(0) > 1) {
    return Unsupported(label + ": one of " + std::to_string(*parts) +
                           " parts of a model; join them first with `llama-gguf-split --merge FIRST_PART OUT.gguf`",
                       label);
  }
  return file;
}

Result<GgufFile> GgufFile::Open(const std::filesystem::path& path) {
  ASSIGN_OR_RETURN(MappedFile mapping, MappedFile::Open(path));
  ASSIGN_OR_RETURN(GgufFile file, Parse(mapping.bytes(), path.string()));
  file.mapping_ = std::move(mapping);
  return file;
}

const GgufValue* GgufFile::Find(std::string_view key) const {
  const auto found = values_.find(std::string(key));
  return found == values_.end() ? nullptr : &found->second;
}

const GgufTensor* GgufFile::FindTensor(std::string_view name) const {
  const auto found = index_.find(std::string(name));
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

Error GgufFile::Bad(const std::string& key, const std::string& expected) const {
  const GgufValue* value = Find(key);
  return InvalidArgument(label_ + ": metadata " + Quote(key) + ": expected " + expected + ", found " +
                             (value == nullptr ? "none" : DescribeGguf(*value)),
                         key);
}

Result<std::optional<std::int64_t>> GgufFile::Int(const std::string& key, std::int64_t low, std::int64_t high) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return std::optional<std::int64_t>();
  const auto* number = std::get_if<std::int64_t>(value);
  if (number != nullptr && *number >= low && *number <= high) return std::optional(*number);
  return Bad(key, "an integer from " + std::to_string(low) + " to " + std::to_string(high));
}

Result<std::optional<double>> GgufFile::Number(const std::string& key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return std::optional<double>();
  double number = std::numeric_limits<double>::quiet_NaN();
  if (const auto* integer = std::get_if<std::int64_t>(value)) number = static_cast<double>(*integer);
  if (const auto* real = std::get_if<float>(value)) number = AsWritten(*real);
  if (const auto* real = std::get_if<double>(value)) number = *real;
  if (!std::isfinite(number)) return Bad(key, "a number");
  return std::optional(number);
}

Result<std::optional<bool>> GgufFile::Bool(const std::string& key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return std::optional<bool>();
  const auto* truth = std::get_if<bool>(value);
  if (truth == nullptr) return Bad(key, "true or false");
  return std::optional(*truth);
}

Result<std::optional<std::string>> GgufFile::Text(const std::string& key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return std::optional<std::string>();
  const auto* text = std::get_if<std::string_view>(value);
  if (text == nullptr) return Bad(key, "a text");
  return std::optional(std::string(*text));
}

Result<std::optional<GgufArray>> GgufFile::Array(const std::string& key, GgufArray::Element element) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return std::optional<GgufArray>();
  const auto* array = std::get_if<GgufArray>(value);
  if (array != nullptr && array->element() == element) return std::optional(*array);
  return Bad(key, element == GgufArray::Element::kText ? "an array of texts" : "an array of numbers");
}

}  // namespace loramux
