// Reads the JSON header of a safetensors file event by event, so that a hostile header costs no more than its own
// length, whatever its nesting or size. Internal to formats; TensorFile::Parse is the public function.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "formats/dtype.h"
#include "formats/safetensors.h"

namespace loramux {

// One entry of the header. Offsets count from the first byte after the header.
struct HeaderEntry {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

// Returns the entries in header order. Checks syntax, types, duplicates and completeness of each entry, but not the
// offsets (see ParseSafetensorsEntries). Stops at the first tensor beyond `max_tensors`. `label` names the source in
// errors.
Result<std::vector<HeaderEntry>> ParseSafetensorsHeader(
    std::string_view json, const std::string& label, std::size_t max_tensors = std::numeric_limits<std::size_t>::max());

// Checks the 8-byte header length of a file of `file_bytes` bytes. Error: it exceeds the limit of the format,
// `limits` or the file.
Status CheckSafetensorsHeaderLength(std::uint64_t header_bytes, std::uint64_t file_bytes, const std::string& label,
                                    const TensorFileLimits& limits = {});

// ParseSafetensorsHeader, then checks each entry against its shape, the other entries and `data_bytes` of data.
Result<std::vector<HeaderEntry>> ParseSafetensorsEntries(std::string_view json, std::uint64_t data_bytes,
                                                         const std::string& label, const TensorFileLimits& limits = {});

}  // namespace loramux
