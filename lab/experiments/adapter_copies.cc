#include "lab/experiments/adapter_copies.h"

#include <algorithm>
#include <cstring>

#include <nlohmann/json.hpp>

#include "base/text_file.h"
#include "formats/file.h"

namespace loramux {
namespace {

constexpr const char* kWeights = "adapter_model.safetensors";

// The offset in the file of the low byte of the upper 16 bits of the first lora_A's first value. It holds seven bits of
// bf16's fraction and the last bit of its exponent (in f16, only fraction bits).
Result<std::size_t> PlaceToChange(const std::string& file, const std::string& label) {
  std::uint64_t header_bytes = 0;
  if (file.size() < sizeof(header_bytes)) return InvalidArgument(label + ": not a safetensors file");
  std::memcpy(&header_bytes, file.data(), sizeof(header_bytes));
  if (header_bytes > file.size() - sizeof(header_bytes)) return InvalidArgument(label + ": not a safetensors file");
  const auto header =
      nlohmann::json::parse(file.begin() + 8, file.begin() + 8 + static_cast<std::ptrdiff_t>(header_bytes), nullptr,
                            /*allow_exceptions=*/false);
  if (!header.is_object()) return InvalidArgument(label + ": not a safetensors file");
  for (const auto& [name, tensor] : header.items()) {
    if (name.find("lora_A") == std::string::npos) continue;
    const std::size_t begin = 8 + header_bytes + tensor.at("data_offsets").at(0).get<std::size_t>();
    return begin + (tensor.at("dtype") == "F32" ? 2 : 0);
  }
  return InvalidArgument(label + ": expected a lora_A tensor, found none");
}

}  // namespace

Result<std::vector<std::filesystem::path>> CopyAdapters(const std::filesystem::path& originals,
                                                        const std::filesystem::path& directory, std::size_t count,
                                                        std::uintmax_t max_bytes) {
  namespace fs = std::filesystem;
  std::vector<fs::path> sources;
  for (const auto& entry : fs::directory_iterator(originals)) {
    std::error_code error;
    const std::uintmax_t bytes = fs::file_size(entry.path() / kWeights, error);
    if (!error && bytes <= max_bytes) sources.push_back(entry.path());
  }
  if (sources.empty())
    return NotFound("expected adapters of at most " + std::to_string(max_bytes) + " bytes in " + originals.string() +
                    ", found none");
  std::sort(sources.begin(), sources.end());
  std::vector<fs::path> copies;
  for (std::size_t i = 0; i < count; ++i) {
    const fs::path& source = sources[i % sources.size()];
    const std::size_t round = i / sources.size();
    if (round >= kMaxAdapterCopies) return InvalidArgument("too many copies of " + source.string());
    const fs::path weights = source / kWeights;
    ASSIGN_OR_RETURN(std::string file, ReadTextFile(weights, max_bytes));
    ASSIGN_OR_RETURN(const std::size_t place, PlaceToChange(file, weights.string()));
    if (place >= file.size()) return InvalidArgument(weights.string() + ": the file is truncated");
    // below 128: the exponent stays unchanged
    file[place] = static_cast<char>(static_cast<unsigned char>(file[place]) ^ round);
    const fs::path copy = directory / (source.filename().string() + "-" + std::to_string(round));
    fs::create_directories(copy);
    fs::copy_file(source / "adapter_config.json", copy / "adapter_config.json", fs::copy_options::overwrite_existing);
    RETURN_IF_ERROR(WriteTextFile((copy / kWeights).string(), file));
    copies.push_back(copy);
  }
  return copies;
}

}  // namespace loramux
