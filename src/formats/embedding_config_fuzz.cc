// Fuzzes the parsers of what a folder says of embeddings and of the labels of a head for classes: errors are short, a
// folder is never another one, and there is a label for each class.
#include <string_view>

#include "base/check.h"
#include "base/fuzz_limits.h"
#include "formats/class_head.h"
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
  const loramux::TensorEntry tensor{.name = "score", .shape = {2, 8}};
  loramux::ClassHead head{.module = "score", .tensor = &tensor};
  const auto labels = loramux::ReadClassLabels(text, "FILE", head);
  if (!labels.ok()) CHECK_LT(labels.error().message.size(), 8192u);
  if (labels.ok()) CHECK(head.labels.empty() || head.labels.size() == 2);
  return 0;
}
