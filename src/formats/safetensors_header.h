// The JSON header of a safetensors file, read event by event, so that neither nesting nor size of a hostile header
// costs more than its own length. Internal to formats; TensorFile::Parse is the public door.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "formats/dtype.h"

namespace loramux {

// One entry of the header. Offsets count from the first byte after the header.
struct HeaderEntry {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

// The entries in header order. Checks syntax, types, duplicates and completeness of each entry; the offsets are
// checked against one another and the file by TensorFile::Parse. `label` names the source in errors.
Result<std::vector<HeaderEntry>> ParseSafetensorsHeader(std::string_view json, const std::string& label);

// The 8-byte header length of a file of `file_bytes` bytes. Error: more than the format allows, or than the file has.
Status CheckSafetensorsHeaderLength(std::uint64_t header_bytes, std::uint64_t file_bytes, const std::string& label);

// ParseSafetensorsHeader, and each entry checked against its shape, the others and `data_bytes` of data.
Result<std::vector<HeaderEntry>> ParseSafetensorsEntries(std::string_view json, std::uint64_t data_bytes,
                                                         const std::string& label);

}  // namespace loramux
