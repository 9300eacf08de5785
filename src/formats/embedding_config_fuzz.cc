// Fuzzes the parsers of a model's embedding configuration: errors are short, and a folder is never another one.
#include <string_view>

#include "base/check.h"
#include "base/fuzz_limits.h"
#include "formats/embedding_config.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const loramux::FuzzLimits cost;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto modules = loramux::ParseEmbeddingModules(text, "FILE");
  if (modules.ok()) {
    CHECK(!modules->pooling_folder.empty());
    CHECK(modules->pooling_folder.find_first_of("/.") == std::string::npos);
  } else {
    CHECK_LT(modules.error().message.size(), 8192u);
  }
  const auto pooling = loramux::ParsePoolingConfig(text, "FILE");
  if (!pooling.ok()) CHECK_LT(pooling.error().message.size(), 8192u);
  return 0;
}
