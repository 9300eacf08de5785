#include "profile/model_digest.h"

#include <cstdio>
#include <memory>

#include <xxhash.h>

#include "base/check.h"
#include "formats/safetensors.h"

namespace loramux {

Result<std::string> ModelDigest(const std::filesystem::path& directory) {
  ASSIGN_OR_RETURN(const TensorFile file, TensorFile::OpenModelDirectory(directory));
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(), XXH3_freeState);
  CHECK(state != nullptr && XXH3_128bits_reset(state.get()) == XXH_OK);
  const auto add = [&](const void* data, std::size_t size) {
    CHECK(XXH3_128bits_update(state.get(), data, size) == XXH_OK);
  };
  for (const StoredTensor& tensor : file.tensors()) {
    const std::string shape = tensor.name + '\0' + DTypeName(tensor.dtype);
    add(shape.c_str(), shape.size() + 1);
    add(tensor.shape.data(), tensor.shape.size() * sizeof(tensor.shape[0]));
    add(tensor.data.data(), tensor.data.size());
  }
  const XXH128_hash_t hash = XXH3_128bits_digest(state.get());
  char text[33];
  std::snprintf(text, sizeof(text), "%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
  return std::string(text);
}

}  // namespace loramux
