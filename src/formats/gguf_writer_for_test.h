// Writes GGUF files in memory, well-formed or not, for tests and fuzzers.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace loramux {

class GgufWriter {
 public:
  // Metadata. The numbers are the types of the format.
  GgufWriter& Text(std::string_view key, std::string_view value) {
    return Key(key, 8).Add(keys_, value.size()).Raw(keys_, value);
  }
  GgufWriter& U32(std::string_view key, std::uint32_t value) { return Key(key, 4).Add(keys_, value); }
  GgufWriter& F32(std::string_view key, float value) { return Key(key, 6).Add(keys_, value); }
  GgufWriter& Bool(std::string_view key, bool value) {
    return Key(key, 7).Add(keys_, static_cast<std::uint8_t>(value));
  }
  GgufWriter& Texts(std::string_view key, const std::vector<std::string>& values) {
    Key(key, 9).Add(keys_, std::uint32_t{8}).Add(keys_, std::uint64_t{values.size()});
    for (const std::string& value : values) Add(keys_, std::uint64_t{value.size()}).Raw(keys_, value);
    return *this;
  }
  GgufWriter& Numbers(std::string_view key, const std::vector<std::int32_t>& values) {
    Key(key, 9).Add(keys_, std::uint32_t{5}).Add(keys_, std::uint64_t{values.size()});
    for (const std::int32_t value : values) Add(keys_, value);
    return *this;
  }
  // The head of a value of any type; its bytes follow with RawKey.
  GgufWriter& Key(std::string_view key, std::uint32_t type) {
    ++num_keys;
    return Add(keys_, std::uint64_t{key.size()}).Raw(keys_, key).Add(keys_, type);
  }
  GgufWriter& RawKey(std::string_view bytes) { return Raw(keys_, bytes); }

  // A tensor with extents as the file has them, the innermost first, behind the others.
  GgufWriter& Tensor(std::string_view name, std::uint32_t type, const std::vector<std::int64_t>& extents,
                     std::string_view data) {
    TensorAt(name, type, extents, data_.size());
    Raw(data_, data);
    data_.resize((data_.size() + 31) / 32 * 32);
    return *this;
  }
  GgufWriter& TensorAt(std::string_view name, std::uint32_t type, const std::vector<std::int64_t>& extents,
                       std::uint64_t offset) {
    ++num_tensors;
    Add(tensors_, std::uint64_t{name.size()}).Raw(tensors_, name).Add(tensors_, std::uint32_t(extents.size()));
    for (const std::int64_t extent : extents) Add(tensors_, extent);
    return Add(tensors_, type).Add(tensors_, offset);
  }
  GgufWriter& Data(std::string_view bytes) { return Raw(data_, bytes); }

  std::string Bytes() const {
    std::string out = "GGUF";
    const auto add = [&out](auto value) { out.append(reinterpret_cast<const char*>(&value), sizeof(value)); };
    add(version);
    add(num_tensors);
    add(num_keys);
    out += keys_ + tensors_;
    if (!data_.empty()) out.resize((out.size() + 31) / 32 * 32);
    return out + data_;
  }

  std::uint32_t version = 3;
  std::uint64_t num_tensors = 0, num_keys = 0;

 private:
  template <typename T>
  GgufWriter& Add(std::string& to, T value) {
    to.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return *this;
  }
  GgufWriter& Raw(std::string& to, std::string_view bytes) {
    to += bytes;
    return *this;
  }

  std::string keys_, tensors_, data_;
};

}  // namespace loramux
