// Files that the tests of this directory create.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace loramux {

// A new temporary directory; destruction removes it with everything in it.
class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "loramux_test_XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // Writes path()/name and returns that path.
  std::filesystem::path Write(const std::string& name, std::string_view content) const {
    std::ofstream(path_ / name, std::ios::binary).write(content.data(), static_cast<std::streamsize>(content.size()));
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

// The bytes of a safetensors file with any header and any data.
inline std::string SafetensorsBytes(std::string_view header, std::string_view data) {
  const std::uint64_t length = header.size();
  std::string bytes(sizeof(length), '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes.append(header).append(data);
}

// A valid file of zero tensors, in the given order.
struct TensorSpec {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
};
inline std::string ZeroTensors(const std::vector<TensorSpec>& specs) {
  std::string header = "{";
  std::int64_t offset = 0;
  for (const TensorSpec& spec : specs) {
    std::int64_t bytes = spec.dtype == "F32" ? 4 : spec.dtype == "F64" ? 8 : 2;
    std::string shape;
    for (const std::int64_t extent : spec.shape) {
      bytes *= extent;
      if (!shape.empty()) shape.push_back(',');
      shape.append(std::to_string(extent));
    }
    header.append(header.size() > 1 ? ",\"" : "\"").append(spec.name);
    header.append(R"(":{"dtype":")").append(spec.dtype).append(R"(","shape":[)").append(shape);
    header.append(R"(],"data_offsets":[)").append(std::to_string(offset)).append(",");
    header.append(std::to_string(offset + bytes)).append("]}");
    offset += bytes;
  }
  return SafetensorsBytes(header + "}", std::string(static_cast<std::size_t>(offset), '\0'));
}

}  // namespace loramux
