// Fuzzes TensorFile::Parse: the input is used as a whole file, and as the header of a file with matching length and
// size.
#include <algorithm>
#include <cstring>
#include <string>

#include "base/check.h"
#include "base/fuzz_limits.h"
#include "formats/safetensors.h"
#include "formats/safetensors_header.h"

namespace loramux {
namespace {

constexpr std::uint64_t kMaxData = 1 << 16;

// Checks the guarantees of Parse.
void CheckTensors(const std::vector<StoredTensor>& tensors, std::span<const std::byte> file) {
  std::size_t total = 0;
  for (const StoredTensor& tensor : tensors) {
    std::int64_t elements = 1;
    const bool empty = std::find(tensor.shape.begin(), tensor.shape.end(), 0) != tensor.shape.end();
    for (const std::int64_t extent : tensor.shape) {
      CHECK_GE(extent, 0);
      if (!empty) elements *= extent;
    }
    CHECK_EQ(tensor.ElementCount(), empty ? 0 : elements);
    CHECK_EQ(tensor.data.size(), static_cast<std::size_t>(tensor.ElementCount()) * DTypeSize(tensor.dtype));
    CHECK(tensor.data.empty() ||
          (tensor.data.data() >= file.data() && tensor.data.data() + tensor.data.size() <= file.data() + file.size()));
    total += tensor.data.size();
    if (!tensor.data.empty()) {  // readable from end to end
      volatile std::byte sink = tensor.data.front();
      sink = tensor.data.back();
      static_cast<void>(sink);
    }
  }
  CHECK_LE(total, file.size());
}

void ParseFile(std::span<const std::byte> file) {
  const auto tensors = TensorFile::Parse(file, "FILE");
  if (tensors.ok()) {
    CheckTensors(*tensors, file);
  } else {
    CHECK_LT(tensors.error().message.size(), 4096u);
  }
}

void ParseAsHeader(std::string_view header) {
  const auto entries = ParseSafetensorsHeader(header, "FILE");
  if (!entries.ok()) return;
  std::uint64_t data_bytes = 0;
  for (const HeaderEntry& entry : *entries) data_bytes = std::max(data_bytes, entry.end);
  const std::uint64_t length = header.size();
  std::string file(sizeof(length), '\0');
  std::memcpy(file.data(), &length, sizeof(length));
  file.append(header).append(static_cast<std::size_t>(std::min(data_bytes, kMaxData)), '\0');
  ParseFile(std::as_bytes(std::span(file)));
}

}  // namespace
}  // namespace loramux

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const loramux::FuzzLimits cost;
  loramux::ParseFile(std::as_bytes(std::span(data, size)));
  loramux::ParseAsHeader({reinterpret_cast<const char*>(data), size});
  return 0;
}
