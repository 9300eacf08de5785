#include "profile/model_digest.h"

#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <vector>

#include <xxhash.h>

#include "base/check.h"
#include "formats/gguf_file.h"
#include "formats/model_files.h"
#include "formats/safetensors.h"

namespace loramux {

Result<std::string> ModelDigest(const std::filesystem::path& model) {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(), XXH3_freeState);
  CHECK(state != nullptr && XXH3_128bits_reset(state.get()) == XXH_OK);
  const auto add = [&](const void* data, std::size_t size) {
    CHECK(XXH3_128bits_update(state.get(), data, size) == XXH_OK);
  };
  const auto add_tensor = [&](const std::string& name, const char* type, const std::vector<std::int64_t>& extents,
                              std::span<const std::byte> data) {
    const std::string shape = name + '\0' + type;
    add(shape.c_str(), shape.size() + 1);
    add(extents.data(), extents.size() * sizeof(extents[0]));
    add(data.data(), data.size());
  };
  if (IsGgufModel(model)) {
    ASSIGN_OR_RETURN(const GgufFile file, GgufFile::Open(model));
    for (const GgufTensor& tensor : file.tensors()) {
      add_tensor(tensor.name, tensor.type->name, tensor.shape, tensor.data);
    }
  } else {
    ASSIGN_OR_RETURN(const TensorFile file, TensorFile::OpenModelDirectory(model));
    for (const StoredTensor& tensor : file.tensors()) {
      add_tensor(tensor.name, DTypeName(tensor.dtype), tensor.shape, tensor.data);
    }
  }
  const XXH128_hash_t hash = XXH3_128bits_digest(state.get());
  char text[33];
  std::snprintf(text, sizeof(text), "%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
  return std::string(text);
}

}  // namespace loramux
